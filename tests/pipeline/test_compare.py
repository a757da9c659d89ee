"""Comparing holders without Spark: every kind of difference is reported for the right holder."""

import pyarrow as pa
import pytest

from iotctl.pipeline import windows
from iotctl.pipeline.cells import differing_cells
from iotctl.pipeline.compare import SlotOutcome, compare_slot
from iotctl.pipeline.digest import buckets, merged
from iotctl.pipeline.holding import HeldFile, Holding, Scope, holding_of
from iotctl.pipeline.report import MISSING, NOT_THERE
from nodeagent.model.errors import NodeAgentError, Unavailable
from nodeagent.model.files import PulledSlot, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.storage.format import ClosedUnit
from tests.pipeline.fake import Maker
from tests.pipeline.rows import DAY_MS, MACHINES, machines, with_cell

SCHEMAS = {("root.a", "machines"): MACHINES}


@pytest.fixture(autouse=True, params=[1 << 30, 9])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are the same whether rows are compared at once or in small windows."""
    monkeypatch.setattr(windows, "WINDOW_ROWS", request.param)


class Holders:
    """Builds holdings of slot 7 and serves their bytes."""

    def __init__(self) -> None:
        self.holdings: list[Holding] = []
        self.bytes: dict[tuple[str, str], bytes | NodeAgentError] = {}

    def add(
        self,
        node: str,
        *files: ClosedUnit,
        trusted: bool = False,
        tombstones: tuple[Tombstone, ...] = (),
    ) -> None:
        pulled = PulledSlot(7, tuple(f.meta for f in files), tombstones)
        self.holdings.append(holding_of(node, "g.1", f"s-{node}", pulled, Scope(trusted=trusted)))
        for f in files:
            self.bytes[node, f.meta.name] = f.content

    def compare(self) -> SlotOutcome:
        return compare_slot(self.holdings, self._content, SCHEMAS)

    def _content(self, holding: Holding, held: HeldFile) -> bytes | NodeAgentError:
        return self.bytes[holding.node, held.meta.name]


def test_equal_holders_pass_and_are_counted(maker: Maker) -> None:
    """Three equal replicas of two files: no difference; files thrice, rows and series once."""
    old = maker.file(MACHINES, machines(), 7, (5,))
    new = maker.file(MACHINES, machines(start_ms=25 * 3_600_000, seed=2), 7, (6,))
    holders = Holders()
    for node in ("n1", "n2", "n3"):
        holders.add(node, old, new)
    outcome = holders.compare()
    assert not outcome.mismatches and not outcome.unread
    assert outcome.files == 6
    assert outcome.rows == 3 * 75
    assert len(outcome.series) == 3


def test_a_consistently_forged_value_is_reported(maker: Maker) -> None:
    """A file rewritten with its entry, hash and sums: node, file, series, time and both values are
    reported."""
    rows = machines()
    good = maker.file(MACHINES, rows, 7, (5,))
    time = rows.column("time")[1].as_py()
    was = rows.column("heat")[1].as_py()
    bad = maker.file(MACHINES, with_cell(rows, 1, "heat", 99.5), 7, (5,))
    holders = Holders()
    holders.add("n1", good)
    holders.add("n2", bad)
    holders.add("n3", good)
    (found,) = holders.compare().mismatches
    assert (found.node, found.slot, found.file) == ("n2", 7, good.meta.name)
    assert found.series == "root.a.machines{device=d0}.heat"
    assert (found.time_ms, found.expected, found.found) == (time, was, 99.5)


def test_two_replicas_that_differ_are_both_listed(maker: Maker) -> None:
    """Without a majority, each replica is listed against the other."""
    rows = machines()
    holders = Holders()
    holders.add("n1", maker.file(MACHINES, rows, 7, (5,)))
    holders.add("n2", maker.file(MACHINES, with_cell(rows, 0, "count", -1), 7, (5,)))
    found = {m.node: (m.expected, m.found) for m in holders.compare().mismatches}
    assert found == {"n1": (-1, 0), "n2": (0, -1)}


def test_trusted_holder_breaks_the_tie(maker: Maker) -> None:
    """Of one previous and one new holder, the new holder is reported."""
    rows = machines()
    holders = Holders()
    holders.add("old", maker.file(MACHINES, rows, 7, (5,)), trusted=True)
    holders.add("new", maker.file(MACHINES, with_cell(rows, 0, "state", "x"), 7, (5,)))
    (found,) = holders.compare().mismatches
    assert (found.node, found.expected, found.found) == ("new", "on", "x")


def test_different_cells_on_different_replicas_are_each_decided_by_majority(maker: Maker) -> None:
    """All three versions differ as a whole, yet each cell has a majority."""
    rows = machines()
    holders = Holders()
    holders.add("n1", maker.file(MACHINES, with_cell(rows, 0, "count", 7000), 7, (5,)))
    holders.add("n2", maker.file(MACHINES, with_cell(rows, 1, "count", 8000), 7, (5,)))
    holders.add("n3", maker.file(MACHINES, rows, 7, (5,)))
    found = [(m.node, m.expected, m.found) for m in holders.compare().mismatches]
    assert sorted(found) == [("n1", 0, 7000), ("n2", 1, 8000)]


def test_row_missing_on_one_replica(maker: Maker) -> None:
    """A lost row is reported as its cells' values against none."""
    rows = machines()
    holders = Holders()
    holders.add("n1", maker.file(MACHINES, rows, 7, (5,)))
    holders.add("n2", maker.file(MACHINES, rows.slice(1), 7, (5,)))
    holders.add("n3", maker.file(MACHINES, rows, 7, (5,)))
    found = {m.series: (m.node, m.expected, m.found) for m in holders.compare().mismatches}
    assert found["root.a.machines{device=d0}.count"] == ("n2", 0, None)
    assert found["root.a.machines{device=d0}.state"] == ("n2", "on", None)


