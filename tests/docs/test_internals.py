"""Pages that repeat what the code defines say the same."""

import re
from pathlib import Path

from nodeagent.model.operation import NEXT, Stage

INTERNALS = Path(__file__).resolve().parents[2] / "docs" / "internals"


def test_the_table_of_stages_is_the_code_s() -> None:
    """Every stage has one row in scaling.md, with exactly the stages that may follow it."""
    page = (INTERNALS / "scaling.md").read_text()
    rows = re.findall(r"^\| `([A-Z]+)` \|.*\| ([^|]*) \|$", page, re.MULTILINE)
    assert {stage: set(re.findall(r"`([A-Z]+)`", after)) for stage, after in rows} == {
        stage.value: {s.value for s in after} for stage, after in NEXT.items()
    }
    assert [stage for stage, _ in rows] == [s.value for s in Stage]


def test_every_invariant_has_a_row() -> None:
    """S1 to S20 and L1 to L6, each once."""
    found = re.findall(r"^\| ([SL]\d+) \|", (INTERNALS / "invariants.md").read_text(), re.MULTILINE)
    assert found == [f"S{i}" for i in range(1, 21)] + [f"L{i}" for i in range(1, 7)]


def test_pages_name_files_that_exist() -> None:
    """A path in back quotes that looks like one of ours is there."""
    root = INTERNALS.parents[1]
    for page in [*INTERNALS.parent.rglob("*.md"), root / "README.md"]:
        for name in re.findall(r"`((?:tests|nodeagent|iotctl|docs|examples)/[\w/.-]+)`", page.read_text()):
            assert (root / name).exists(), f"{page.relative_to(root)} names {name}"
