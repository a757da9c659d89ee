"""The memtable contains the rows that are in the log but in no file."""

import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from nodeagent.model.freeing import FREED_MIN, FREED_SHARE, DeferredFree
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import MemBatch
from nodeagent.table.memtable import Memtable

A, B = PartitionKey("sg", 0, 0), PartitionKey("sg", 1, 0)


def filled() -> Memtable:
    mem = Memtable()
    for index, (key, name) in enumerate([(A, "t"), (B, "t"), (A, "u"), (A, "t")], start=1):
        batch = MemBatch((index,), bytes(10 * index))
        mem.add(key, name, batch, rows=index, time_min=index, time_max=index + 1, now_ms=index)
    return mem


def test_totals_are_the_sums() -> None:
    """Bytes and rows count every batch once, per partition and in total."""
    mem = filled()
    at = mem.partition(A)
    assert at is not None
    assert (mem.nbytes, mem.rows, at.nbytes, at.rows, at.open_bytes) == (100, 10, 80, 8, 80)
    assert (at.first_index, at.last_index, at.last_write_ms, at.tables()) == (1, 4, 4, ("t", "u"))
    assert mem.first_index() == 1


def test_freeze_returns_the_prefix_and_keeps_it_readable() -> None:
    """Frozen batches are those up to the index, per table; they are returned once and are still readable."""
    mem = filled()
    frozen = mem.freeze(A, 3)
    assert {t: [b.order for b in run.batches] for t, run in frozen.items()} == {"t": [(1,)], "u": [(3,)]}
    assert mem.freeze(A, 3) == {}
    assert [b.order for b in mem.batches(A, "t")] == [(1,), (4,)]
    at = mem.partition(A)
    assert at is not None and at.open_bytes == 40 and at.count == 3
    assert {t: [b.order for b in run.batches] for t, run in mem.freeze(A, 5).items()} == {"t": [(4,)]}
    assert at.open_bytes == 0 and not at.open and (at.first_index, at.last_index) == (1, 4)
    assert [b.order for b in mem.batches(A, "t")] == [(1,), (4,)]
    assert mem.freeze(PartitionKey("zz", 0, 0), 9) == {}


def test_no_row_joins_a_frozen_range() -> None:
    """A write at or below the frozen index would be lost with the freeze, so it is a broken invariant."""
    mem = filled()
    mem.freeze(A, 9)
    with pytest.raises(AssertionError):
        mem.add(A, "t", MemBatch((9,), b""), rows=1, time_min=0, time_max=0)


def test_drop_moves_the_first_index_and_frees() -> None:
    """The drop of rows that are in files frees their bytes; an empty partition disappears."""
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
    """A batch is returned only if its time range overlaps the requested one."""
    mem = filled()
    assert [b.order for b in mem.batches(A, "t", time_from=3)] == [(4,)]
    assert [b.order for b in mem.batches(A, "t", time_to=2)] == [(1,)]
    assert mem.batches(B, "u") == ()


