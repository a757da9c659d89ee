"""Slot migration: slots that leave a group or come to it, with their sessions, which precede the files.

The sealed group retains its session table until it releases the slots. The meta group records a digest of
each part of the table (`SealResult.parts`). The leader of the gaining group fetches the parts from a member
of the sealed group and logs them (`OpenSessions`) before its `Open`, which has no effect until all of them
are in the log.
"""

from collections.abc import Iterable

import msgspec
import xxhash

from nodeagent.data.closing import Closes
from nodeagent.data.commands import CloseFile, Open, OpenSessions, Seal, Unseal
from nodeagent.data.rows import Rows
from nodeagent.data.sessions import Sessions
from nodeagent.data.slots import Slots, expand
from nodeagent.model.ids import GroupId
from nodeagent.model.limits import SESSIONS_PART_BYTES
from nodeagent.model.operation import SealResult


def part_of(table: bytes, number: int) -> bytes:
    """Part `number` (from 0) of an exported session table; empty past the end."""
    start = number * SESSIONS_PART_BYTES
    return table[start : start + SESSIONS_PART_BYTES]


def digest(part: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(part)


def seal_result(group: GroupId, index: int, table: bytes) -> SealResult:
    """The record for the meta group of a seal at log index `index` with the exported session `table`."""
    parts = range(0, len(table), SESSIONS_PART_BYTES)
    return SealResult(group, index, parts=tuple(digest(part_of(table, i)) for i, _ in enumerate(parts)))


class Part(msgspec.Struct, array_like=True, frozen=True):
    """A logged part of a session table."""

    digest: str
    data: bytes


class Staged(msgspec.Struct):
    """Parts that are in the log of a gaining group while their `Open` is not."""

    parts: dict[str, dict[GroupId, dict[int, Part]]] = {}
    """operation -> sealed group -> part number -> part"""

    def add(self, c: OpenSessions) -> None:
        of_operation = self.parts.setdefault(c.operation, {})
        of_operation.setdefault(c.source, {})[c.part] = Part(digest(c.data), c.data)

    def missing(self, operation: str, results: Iterable[SealResult]) -> list[tuple[GroupId, int, str]]:
        """(sealed group, part number, digest) of each part that is not logged yet."""
        have = self.parts.get(operation, {})
        return [
            (result.group, number, expected)
            for result in results
            for number, expected in enumerate(result.parts)
            if (part := have.get(result.group, {}).get(number)) is None or part.digest != expected
        ]

    def tables(self, operation: str, results: Iterable[SealResult]) -> list[bytes]:
        """The whole session tables; no part may be missing. A result from the first release contains the
        table itself."""
        have = self.parts.get(operation, {})
        whole = (
            b"".join(have[r.group][number].data for number in range(len(r.parts))) if r.parts else r.sessions
            for r in results
        )
        return [table for table in whole if table]

    def drop(self, operation: str) -> None:
        self.parts.pop(operation, None)


class SlotMigration:
    """Seals and unseals slots of this group; opens slots that other groups sealed."""

    def __init__(self, slots: Slots, sessions: Sessions, staged: Staged, rows: Rows, closes: Closes) -> None:
        self.staged = staged
        self._slots = slots
        self._sessions = sessions
        self._rows = rows
        self._closes = closes

    def seal(self, index: int, command: Seal) -> None:
        exported = self._sessions.export(expand(command.slots))
        if not self._slots.seal(command.operation, command.slots, index, exported):
            return
        moved = self._slots.sealed[command.operation].slots
        self._sessions.forget(moved)  # the exported table has them; `unseal` takes them from it
        self._closes.close(index, CloseFile(self._rows.of_slots(moved), writer=command.writer))

    def unseal(self, command: Unseal) -> None:
        sealed = self._slots.sealed.get(command.operation)
        self.staged.drop(command.operation)
        if self._slots.unseal(command.operation) and sealed is not None:
            self._sessions.import_tables([sealed.sessions], sealed.slots)

    def stage(self, command: OpenSessions) -> None:
        if command.operation not in self._slots.ended and command.operation not in self._slots.arriving:
            self.staged.add(command)

    def open(self, index: int, command: Open) -> None:
        if self.staged.missing(command.operation, command.results):
            return
        sources = [r.group for r in command.results]
        if not self._slots.open_slots(command.operation, command.slots, index, sources):
            return
        opened = self._slots.arriving[command.operation].slots
        self._sessions.import_tables(self.staged.tables(command.operation, command.results), opened)
        self.staged.drop(command.operation)
