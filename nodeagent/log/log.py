"""The log of a node: one log for all its groups, so that one fsync serves them all.

Write ordering, i.e. what must be durable before what (data is lost otherwise):

- a record, before any message that promises it leaves the node: the caller syncs, then sends;
- a segment with its seal, before the next segment gets its name;
- the next segment's first block, before its name; its name, before any record in it;
- whatever replaces the last live entries of a segment (a rebase, an overwrite, copies), before its deletion;
- the segment that `newest` names, and its bytes up to the recorded offset, before `newest`.

A directory holds `<number>.log` segments, of which any but the newest may be missing, `newest`, `reserve`
(space that is freed when the disk is full, so that term and vote can still be written) and
`<number>.<offset>.torn` (bytes that recovery cut off, for analysis).

A write without enough space is refused and may be retried: the log is unchanged. Any other failed write, and
any failed sync, is final (after a failed fsync the kernel marks the lost pages clean, Rebello et al., ATC
2020): the log stores the error and raises it at every later call.
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
"""Looked up in the enum once instead of at every write."""

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


class NoSpace(OSError):
    """The disk is full and the reserve is used up. Nothing was written; the call may be retried."""


class LogSettings(msgspec.Struct, frozen=True):
    """All values are in bytes."""

    segment_bytes: int = 64 * MIB
    """A segment is closed before a batch that would exceed this size; a larger batch gets its own segment."""

    zero_step_bytes: int = 4 * MIB
    reserve_bytes: int = 8 * MIB
    """Freed when the disk is full; 0 for no reserve."""

    copy_bytes_max: int = 4 * MIB
    """The live entries of a segment are copied forward only if they do not exceed this size, which also
    bounds the work of one call."""


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
    """Created by `open`; used by one thread."""

    def __init__(self, disk: Disk, directory: str, settings: LogSettings, replay: Replay) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._index: Index = replay.index
        self._seq = replay.seq
        self._sealed: dict[int, int] = dict(replay.sizes)
        self._starts = replay.starts
        self._unreadable: set[int] = set()
        """Segments with a live entry that proved unreadable since this log was opened."""

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
        """Recover the log, cut a torn tail, and prepare to write.

        Everything recovered is durable on return. Damage is not an error: it is reported in the result, and
        the files stay as they are.

        Raises:
            OSError: the disk failed; nothing is known about the log.
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
            with contextlib.suppress(NoSpace):  # it was never acknowledged, and is saved only for analysis
                self._grow(lambda: self._disk.write_atomic(aside, torn))
            file.zero_fill(tail.end, tail.torn_end - tail.end)
        if tail.end > tail.synced:
            # The bytes read may be only in the page cache, marked clean after a failed sync of an earlier
            # process: rewrite them, so that the sync below covers them. This also applies after damage,
            # because the records of other groups there count from now on.
            file.pwrite(tail.synced, file.pread(tail.synced, tail.end - tail.synced))
        file.sync()
        self._disk.sync_dir(self._directory)
        del self._sealed[tail.number]
        self._segment = Segment(file, tail.number, tail.end, self._settings.zero_step_bytes)
        with contextlib.suppress(NoSpace):  # the first write retries it; `newest` is only a second witness
            if tail.sealed or tail.damaged:
                self._segment.closed = True
                self._begin_next()
            elif read_newest(self._disk, self._directory)[0] != tail.number:
                self._grow(lambda: self._write_newest(self._segment))

    def _begin_next(self) -> None:
        """Continue in a new segment. Without space for it, the closed segment stays the last one."""
        old = self._segment
        oldest = self.segments[0]
        self._grow(lambda: self._create(old.number + 1, oldest), self._drop_new)
        old.file.close()
        self._sealed[old.number] = old.end

    def _create(self, number: int, oldest: int) -> None:
        """Create segment `number` and make it the current segment."""
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
            file.close()  # an open file would keep its space allocated
            raise
        self._seq += 1
        self._last_kind = BlockKind.START
        self._starts[number] = True
        self._segment = segment

    def _drop_new(self) -> None:
        """Remove a new segment that has no name yet."""
        for name in self._disk.listdir(self._directory):
            if name.endswith(NEW):
                self._disk.unlink(f"{self._directory}/{name}")

    def _write_newest(self, segment: Segment) -> None:
        content = newest_content(segment.number, segment.synced)
        self._disk.write_atomic(f"{self._directory}/{NEWEST}", content)

    # Writing.

    def write(self, ops: Sequence[LogOp]) -> None:
        """Append one atomic batch; durable only after `sync`.

        Raises:
            NoSpace: the batch was not written and nothing changed.
            OSError: this or an earlier call failed; the log can no longer be used.
        """
        self._check()
        if ops:
            self._write(ops)

    def sync(self) -> None:
        """Make every batch written so far durable, with one fdatasync, or none if nothing is new."""
        self._check()
        segment = self._segment
        if segment.synced < segment.end:
            self._guard(segment.sync)
            self._syncs += 1

    def mark_synced(self) -> None:
        """Record in the log that everything in it is durable, including the last batch.

        Call it when the log has been idle for a moment: without a later block, a corrupt last batch cannot
        be distinguished from a torn one. The record itself needs no sync.
        """
        self._check()
        segment = self._segment
        if segment.synced == segment.end and self._last_kind == _BATCH:
            with contextlib.suppress(NoSpace):
                self._put(BlockKind.SYNCED, [], [], may_use_reserve=False)

    def close(self) -> None:
        """Sync, record that (if there is space), and close. After a final error, only close the file."""
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
        """The rows of these operations for the head of block `seq`; does not change the index."""
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
        """Seal the segment, unless it is closed already, and begin the next one."""
        old = self._segment
        if not old.closed:
            extents = [(group, e.first, e.last) for group, e in self._index.extents_in(old.number)]
            self._put(BlockKind.SEAL, [], [_encoder.encode(extents)])
            self._guard(lambda: old.file.truncate(old.end))
            self._guard(old.sync)
            old.closed = True
        self._begin_next()

    def with_room(self, action: Callable[[], T]) -> T:
        """Run a write beside the log; on a full disk, free the reserve and retry.

        Raises:
            NoSpace: the reserve is used up too.
        """
        found: list[T] = []
        self._grow(lambda: found.append(action()))
        return found[0]

    # Failing.

    def _check(self) -> None:
        if self._poison is not None:
            raise self._poison

    def _guard(self, action: Callable[[], None]) -> None:
        """Run `action`; an error is final for the log."""
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
        """Run an action that takes space on the disk; if there is none, free the reserve and retry.

        `undo` removes what a failed attempt left behind. Any other error is final.

        Raises:
            NoSpace: the action was undone.
        """
        while True:
            try:
                return action()
            except OSError as error:
                self._no_room(error, undo, may_use_reserve=may_use_reserve)

    def _no_room(self, error: OSError, undo: Callable[[], None], *, may_use_reserve: bool) -> None:
        """Undo a failed write. Returns if the reserve was freed, so that the write may be retried."""
        if error.errno not in NO_SPACE:
            self._poison = error
            raise error
        self._space_low = True
        self._guard(undo)
        if not (may_use_reserve and self._give_reserve()):
            raise NoSpace(*error.args) from error

    def _give_reserve(self) -> bool:
        """Free the reserve; returns whether there was one."""
        path = f"{self._directory}/{RESERVE}"
        if not self._disk.exists(path):
            return False
        self._guard(lambda: self._disk.unlink(path))
        self._guard(lambda: self._disk.sync_dir(self._directory))
        return True

    def _fill_reserve(self) -> None:
        """Fill the reserve, unless the disk is too full."""
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
        """Delete segments that no group needs, in any order; return the bytes freed.

        Hard states and bases need no copy: every segment starts with all of them. If no segment can be
        deleted, the live entries of a mostly dead segment are copied forward. Segments with damage that is
        not ended are retained for repair and analysis.
        """
        self._check()
        before = self.bytes_total
        with contextlib.suppress(NoSpace):  # the copies are made later
            if self._sealed:
                live, damaged = self._index.live_bytes(), self.damaged_segments()
                if not self._delete_dead(live, damaged) and self._copy_forward(live, damaged):
                    self._delete_dead(self._index.live_bytes(), self.damaged_segments())
        if self._space_low:
            self._fill_reserve()
        return max(0, before - self.bytes_total)

    def holders(self) -> list[GroupId]:
        """Groups with live entries in the oldest segment: it can be deleted after they purge their logs."""
        number = min(self._sealed, default=None)
        if number is None:
            return []
        return sorted({group for group, _ in self._index.extents_in(number)})

    def damaged_segments(self) -> set[int]:
        """Segments that are retained because a group lost entries in them."""
        return self._index.damaged_segments(self.segments[0])

    def _delete_dead(self, live: Mapping[int, int], damaged: Collection[int]) -> int:
        """Delete a few segments without live entries; return how many."""
        dead = [n for n in sorted(self._sealed) if n not in live and n not in damaged and self._is_told(n)]
        if dead:
            self.sync()  # make the writes durable that replaced their entries
        for number in dead[:SEGMENTS_RECLAIMED_PER_CALL]:
            self._delete(number)
        return len(dead[:SEGMENTS_RECLAIMED_PER_CALL])

    def _is_told(self, number: int) -> bool:
        """Whether the start of the segment after `number` records the result of the operations in it.

        A start without the places of entries (written by an early release) does so only for the oldest
        segment.
        """
        after = next(n for n in self.segments if n > number)
        return after in self._starts and (self._starts[after] or number == self.segments[0])

    def _copy_forward(self, live: Mapping[int, int], damaged: Collection[int]) -> bool:
        """Copy the live entries of the first mostly dead segment to the end of the log."""
        for number in sorted(self._sealed):
            size = live.get(number, 0)
            is_mostly_dead = 0 < size <= self._settings.copy_bytes_max and size * 2 <= self._sealed[number]
            if (
                not is_mostly_dead
                or number in damaged
                or number in self._unreadable
                or not self._is_told(number)
            ):
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
            content = self._disk.read(path_of(self._directory, number))
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

    # Status.

    @property
    def bytes_total(self) -> int:
        return sum(self._sealed.values()) + self._segment.filled

    @property
    def segments(self) -> list[int]:
        return [*sorted(self._sealed), self._segment.number]

    @property
    def space_low(self) -> bool:
        """The disk is full and the reserve is in use: refuse proposals and purge."""
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
