"""Pages agree with the definitions in the code."""

import re
from pathlib import Path

import pytest

from nodeagent.model.operation import NEXT, Stage

INTERNALS = Path(__file__).resolve().parents[2] / "docs" / "internals"


def test_the_table_of_stages_equals_the_code() -> None:
    """scaling.md has one row per stage, with exactly the legal next stages."""
    page = (INTERNALS / "scaling.md").read_text()
    rows = re.findall(r"^\| `([A-Z]+)` \|.*\| ([^|]*) \|$", page, re.MULTILINE)
    assert {stage: set(re.findall(r"`([A-Z]+)`", after)) for stage, after in rows} == {
        stage.name: {s.name for s in after} for stage, after in NEXT.items()
    }
    assert [stage for stage, _ in rows] == [s.name for s in Stage]


def test_every_invariant_has_a_row() -> None:
    """The table has S1 to S20 and L1 to L7, each once, in order."""
    found = re.findall(r"^\| ([SL]\d+) \|", (INTERNALS / "invariants.md").read_text(), re.MULTILINE)
    assert found == [f"S{i}" for i in range(1, 21)] + [f"L{i}" for i in range(1, 8)]


def test_files_named_on_pages_exist() -> None:
    """A code span that looks like a path of the repository names an existing file."""
    root = INTERNALS.parents[1]
    for page in [*INTERNALS.parent.rglob("*.md"), root / "README.md", root / "CONTRIBUTING.md"]:
        for name in re.findall(r"`((?:tests|nodeagent|iotctl|docs|examples)/[\w/.-]+)`", page.read_text()):
            assert (root / name).exists(), f"{page.relative_to(root)} names {name}"


FINDINGS = {
    *(f"A{n}" for n in range(1, 18)),
    *(f"E{n}" for n in range(1, 11)),
    *(f"F{n}" for n in (*range(1, 8), 9, 10, 12, 15)),
}
PLACE = re.compile(r"(tests/[\w/]+\.py)?(?:::(\w+))?")


def edges() -> list[tuple[list[str], str, str]]:
    """(findings, requirement, tests) of every row of the table "Edges"."""
    table = (INTERNALS / "testing.md").read_text().partition("\n## Edges\n")[2]
    rows = re.findall(r"^\| ([^|]+) \| (.+) \| ([^|]+) \|$", table, re.MULTILINE)[1:]
    return [(re.findall(r"\b[A-F]\d+\b", ids), what, tests) for ids, what, tests in rows]


def test_every_finding_of_the_reviews_has_a_row() -> None:
    """Other rows are allowed; no row is repeated."""
    assert {i for ids, _, _ in edges() for i in ids} == FINDINGS
    held = [(tuple(ids), what) for ids, what, _ in edges()]
    assert sorted(set(held)) == sorted(held)


def test_every_test_of_an_edge_exists() -> None:
    """A path is a file; a name after it, or after an earlier path, is a test in that file."""
    root = INTERNALS.parents[1]
    for _, what, tests in edges():
        path = ""
        for file, name in PLACE.findall(tests):
            path = file or path
            if name:
                assert re.search(rf"def {name}\(", (root / path).read_text()), f"{what}: {path} has no {name}"
            elif file:
                assert (root / file).is_file(), f"{what}: there is no {file}"
        assert path, f"{what}: no test"


NAMED_TEST = re.compile(r"(?:(tests/[\w/]+\.py))?::(test_\w+)")


@pytest.mark.parametrize("page", ["metadata.md", "testing.md"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    """`::test_x` without a file is in the file named before it."""
    missing, file = [], ""
    for named, test in NAMED_TEST.findall((INTERNALS / page).read_text()):
        file = named or file
        source = INTERNALS.parents[1] / file
        if not source.is_file() or f"def {test}(" not in source.read_text():
            missing.append(f"{file}::{test}")
    assert not missing
