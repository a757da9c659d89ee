"""Numbers, tables and progress lines."""

import io

import pytest

from iotctl.humanize import bytes_text, count_text, span_text, time_text
from iotctl.output.progress import LineProgress, open_progress
from iotctl.output.table import Table


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (None, "-")])
def test_bytes(count: int | None, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"),
        (42, "42 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (356_400, "4 d 3 h"),
        (60, "1 min"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


def test_times_and_counts() -> None:
    assert time_text(1_700_000_000_000) == "2023-11-14T22:13:20Z"
    assert time_text(None) == "-"
    assert count_text(26115) == "26 115"


def test_wide_columns_show_only_with_wide() -> None:
    table = Table(("a", "b"), [("x", "secret")], wide=1)
    assert "secret" not in table.render(wide=False)
    assert "secret" in table.render(wide=True)
    assert "(none)" in Table(("a",), [], title="t").render(wide=False)


def test_without_a_terminal_progress_is_a_line_per_phase_and_every_30_s() -> None:
    """Ten updates of a phase within 72 s are three lines; a new phase is a line at once."""
    now = [0.0]
    stream = io.StringIO()
    progress = LineProgress(stream, clock=lambda: now[0])
    for step in range(10):
        now[0] = step * 8.0
        progress.update("copying", step, 10)
    assert len(stream.getvalue().splitlines()) == 3
    progress.update("verifying", 1, 2, unit="B")
    assert stream.getvalue().splitlines()[-2].endswith("copying 9/10"), "the end of a phase is printed"
    assert stream.getvalue().splitlines()[-1].endswith("verifying 1 B/2 B")


def test_quiet_prints_nothing() -> None:
    stream = io.StringIO()
    with open_progress(stream, quiet=True) as progress:
        progress.update("copying", 1, 2)
    assert stream.getvalue() == ""
