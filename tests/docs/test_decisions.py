"""Decision records: each has all its sections and is linked from the index and the architecture."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
INDEX = (DOCS / "decisions" / "README.md").read_text()
RECORDS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
SECTIONS = ["Context", "Decision", "Consequences", "Alternatives"]
LINES_MAX = 50


def test_every_record_has_its_sections_and_is_short() -> None:
    for path in RECORDS:
        text = path.read_text()
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS, path.name
        assert re.search(r"^Status: (accepted|replaced by \[)", text, re.MULTILINE), path.name
        assert len(text.splitlines()) <= LINES_MAX, path.name


def test_the_index_lists_every_record_with_its_title() -> None:
    """Numbers are consecutive."""
    rows = re.findall(r"^\| (\d{4}) \| \[([^]]+)\]\(([^)]+)\) \|", INDEX, re.MULTILINE)
    titles = [path.read_text().partition("\n")[0] for path in RECORDS]
    assert [f"# {int(number)}. {title}" for number, title, _ in rows] == titles
    assert [name for *_, name in rows] == [path.name for path in RECORDS]
    assert [path.name[:4] for path in RECORDS] == [f"{n:04d}" for n in range(1, len(RECORDS) + 1)]


def test_the_architecture_links_every_record() -> None:
    linked = re.findall(r"\(decisions/(\d{4}-[\w-]+\.md)\)", (DOCS / "architecture.md").read_text())
    assert sorted(linked) == [path.name for path in RECORDS]
