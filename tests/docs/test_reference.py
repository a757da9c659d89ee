"""The reference page equals the output of `--help`."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_reference_equals_the_help_of_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails after a change of a command or option, run `python docs/generate.py`."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    page = cast(Callable[[], str], runpy.run_path(str(DOCS / "generate.py"))["page"])
    assert (DOCS / "reference" / "cli.md").read_text() == page()


def test_the_metadata_page_shows_the_transition_table() -> None:
    """If this fails after a change of `NEXT`, run `python docs/generate.py`."""
    with_roles = cast(Callable[[str], str], runpy.run_path(str(DOCS / "generate.py"))["with_roles"])
    text = (DOCS / "internals" / "metadata.md").read_text()
    assert with_roles(text) == text and "OBSERVER --> FOLLOWER" in text
