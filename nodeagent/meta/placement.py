"""The partition table in force: which group owns which slots.

Versions never decrease, and tables of equal versions are equal. The next table of a change is
in force from the entry that enters OPEN: before that entry no gaining group could accept a write, and a
cancelled change leaves the table as it is.
"""

from typing import Protocol

from nodeagent.partition.table import PartitionTable, TableWire


class Kept(Protocol):
    """The fields of the image that this module changes."""

    table: TableWire | None
    next_table: TableWire | None


class Placement:
    def __init__(self, kept: Kept) -> None:
        self.table = PartitionTable.from_wire(kept.table) if kept.table else None
        self._kept = kept

    @property
    def version(self) -> int:
        return self.table.version if self.table is not None else 0

    def put(self, index: int, table: TableWire) -> PartitionTable:
        """Put the table in force from the entry at `index` on; `index` becomes its version."""
        stamped = PartitionTable.from_wire(table).stamped(index)
        assert stamped.version > self.version, (stamped.version, self.version)
        self.table = stamped
        self._kept.table = stamped.to_wire()
        return stamped

    def plan(self, table: TableWire) -> None:
        """Store the next table, which the open operation will put in force."""
        self._kept.next_table = PartitionTable.from_wire(table).to_wire()

    def switch(self, index: int) -> None:
        assert self._kept.next_table is not None
        self.put(index, self._kept.next_table)
        self._kept.next_table = None

    def cancel(self) -> None:
        self._kept.next_table = None
