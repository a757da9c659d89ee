"""Rows that are in no file yet.

They stay in memory until files that hold them are in the manifest. After a restart the log gives them back,
entry by entry, but for those that files hold by then (`closed_through`).
"""

from nodeagent.data import commands
from nodeagent.data.tombstones import Tombstones
from nodeagent.model.files import Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.table.memtable import Memtable


class Rows:
    """The memtable, and how far the log has filled it again."""

    def __init__(self, tombstones: Tombstones) -> None:
        self.memtable = Memtable()
        self.slot_of: dict[PartitionKey, int] = {}
        """Slots of the partitions in the memtable."""

        self.closed_through: dict[PartitionKey, int] = {}
        """Files hold the rows of the partition up to this entry."""

        self.recovered_to = 0
        """Entries up to here only give their rows back to the memtable."""

        self.delivered = 0
        """Last entry seen; behind the last one applied only while rows are given back."""

        self._tombstones = tombstones

    @property
    def recovered(self) -> bool:
        """Every row the checkpoint left in the log is back in memory."""
        return self.delivered >= self.recovered_to

    def add(self, index: int, w: commands.WriteRows, now: int) -> None:
        self.slot_of[w.partition] = w.slot
        self.memtable.add(
            w.partition,
            w.table,
            commands.batch_of(index, w),
            rows=w.rows,
            time_min=w.time_min,
            time_max=w.time_max,
            now_ms=now,
        )

    def give_back(self, index: int, w: commands.WriteRows, now: int) -> None:
        """A row of the kept log, unless a file holds it."""
        if index > self.closed_through.get(w.partition, 0):
            self.add(index, w, now)

    def drop_filed(self, partition: PartitionKey, through: int) -> None:
        """Files of a close at index `through` are in the manifest."""
        self.memtable.drop(partition, through)
        if self.memtable.partition(partition) is None:
            self.slot_of.pop(partition, None)
        self._tombstones.touched(partition)
        self.closed_through[partition] = max(self.closed_through.get(partition, 0), through)

    def drop_slots(self, slots: set[int]) -> None:
        """Forget their rows: they belong to a tenure of these slots that is over."""
        for partition in [p for p, slot in self.slot_of.items() if slot in slots]:
            self.memtable.drop_partition(partition)
            del self.slot_of[partition]
            self._tombstones.touched(partition)

    def forget_closed(self, base: int) -> None:
        """The log is not needed up to `base`: nothing of it is given back."""
        self.closed_through = {p: i for p, i in self.closed_through.items() if i > base}

    def of_slots(self, slots: set[int]) -> tuple[tuple[int, PartitionKey], ...]:
        """(slot, partition) of what a seal closes. Sorted: the order of first writes in memory depends on
        when files were made, names may not."""
        return tuple((s, p) for p, s in sorted(self.slot_of.items()) if s in slots)

    def precede(self, t: Tombstone) -> bool:
        """Whether rows that came before the delete are in no file yet."""
        held = self.memtable.partition(t.partition)
        return held is not None and (held.first_index,) < t.order
