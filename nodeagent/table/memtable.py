"""Rows of one data group that are in the log but in no file yet.

Batches stay the bytes they came in; nothing is decoded here. Per partition the indexes only grow, and
what a `CloseFile` froze is a prefix: batches with an index up to `frozen_through`. Frozen batches are
read like the others until `drop`, which comes after their files are in the manifest.
"""

from dataclasses import dataclass, field

import msgspec

from nodeagent.model.files import Order
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import MemBatch


class Held(msgspec.Struct, frozen=True, gc=False):
    """One batch of one table with what is known of its rows. `nbytes` is what it costs in memory."""

    table: str
    batch: MemBatch
    rows: int
    time_min: int
    time_max: int
    nbytes: int

    @property
    def index(self) -> int:
        return self.batch.order[0]


@dataclass(slots=True)
class PartitionRows:
    """Invariants: `held` is ascending by index; `nbytes` and `rows` are the sums over it, `open_bytes` that
    over what is not frozen."""

    held: list[Held] = field(default_factory=list)
    nbytes: int = 0
    rows: int = 0
    open_bytes: int = 0
    frozen_through: int = 0
    last_write_ms: int = 0

    @property
    def first_index(self) -> int:
        """The oldest log entry this partition still needs."""
        return self.held[0].index

    @property
    def last_index(self) -> int:
        return self.held[-1].index

    def tables(self) -> tuple[str, ...]:
        return tuple(sorted({h.table for h in self.held}))


class Memtable:
    """All open and frozen batches of one data group, by partition."""

    def __init__(self) -> None:
        self._partitions: dict[PartitionKey, PartitionRows] = {}
        self.nbytes = 0
        self.rows = 0

    def add(
        self,
        partition: PartitionKey,
        table: str,
        order: Order,
        ipc: memoryview,
        *,
        rows: int,
        time_min: int,
        time_max: int,
        nbytes: int | None = None,
        now_ms: int = 0,
    ) -> None:
        """Take one batch; `order` is (its entry's log index,), `now_ms` when it was applied."""
        at = self._partitions.setdefault(partition, PartitionRows())
        held = Held(table, MemBatch(order, ipc), rows, time_min, time_max, nbytes or len(ipc))
        assert not at.held or at.last_index <= held.index, "entries are applied in log order"
        assert held.index > at.frozen_through, "no row joins a frozen range"
        at.held.append(held)
        at.nbytes += held.nbytes
        at.open_bytes += held.nbytes
        at.rows += rows
        at.last_write_ms = now_ms
        self.nbytes += held.nbytes
        self.rows += rows

    def partitions(self) -> dict[PartitionKey, PartitionRows]:
        """All that hold rows, in the order of their first write. Not to be changed."""
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
        if at is None:
            return ()
        return tuple(
            h.batch for h in at.held if h.table == table and h.time_min <= time_to and h.time_max >= time_from
        )

    def freeze(self, partition: PartitionKey, through_index: int) -> dict[str, tuple[MemBatch, ...]]:
        """Freeze the batches up to that log index and give them per table (tables sorted).

        Freezing again gives the same batches, also those frozen earlier and not dropped.
        """
        at = self._partitions.get(partition)
        if at is None:
            return {}
        if through_index > at.frozen_through:
            at.frozen_through = through_index
            at.open_bytes = sum(h.nbytes for h in at.held if h.index > through_index)
        tables: dict[str, list[MemBatch]] = {name: [] for name in at.tables()}
        for held in at.held:
            if held.index <= through_index:
                tables[held.table].append(held.batch)
        return {name: tuple(batches) for name, batches in tables.items() if batches}

    def drop(self, partition: PartitionKey, through_index: int) -> int:
        """Forget the batches up to that log index: files hold their rows now. Returns the bytes freed."""
        at = self._partitions.get(partition)
        if at is None:
            return 0
        gone = [h for h in at.held if h.index <= through_index]
        at.held = at.held[len(gone) :]
        freed = sum(h.nbytes for h in gone)
        at.nbytes -= freed
        at.open_bytes -= sum(h.nbytes for h in gone if h.index > at.frozen_through)
        at.rows -= sum(h.rows for h in gone)
        self.nbytes -= freed
        self.rows -= sum(h.rows for h in gone)
        if not at.held:
            del self._partitions[partition]
        return freed

    def drop_partition(self, partition: PartitionKey) -> int:
        """Forget all of a partition (its slot was released). Returns the bytes freed."""
        at = self._partitions.get(partition)
        return 0 if at is None else self.drop(partition, at.last_index)

    def first_index(self) -> int | None:
        """The oldest log entry any partition still needs; None when empty."""
        return min((at.first_index for at in self._partitions.values()), default=None)
