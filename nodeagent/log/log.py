"""The log of a node: one for all its groups, so that one fsync serves them all.

Write ordering, what must be durable before what (a *must* broken loses data):

- a record before anything that promises it leaves the node: the caller syncs, then sends;
- a segment with its seal, before the next one gets its name;
- the next one's first block, before its name; its name before any record in it;
- whatever made the last entries of a segment needless (a rebase, an overwrite, copies) before it is unlinked;
- `newest` after the segment it names, and the bytes before the offset it holds.

A directory holds `<number>.log` segments, of which any but the newest may lack, `newest`, `reserve`
(space that is given back when the disk is full, so that term and vote can still be written) and
`<number>.<offset>.torn` (what recovery cut off, for a human).

A write that finds no room is refused and may be tried again: the log is as it was before it. Any other failed
write, and any failed sync, is final (after a failed fsync the kernel calls the lost pages clean, Rebello
et al., ATC 2020): the log keeps the error and answers everything with it from then on.
"""

import contextlib
import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Self, TypeVar

import msgspec

from nodeagent.log.index import Index, Tip
from nodeagent.log.record import (
    AnyOp,
    Block,
    BlockKind,
    Copy,
    Row,
    decode_ops,
    encode_block,
    encode_payload,
    row_of,
)
from nodeagent.log.replay import NEWEST, SUFFIX, Recovered, Replay, newest_content, path_of, read_newest
from nodeagent.log.scan import Bad, scan_segment
from nodeagent.log.segment import Segment
from nodeagent.model.disk import Disk
from nodeagent.model.entries import Append, Entry, LogOp
from nodeagent.model.ids import GroupId
from nodeagent.model.limits import MIB

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
RESERVE = "reserve"
NEW = ".new"
SEGMENTS_RECLAIMED_PER_CALL = 4

_BATCH = BlockKind.BATCH
"""Looked up in the enum once, and not at every write."""

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


class NoSpace(OSError):
    """The disk is full, the reserve is used up. Nothing was written; trying again is right."""


class LogSettings(msgspec.Struct, frozen=True):
    """All in bytes."""

    segment_bytes: int = 64 * MIB
    """A segment is closed before the batch that would make it longer; a longer batch gets its own."""

    zero_step_bytes: int = 4 * MIB
    reserve_bytes: int = 8 * MIB
    """Given back when the disk is full; 0 for none."""

    copy_bytes_max: int = 4 * MIB
    """Live entries of a segment are copied forward when they are not more than this and it is the most that
    one call copies."""


class LogStatistics(msgspec.Struct, frozen=True):
    segments: int
    bytes_total: int
    oldest: int
    newest: int
    batches: int
    syncs: int
    torn_bytes: int
    space_low: bool


