"""The largest size of every reply and log entry is known, documented, and fits into its frame or entry."""

import re
from pathlib import Path

import pytest

from nodeagent.model import limits
from tests.wire.bounds import LIMITS, Unbounded, kinds, largest, size

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "bounds.md"
UNITS = {"KiB": limits.KIB, "MiB": limits.MIB}
ROWS = {
    f"{what} {name}": int(number) * UNITS[unit]
    for name, what, number, unit in re.findall(
        r"^\| `(\w+)` \| ([\w ]+) \| (\d+) (\w+) \|$", PAGE.read_text(), re.M
    )
}


def test_every_reply_and_every_entry_has_a_row() -> None:
    assert set(ROWS) == set(kinds())


@pytest.mark.parametrize("name", sorted(kinds()))
def test_size_at_the_limits_matches_the_documented_size(name: str) -> None:
    """The measured size is at most the documented size, and at least a quarter of it."""
    measured = size(kinds()[name])
    assert measured <= ROWS[name], f"{measured} bytes"
    assert ROWS[name] == limits.KIB or ROWS[name] <= 4 * measured
    room = limits.FRAME_BYTES_MAX if name.startswith("reply") else limits.ENTRY_BYTES_MAX
    assert measured + limits.KIB <= room


def test_frequent_replies_stay_below_four_mebibytes() -> None:
    assert ROWS["reply MetaView"] <= 4 * limits.MIB


def test_a_growing_field_without_a_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(LIMITS, "MetaView.groups")
    with pytest.raises(Unbounded, match=r"MetaView\.groups"):
        largest(kinds()["reply MetaView"])
