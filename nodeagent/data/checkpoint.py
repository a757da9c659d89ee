"""What is saved of a data group, and how it is read again.

Names, types and defaults of the fields are what lies on disks: they stay (`tests/compat`).
"""

from collections.abc import Iterable

import msgspec

from nodeagent.data import commands
from nodeagent.data.adoption import Adopting
from nodeagent.data.closing import Part as ClosePart
from nodeagent.data.closing import Pending
from nodeagent.data.compaction import Compacting
from nodeagent.data.handover import Part
from nodeagent.data.sessions import Image as SessionsImage
from nodeagent.data.slots import Slots
from nodeagent.model.files import FileMeta, Tombstone
from nodeagent.model.ids import GroupId, PartitionKey
from nodeagent.model.schema import TableSchema


class Checkpoint(msgspec.Struct):
    """The state at `applied`, without the rows that are still in the log."""

    group: GroupId
    applied: int
    slots: Slots
    sessions: SessionsImage
    schemas: list[TableSchema]
    tombstones: list[Tombstone]
    files: list[FileMeta]
    closed_through: list[tuple[PartitionKey, int]]
    refused: list[int]
    """Writes in the kept log that had no effect."""

    pending: list[tuple[int, bytes, list[TableSchema], set[int]]]
    """(index, entry, schemas then in use, slots released since) of closes whose files are not made."""

    adopting: list[tuple[int, bytes, set[int]]]
    """(index, entry, slots released since)"""

    compacting: list[tuple[int, bytes, TableSchema, list[Tombstone]]] = []
    """(index, entry, schema and deletes of that instant)"""

    unfiled: list[tuple[int, PartitionKey, int]] = []
    """What is left of `pending`: (index of the close, partition, number of its first unit). A release that
    filed whole closes has saved none: there all of a pending close is left."""

    parked: list[tuple[int, str, str]] = []
    """(index of a pending close, name of the TsFile that is not to be made, why)"""

    staged: dict[str, dict[GroupId, dict[int, Part]]] = {}
    """As in `handover.Staged`."""

    substitutes: list[str] = []
    """As in `Files.substitutes`."""

    def put_closes(self, pending: Iterable[Pending]) -> None:
        for p in pending:
            self.pending.append((p.index, commands.encode(p.command), p.schemas, p.gone))
            firsts = ((partition, part.first) for partition, part in p.parts.items())
            self.unfiled += [(p.index, partition, first) for partition, first in firsts if first is not None]
            self.parked += [(p.index, name, why) for name, why in p.parked.items()]

    def closes(self) -> list[Pending]:
        return [self._close(*of_close) for of_close in self.pending]

    def _close(self, index: int, entry: bytes, schemas: list[TableSchema], gone: set[int]) -> Pending:
        command = commands.decode(entry)
        assert isinstance(command, commands.CloseFile)
        parts = {p: ClosePart(first) for i, p, first in self.unfiled if i == index}
        parts = parts or {p: ClosePart(None) for _, p in command.partitions}
        parked = {name: why for i, name, why in self.parked if i == index}
        return Pending(index, command, parts, schemas, gone, parked)

    def put_adoptions(self, waiting: Iterable[Adopting]) -> None:
        self.adopting += [(a.index, commands.encode(a.command), a.gone) for a in waiting]

    def adoptions(self) -> list[Adopting]:
        made = []
        for index, entry, gone in self.adopting:
            command = commands.decode(entry)
            assert isinstance(command, commands.Adopt)
            made.append(Adopting(index, command, gone))
        return made

    def put_compactions(self, under_way: Iterable[Compacting]) -> None:
        """Without those whose slots were released: no job of them runs after a restart."""
        self.compacting += [
            (c.index, commands.encode(c.command), c.schema, c.tombstones) for c in under_way if not c.gone
        ]

    def compactions(self) -> list[Compacting]:
        made = []
        for index, entry, schema, tombstones in self.compacting:
            command = commands.decode(entry)
            assert isinstance(command, commands.Compact | commands.Park)
            made.append(Compacting(index, command, schema, tombstones))
        return made


def encode_checkpoint(saved: Checkpoint) -> bytes:
    return msgspec.msgpack.encode(saved)


def decode_checkpoint(payload: bytes) -> Checkpoint:
    return msgspec.msgpack.decode(payload, type=Checkpoint)