def test_series_with_null_tag_is_compared(maker: Maker) -> None:
    """A device without a name is a series like any other."""
    rows = machines()
    holders = Holders()
    good = maker.file(MACHINES, rows, 7, (5,))
    holders.add("n1", good)
    holders.add("n2", good)
    holders.add("n3", maker.file(MACHINES, with_cell(rows, 149, "count", 1), 7, (5,)))
    (found,) = holders.compare().mismatches
    assert (found.series, found.expected, found.found) == ("root.a.machines{device}.count", 149, 1)


def test_flipped_byte_is_found_before_the_file_is_opened(maker: Maker) -> None:
    """Bytes with another hash than recorded are reported and never parsed."""
    good = maker.file(MACHINES, machines(), 7, (5,))
    holders = Holders()
    holders.add("n1", good)
    holders.add("n2", good)
    flipped = bytearray(good.content)
    flipped[200] ^= 1
    holders.bytes["n2", good.meta.name] = bytes(flipped)
    (found,) = holders.compare().mismatches
    assert (found.node, found.expected, found.series) == ("n2", good.meta.xxh3, "")
    assert found.found != good.meta.xxh3


def test_recorded_sum_that_does_not_match_the_rows(maker: Maker) -> None:
    """Sums are computed from rows; a wrong recorded sum is reported even if all replicas record it."""
    good = maker.file(MACHINES, machines(), 7, (5,))
    values, one, two = good.meta.logical
    import msgspec

    wrong = ClosedUnit(
        msgspec.structs.replace(good.meta, logical=(values, one ^ 1, two)), good.content, good.footer
    )
    holders = Holders()
    holders.add("n1", wrong)
    holders.add("n2", wrong)
    assert {m.node for m in holders.compare().mismatches} == {"n1", "n2"}


@pytest.mark.parametrize("lacking", ["n1", "n2", "n3"])
def test_file_missing_on_one_holder(maker: Maker, lacking: str) -> None:
    """The report has the file's hash against `missing`; the other holders still compare equal."""
    first, second = maker.file(MACHINES, machines(), 7, (5,)), maker.file(MACHINES, machines(seed=3), 7, (6,))
    holders = Holders()
    for node in ("n1", "n2", "n3"):
        holders.add(node, *([first] if node == lacking else [first, second]))
    (found,) = holders.compare().mismatches
    assert (found.node, found.expected, found.found) == (lacking, second.meta.xxh3, MISSING)


