"""The range deletes and TTL cut-offs of a group that may still mask something, by partition and table."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from nodeagent.data.compaction import Key
from nodeagent.model.files import Tombstone
from nodeagent.model.ids import PartitionKey


class Tombstones:
    """Iterates by partition and table, in log order within each. `prune` checks only tables and partitions
    that changed (`touched`), so that its cost grows with the change, not with the number of deletes."""

    def __init__(self, tombstones: Iterable[Tombstone] = ()) -> None:
        self._deletes: dict[PartitionKey, dict[str, list[Tombstone]]] = {}
        self._count = 0
        self._touched: set[Key] = set()
        for t in tombstones:
            self.add(t)

    def __iter__(self) -> Iterator[Tombstone]:
        return (t for tables in self._deletes.values() for deletes in tables.values() for t in deletes)

    def __len__(self) -> int:
        return self._count

    def of(self, partition: PartitionKey, table: str) -> Sequence[Tombstone]:
        """In log order; the caller must not change the result."""
        return self._deletes.get(partition, {}).get(table, ())

    def cuts(self, partition: PartitionKey, table: str) -> list[Tombstone]:
        """TTL cut-offs of the table and partition."""
        return [t for t in self.of(partition, table) if t.expiry]

    def of_partition(self, partition: PartitionKey) -> tuple[Tombstone, ...]:
        return tuple(t for deletes in self._deletes.get(partition, {}).values() for t in deletes)

    def add(self, tombstone: Tombstone) -> None:
        tables = self._deletes.setdefault(tombstone.partition, {})
        tables.setdefault(tombstone.table, []).append(tombstone)
        self._count += 1
        self._touched.add((tombstone.partition, tombstone.table))

    def add_older(self, tombstones: Iterable[Tombstone]) -> None:
        """Insert deletes that came with a slot in front of the deletes that are here, without duplicates."""
        older: dict[Key, list[Tombstone]] = {}
        for t in tombstones:
            older.setdefault((t.partition, t.table), []).append(t)
        for (partition, table), deletes in older.items():
            here = list(self.of(partition, table))
            self._replace((partition, table), list(dict.fromkeys([*self._new(deletes, here), *here])))

    @staticmethod
    def _new(deletes: list[Tombstone], here: list[Tombstone]) -> list[Tombstone]:
        known = set(here)
        return [t for t in deletes if t not in known]

    def touched(self, partition: PartitionKey, table: str | None = None) -> None:
        """Note that files or rows changed, so that deletes there may mask nothing any more."""
        for name in self._deletes.get(partition, ()) if table is None else (table,):
            self._touched.add((partition, name))

    def prune(self, keep: Callable[[PartitionKey, str, Sequence[Tombstone]], list[Tombstone]]) -> None:
        """Retain, of each touched partition and table, the deletes that `keep` returns."""
        touched, self._touched = self._touched, set()
        for key in touched:
            deletes = self.of(*key)
            if deletes:
                self._replace(key, keep(*key, deletes))
        self._touched.clear()

    def drop(self, partition: PartitionKey) -> None:
        """Drop the deletes of a partition that left with its slot."""
        self._count -= len(self.of_partition(partition))
        self._deletes.pop(partition, None)

    def _replace(self, key: Key, deletes: list[Tombstone]) -> None:
        partition, table = key
        self._count += len(deletes) - len(self.of(partition, table))
        tables = self._deletes.setdefault(partition, {})
        tables[table] = deletes
        if not deletes:
            del tables[table]
        if not tables:
            del self._deletes[partition]
        self._touched.add(key)
