"""Whoever reads "law 6", "S6" or "A17" finds a page of this repository that says what it is."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PLACES = ("nodeagent", "iotctl", "tests", "docs", "playbooks", "examples", ".ci")
FILES = ("Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml")
TEXTS = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ""}

CODE = (tokenize.NAME, tokenize.OP, tokenize.NUMBER)
NOT_OURS = re.compile(r"# noqa.*|\bE501\b|-O\d")
"""Rules of ruff, and an option of a C compiler."""

ID = re.compile(r"(?<![\w-])(?:[A-Z]-)?[A-Z]\d{1,3}(?!\w)")
LAW = re.compile(r"\blaws?\s+(\d+)", re.IGNORECASE)
PAGE = re.compile(
    r"\b(?:seed-facts|(?:architecture|raft-and-log|migration|operators|invariants)(?:\.md)?,?\s+\d+)\b"
)
WORD = re.compile(
    r"\b(?:rule|pitfall|invariant|finding|amendment|counterexample)\s+[A-Z]?\d+\b", re.IGNORECASE
)
SECTION = re.compile(r"\d{1,2}\.\d+(?:\.\d+)?(?:, [^:]*)?:")


def explained(page: str, pattern: str) -> set[str]:
    found = set(re.findall(pattern, (DOCS / page).read_text(), re.MULTILINE))
    assert found, f"{page} explains nothing"
    return found


LAWS = explained("architecture.md", r"^(\d+)\. \*\*")
EDGES = (DOCS / "internals" / "testing.md").read_text().partition("\n## Edges\n")[2]
IDS = explained("internals/invariants.md", r"^\| ([SL]\d+) \|") | {
    i for row in re.findall(r"^\| ([^|]+) \|", EDGES, re.MULTILINE) for i in re.findall(r"[A-F]\d+", row)
}


def unexplained(text: str) -> list[str]:
    """References by number that no page explains."""
    text = NOT_OURS.sub("", text)
    return [
        *(i for i in ID.findall(text) if i not in IDS),
        *(f"law {n}" for n in LAW.findall(text) if n not in LAWS),
        *PAGE.findall(text),
        *WORD.findall(text),
    ]


def words(path: Path) -> str:
    """What a person wrote there: of code the comments and strings."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(t.string for t in tokens if t.type not in CODE)


def paths() -> Iterator[Path]:
    yield from (ROOT / name for name in FILES)
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*")):
            if (
                path.is_file()
                and path.suffix in TEXTS
                and "__pycache__" not in path.parts
                and path != Path(__file__)
            ):
                yield path


def test_every_reference_by_number_is_explained() -> None:
    """Say what it stands for, or add it to the page that has its kind."""
    found = {str(p.relative_to(ROOT)): wrong for p in paths() if (wrong := unexplained(words(p)))}
    assert found == {}


def test_sections_of_the_thesis_are_said_to_be_such() -> None:
    """A docstring that begins with a section's number stands in a file whose head names the thesis."""
    for path in sorted(ROOT.glob("tests/**/*.py")):
        tree = ast.parse(path.read_text())
        docs = [ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        if any(SECTION.match(d) for d in docs):
            assert "thesis" in (ast.get_docstring(tree) or ""), path.relative_to(ROOT)


def test_the_check_sees_what_it_is_for() -> None:
    wrong = ["P12", "R-S14", "S21", "A99", "law 11", "seed-facts", "architecture 6", "rule 3"]
    assert unexplained("; ".join(wrong)) == wrong
    assert unexplained("S6, L7 and A17 by law 6; thesis 3.6.2; sha-1; cc -O2; import x  # noqa: F401") == []
