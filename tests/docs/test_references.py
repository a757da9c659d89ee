"""References by number such as "law 6", "S6" or "A17" are explained on a page of this repository."""

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
"""Rules of ruff, and an option of C compilers."""

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
    """The references by number that no page explains."""
    text = NOT_OURS.sub("", text)
    return [
        *(i for i in ID.findall(text) if i not in IDS),
        *(f"law {n}" for n in LAW.findall(text) if n not in LAWS),
        *PAGE.findall(text),
        *WORD.findall(text),
    ]


def words(path: Path) -> str:
    """The prose of a file: comments and strings of code, all of other files."""
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
    """If this fails, say what the number stands for, or add it to the page for its kind."""
    found = {str(p.relative_to(ROOT)): wrong for p in paths() if (wrong := unexplained(words(p)))}
    assert found == {}


def test_section_numbers_appear_only_in_files_that_name_the_thesis() -> None:
    """The module docstring of a file with section numbers in docstrings names the thesis."""
    for path in sorted(ROOT.glob("tests/**/*.py")):
        tree = ast.parse(path.read_text())
        docs = [ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        if any(SECTION.match(d) for d in docs):
            assert "thesis" in (ast.get_docstring(tree) or ""), path.relative_to(ROOT)


def test_unexplained_references_are_detected() -> None:
    wrong = ["P12", "R-S14", "S21", "A99", "law 11", "seed-facts", "architecture 6", "rule 3"]
    assert unexplained("; ".join(wrong)) == wrong
    assert unexplained("S6, L7 and A17 by law 6; thesis 3.6.2; sha-1; cc -O2; import x  # noqa: F401") == []
