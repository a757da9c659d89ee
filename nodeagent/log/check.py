"""Read a log directory without changing it: `log dump` and `log check`.

The caller holds the directory's lock, or accepts that a log in use ends in a torn batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from nodeagent.log.index import Damage
from nodeagent.log.record import BlockKind, Head, RowKind
from nodeagent.log.replay import Recovered, Replay, list_segments, path_of, read_newest
from nodeagent.log.scan import Bad, End, scan_segment
from nodeagent.model.disk import Disk

Line = dict[str, str | int | bool]


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


def dump(disk: Disk, directory: str) -> Iterator[Line]:
    """One line for each operation, bad place and torn tail, in log order.

    Keys: segment, offset, group, index, count, term, kind, bytes, valid. `index` is the first of `count`
    entries. Bytes that cannot be decoded have kind `unreadable` or `torn` and no group.
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
                    case Bad(_, _, Head() as head):
                        yield from _lines(head, valid=False)
                    case _:
                        assert not isinstance(found, Bad)
                        yield from _lines(found.head, valid=True)


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


def dump_jsonl(disk: Disk, directory: str) -> Iterator[bytes]:
    """`dump` as JSON lines without the newline."""
    yield from map(msgspec.json.encode, dump(disk, directory))


def _lines(head: Head, valid: bool) -> Iterator[Line]:
    if head.kind != BlockKind.BATCH:
        kind = BlockKind(head.kind).name.lower()
        yield _plain(head.segment, head.offset, kind, head.end - head.offset, valid)
    for row in head.rows:
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
