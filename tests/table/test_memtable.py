"""What is in the log but in no file."""

import pytest

from nodeagent.model.ids import PartitionKey
from nodeagent.table.memtable import Memtable

A, B = PartitionKey("sg", 0, 0), PartitionKey("sg", 1, 0)


def filled() -> Memtable:
    mem = Memtable()
    for index, (key, name) in enumerate([(A, "t"), (B, "t"), (A, "u"), (A, "t")], start=1):
        ipc = bytes(10 * index)
        mem.add(key, name, (index,), ipc, rows=index, time_min=index, time_max=index + 1, now_ms=index)
    return mem


def test_totals_are_the_sums() -> None:
    """Bytes and rows count every batch once, per partition and in all."""
    mem = filled()
    at = mem.partition(A)
    assert at is not None
    assert (mem.nbytes, mem.rows, at.nbytes, at.rows, at.open_bytes) == (100, 10, 80, 8, 80)
    assert (at.first_index, at.last_index, at.last_write_ms, at.tables()) == (1, 4, 4, ("t", "u"))
    assert mem.first_index() == 1


def test_freeze_gives_the_prefix_and_keeps_it_readable() -> None:
    """Frozen batches are those up to the index, per table, again if asked again, and still read."""
    mem = filled()
    frozen = mem.freeze(A, 3)
    assert {t: [b.order for b in bs] for t, bs in frozen.items()} == {"t": [(1,)], "u": [(3,)]}
    assert mem.freeze(A, 3) == frozen
    assert [b.order for b in mem.batches(A, "t")] == [(1,), (4,)]
    at = mem.partition(A)
    assert at is not None and at.open_bytes == 40
    assert mem.freeze(PartitionKey("zz", 0, 0), 9) == {}


def test_no_row_joins_a_frozen_range() -> None:
    """A write at or below the frozen index would be lost with the freeze: it is a broken invariant."""
    mem = filled()
    mem.freeze(A, 9)
    with pytest.raises(AssertionError):
        mem.add(A, "t", (9,), b"", rows=1, time_min=0, time_max=0)


def test_drop_moves_the_first_index_and_frees() -> None:
    """Dropping what is in files frees its bytes; an empty partition disappears."""
    mem = filled()
    mem.freeze(A, 1)
    assert mem.drop(A, 3) == 40
    at = mem.partition(A)
    assert at is not None and at.open_bytes == at.nbytes == 40
    assert (mem.nbytes, mem.rows, mem.first_index()) == (60, 6, 2)
    assert mem.drop_partition(A) == 40 and mem.partition(A) is None
    assert mem.drop_partition(B) == 20
    assert (mem.nbytes, mem.rows, mem.first_index()) == (0, 0, None)


def test_reads_skip_batches_outside_the_time_range() -> None:
    """A batch is given only if its time range meets the asked one."""
    mem = filled()
    assert [b.order for b in mem.batches(A, "t", time_from=3)] == [(4,)]
    assert [b.order for b in mem.batches(A, "t", time_to=2)] == [(1,)]
    assert mem.batches(B, "u") == ()
