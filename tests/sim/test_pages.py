"""Reads in many small pages, through changes, compactions, deletes and faults."""

import pytest

from nodeagent.model import limits
from nodeagent.testing.scenario import run
from tests.sim.spread import spread


@pytest.mark.parametrize("seed", spread([3, 8, 14]))
def test_pages_of_a_few_rows_keep_every_acknowledged_row(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6 with pages of about three rows and at most two partitions: a read in pages returns what was
    acknowledged before it began, although files are merged, slots move and rows are written meanwhile."""
    monkeypatch.setattr(limits, "PAGE_BYTES", 100)
    monkeypatch.setattr(limits, "PAGE_PARTITIONS", 2)
    run(seed)
