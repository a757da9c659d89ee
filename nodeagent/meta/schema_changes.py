"""Which tables changed since an earlier view, so that a view need not name ten thousand tables again.

A digest of all schemas stands for what a client holds. It depends on nothing else: it is the same on every
node of one release, and after a recovery of the meta group in which entries were lost. Derived, not stored.
"""

from collections import deque
from collections.abc import Iterable

import msgspec
import xxhash

from nodeagent.model.schema import TableSchema

CHANGES_KEPT = 1024
"""The newest changes that are remembered. A client that missed more of them gets all schemas."""

_BITS = 128

Key = tuple[str, str]
"""Storage group and table."""


class SchemaChanges:
    def __init__(self, schemas: Iterable[TableSchema]) -> None:
        self._sum = sum(map(_hash, schemas)) % (1 << _BITS)
        self._first = 0
        """Number of the oldest change that is remembered."""

        self._changes: deque[tuple[str, Key]] = deque()
        """The digest before each change, and the table that it changed."""

        self._numbers: dict[str, int] = {}
        """Digest -> number of the newest change after it."""

    @property
    def digest(self) -> str:
        return f"{self._sum:032x}"

    def changed(self, old: TableSchema | None, new: TableSchema) -> None:
        """Note that `new` takes the place of `old`."""
        if len(self._changes) == CHANGES_KEPT:
            before, _ = self._changes.popleft()
            if self._numbers[before] == self._first:
                del self._numbers[before]
            self._first += 1
        before = self.digest
        self._numbers[before] = self._first + len(self._changes)
        self._changes.append((before, (new.storage_group, new.table)))
        self._sum = (self._sum - (_hash(old) if old is not None else 0) + _hash(new)) % (1 << _BITS)

    def since(self, digest: str) -> set[Key] | None:
        """The tables that may have changed since the schemas had this digest; None if it is not known."""
        if digest == self.digest:
            return set()
        number = self._numbers.get(digest)
        if number is None:
            return None
        return {key for _, key in list(self._changes)[number - self._first :]}


def _hash(schema: TableSchema) -> int:
    """0 for a dropped table: no view has it."""
    return 0 if schema.dropped else xxhash.xxh3_128_intdigest(msgspec.msgpack.encode(schema))
