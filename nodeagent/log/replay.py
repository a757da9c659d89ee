"""Recovery: read every segment in order and rebuild each group. Reads only; `Log.open` repairs the tail.

A lost block is detected in three ways: by its own heads, if one of the two is readable; by the next
operation of each group, whose `previous` does not match; by the marks at the start of the next segment. After
an unreadable place, a group counts as damaged unless one of these three shows that it lost nothing there.
Otherwise it may have lost an acknowledged record, and a member that votes with a shorter log can undo a
committed entry.
A loss at the end of the log is detected by the file `newest`.

The numbers of the segments may have gaps, because the log deletes segments without live entries. The start
of the next segment records where each group's live entries are: they may be in a segment that was lost, but
never in one that was deleted.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from nodeagent.log.index import NO_BASE, Damage, GroupIndex, Index, Mark, Place, Start
from nodeagent.log.record import Block, BlockKind, Row, RowKind, decode_ops
from nodeagent.log.scan import Bad, End, scan_segment
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.disk import Disk
from nodeagent.model.entries import Base, Entry, HardState
from nodeagent.model.ids import GroupId

SUFFIX = ".log"
NEWEST = "newest"
"""File with the newest segment's number and durable offset, so that the loss of that segment, or of bytes
before that offset, is detected."""

_APPENDS = (RowKind.APPEND, RowKind.COPY)
_start = msgspec.msgpack.Decoder(Start)


class GroupLog(msgspec.Struct):
    """One recovered group: `entries` begin at `base.index + 1` and stop before the first damage."""

    base: Base
    hard: HardState
    entries: list[Entry]


class Recovered(msgspec.Struct):
    """Result of recovery. The last `torn_bytes` bytes of the log belong to an unfinished write. `healed` is
    the number of blocks of which only the second head was readable."""

    groups: dict[GroupId, GroupLog]
    damaged: list[Damage]
    torn_bytes: int
    healed: int = 0
    left: dict[GroupId, HardState] = {}
    """Hard states retained for groups that this node left."""


def segment_name(number: int) -> str:
    return f"{number:012d}{SUFFIX}"


def list_segments(disk: Disk, directory: str) -> list[int]:
    """Numbers of the segments, ascending."""
    names = disk.listdir(directory) if disk.exists(directory) else []
    return sorted(int(name[: -len(SUFFIX)]) for name in names if _is_segment(name))


def _is_segment(name: str) -> bool:
    return name.endswith(SUFFIX) and name[: -len(SUFFIX)].isdigit()


def path_of(directory: str, number: int) -> str:
    return f"{directory}/{segment_name(number)}"


@dataclass(slots=True)
class Tail:
    """The newest segment as read: `end` of its blocks, `torn_end` of a torn write, highest `synced` in it."""

    number: int = 0
    end: int = 0
    torn_end: int = 0
    synced: int = 0
    size: int = 0
    sealed: bool = False
    damaged: bool = False


@dataclass(slots=True)
class Replay:
    """State of a recovery. `suspects` maps a group to the unreadable place that may concern it."""

    keep_entries: bool = True
    index: Index = field(default_factory=Index)
    seq: int = 0
    oldest: int = 0
    previous_segment: int = 0
    suspects: dict[GroupId, Damage] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    tail: Tail = field(default_factory=Tail)
    healed: int = 0
    starts: dict[int, bool] = field(default_factory=dict)
    """Segments whose start is readable, and whether it records the places of all live entries."""

    lost_start: tuple[GroupId, ...] | None = None
    """After an unreadable place at offset 0: the groups it made suspect."""

    def run(self, disk: Disk, directory: str) -> None:
        numbers = list_segments(disk, directory)
        newest, durable = read_newest(disk, directory)
        for number in numbers:
            is_newest = number == max(newest, numbers[-1])
            floor = durable if number == newest else 0
            self._segment(disk, directory, number, floor if is_newest else None)
        if newest > (numbers[-1] if numbers else 0):
            self._missing_newest(newest)
        for damage in self.suspects.values():
            self.index.groups[damage.group].damages.append(damage)

    def _segment(self, disk: Disk, directory: str, number: int, durable: int | None) -> None:
        content = disk.read(path_of(directory, number))
        self.tail = Tail(number, size=len(content))
        self.oldest = self.oldest or number
        with memoryview(content) as buffer:
            for found in scan_segment(buffer, number, durable):
                match found:
                    case Block():
                        self._block(found, number)
                    case Bad():
                        self._bad(found, number)
                    case End(offset, torn_end):
                        self.tail.end, self.tail.torn_end = offset, torn_end
        self.sizes[number] = len(content)
        self.previous_segment = number
        if not self.tail.end:
            self._bad(Bad(0, 0, None), number)

    # Valid blocks.

    def _block(self, block: Block, number: int) -> None:
        head = block.head
        if self.lost_start is not None:
            self._settle_lost_start(only_start=head.seq == self.seq + 2)
        self.healed += block.healed
        self.tail.synced = max(self.tail.synced, head.synced)
        self.tail.sealed = head.kind == BlockKind.SEAL
        try:
            if head.kind == BlockKind.START:
                self._begin(_start.decode(block.body), number)
            elif head.kind == BlockKind.BATCH:
                for row, op in decode_ops(block):
                    self._follow(row, head.seq, number, head.offset)
                    self.index.apply(row, op, head.seq, number, keep_entries=self.keep_entries)
        except UNDECODABLE:
            self._bad(Bad(head.offset, head.end, head), number)
        self.seq = head.seq

    def _begin(self, start: Start, number: int) -> None:
        """Compare the index with the writer's index at the start of this segment."""
        groups = self.index.groups
        is_exact = all(mark.places is not None for mark in start.marks)
        self.starts[number] = is_exact
        is_gap = number not in (self.oldest, self.previous_segment + 1)
        self.index.unknown += [d for d in start.unknown if d not in self.index.unknown]
        if start.left is not None:
            self.index.left = dict(start.left)
        for gone in groups.keys() - {mark.group for mark in start.marks}:
            self._clear(gone)
            del groups[gone]
        for mark in start.marks:
            state = groups.get(mark.group)
            if state is not None and state.seq == mark.seq:
                state.learn(mark)
            elif is_gap and mark.places is not None:
                groups[mark.group] = self._over_gap(mark, mark.places, state)
            else:
                groups[mark.group] = self._from_mark(mark, state, number)
            self._clear(mark.group)

    def _over_gap(self, mark: Mark, places: Sequence[Place], state: GroupIndex | None) -> GroupIndex:
        """The group after a missing segment that held some of its operations. The mark has their result; the
        entries they wrote are lost unless a later operation replaces, copies or purges them.
        """
        extents = state.extents if state is not None else []
        damages = [d for d in state.damages if d.what == "entries"] if state is not None else []
        found = GroupIndex(mark.group, mark.seq, mark.base, mark.hard, mark.last, extents, list(mark.damages))
        found.damages += [d for d in damages if d not in found.damages]
        for first, last, segment in found.keep_places(places):
            message = f"entries {first}..{last} are not in segment {segment}"
            found.damages.append(Damage(segment, 0, mark.group, first, last, message, "entries"))
        return found

    def _from_mark(self, mark: Mark, state: GroupIndex | None, number: int) -> GroupIndex:
        found = GroupIndex(mark.group, mark.seq, mark.base, mark.hard, mark.last, [], list(mark.damages))
        if number == self.oldest or mark.last == mark.base.index:
            # Either this is the oldest segment, where `open_damages` reports missing entries, or the group
            # has no entries.
            return found
        known = 0
        if state is not None:
            found.extents, found.last = state.extents, state.last
            found.damages = list(state.damages)
            if mark.base != state.base:
                found.rebase(mark.base, keep_suffix=True)
            found.truncate(mark.last + 1)
            known = state.last
        found.last = mark.last
        place = self.suspects.get(mark.group)
        segment, offset = (place.segment, place.offset) if place else (self.previous_segment + 1, 0)
        message = "operations are lost between the segments" if place is None else "operations are unreadable"
        first, last = _suspect_range(mark.base.index, known, mark.last)
        found.damages.append(Damage(segment, offset, mark.group, first, last, message, "log"))
        found.learn(mark)
        return found

    def _follow(self, row: Row, seq: int, number: int, offset: int) -> None:
        """Check whether an operation of the group is missing before this one, and record the damage."""
        state = self.index.groups.get(row.group)
        have = state.seq if state is not None else 0
        if row.previous == 0 and state is not None:
            del self.index.groups[row.group]  # the preceding Forget was in an unreadable place
        elif row.previous != have:
            self._lost_before(row, state, number, offset)
        state = self.index.groups.get(row.group)
        if state is not None and row.kind in _APPENDS and row.first <= state.base.index:
            # A lost operation restarted the group's log; the entries in the index belong to the old log.
            assert state.damages, f"{row.group}: append at {row.first}, base {state.base.index}"
            state.base, state.last = NO_BASE, row.first - 1
            state.extents.clear()
        self._clear(row.group)

    def _lost_before(self, row: Row, state: GroupIndex | None, number: int, offset: int) -> None:
        if state is None:
            state = self.index.begin(row.group)
        place = self.suspects.get(row.group)
        segment, at = (place.segment, place.offset) if place else (number, offset)
        first, last = state.last + 1, 0
        if row.kind in _APPENDS:
            first, last = _suspect_range(state.base.index, state.last, row.first - 1)
        message = "operations before this place are missing" if place is None else "operations are unreadable"
        state.damages.append(Damage(segment, at, row.group, first, last, message))
        if row.kind == RowKind.COPY:
            state.last = max(state.last, row.last)
        elif row.kind == RowKind.APPEND:
            state.last = max(state.last, row.first - 1)

    # Bad places.

    def _bad(self, bad: Bad, number: int) -> None:
        self.tail.damaged = True
        if bad.head is None:
            self._unreadable(bad, number)
            return
        is_first_witness = number == self.oldest or bad.head.seq != self.seq + 1
        if bad.head.kind == BlockKind.START and is_first_witness:
            self._unreadable(bad, number)
        self.seq = bad.head.seq
        if bad.head.kind != BlockKind.BATCH:
            return
        for row in bad.head.rows:
            self._follow(row, bad.head.seq, number, bad.offset)
            if row.kind == RowKind.FORGET:
                self.index.forget(row.group, _memory_of(row))
                continue
            state = self.index.groups.get(row.group) or self.index.begin(row.group)
            state.seq = bad.head.seq
            state.lose(row, number, bad.offset)

    def _unreadable(self, bad: Bad, number: int) -> None:
        """Nothing shows what these bytes held: every group is suspect until it is cleared."""
        message = f"bytes {bad.offset}..{bad.end} are unreadable"
        if bad.offset == 0 and number > self.oldest:
            self.lost_start = tuple(self.index.groups.keys() - self.suspects.keys())
        for group, state in self.index.groups.items():
            damage = Damage(number, bad.offset, group, state.last + 1, 0, message)
            self.suspects.setdefault(group, damage)
        self.index.unknown.append(Damage(number, bad.offset, "", 0, 0, message))

    def _settle_lost_start(self, only_start: bool) -> None:
        """Clear the groups if only the start of a segment was lost: it repeats what the index holds."""
        assert self.lost_start is not None
        if only_start:
            self.index.unknown.pop()
            for group in self.lost_start:
                self._clear(group)
        self.lost_start = None

    def _missing_newest(self, newest: int) -> None:
        self.tail.damaged = True
        self._unreadable(Bad(0, 0, None), newest)
        self.tail.number = newest
        message = f"segment {newest} is missing"
        self.index.unknown[-1] = _reword(self.index.unknown[-1], message)
        self.suspects = {g: _reword(d, message) for g, d in self.suspects.items()}

    def _clear(self, group: GroupId) -> None:
        self.suspects.pop(group, None)

    # The result.

    def recovered(self) -> Recovered:
        damaged = list(self.index.unknown)
        groups: dict[GroupId, GroupLog] = {}
        for name, state in sorted(self.index.groups.items()):
            damages = state.open_damages(self.oldest)
            damaged += damages
            stop = min((d.first for d in damages if d.first), default=state.last + 1)
            groups[name] = GroupLog(state.base, state.hard, _entries_before(state, stop))
        damaged.sort(key=lambda d: (d.segment, d.offset, d.group, d.first))
        torn_bytes = self.tail.torn_end - self.tail.end
        return Recovered(groups, damaged, torn_bytes, self.healed, dict(self.index.left))


