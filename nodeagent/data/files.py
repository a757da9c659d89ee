"""The files of a group, and which of them are removed.

A file whose rows are all before a cut-off leaves the manifest as soon as it enters. A file that left the
manifest is unlinked by the host once a durable checkpoint omits it; a file that no manifest named, or whose
slot was released, is unlinked by a job. A delete is retained as long as it masks something.
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
        """Names of files made here with a TsFile library other than the one named in their log entry: their
        bytes differ from those on other members. No member compares them: the other members have merged
        these files already, or a compaction in the log will."""

        self.pending_delete: list[FileMeta] = []
        """Pending delete: files that left the manifest since the host last took this list. After a restart
        the log would name them as inputs again, so they are unlinked only once a durable checkpoint omits
        them."""

        self.changed: dict[Key, None] = {}
        """Partitions and tables whose files or deletes changed since a leader last looked there for files to
        compact, the longest waiting first."""

        self._group = group
        self._jobs = jobs
        self._slots = slots
        self._rows = rows
        self._compactions = compactions

    def keep(self, files: Iterable[FileMeta], released: set[int]) -> None:
        """Add files to the manifest; unlink files of slots released while they were made or adopted."""
        files = tuple(files)
        kept = [f for f in files if f.slot not in released]
        self.manifest.add(kept)
        for key in {(f.partition, f.table) for f in kept}:
            self.remove_expired(key)
        self.unlink(f for f in files if f.slot in released)

    def replace(self, inputs: Iterable[FileMeta], files: list[FileMeta], key: Key) -> None:
        """Replace `inputs` by `files` in the manifest, as a compaction does."""
        self.delete_later(self.manifest.replace([f.name for f in inputs], files))
        self.remove_expired(key)
        self.prune()

    def delete_later(self, files: Iterable[FileMeta]) -> None:
        """Mark files as pending delete: they are unlinked once a durable checkpoint omits them."""
        self.pending_delete += files

    def unlink(self, files: Iterable[FileMeta | None]) -> None:
        """Unlink files at once: no checkpoint names them, or their slot was released."""
        unnamed = tuple(f for f in files if f is not None)
        if unnamed:
            self._jobs.append(DeleteFiles(self._group, unnamed))

    def release(self, slots: set[int]) -> None:
        """Remove the files and deletes of these slots."""
        removed = tuple(f for slot in sorted(slots) for f in self.manifest.remove_slot(slot))
        for partition in {f.partition for f in removed}:
            self.tombstones.drop(partition)
        self.unlink(removed)

    def delete(self, tombstone: Tombstone) -> None:
        self.tombstones.add(tombstone)
        self.changed[tombstone.partition, tombstone.table] = None

    def expire(self, cut: Tombstone) -> None:
        self.tombstones.add(cut)
        self.remove_expired((cut.partition, cut.table))
        self.prune()

    def remove_expired(self, key: Key) -> None:
        """Remove the expired files of the table and partition, after the manifest or a cut-off changed."""
        self.changed[key] = None
        self.tombstones.touched(*key)
        cuts = self.tombstones.cuts(*key)
        if cuts:
            expired = compaction.expired(
                self.manifest.of_partition(*key), cuts, self._compactions.pinned(key)
            )
            self.delete_later(self.manifest.remove(f.name for f in expired))

    def prune(self) -> None:
        """Drop deletes that mask nothing any more: no older file, no row in memory, nothing to be adopted."""
        if not self.tombstones or self._slots.arriving or not self._rows.recovered:
            return
        self.tombstones.prune(self._still_masking)

    def _still_masking(
        self, partition: PartitionKey, table: str, deletes: Sequence[Tombstone]
    ) -> list[Tombstone]:
        files = self.manifest.of_partition(partition, table)
        return [t for t in deletes if self._rows.has_older_than(t) or any(t.masks(f) for f in files)]
