"""The saved form of a data group's state, and how it is read back.

Names, types and defaults of the fields are the on-disk format: they never change (`tests/compat`).
"""

from collections.abc import Iterable

import msgspec

from nodeagent.data import commands
from nodeagent.data.adoption import Adopting
from nodeagent.data.closing import Part as ClosePart
from nodeagent.data.closing import Pending
from nodeagent.data.compaction import Compacting
from nodeagent.data.sessions import Image as SessionsImage
from nodeagent.data.slot_migration import Part
from nodeagent.data.slots import Slots
from nodeagent.model.files import FileMeta, Tombstone
from nodeagent.model.ids import GroupId, PartitionKey
from nodeagent.model.schema import TableSchema


class Checkpoint(msgspec.Struct):
    """The state at log index `applied`, without the rows that are still in the log."""

    group: GroupId
    applied: int
    slots: Slots
    sessions: SessionsImage
    schemas: list[TableSchema]
    tombstones: list[Tombstone]
    files: list[FileMeta]
    closed_through: list[tuple[PartitionKey, int]]
    """See `Rows.closed_through`."""

    refused: list[int]
    """Log indexes of the writes in the retained log that had no effect."""

    pending: list[tuple[int, bytes, list[TableSchema], set[int]]]
    """(log index, entry, schemas in use at that index, slots released since) of each close whose files are
    not all made."""

    adopting: list[tuple[int, bytes, set[int]]]
    """(log index, entry, slots released since) of each adoption whose files are not in place."""

    compacting: list[tuple[int, bytes, TableSchema, list[Tombstone]]] = []
    """(log index, entry, schema and deletes at that index) of each compaction that has not ended."""

    unfiled: list[tuple[int, PartitionKey, int]] = []
    """The partitions of `pending` closes that are not filed: (log index of the close, partition, number of
    its first unit). Empty in a checkpoint of a release that added all files of a close to the manifest at
    once: no partition of its pending closes is filed."""

    parked: list[tuple[int, str, str]] = []
    """(log index of a pending close, name of the TsFile that must not be made, reason)"""

    staged: dict[str, dict[GroupId, dict[int, Part]]] = {}
    """See `slot_migration.Staged.parts`."""

    substitutes: list[str] = []
    """See `Files.substitutes`."""

    def put_closes(self, pending: Iterable[Pending]) -> None:
        for p in pending:
            self.pending.append((p.index, commands.encode(p.command), p.schemas, p.released))
            firsts = ((partition, part.first) for partition, part in p.parts.items())
            self.unfiled += [(p.index, partition, first) for partition, first in firsts if first is not None]
            self.parked += [(p.index, name, why) for name, why in p.parked.items()]

    def closes(self) -> list[Pending]:
        return [self._close(*of_close) for of_close in self.pending]

    def _close(self, index: int, entry: bytes, schemas: list[TableSchema], released: set[int]) -> Pending:
        command = commands.decode(entry)
        assert isinstance(command, commands.CloseFile)
        parts = {p: ClosePart(first) for i, p, first in self.unfiled if i == index}
        parts = parts or {p: ClosePart(None) for _, p in command.partitions}
        parked = {name: why for i, name, why in self.parked if i == index}
        return Pending(index, command, parts, schemas, released, parked)

    def put_adoptions(self, waiting: Iterable[Adopting]) -> None:
        self.adopting += [(a.index, commands.encode(a.command), a.released) for a in waiting]

    def adoptions(self) -> list[Adopting]:
        made = []
        for index, entry, released in self.adopting:
            command = commands.decode(entry)
            assert isinstance(command, commands.Adopt)
            made.append(Adopting(index, command, released))
        return made

    def put_compactions(self, active: Iterable[Compacting]) -> None:
        """Save the compactions, except those of released slots: no job of theirs runs after a restart."""
        self.compacting += [
            (c.index, commands.encode(c.command), c.schema, c.tombstones) for c in active if not c.released
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