class Log:
    """Made by `open`; used by one thread."""

    def __init__(self, disk: Disk, directory: str, settings: LogSettings, replay: Replay) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._index: Index = replay.index
        self._seq = replay.seq
        self._sealed: dict[int, int] = dict(replay.sizes)
        self._starts = replay.starts
        self._unreadable: set[int] = set()
        """Segments in which a live entry was found to be unreadable while this log was open."""

        self._torn_bytes = replay.tail.torn_end - replay.tail.end
        self._batches = 0
        self._syncs = 0
        self._space_low = False
        self._last_kind = BlockKind.START
        self._poison: OSError | None = None
        self._segment: Segment

    # Opening.

    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings) -> tuple[Self, Recovered]:
        """Recover, cut a torn tail, and be ready to write.

        All that is recovered is durable when this returns. Damage is not an error here: it is told,
        and the files stay as they are.

        Raises:
            OSError: the disk refuses; nothing may be assumed.
        """
        disk.mkdirs(directory)
        for name in disk.listdir(directory):
            if name.endswith((NEW, ".tmp")):
                disk.unlink(f"{directory}/{name}")
        replay = Replay()
        replay.run(disk, directory)
        recovered = replay.recovered()
        for state in replay.index.groups.values():
            for extent in state.extents:
                extent.entries = None
        log = cls(disk, directory, settings, replay)
        log._continue(replay)
        log._fill_reserve()
        return log, recovered

    def _continue(self, replay: Replay) -> None:
        tail = replay.tail
        oldest = min(self._sealed, default=tail.number + 1)
        if tail.number not in self._sealed:
            self._grow(lambda: self._create(tail.number + 1, oldest), self._drop_new)
            return
        file = self._disk.open(path_of(self._directory, tail.number))
        if tail.torn_end > tail.end:
            aside = f"{self._directory}/{tail.number:012d}.{tail.end}.torn"
            torn = file.pread(tail.end, tail.torn_end - tail.end)
            with contextlib.suppress(
                NoSpace
            ):  # it was never acknowledged, and is only for a person to look at
                self._grow(lambda: self._disk.write_atomic(aside, torn))
            file.zero_fill(tail.end, tail.torn_end - tail.end)
        if tail.end > tail.synced:
            # What was read may be in the page cache only, and called clean after a failed sync of an
            # earlier process: write it again, so that the sync below means it. Behind damage, too: what is
            # there of other groups counts from now on.
            file.pwrite(tail.synced, file.pread(tail.synced, tail.end - tail.synced))
        file.sync()
        self._disk.sync_dir(self._directory)
        del self._sealed[tail.number]
        self._segment = Segment(file, tail.number, tail.end, self._settings.zero_step_bytes)
        with contextlib.suppress(NoSpace):  # the first write tries again; `newest` is a second witness only
            if tail.sealed or tail.damaged:
                self._segment.closed = True
                self._begin_next()
            elif read_newest(self._disk, self._directory)[0] != tail.number:
                self._grow(lambda: self._write_newest(self._segment))

    def _begin_next(self) -> None:
        """Go on in a new segment. Without room for it this one stays the last, closed."""
        old = self._segment
        oldest = self.segments[0]
        self._grow(lambda: self._create(old.number + 1, oldest), self._drop_new)
        old.file.close()
        self._sealed[old.number] = old.end

    def _create(self, number: int, oldest: int) -> None:
        """Make segment `number` and write there from now on."""
        path = path_of(self._directory, number)
        temporary = path.removesuffix(SUFFIX) + NEW
        self._drop_new()
        file = self._disk.create(temporary)
        try:
            body = _encoder.encode(self._index.start(oldest))
            segment = Segment(file, number, 0, self._settings.zero_step_bytes)
            parts, length = encode_block(BlockKind.START, number, self._seq + 1, 0, 0, [], [body])
            segment.put(parts, length)
            segment.first_batch = segment.end
            segment.sync()
            self._disk.rename(temporary, path)
            self._disk.sync_dir(self._directory)
            self._write_newest(segment)
        except BaseException:
            file.close()  # open, it would keep the room that is lacking
            raise
        self._seq += 1
        self._last_kind = BlockKind.START
        self._starts[number] = True
        self._segment = segment

    def _drop_new(self) -> None:
        """Remove a segment that was begun and has no name yet."""
        for name in self._disk.listdir(self._directory):
            if name.endswith(NEW):
                self._disk.unlink(f"{self._directory}/{name}")

    def _write_newest(self, segment: Segment) -> None:
        content = newest_content(segment.number, segment.synced)
        self._disk.write_atomic(f"{self._directory}/{NEWEST}", content)

    # Writing.

    def write(self, ops: Sequence[LogOp]) -> None:
        """Put one atomic batch behind the others; durable only after `sync`.

        Raises:
            NoSpace: it is not written, nothing else has changed.
            OSError: this or an earlier call failed; the log is of no more use.
        """
        self._check()
        if ops:
            self._write(ops)

    def sync(self) -> None:
        """Make every batch written so far durable; one fdatasync, none if there is nothing new."""
        self._check()
        segment = self._segment
        if segment.synced < segment.end:
            self._guard(segment.sync)
            self._syncs += 1

    def mark_synced(self) -> None:
        """Record in the log itself that everything is durable, for the tail too.

        Worth a call when the log has been idle for a moment: without a later block, a bad last batch
        cannot be told from a torn one. Needs no sync of its own.
        """
        self._check()
        segment = self._segment
        if segment.synced == segment.end and self._last_kind == _BATCH:
            with contextlib.suppress(NoSpace):
                self._put(BlockKind.SYNCED, [], [], may_use_reserve=False)

    def close(self) -> None:
        """Sync, record that (when there is room), and close. A poisoned log only closes its file."""
        try:
            if self._poison is None:
                self.sync()
                with contextlib.suppress(NoSpace):
                    self._grow(lambda: self._write_newest(self._segment))
        finally:
            self._segment.file.close()

    def _write(self, ops: Sequence[AnyOp]) -> None:
        payloads = [encode_payload(op) for op in ops]
        segment = self._segment
        rough_length = sum(map(len, payloads)) + 256 * (1 + len(ops))
        is_long = segment.end + rough_length > self._settings.segment_bytes
        if segment.closed or (is_long and segment.end > segment.first_batch):
            self._rotate()
        seq, number = self._seq + 1, self._segment.number
        rows = self._rows(ops, payloads, seq)
        self._put(_BATCH, rows, payloads)
        for row, op in zip(rows, ops, strict=True):
            self._index.apply(row, op, seq, number, keep_entries=False)
        self._batches += 1

    def _rows(self, ops: Sequence[AnyOp], payloads: Sequence[bytes], seq: int) -> list[Row]:
        """What the head of block `seq` says of these operations; the index does not follow them yet."""
        tips: dict[GroupId, Tip] = {}
        rows: list[Row] = []
        for op, payload in zip(ops, payloads, strict=True):
            tip = tips.get(op.group)
            if tip is None:
                tip = tips[op.group] = self._index.tip(op.group)
            rows.append(row_of(op, tip.seq, len(payload)))
            tip.follow(op, seq)
        return rows

    def _put(
        self,
        kind: BlockKind,
        rows: Sequence[Row],
        payloads: Sequence[bytes],
        *,
        may_use_reserve: bool = True,
    ) -> None:
        segment = self._segment
        parts, length = encode_block(
            kind, segment.number, self._seq + 1, segment.end, segment.synced, rows, payloads
        )
        try:
            segment.put(parts, length)
        except OSError as error:
            self._no_room(error, segment.trim, may_use_reserve=may_use_reserve)
            self._grow(lambda: segment.put(parts, length), segment.trim, may_use_reserve=may_use_reserve)
        self._seq += 1
        self._last_kind = kind

    def _rotate(self) -> None:
        """Seal the segment, unless it is, then begin the next one."""
        old = self._segment
        if not old.closed:
            extents = [(group, e.first, e.last) for group, e in self._index.extents_in(old.number)]
            self._put(BlockKind.SEAL, [], [_encoder.encode(extents)])
            self._guard(lambda: old.file.truncate(old.end))
            self._guard(old.sync)
            old.closed = True
        self._begin_next()

    def with_room(self, action: Callable[[], T]) -> T:
        """Run what must be written beside the log at a start, on a full disk into the room that was laid by.

        Raises:
            NoSpace: that is used up too.
        """
        found: list[T] = []
        self._grow(lambda: found.append(action()))
        return found[0]

    # Failing.

    def _check(self) -> None:
        if self._poison is not None:
            raise self._poison

    def _guard(self, action: Callable[[], None]) -> None:
        """Run `action`; its failure is final."""
        try:
            action()
        except OSError as error:
            self._poison = error
            raise

    def _grow(
        self,
        action: Callable[[], None],
        undo: Callable[[], None] = lambda: None,
        *,
        may_use_reserve: bool = True,
    ) -> None:
        """Run what takes room on the disk, when there is none once more without the reserve.

        `undo` takes back what an attempt without room has left. Any other failure is final.

        Raises:
            NoSpace: undone.
        """
        while True:
            try:
                return action()
            except OSError as error:
                self._no_room(error, undo, may_use_reserve=may_use_reserve)

    def _no_room(self, error: OSError, undo: Callable[[], None], *, may_use_reserve: bool) -> None:
        """After a write that failed: undo it. Returns when the reserve was given back, so that it may be
        tried once more."""
        if error.errno not in NO_SPACE:
            self._poison = error
            raise error
        self._space_low = True
        self._guard(undo)
        if not (may_use_reserve and self._give_reserve()):
            raise NoSpace(*error.args) from error

    def _give_reserve(self) -> bool:
        """Whether there was a reserve to give back."""
        path = f"{self._directory}/{RESERVE}"
        if not self._disk.exists(path):
            return False
        self._guard(lambda: self._disk.unlink(path))
        self._guard(lambda: self._disk.sync_dir(self._directory))
        return True

    def _fill_reserve(self) -> None:
        """Lay the reserve by, unless the disk is too full for it."""
        path = f"{self._directory}/{RESERVE}"
        size = self._settings.reserve_bytes
        if size == 0 or (self._disk.exists(path) and self._disk.stat(path).size == size):
            return
        if self._disk.free_bytes() < 4 * size:
            self._space_low = True
            return
        try:
            with self._disk.open(path, create=True) as file:
                file.zero_fill(0, size)
                file.sync()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._give_reserve()
            self._space_low = True
            return
        self._space_low = False

    # Reclaiming.

    def reclaim(self) -> int:
        """Delete segments that no group needs, wherever they are; return the bytes that came free.

        Hard states and bases need no copy: every segment starts with all of them. When nothing can go as it
        is, the few live entries of one segment are copied forward. Segments with an open damage stay, for
        the repair and as evidence.
        """
        self._check()
        before = self.bytes_total
        with contextlib.suppress(NoSpace):  # the copies wait
            if self._sealed:
                live, damaged = self._index.live_bytes(), self.damaged_segments()
                if not self._delete_dead(live, damaged) and self._copy_forward(live, damaged):
                    self._delete_dead(self._index.live_bytes(), self.damaged_segments())
        if self._space_low:
            self._fill_reserve()
        return max(0, before - self.bytes_total)

    def holders(self) -> list[GroupId]:
        """Groups with live entries in the oldest segment: a purge of their logs lets it go."""
        number = min(self._sealed, default=None)
        if number is None:
            return []
        return sorted({group for group, _ in self._index.extents_in(number)})

    def damaged_segments(self) -> set[int]:
        """Segments that are kept as some group lost what they held."""
        return self._index.damaged_segments(self.segments[0])

    def _delete_dead(self, live: Mapping[int, int], damaged: Collection[int]) -> int:
        """Delete a few segments without a live entry; how many."""
        dead = [n for n in sorted(self._sealed) if n not in live and n not in damaged and self._is_told(n)]
        if dead:
            self.sync()  # what made them dispensable is durable first
        for number in dead[:SEGMENTS_RECLAIMED_PER_CALL]:
            self._delete(number)
        return len(dead[:SEGMENTS_RECLAIMED_PER_CALL])

    def _is_told(self, number: int) -> bool:
        """Whether the start of the segment after `number` says what came of the operations in it.

        One that was written before starts told the places of entries does so only for the oldest.
        """
        after = next(n for n in self.segments if n > number)
        return after in self._starts and (self._starts[after] or number == self.segments[0])

    def _copy_forward(self, live: Mapping[int, int], damaged: Collection[int]) -> bool:
        """Copy what lives in the first segment that holds little to the end of the log."""
        for number in sorted(self._sealed):
            size = live.get(number, 0)
            is_little = 0 < size <= self._settings.copy_bytes_max and size * 2 <= self._sealed[number]
            if not is_little or number in damaged or number in self._unreadable or not self._is_told(number):
                continue
            copies = self._copies(number, [(g, e.first, e.last) for g, e in self._index.extents_in(number)])
            if copies is not None:
                self._write(copies)
                return True
            self._unreadable.add(number)
        return False

    def _copies(self, number: int, wanted: list[tuple[GroupId, int, int]]) -> list[Copy] | None:
        """The wanted entries as read from the segment; None when they cannot be read."""
        try:
            content = self._disk.read(path_of(self._directory, number))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None  # what it holds is in memory; only its room stays taken
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

    def _delete(self, number: int) -> None:
        path = path_of(self._directory, number)
        prefix = f"{number:012d}."
        for name in self._disk.listdir(self._directory):
            if name.startswith(prefix) and name.endswith(".torn"):
                self._disk.unlink(f"{self._directory}/{name}")
        self._guard(lambda: self._disk.unlink(path))
        self._guard(lambda: self._disk.sync_dir(self._directory))
        del self._sealed[number]
        self._starts.pop(number, None)

    # Looking.

    @property
    def bytes_total(self) -> int:
        return sum(self._sealed.values()) + self._segment.filled

    @property
    def segments(self) -> list[int]:
        return [*sorted(self._sealed), self._segment.number]

    @property
    def space_low(self) -> bool:
        """The disk is full and the reserve is in use: take no more proposals, purge."""
        return self._space_low

    def statistics(self) -> LogStatistics:
        return LogStatistics(
            segments=len(self._sealed) + 1,
            bytes_total=self.bytes_total,
            oldest=min(self._sealed, default=self._segment.number),
            newest=self._segment.number,
            batches=self._batches,
            syncs=self._syncs,
            torn_bytes=self._torn_bytes,
            space_low=self._space_low,
        )


def _collect(block: Block, found: dict[tuple[GroupId, int, int], list[Entry | None]]) -> None:
    """Take over the entries of this block that are wanted; a later block's replace an earlier one's."""
    if not any(row.group == key[0] for row in block.head.rows for key in found):
        return
    for row, op in decode_ops(block):
        if not isinstance(op, Append | Copy):
            continue
        for (group, first, last), slots in found.items():
            low, high = max(first, row.first), min(last, row.last)
            if group == row.group and low <= high:
                slots[low - first : high + 1 - first] = op.entries[low - row.first : high + 1 - row.first]
