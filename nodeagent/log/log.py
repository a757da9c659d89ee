"""The log of a node: one log for all its groups, so that one fsync serves them all.

Write ordering, i.e. what must be durable before what (data is lost otherwise):

- a record, before the node sends any message that promises it: the caller syncs, then sends;
- a segment with its seal, before the next segment gets its name;
- the next segment's first block, before its name; its name, before any record in it;
- before a segment is deleted, whatever replaces its last live entries (a rebase, an overwrite, copies);
- the segment that `newest` names, and its bytes up to the recorded offset, before `newest`.

A directory holds segments `<number>.log` (any but the newest may have been deleted), `newest`, `log.id`
(`identity`), `reserve` (space that is freed when the disk is full, so that term and vote can still be
written) and `<number>.<offset>.torn` (bytes that recovery cut off, for analysis).

A write without enough space is refused and may be retried: the log is unchanged. Any other failed write, and
any failed sync, is final (after a failed fsync the kernel marks the lost pages clean, Rebello et al., ATC
2020): the log stores the error and raises it at every later call.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

import msgspec

from nodeagent.log.index import Index, Tip
from nodeagent.log.reclaim import Reclaimer
from nodeagent.log.record import AnyOp, BlockKind, Row, encode_block, encode_payload, row_of
from nodeagent.log.replay import Recovered, Replay, path_of, read_newest
from nodeagent.log.segment import Segment
from nodeagent.log.segments import NEW, Segments
from nodeagent.log.space import NoSpace, Space
from nodeagent.model.disk import UNFINISHED, Disk
from nodeagent.model.entries import LogOp
from nodeagent.model.ids import GroupId
from nodeagent.model.limits import MIB

_BATCH = BlockKind.BATCH
"""Looked up in the enum once instead of at every write."""

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


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
        self._space = Space(disk, directory, settings.reserve_bytes)
        self._segments = Segments(disk, directory, settings.zero_step_bytes, self._space, replay)
        self._reclaimer = Reclaimer(
            self._index, self._segments, settings.copy_bytes_max, self.sync, self._write
        )
        self._torn_bytes = replay.tail.torn_end - replay.tail.end
        self._batches = 0
        self._syncs = 0
        self._last_kind = BlockKind.START

    @property
    def _segment(self) -> Segment:
        """The current segment."""
        return self._segments.current

    # Opening.

    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings) -> tuple[Self, Recovered]:
        """Recover the log, cut a torn tail, and prepare to write.

        Everything recovered is durable on return. Damage is not an error: it is reported in the result, and
        the files stay as they are.

        Raises:
            NoSpace: there is no segment to continue in, and no space for a new one.
            OSError: the disk failed; nothing is known about the log.
        """
        disk.mkdirs(directory)
        for name in disk.listdir(directory):
            if name.endswith((NEW, UNFINISHED)):
                disk.unlink(f"{directory}/{name}")
        replay = Replay()
        replay.run(disk, directory)
        recovered = replay.recovered()
        for state in replay.index.groups.values():
            for extent in state.extents:
                extent.entries = None
        log = cls(disk, directory, settings, replay)
        log._continue(replay)
        log._space.fill_reserve()
        return log, recovered

    def _continue(self, replay: Replay) -> None:
        """Make the recovered tail durable and continue in its segment, or in a new one."""
        tail = replay.tail
        oldest = min(self._segments.sealed, default=tail.number + 1)
        if tail.number not in self._segments.sealed:
            self._space.grow(lambda: self._create(tail.number + 1, oldest), self._segments.drop_new)
            return
        file = self._disk.open(path_of(self._directory, tail.number))
        if tail.torn_end > tail.end:
            aside = f"{self._directory}/{tail.number:012d}.{tail.end}.torn"
            torn = file.pread(tail.end, tail.torn_end - tail.end)
            with contextlib.suppress(NoSpace):  # it was never acknowledged, and is saved only for analysis
                self._space.grow(lambda: self._disk.write_atomic(aside, torn))
            file.zero_fill(tail.end, tail.torn_end - tail.end)
        if tail.end > tail.synced:
            # The bytes read may be only in the page cache, marked clean after a failed sync of an earlier
            # process: rewrite them, so that the sync below covers them. This also applies after damage,
            # because the records of other groups there count from now on.
            file.pwrite(tail.synced, file.pread(tail.synced, tail.end - tail.synced))
        file.sync()
        self._disk.sync_dir(self._directory)
        del self._segments.sealed[tail.number]
        self._segments.current = Segment(file, tail.number, tail.end, self._settings.zero_step_bytes)
        with contextlib.suppress(NoSpace):  # the first write retries it; `newest` is only a second witness
            if tail.sealed or tail.damaged:
                self._segment.closed = True
                self._begin_next()
            elif read_newest(self._disk, self._directory)[0] != tail.number:
                self._space.grow(lambda: self._segments.write_newest(self._segment))

    def _begin_next(self) -> None:
        """Continue in a new segment. Without space for it, the closed segment stays the last one."""
        old = self._segment
        oldest = self.segments[0]
        self._space.grow(lambda: self._create(old.number + 1, oldest), self._segments.drop_new)
        old.file.close()
        self._segments.sealed[old.number] = old.end

    def _create(self, number: int, oldest: int) -> None:
        """Begin segment `number`; `oldest` is the oldest segment of the log."""
        start = _encoder.encode(self._index.start(oldest))
        self._segments.create(number, self._seq + 1, start)
        self._seq += 1
        self._last_kind = BlockKind.START

    # Writing.

    def write(self, ops: Sequence[LogOp]) -> None:
        """Append one atomic batch; durable only after `sync`.

        Raises:
            NoSpace: the batch was not written and nothing changed.
            OSError: this or an earlier call failed; the log can no longer be used.
        """
        self._space.check()
        if ops:
            self._write(ops)

    def sync(self) -> None:
        """Make every batch written so far durable, with one fdatasync, or none if nothing is new."""
        self._space.check()
        segment = self._segment
        if segment.synced < segment.end:
            self._space.guard(segment.sync)
            self._syncs += 1

    def mark_synced(self) -> None:
        """Record in the log that everything in it is durable, including the last batch.

        Call it when the log has been idle for a moment: without a later block, a corrupt last batch cannot
        be distinguished from a torn one. The record itself needs no sync.
        """
        self._space.check()
        segment = self._segment
        if segment.synced == segment.end and self._last_kind == _BATCH:
            with contextlib.suppress(NoSpace):
                self._put(BlockKind.SYNCED, [], [], may_use_reserve=False)

    def close(self) -> None:
        """Sync, record that (if there is space), and close. After a final error, only close the file."""
        try:
            if self._space.error is None:
                self.sync()
                with contextlib.suppress(NoSpace):
                    self._space.grow(lambda: self._segments.write_newest(self._segment))
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
            self._space.undo(error, segment.trim, may_use_reserve=may_use_reserve)
            self._space.grow(
                lambda: segment.put(parts, length), segment.trim, may_use_reserve=may_use_reserve
            )
        self._seq += 1
        self._last_kind = kind

    def _rotate(self) -> None:
        """Seal the segment, unless it is closed already, and begin the next one."""
        old = self._segment
        if not old.closed:
            extents = [(group, e.first, e.last) for group, e in self._index.extents_in(old.number)]
            self._put(BlockKind.SEAL, [], [_encoder.encode(extents)])
            self._space.guard(lambda: old.file.truncate(old.end))
            self._space.guard(old.sync)
            old.closed = True
        self._begin_next()

    def with_reserve(self, action: Callable[[], T]) -> T:
        """Run a write that is not part of the log; on a full disk, free the reserve and retry.

        Raises:
            NoSpace: the reserve is used up too.
            OSError: `action` failed otherwise; the log can no longer be used.
        """
        found: list[T] = []
        self._space.grow(lambda: found.append(action()))
        return found[0]

    # Reclaiming.

    def reclaim(self) -> int:
        """Delete a few segments that no group needs, in any order; return the bytes freed.

        Hard states and bases need no copy: every segment starts with all of them. If no segment can be
        deleted, the live entries of a mostly dead segment are copied forward. Segments with damage that is
        not ended are retained for repair and analysis.
        """
        self._space.check()
        before = self.bytes_total
        with contextlib.suppress(NoSpace):  # the copies are made later
            self._reclaimer.run()
        if self._space.is_low:
            self._space.fill_reserve()
        return max(0, before - self.bytes_total)

    def holders(self) -> list[GroupId]:
        """Groups with live entries in the oldest segment: it can be deleted after they purge their logs."""
        number = min(self._segments.sealed, default=None)
        if number is None:
            return []
        return sorted({group for group, _ in self._index.extents_in(number)})

    def damaged_segments(self) -> set[int]:
        """Segments that are retained because they have damage that is not ended."""
        return self._index.damaged_segments(self.segments[0])

    # Status.

    @property
    def bytes_total(self) -> int:
        return self._segments.bytes_total

    @property
    def segments(self) -> list[int]:
        return self._segments.numbers

    @property
    def space_low(self) -> bool:
        """The disk was full at an attempt, and the reserve has not been filled since."""
        return self._space.is_low

    def statistics(self) -> LogStatistics:
        return LogStatistics(
            segments=len(self._segments.sealed) + 1,
            bytes_total=self.bytes_total,
            oldest=min(self._segments.sealed, default=self._segment.number),
            newest=self._segment.number,
            batches=self._batches,
            syncs=self._syncs,
            torn_bytes=self._torn_bytes,
            space_low=self._space.is_low,
        )
