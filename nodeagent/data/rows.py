"""Rows that are in no file yet.

They stay in memory until the files that hold them are in the manifest. After a restart the log is replayed to
restore them, except for rows that files already hold (`closed_through`).
"""

from nodeagent.data import commands
from nodeagent.data.tombstones import Tombstones
from nodeagent.model.files import Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.table.memtable import Memtable


class Rows:
    """The memtable, and how far the replay of the log has refilled it."""

    def __init__(self, tombstones: Tombstones) -> None:
        self.memtable = Memtable()
        self.slot_of: dict[PartitionKey, int] = {}
        """Slot of each partition in the memtable."""

        self.closed_through: dict[PartitionKey, int] = {}
        """Log index up to which files hold the rows of the partition."""

        self.recovered_to = 0
        """Entries up to this log index only restore their rows to the memtable."""

        self.delivered = 0
        """Log index of the last entry received. It is below the last applied index only during the replay."""

        self._tombstones = tombstones

    @property
    def recovered(self) -> bool:
        """Whether every row that the checkpoint left in the log is back in memory."""
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

    def replay(self, index: int, w: commands.WriteRows, now: int) -> None:
        """Add the rows of an entry of the retained log, unless a file holds them."""
        if index > self.closed_through.get(w.partition, 0):
            self.add(index, w, now)

    def drop_filed(self, partition: PartitionKey, through: int) -> None:
        """Drop the rows of a close at log index `through`, whose files are in the manifest."""
        self.memtable.drop(partition, through)
        if self.memtable.partition(partition) is None:
            self.slot_of.pop(partition, None)
        self._tombstones.touched(partition)
        self.closed_through[partition] = max(self.closed_through.get(partition, 0), through)

    def drop_slots(self, slots: set[int]) -> None:
        """Drop the rows of these slots, which were released."""
        for partition in [p for p, slot in self.slot_of.items() if slot in slots]:
            self.memtable.drop_partition(partition)
            del self.slot_of[partition]
            self._tombstones.touched(partition)

    def forget_closed(self, base: int) -> None:
        """Forget closes up to log index `base`: the log is not needed up to there, so it is not replayed."""
        self.closed_through = {p: i for p, i in self.closed_through.items() if i > base}

    def of_slots(self, slots: set[int]) -> tuple[tuple[int, PartitionKey], ...]:
        """(slot, partition) of what a seal closes. Sorted, because the order in memory depends on when files
        were made, and the names of the files must not depend on that."""
        return tuple((s, p) for p, s in sorted(self.slot_of.items()) if s in slots)

    def has_older_than(self, t: Tombstone) -> bool:
        """Whether the memtable has rows of the partition that are older than the delete."""
        held = self.memtable.partition(t.partition)
        return held is not None and (held.first_index,) < t.order
