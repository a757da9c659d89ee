"""The manifest: the files of a data group, as used by restarts, scans and comparisons of replicas."""

import struct
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import xxhash

from nodeagent.model.files import FileMeta
from nodeagent.model.ids import PartitionKey
from nodeagent.table.checksum import Sums, add

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


class _FileCounts:
    """Number of files of each partition, and the largest such number, which status reports."""

    def __init__(self) -> None:
        self._files: Counter[PartitionKey] = Counter()
        self._partitions: Counter[int] = Counter()
        """Number of files -> partitions with that many files."""

    def add(self, partition: PartitionKey, more: int) -> None:
        """Note that the partition has `more` more files (fewer if negative)."""
        for count, change in ((self._files[partition], -1), (self._files[partition] + more, 1)):
            self._partitions[count] += change
            if not (count and self._partitions[count]):
                del self._partitions[count]
        self._files[partition] += more
        if not self._files[partition]:
            del self._files[partition]

    def most(self) -> int:
        return max(self._partitions, default=0)


class Manifest:
    """Invariants: names are unique; `nbytes` and `rows` are the sums over the files."""

    def __init__(self, files: Iterable[FileMeta] = ()) -> None:
        self._files: dict[str, FileMeta] = {}
        self._slots: dict[int, dict[str, FileMeta]] = {}
        self._tables: dict[PartitionKey, dict[str, None]] = {}
        """Partition -> tables that have files in it."""

        self._of_table: dict[tuple[PartitionKey, str], dict[str, FileMeta]] = {}
        """(partition, table) -> files by name. The indexes are not nested deeper, because the garbage
        collector walks every container of containers, and all groups of the node stop while it does."""

        self._groups: dict[str, dict[PartitionKey, int]] = {}
        """Storage group -> its partitions and their slots."""

        self._ordered: dict[str, list[int]] = {}
        """Storage group -> positions of its partitions, ascending; computed when first requested."""

        self._counts = _FileCounts()
        self.parked: dict[str, FileMeta] = {}
        """Files that are not TsFiles, by name."""

        self.changes: dict[str, FileMeta | None] = {}
        """Name -> file added (None: removed) since the last checkpoint of all files."""

        self.nbytes = 0
        self.rows = 0
        self.add(files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str) -> FileMeta | None:
        return self._files.get(name)

    def add(self, files: Iterable[FileMeta]) -> None:
        """Add files; a file that is present with equal fields is skipped (entries may be replayed)."""
        for meta in files:
            known = self._files.get(meta.name)
            assert known is None or known == meta, f"two files named {meta.name} in one manifest"
            if known is not None:
                continue
            self._files[meta.name] = self.changes[meta.name] = meta
            self._slots.setdefault(meta.slot, {})[meta.name] = meta
            self._tables.setdefault(meta.partition, {})[meta.table] = None
            self._of_table.setdefault((meta.partition, meta.table), {})[meta.name] = meta
            group = self._groups.setdefault(meta.partition.storage_group, {})
            if meta.partition not in group:
                group[meta.partition] = meta.slot
                ordered = self._ordered.get(meta.partition.storage_group)
                if ordered is not None:
                    insort(ordered, meta.partition.position)
            self._counts.add(meta.partition, 1)
            if meta.parked:
                self.parked[meta.name] = meta
            self.nbytes += meta.size
            self.rows += meta.rows

    def remove(self, names: Iterable[str]) -> tuple[FileMeta, ...]:
        """Remove files by name; return those that were present."""
        gone = []
        for name in names:
            meta = self._files.pop(name, None)
            if meta is None:
                continue
            _discard(self._slots, meta.slot, name)
            self._remove_of_partition(meta)
            self.parked.pop(name, None)
            self.changes[name] = None
            self.nbytes -= meta.size
            self.rows -= meta.rows
            gone.append(meta)
        return tuple(gone)

    def _remove_of_partition(self, meta: FileMeta) -> None:
        _discard(self._of_table, (meta.partition, meta.table), meta.name)
        self._counts.add(meta.partition, -1)
        if (meta.partition, meta.table) not in self._of_table:
            _discard(self._tables, meta.partition, meta.table)
        if meta.partition not in self._tables:
            _discard(self._groups, meta.partition.storage_group, meta.partition)
            ordered = self._ordered.get(meta.partition.storage_group)
            if ordered is not None:
                del ordered[bisect_left(ordered, meta.partition.position)]

    def replace(self, old: Iterable[str], new: Iterable[FileMeta]) -> tuple[FileMeta, ...]:
        """Replace the files of a compaction. Returns the removed files."""
        gone = self.remove(old)
        self.add(new)
        return gone

    def remove_slot(self, slot: int) -> tuple[FileMeta, ...]:
        return self.remove(list(self._slots.get(slot, ())))

    def files(self) -> tuple[FileMeta, ...]:
        """All files, sorted by name."""
        return _by_name(self._files)

    def unsorted(self) -> tuple[FileMeta, ...]:
        """All files, in no order: sorting a hundred thousand files is slow."""
        return tuple(self._files.values())

    def of_slot(self, slot: int) -> tuple[FileMeta, ...]:
        return _by_name(self._slots.get(slot, {}))

    def of_partition(self, partition: PartitionKey, table: str | None = None) -> tuple[FileMeta, ...]:
        """Oldest first."""
        tables = self._tables.get(partition, ()) if table is None else (table,)
        metas = [m for t in tables for m in self._of_table.get((partition, t), {}).values()]
        if len(metas) > 1:
            metas.sort(key=lambda m: (m.order, m.name))
        return tuple(metas)

    def tables_of(self, partition: PartitionKey) -> tuple[str, ...]:
        """Tables that have files in the partition; in no order."""
        return tuple(self._tables.get(partition, ()))

    def most_files(self) -> int:
        """Number of files of the partition with the most files."""
        return self._counts.most()

    def overlapping(
        self, partition: PartitionKey, table: str, time_from: int, time_to: int
    ) -> tuple[FileMeta, ...]:
        """Files of a table that may hold rows in [time_from, time_to], oldest first."""
        return tuple(
            m
            for m in self.of_partition(partition, table)
            if m.time_min <= time_to and m.time_max >= time_from
        )

    def slots(self) -> tuple[int, ...]:
        return tuple(sorted(self._slots))

    def partitions(self, storage_group: str | None = None) -> dict[PartitionKey, int]:
        """The partitions of a storage group, or all, with their slots; in no order."""
        if storage_group is not None:
            return dict(self._groups.get(storage_group, {}))
        return {key: slot for keys in self._groups.values() for key, slot in keys.items()}

    def slot_of(self, partition: PartitionKey) -> int | None:
        """The slot of a partition that has files."""
        return self._groups.get(partition.storage_group, {}).get(partition)

    def positions(self, storage_group: str) -> Sequence[int]:
        """Positions of a storage group's partitions, ascending; the list changes when the files change."""
        found = self._ordered.get(storage_group)
        if found is None:
            found = sorted(key.position for key in self._groups.get(storage_group, ()))
            self._ordered[storage_group] = found
        return found

    def storage_groups(self) -> tuple[str, ...]:
        return tuple(sorted(self._groups))

    def names_by_slot(self) -> dict[int, frozenset[str]]:
        """Slot -> names of its files; any other file in the group's directories is an orphan."""
        return {slot: frozenset(files) for slot, files in self._slots.items()}

    def logical(self, files: Sequence[FileMeta] | None = None) -> Sums:
        """Sum of the files' logical checksums: equal on replicas with equal files."""
        return add(*(m.logical for m in (self.files() if files is None else files)))

    def digest(self, slots: Iterable[int] | None = None) -> str:
        """XXH3-128 over the sorted (name, size, xxh3) of all files, or of the files of these slots."""
        metas = self.files() if slots is None else [m for s in sorted(set(slots)) for m in self.of_slot(s)]
        state = xxhash.xxh3_128()
        for meta in sorted(metas, key=lambda m: m.name):
            name = meta.name.encode()
            state.update(struct.pack("<IQ", len(name), meta.size) + name + meta.xxh3.encode())
        return state.hexdigest()

    def export(self) -> list[FileMeta]:
        """The files for a checkpoint; `Manifest(files)` restores the manifest."""
        return list(self.files())


def _by_name(files: dict[str, FileMeta]) -> tuple[FileMeta, ...]:
    return tuple(files[name] for name in sorted(files))


def _discard(index: dict[_Key, dict[_Item, _Value]], key: _Key, item: _Item) -> None:
    index[key].pop(item)
    if not index[key]:
        del index[key]
