"""Free segments: delete those without live entries, copy the few live entries of others forward."""

import errno
from collections.abc import Callable, Collection, Mapping, Sequence

from nodeagent.log.index import Index
from nodeagent.log.record import Block, BlockKind, Copy, decode_ops
from nodeagent.log.scan import Bad, scan_segment
from nodeagent.log.segments import Segments
from nodeagent.model.entries import Append, Entry
from nodeagent.model.ids import GroupId

SEGMENTS_RECLAIMED_PER_CALL = 4


class Reclaimer:
    """Reclaims the sealed segments of one log.

    Args:
        copy_bytes_max: see `LogSettings.copy_bytes_max`.
        sync: makes every batch written so far durable.
        write: appends copies as one batch.
    """

    def __init__(
        self,
        index: Index,
        segments: Segments,
        copy_bytes_max: int,
        sync: Callable[[], None],
        write: Callable[[Sequence[Copy]], None],
    ) -> None:
        self._index = index
        self._segments = segments
        self._copy_bytes_max = copy_bytes_max
        self._sync = sync
        self._write = write
        self._unreadable: set[int] = set()
        """Segments with a live entry that proved unreadable since the log was opened."""

    def run(self) -> None:
        """Delete a few dead segments. If there is none, copy the live entries of one segment and delete it.
        Raises `NoSpace`."""
        if not self._segments.sealed:
            return
        live, damaged = self._index.live_bytes(), self._damaged()
        if not self._delete_dead(live, damaged) and self._copy_forward(live, damaged):
            self._delete_dead(self._index.live_bytes(), self._damaged())

    def _damaged(self) -> set[int]:
        return self._index.damaged_segments(self._segments.numbers[0])

    def _delete_dead(self, live: Mapping[int, int], damaged: Collection[int]) -> int:
        """Delete a few segments without live entries; return how many."""
        sealed = sorted(self._segments.sealed)
        dead = [n for n in sealed if n not in live and n not in damaged and self._is_recorded(n)]
        if dead:
            self._sync()  # make the writes durable that replaced their entries
        for number in dead[:SEGMENTS_RECLAIMED_PER_CALL]:
            self._segments.delete(number)
        return len(dead[:SEGMENTS_RECLAIMED_PER_CALL])

    def _is_recorded(self, number: int) -> bool:
        """Whether the next segment's start records the result of the operations in segment `number`.

        A start without the places of entries (written by an early release) does so only for the oldest
        segment.
        """
        numbers, starts = self._segments.numbers, self._segments.starts
        after = next(n for n in numbers if n > number)
        return after in starts and (starts[after] or number == numbers[0])

    def _copy_forward(self, live: Mapping[int, int], damaged: Collection[int]) -> bool:
        """Copy the live entries of the first mostly dead segment to the end of the log."""
        for number, size in sorted(self._segments.sealed.items()):
            living = live.get(number, 0)
            if not 0 < living <= self._copy_bytes_max or living * 2 > size:
                continue
            if number in damaged or number in self._unreadable or not self._is_recorded(number):
                continue
            copies = self._copies(number, [(g, e.first, e.last) for g, e in self._index.extents_in(number)])
            if copies is not None:
                self._write(copies)
                return True
            self._unreadable.add(number)
        return False

    def _copies(self, number: int, wanted: list[tuple[GroupId, int, int]]) -> list[Copy] | None:
        """The wanted entries, read from the segment; None if they cannot be read."""
        try:
            content = self._segments.read(number)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None  # the groups hold the entries in memory; only the space stays in use
        found: dict[tuple[GroupId, int, int], list[Entry | None]] = {
            key: [None] * (key[2] - key[1] + 1) for key in wanted
        }
        with memoryview(content) as buffer:
            for item in scan_segment(buffer, number, durable=None):
                if isinstance(item, Bad):
                    return None
                if isinstance(item, Block) and item.head.kind == BlockKind.BATCH:
                    _collect(item, found)
        copies: list[Copy] = []
        for (group, first, _), slots in found.items():
            entries = [entry for entry in slots if entry is not None]
            if len(entries) != len(slots):
                return None
            copies.append(Copy(group, first, entries))
        return copies


def _collect(block: Block, found: dict[tuple[GroupId, int, int], list[Entry | None]]) -> None:
    """Add the wanted entries of this block to `found`; entries of a later block replace earlier ones."""
    if not any(row.group == key[0] for row in block.head.rows for key in found):
        return
    for row, op in decode_ops(block):
        if not isinstance(op, Append | Copy):
            continue
        for (group, first, last), slots in found.items():
            low, high = max(first, row.first), min(last, row.last)
            if group == row.group and low <= high:
                slots[low - first : high + 1 - first] = op.entries[low - row.first : high + 1 - row.first]