def test_a_file_on_one_holder_only_is_reported(maker: Maker) -> None:
    """An extra file is reported for its holder."""
    first, second = maker.file(MACHINES, machines(), 7, (5,)), maker.file(MACHINES, machines(seed=3), 7, (6,))
    holders = Holders()
    holders.add("n1", first)
    holders.add("n2", first)
    holders.add("n3", first, second)
    (found,) = holders.compare().mismatches
    assert (found.node, found.expected, found.found) == ("n3", NOT_THERE, second.meta.xxh3)


def test_unreadable_replica_is_not_equal(maker: Maker) -> None:
    """A replica that could not be fetched is in `unread`."""
    good = maker.file(MACHINES, machines(), 7, (5,))
    holders = Holders()
    holders.add("n1", good)
    holders.add("n2", good)
    holders.bytes["n2", good.meta.name] = Unavailable("gone")
    outcome = holders.compare()
    assert [u.node for u in outcome.unread] == ["n2"] and not outcome.mismatches


def test_table_without_schema_is_unread(maker: Maker) -> None:
    """A table that the meta group does not know cannot be compared, and is reported."""
    holders = Holders()
    holders.add("n1", maker.file(MACHINES, machines(), 7, (5,)))
    outcome = compare_slot(holders.holdings, holders._content, {})
    assert outcome.unread and not outcome.rows


def test_deletes_are_applied_before_rows_are_compared(maker: Maker) -> None:
    """A replica that lost a delete shows the rows the others masked."""
    rows = machines()
    file = maker.file(MACHINES, rows, 7, (5,))
    delete = Tombstone((6,), PartitionKey("root.a", 7, 0), "machines", (("device", "d0"),), 0, 0)
    holders = Holders()
    holders.add("n1", file, tombstones=(delete,))
    holders.add("n2", file, tombstones=(delete,))
    holders.add("n3", file)
    outcome = holders.compare()
    assert {(m.node, m.time_ms, m.expected) for m in outcome.mismatches} == {("n3", 0, None)}
    assert outcome.rows == 149


def test_adopted_scope_gives_files_their_old_age_and_leaves_newer_ones_out(maker: Maker) -> None:
    """The order (open index, *old) compares as `old`; files that the new group closed itself do not count."""
    rows = machines()
    adopted = maker.file(MACHINES, rows, 7, (50, 5))
    own = maker.file(MACHINES, rows, 7, (60,))
    pulled = PulledSlot(7, (adopted.meta, own.meta), ())
    holding = holding_of("n", "g.2", "s", pulled, Scope(adopted=True))
    assert [f.order for f in holding.files] == [(5,)]


def test_files_after_the_cut_are_not_compared(maker: Maker) -> None:
    """Files of a later log index than the cut are not compared."""
    files = [maker.file(MACHINES, machines(), 7, (n,)).meta for n in (5, 6, 7)]
    holding = holding_of("n", "g.1", "s", PulledSlot(7, tuple(files), ()), Scope(cut=6))
    assert [f.order for f in holding.files] == [(5,), (6,)]


def test_buckets_do_not_depend_on_files(maker: Maker) -> None:
    """The same rows in one part or in two, in any order, give the same sums per (series, day)."""
    rows = machines(per_device=60)
    assert rows.column("time")[-1].as_py() > 2 * DAY_MS
    whole = buckets(merged([((1,), rows)], (), MACHINES), MACHINES)
    halves = [((1,), rows.slice(0, 77)), ((2,), rows.slice(77))]
    assert buckets(merged(halves, (), MACHINES), MACHINES) == whole
    assert len(whole) == 9


def test_all_nans_are_equal_and_the_two_zeros_differ() -> None:
    """Bits decide, except among NaNs."""
    import numpy as np

    odd_nan = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]
    left = pa.table({"time": [1, 2], "v": pa.array([float("nan"), 0.0])})
    right = pa.table({"time": [1, 2], "v": pa.array([odd_nan, -0.0])})
    total, cells = differing_cells([left, right], ["v"])
    (cell,) = cells
    assert total == 1 and cell.time_ms == 2


def test_row_of_nulls_is_not_an_absent_row() -> None:
    """A row whose fields are all null is still a row."""
    left = pa.table({"time": [1, 2], "v": pa.array([1.0, None])})
    right = pa.table({"time": [1], "v": pa.array([1.0])})
    total, cells = differing_cells([left, right], ["v"])
    (cell,) = cells
    assert total == 1 and (cell.field, cell.values) == ("", (True, False))
