"""Reads in many small pages, through changes, compactions, deletes and faults."""

import pytest

from nodeagent.model import limits
from nodeagent.testing.scenario import run
from tests.sim.spread import spread


@pytest.mark.parametrize("seed", spread([3, 8, 14]))
def test_pages_of_a_few_rows_keep_every_acknowledged_row(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6 with pages of three rows or so and of at most two partitions: what a read gives in pieces, while
    files are merged, slots move and rows are written, is what was acknowledged before it began."""
    monkeypatch.setattr(limits, "PAGE_BYTES", 100)
    monkeypatch.setattr(limits, "PAGE_PARTITIONS", 2)
    run(seed)
