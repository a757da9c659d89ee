"""The sessions of sealed slots on their way to the gaining group.

The sealed group keeps its table until it releases the slots. The meta group records a digest of each part
(`SealResult.parts`); the gaining group's leader asks a member of the sealed group for the parts and logs
them (`OpenSessions`) ahead of its `Open`, which has no effect before all of them are in the log.
"""

from collections.abc import Iterable

import msgspec
import xxhash

from nodeagent.data.commands import OpenSessions
from nodeagent.model.ids import GroupId
from nodeagent.model.limits import SESSIONS_PART_BYTES
from nodeagent.model.operation import SealResult


def part_of(table: bytes, number: int) -> bytes:
    """Empty past the end."""
    start = number * SESSIONS_PART_BYTES
    return table[start : start + SESSIONS_PART_BYTES]


def digest(part: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(part)


def seal_result(group: GroupId, index: int, table: bytes) -> SealResult:
    """What the meta group is told of a seal at `index`."""
    parts = range(0, len(table), SESSIONS_PART_BYTES)
    return SealResult(group, index, parts=tuple(digest(part_of(table, i)) for i, _ in enumerate(parts)))


class Part(msgspec.Struct, array_like=True, frozen=True):
    digest: str
    data: bytes


class Staged(msgspec.Struct):
    """Parts that are in the log of a gaining group and whose `Open` is not."""

    parts: dict[str, dict[GroupId, dict[int, Part]]] = {}
    """operation -> sealed group -> number"""

    def add(self, c: OpenSessions) -> None:
        of_operation = self.parts.setdefault(c.operation, {})
        of_operation.setdefault(c.source, {})[c.part] = Part(digest(c.data), c.data)

    def lacking(self, operation: str, results: Iterable[SealResult]) -> list[tuple[GroupId, int, str]]:
        """(sealed group, number, digest) of each part that is still to be logged."""
        have = self.parts.get(operation, {})
        return [
            (result.group, number, wanted)
            for result in results
            for number, wanted in enumerate(result.parts)
            if (part := have.get(result.group, {}).get(number)) is None or part.digest != wanted
        ]

    def tables(self, operation: str, results: Iterable[SealResult]) -> list[bytes]:
        """Whole tables, of which none is lacking. A result of the first release brings its own."""
        have = self.parts.get(operation, {})
        whole = (
            b"".join(have[r.group][number].data for number in range(len(r.parts))) if r.parts else r.sessions
            for r in results
        )
        return [table for table in whole if table]

    def drop(self, operation: str) -> None:
        self.parts.pop(operation, None)
