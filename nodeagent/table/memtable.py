"""Rows of one data group that are in the log but not in a file yet.

Batches stay encoded as they were received. The log indexes of a partition's batches increase, and a
`CloseFile` freezes a prefix of them. Frozen batches are read like the others until `drop`, which follows when
their files are in the manifest.

Freezing and dropping iterate over the tables of a partition, not over its batches: a close can have tens of
thousands of batches, and the event loop is blocked during the call. `to_free` frees dropped batches in small
steps.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from nodeagent.model.freeing import DeferredFree
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import MemBatch


class Held(msgspec.Struct, frozen=True, gc=False):
    """One batch of one table, with the number and times of its rows. `nbytes` is its size in memory."""

    batch: MemBatch
    rows: int
    time_min: int
    time_max: int
    nbytes: int

    @property
    def index(self) -> int:
        return self.batch.order[0]


class Run(msgspec.Struct):
    """Batches of one table between two closes, by ascending index; the other fields are over all batches."""

    held: list[Held]
    batches: list[MemBatch]
    """The batches of `held`, so that a close need not iterate over `held`."""

    rows: int
    nbytes: int
    time_min: int
    time_max: int

    @classmethod
    def of(cls, held: list[Held]) -> "Run":
        return cls(
            held,
            [h.batch for h in held],
            sum(h.rows for h in held),
            sum(h.nbytes for h in held),
            min(h.time_min for h in held),
            max(h.time_max for h in held),
        )

    def add(self, held: Held) -> None:
        self.held.append(held)
        self.batches.append(held.batch)
        self.rows += held.rows
        self.nbytes += held.nbytes
        self.time_min = min(self.time_min, held.time_min)
        self.time_max = max(self.time_max, held.time_max)

    @property
    def first_index(self) -> int:
        return self.held[0].index

    @property
    def last_index(self) -> int:
        return self.held[-1].index


Runs = dict[str, Run]
"""Table -> run; no run is empty."""


@dataclass(slots=True)
class PartitionRows:
    """Invariants: every index in a part of `frozen` is below those in the next part, and those in `open` are
    above `frozen_through`; `nbytes` and `rows` are the sums over all batches, `open_bytes` over `open`."""

    frozen: list[Runs] = field(default_factory=list)
    """One part for each close, oldest first; no part is empty."""

    open: Runs = field(default_factory=dict)
    nbytes: int = 0
    rows: int = 0
    open_bytes: int = 0
    frozen_through: int = 0
    last_write_ms: int = 0

    @property
    def parts(self) -> list[Runs]:
        return [*self.frozen, self.open] if self.open else self.frozen

    @property
    def first_index(self) -> int:
        """The oldest log entry this partition still needs."""
        return min(run.first_index for run in self.parts[0].values())

    @property
    def last_index(self) -> int:
        return max(run.last_index for run in self.parts[-1].values())

    @property
    def count(self) -> int:
        """Number of batches."""
        return sum(len(run.held) for part in self.parts for run in part.values())

    def tables(self) -> tuple[str, ...]:
        return tuple(sorted({table for part in self.parts for table in part}))

    def runs(self, table: str) -> Iterator[Run]:
        """Runs of one table, oldest first."""
        return (part[table] for part in self.parts if table in part)


class Memtable:
    """All open and frozen batches of one data group, by partition."""

    def __init__(self) -> None:
        self._partitions: dict[PartitionKey, PartitionRows] = {}
        self.nbytes = 0
        self.rows = 0
        self.to_free = DeferredFree()

    def add(
        self,
        partition: PartitionKey,
        table: str,
        batch: MemBatch,
        *,
        rows: int,
        time_min: int,
        time_max: int,
        now_ms: int = 0,
    ) -> None:
        """Add one batch, whose order is (its entry's log index,); `now_ms` is the time of applying it."""
        at = self._partitions.get(partition)
        if at is None:
            at = self._partitions[partition] = PartitionRows()
        held = Held(batch, rows, time_min, time_max, batch.nbytes)
        assert held.index > at.frozen_through, "a row must not join a frozen range"
        run = at.open.get(table)
        if run is None:
            at.open[table] = Run([held], [batch], rows, held.nbytes, time_min, time_max)
        else:
            assert run.last_index <= held.index, "entries are applied in log order"
            run.add(held)
        at.nbytes += held.nbytes
        at.open_bytes += held.nbytes
        at.rows += rows
        at.last_write_ms = now_ms
        self.nbytes += held.nbytes
        self.rows += rows

    def partitions(self) -> dict[PartitionKey, PartitionRows]:
        """All partitions with rows, in the order of their first write. The caller must not change them."""
        return self._partitions

    def partition(self, partition: PartitionKey) -> PartitionRows | None:
        return self._partitions.get(partition)

    def batches(
        self,
        partition: PartitionKey,
        table: str,
        time_from: int = -(1 << 63),
        time_to: int = (1 << 63) - 1,
    ) -> tuple[MemBatch, ...]:
        """Batches of one table that may hold rows in [time_from, time_to], oldest first."""
        at = self._partitions.get(partition)
        runs = at.runs(table) if at is not None else ()
        return tuple(
            h.batch
            for run in runs
            if run.time_min <= time_to and run.time_max >= time_from
            for h in run.held
            if h.time_min <= time_to and h.time_max >= time_from
        )

    def freeze(self, partition: PartitionKey, through_index: int) -> Runs:
        """Freeze the batches up to that log index; return the newly frozen batches by table."""
        at = self._partitions.get(partition)
        if at is None or through_index <= at.frozen_through:
            return {}
        at.frozen_through = through_index
        fresh, at.open = _split(at.open, through_index)
        if fresh:
            at.frozen.append(fresh)
            at.open_bytes -= _sum(fresh, _nbytes)
        return dict(sorted(fresh.items()))

    def drop(self, partition: PartitionKey, through_index: int) -> int:
        """Remove the batches up to that log index, whose rows are in files now. Returns the bytes freed."""
        at = self._partitions.get(partition)
        if at is None:
            return 0
        parts = [_split(part, through_index) for part in at.frozen]
        gone, at.frozen = [g for g, _ in parts if g], [left for _, left in parts if left]
        open_gone, at.open = _split(at.open, through_index)
        at.open_bytes -= _sum(open_gone, _nbytes)
        gone.append(open_gone)
        freed = sum(_sum(part, _nbytes) for part in gone)
        rows = sum(_sum(part, _rows) for part in gone)
        for part in gone:
            for run in part.values():
                self.to_free.add(run.held)
        at.nbytes -= freed
        at.rows -= rows
        self.nbytes -= freed
        self.rows -= rows
        if not at.parts:
            del self._partitions[partition]
        return freed

    def drop_partition(self, partition: PartitionKey) -> int:
        """Remove all batches of a partition (its slot was released). Returns the bytes freed."""
        at = self._partitions.get(partition)
        return 0 if at is None else self.drop(partition, at.last_index)

    def first_index(self) -> int | None:
        """The oldest log entry that a partition still needs; None if the memtable is empty."""
        return min((at.first_index for at in self._partitions.values()), default=None)


def _split(runs: Runs, through_index: int) -> tuple[Runs, Runs]:
    """(batches up to the index, the rest). Iterates over batches only if a run continues past the index; at a
    close no run does, because the close is applied after all the batches that it freezes."""
    before = {table: run for table, run in runs.items() if run.last_index <= through_index}
    after = {table: run for table, run in runs.items() if run.first_index > through_index}
    for table in sorted(runs.keys() - before.keys() - after.keys()):
        held = runs[table].held
        before[table] = Run.of([h for h in held if h.index <= through_index])
        after[table] = Run.of([h for h in held if h.index > through_index])
    return before, after


def _nbytes(run: Run) -> int:
    return run.nbytes


def _rows(run: Run) -> int:
    return run.rows


def _sum(runs: Runs, of: Callable[[Run], int]) -> int:
    return sum(map(of, runs.values()))