class Untouched(list[Any]):
    """Batches over which no code may iterate."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the code iterates over all batches")


def test_a_close_does_not_iterate_over_batches() -> None:
    """There are tens of thousands of batches, and the loop would block during the close."""
    mem = filled()
    at = mem.partition(A)
    assert at is not None
    for run in at.open.values():
        run.held = Untouched(run.held)
    frozen = mem.freeze(A, 5)
    mem.add(A, "t", MemBatch((6,), b"later"), rows=1, time_min=0, time_max=0)
    at.open["t"].held = Untouched(at.open["t"].held)
    assert mem.drop(A, 5) == 80 and (at.count, at.nbytes, mem.nbytes) == (1, 5, 25)
    assert [run.rows for run in frozen.values()] == [5, 3]


def test_dropped_rows_are_freed_in_small_steps() -> None:
    """Freeing all rows of a close at once would take longer than any other step of the loop."""
    mem, count = Memtable(), 4 * FREED_MIN
    for index in range(1, count + 1):
        mem.add(A, "t", MemBatch((index,), b"x"), rows=1, time_min=0, time_max=0)
    at = mem.partition(A)
    assert at is not None
    data = at.open["t"].batches
    del at
    mem.drop(A, count)
    left = [len(mem.to_free)]
    while mem.to_free:
        mem.to_free.free()
        left.append(len(mem.to_free))
    assert left == [count - n * FREED_MIN for n in range(5)]
    assert all(sys.getrefcount(batch) == 3 for batch in data), "another object refers to a batch"


def test_many_dropped_rows_are_freed_in_larger_steps() -> None:
    """Otherwise the memory of a continuous stream of rows would accumulate."""
    to_free = DeferredFree()
    for _ in range(8):
        to_free.add([object() for _ in range(FREED_MIN * FREED_SHARE)])
    to_free.free()
    assert len(to_free) == 7.5 * FREED_MIN * FREED_SHARE


def test_rows_are_freed_in_the_order_of_the_drops() -> None:
    """Otherwise large batches would wait during a stream of small ones, in memory that is not counted."""
    first = [bytearray(1) for _ in range(2)]
    to_free = DeferredFree()
    to_free.add([*first])
    for _ in range(3):
        to_free.add([object() for _ in range(FREED_MIN)])
    to_free.free()
    assert [sys.getrefcount(item) for item in first] == [2 + 1, 2 + 1]


@pytest.mark.parametrize("seed", range(40))
def test_the_memtable_agrees_with_a_list_of_batches(seed: int) -> None:
    """This holds for any sequence of additions, freezes and drops, even if a drop ends in the middle of a
    close."""
    rng, mem, last = random.Random(seed), Memtable(), 0
    known: list[tuple[PartitionKey, str, int, int]] = []  # partition, table, index, bytes
    frozen = {A: 0, B: 0}
    for _ in range(60):
        key, table = rng.choice((A, B)), rng.choice("tuv")
        through = rng.randint(max(0, last - 6), last)
        match rng.randrange(6):
            case 0:
                fresh = [(t, b.order[0]) for t, run in mem.freeze(key, through).items() for b in run.batches]
                want = [(t, i) for k, t, i, _ in known if k == key and frozen[key] < i <= through]
                assert fresh == sorted(want)
                frozen[key] = max(frozen[key], through) if mem.partition(key) else 0
            case 1:
                freed = sum(n for k, _, i, n in known if k == key and i <= through)
                assert mem.drop(key, through) == freed
                known = [b for b in known if b[0] != key or b[2] > through]
            case 2 if rng.random() < 0.2:
                mem.drop_partition(key)
                known = [b for b in known if b[0] != key]
            case _:
                last += rng.randint(1, 2)
                size = rng.randint(1, 9)
                mem.add(key, table, MemBatch((last,), bytes(size)), rows=1, time_min=last, time_max=last + 1)
                known.append((key, table, last, size))
        assert (mem.nbytes, mem.rows) == (sum(b[3] for b in known), len(known))
        assert mem.first_index() == min((b[2] for b in known), default=None)
        for key in (A, B):
            own = [b for b in known if b[0] == key]
            at = mem.partition(key)
            frozen[key] = frozen[key] if at is not None else 0
            assert (at is None) == (not own)
            if at is not None:
                assert (at.nbytes, at.rows, at.count) == (sum(b[3] for b in own), len(own), len(own))
                assert (at.first_index, at.last_index) == (own[0][2], own[-1][2])
                assert at.open_bytes == sum(b[3] for b in own if b[2] > frozen[key])
                assert at.tables() == tuple(sorted({b[1] for b in own}))
            for table in "tuv":
                found = [b.order[0] for b in mem.batches(key, table, last - 8, last - 3)]
                assert found == [i for _, t, i, _ in own if t == table and last - 9 <= i <= last - 3]
