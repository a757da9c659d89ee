"""Read a log directory without changing it: `log dump` and `log check`.

The caller holds the directory's lock, or accepts that a log in use ends in a torn batch.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from nodeagent.log.index import Damage
from nodeagent.log.record import Block, BlockKind, Copy, Head, RowKind, decode_ops
from nodeagent.log.replay import Recovered, Replay, list_segments, path_of, read_newest
from nodeagent.log.scan import Bad, End, scan_segment
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.disk import Disk
from nodeagent.model.entries import Append

Line = dict[str, Any]
"""A line of a dump, ready for JSON."""

EntryLines = Callable[[Append | Copy], Iterable[Line]]
"""The lines for the entries of an operation."""


@dataclass(frozen=True, slots=True)
class Report:
    """What opening this log would find."""

    segments: int
    bytes_total: int
    groups: dict[str, tuple[int, int]]
    """Group -> first and last readable index; first is last + 1 if the group has no readable entry."""

    damaged: list[Damage]
    torn_bytes: int
    healed: int

    @property
    def is_whole(self) -> bool:
        return not self.damaged


def dump(disk: Disk, directory: str, group: str = "", entries: EntryLines | None = None) -> Iterator[Line]:
    """One line for each operation, block without operations, bad place and torn tail, in log order.

    Keys: segment, offset, group, index, count, term, kind, bytes, valid; also `error` if the operations of a
    valid block cannot be decoded. `index` is the first of `count` entries. Bytes that cannot be decoded have
    kind `unreadable` or `torn` and no group.

    Args:
        group: only the operations of this group, and the bytes that cannot be decoded; "" for every line.
        entries: the lines that follow an operation with readable entries.
    """
    numbers = list_segments(disk, directory)
    newest, durable = read_newest(disk, directory)
    for number in numbers:
        content = disk.read(path_of(directory, number))
        with memoryview(content) as buffer:
            floor = durable if number == newest else 0
            is_newest = number == max(newest, numbers[-1])  # as in `Replay.run`
            for found in scan_segment(buffer, number, floor if is_newest else None):
                match found:
                    case Bad(offset, end, None):
                        yield _plain(number, offset, "unreadable", end - offset, valid=False)
                    case End(offset, torn_end):
                        if torn_end > offset:
                            yield _plain(number, offset, "torn", torn_end - offset, valid=False)
                    case Bad(_, _, head):
                        assert head is not None
                        yield from _lines(head, group, valid=False)
                    case Block():
                        yield from _block_lines(found, group, entries)


def check(disk: Disk, directory: str) -> Report:
    """Replay the log as `Log.open` does, without changing it."""
    replay = Replay()
    replay.run(disk, directory)
    recovered: Recovered = replay.recovered()
    groups = {
        name: (group.base.index + 1, group.base.index + len(group.entries))
        for name, group in recovered.groups.items()
    }
    return Report(
        segments=len(replay.sizes),
        bytes_total=sum(replay.sizes.values()),
        groups=groups,
        damaged=recovered.damaged,
        torn_bytes=recovered.torn_bytes,
        healed=recovered.healed,
    )


def _block_lines(block: Block, group: str, entries: EntryLines | None) -> Iterator[Line]:
    lines = _lines(block.head, group, valid=True)
    if entries is None or block.head.kind != BlockKind.BATCH:
        yield from lines
        return
    try:
        ops = decode_ops(block)
    except UNDECODABLE as error:
        yield from (line | {"error": str(error)} for line in lines)
        return
    wanted = [op for row, op in ops if group in ("", row.group)]
    for line, op in zip(lines, wanted, strict=True):
        yield line
        if isinstance(op, Append | Copy):
            yield from entries(op)


def _lines(head: Head, group: str, valid: bool) -> Iterator[Line]:
    if head.kind != BlockKind.BATCH and not group:
        kind = BlockKind(head.kind).name.lower()
        yield _plain(head.segment, head.offset, kind, head.end - head.offset, valid)
    for row in head.rows:
        if group not in ("", row.group):
            continue
        yield {
            "segment": head.segment,
            "offset": head.offset,
            "group": row.group,
            "index": row.first,
            "count": row.count,
            "term": row.term,
            "kind": RowKind(row.kind).name.lower(),
            "bytes": row.length,
            "valid": valid,
        }


def _plain(segment: int, offset: int, kind: str, size: int, valid: bool) -> Line:
    return {
        "segment": segment,
        "offset": offset,
        "group": "",
        "index": 0,
        "count": 0,
        "term": 0,
        "kind": kind,
        "bytes": size,
        "valid": valid,
    }