def _memory_of(row: Row) -> HardState | None:
    """A safe bound on the hard state in a `Forget` whose payload is unreadable, derived from its row.

    The vote is lost, so the replica counts as having reached the next term, without a vote in it.
    """
    return HardState(row.term + 1, held=(row.term, row.first)) if row.length else None


def _reword(damage: Damage, message: str) -> Damage:
    return msgspec.structs.replace(damage, message=message)


def _suspect_range(base: int, have: int, last: int) -> tuple[int, int]:
    """The range of entries up to `last` that unknown operations may affect, if (base, have] are present.

    If entries between `have` and `last` are missing, the operations probably wrote them. If none is missing,
    the operations replaced present entries or affected no entry; which of the two is unknown.
    """
    first = max(base, have) + 1 if have < last else base + 1
    return (first, last) if first <= last else (0, 0)


def _entries_before(state: GroupIndex, stop: int) -> list[Entry]:
    """The entries after the base without a gap, up to `stop` (exclusive)."""
    found: list[Entry] = []
    for extent in state.extents:
        if extent.first != state.base.index + 1 + len(found) or extent.entries is None:
            break
        found += extent.entries
    return found[: max(0, stop - state.base.index - 1)]


def read_newest(disk: Disk, directory: str) -> tuple[int, int]:
    """Number of the newest segment and its durable offset, from the `newest` file.

    Both are 0 if the file is missing or its checksum is wrong. This is no error: the segments are complete
    without it, but then the loss of the newest segment is not detected.
    """
    path = f"{directory}/{NEWEST}"
    text, _, checksum = disk.read(path).rpartition(b" ") if disk.exists(path) else (b"", b"", b"")
    if not text or checksum != b"%08x\n" % zlib.crc32(text):
        return 0, 0
    number, durable = text.split()
    return int(number), int(durable)


def newest_content(number: int, durable: int) -> bytes:
    text = b"%d %d" % (number, durable)
    return b"%b %08x\n" % (text, zlib.crc32(text))
