"""Which files a group has, and which of them go.

A file that enters the manifest wholly behind a cut-off leaves it again at once. What left is unlinked by the
host when a durable checkpoint is without it; what no manifest named, or went with its slot, by a job. A
delete is kept as long as it masks something.
"""

from collections.abc import Iterable, Sequence

from nodeagent.data import compaction
from nodeagent.data.compaction import Compactions, Key
from nodeagent.data.rows import Rows
from nodeagent.data.slots import Slots
from nodeagent.data.tombstones import Tombstones
from nodeagent.model.files import FileMeta, Tombstone
from nodeagent.model.ids import GroupId, PartitionKey
from nodeagent.model.jobs import DeleteFiles, Job
from nodeagent.table.manifest import Manifest


class Files:
    """The manifest, and the deletes that mask its files."""

    def __init__(
        self,
        group: GroupId,
        jobs: list[Job],
        slots: Slots,
        rows: Rows,
        tombstones: Tombstones,
        compactions: Compactions,
    ) -> None:
        self.manifest = Manifest()
        self.tombstones = tombstones
        self.substitutes: set[str] = set()
        """Files made here with another library than their entry names, so with other bytes than elsewhere.
        What the log has of the other members by then takes each of them away."""

        self.doomed: list[FileMeta] = []
        """Files that left the manifest since the host looked. The log would name them again as inputs after a
        restart, so they are unlinked only when a durable checkpoint is without them."""

        self.changed: dict[Key, None] = {}
        """Where files or deletes came since a leader looked for what to compact, the longest waiting
        first."""

        self._group = group
        self._jobs = jobs
        self._slots = slots
        self._rows = rows
        self._compactions = compactions

    def keep(self, files: Iterable[FileMeta], gone: set[int]) -> None:
        """Into the manifest; but files of slots released while they were being made or adopted go."""
        files = tuple(files)
        kept = [f for f in files if f.slot not in gone]
        self.manifest.add(kept)
        for key in {(f.partition, f.table) for f in kept}:
            self.settle(key)
        self.unlink(f for f in files if f.slot in gone)

    def replace(self, inputs: Iterable[FileMeta], files: list[FileMeta], key: Key) -> None:
        """What compactions do: `inputs` leave, `files` come."""
        self.doom(self.manifest.replace([f.name for f in inputs], files))
        self.settle(key)
        self.prune()

    def doom(self, files: Iterable[FileMeta]) -> None:
        """They go when a durable checkpoint is without them."""
        self.doomed += files

    def unlink(self, files: Iterable[FileMeta | None]) -> None:
        """They go at once: no checkpoint names them, or their slot was released."""
        unnamed = tuple(f for f in files if f is not None)
        if unnamed:
            self._jobs.append(DeleteFiles(self._group, unnamed))

    def release(self, slots: set[int]) -> None:
        """What the slots have goes with them."""
        gone = tuple(f for slot in sorted(slots) for f in self.manifest.remove_slot(slot))
        for partition in {f.partition for f in gone}:
            self.tombstones.drop(partition)
        self.unlink(gone)

    def delete(self, tombstone: Tombstone) -> None:
        self.tombstones.add(tombstone)
        self.changed[tombstone.partition, tombstone.table] = None

    def expire(self, cut: Tombstone) -> None:
        self.tombstones.add(cut)
        self.settle((cut.partition, cut.table))
        self.prune()

    def settle(self, key: Key) -> None:
        """Files of the table and partition came: those that expired meanwhile go again."""
        self.changed[key] = None
        self.tombstones.touched(*key)
        cuts = self.tombstones.cuts(*key)
        if cuts:
            gone = compaction.expired(self.manifest.of_partition(*key), cuts, self._compactions.pinned(key))
            self.doom(self.manifest.remove(f.name for f in gone))

    def prune(self) -> None:
        """Forget deletes that mask nothing any more: no older file, no row in memory, nothing to arrive."""
        if not self.tombstones or self._slots.arriving or not self._rows.recovered:
            return
        self.tombstones.prune(self._still_masking)

    def _still_masking(
        self, partition: PartitionKey, table: str, deletes: Sequence[Tombstone]
    ) -> list[Tombstone]:
        files = self.manifest.of_partition(partition, table)
        return [t for t in deletes if self._rows.precede(t) or any(t.masks(f) for f in files)]
