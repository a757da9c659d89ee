"""The reference page is what the commands say of themselves."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_of_commands_is_what_help_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of a command or option: `python docs/generate.py`."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    page = cast(Callable[[], str], runpy.run_path(str(DOCS / "generate.py"))["page"])
    assert (DOCS / "reference" / "cli.md").read_text() == page()
