"""Where each group's live entries are: the log's memory of itself.

The writer and the recovery run the same methods here, so that what is in memory after a restart is what
was there before it.

Invariants of a `GroupIndex`:

- extents are ordered by index, do not overlap and lie in (base.index, last];
- an index in (base.index, last] that no extent covers is lost, and some damage says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from nodeagent.log.record import AnyOp, Copy, Row, RowKind
from nodeagent.model.entries import Append, Base, Config, Entry, Forget, HardState, Rebase, SetHard
from nodeagent.model.ids import GroupId

NO_BASE = Base(0, 0, Config())


class Damage(msgspec.Struct, frozen=True):
    """What is known to be lost or corrupt.

    `offset` is in bytes within segment number `segment`. `group` "" means: a group of which the readable
    log says nothing may have been there too. `first` and `last` are indexes; both 0 where no entry is
    concerned, `last` 0 alone where the end is not known. `what`:

    - `entries`: these entries, nothing else; appending them again or a base past them ends it;
    - `hard`: the hard state; setting it again ends it;
    - `base`: where the log begins; another base ends it;
    - `log`: operations of unknown kind, but the hard state is known; a new base without a suffix ends it;
    - `records`: operations of unknown kind; it takes both, in any order.
    """

    segment: int
    offset: int
    group: GroupId
    first: int
    last: int
    message: str
    what: str = "records"

    @property
    def text(self) -> str:
        """Where it is and what it concerns, for the operator."""
        if not self.segment:
            return self.message
        last = self.last or "?"
        entries = f", entries {self.first}..{last}" if self.first else ""
        place = f"segment {self.segment} offset {self.offset}, group {self.group or '?'}"
        return f"{place}{entries}: {self.message}"


class Extent(msgspec.Struct):
    """Live entries `first`..`last` in one segment; `entries` only while recovering.

    `size` in bytes is exact for what was written together and shared evenly after a cut.
    """

    first: int
    last: int
    segment: int
    size: int
    entries: list[Entry] | None = None

    def cut_from(self, index: int) -> None:
        """Keep what is before `index`; at least one entry stays."""
        assert self.first < index <= self.last
        self._resize(index - self.first)
        self.last = index - 1
        if self.entries is not None:
            del self.entries[index - self.first :]

    def cut_through(self, index: int) -> None:
        """Keep what is after `index`; at least one entry stays."""
        assert self.first <= index < self.last
        self._resize(self.last - index)
        if self.entries is not None:
            del self.entries[: index + 1 - self.first]
        self.first = index + 1

    def part(self, first: int, last: int) -> "Extent":
        """A copy of what lies in `first`..`last`, which this extent covers."""
        assert self.first <= first <= last <= self.last
        kept = None if self.entries is None else self.entries[first - self.first : last + 1 - self.first]
        size = self.size * (last + 1 - first) // (self.last - self.first + 1)
        return Extent(first, last, self.segment, size, kept)

    def _resize(self, count: int) -> None:
        self.size = self.size * count // (self.last - self.first + 1)


Place = tuple[int, int, int]
"""Live entries `first`..`last` lie in a segment: (first, last, segment)."""


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """A group's state at the start of a segment. `seq` is the block of its latest operation.

    With `places` it is all there is to know of what came before: an earlier segment that is none of them is
    not needed. None: written before this was told.
    """

    group: GroupId
    seq: int
    base: Base
    hard: HardState
    last: int
    damages: list[Damage]
    places: list[Place] | None = None


class Start(msgspec.Struct, array_like=True, frozen=True):
    """The body of a segment's first block: all that is known when it begins."""

    marks: list[Mark]
    unknown: list[Damage]
    """Damage of no known group (`group` is "")."""

    left: dict[GroupId, HardState] | None = None
    """What is remembered of groups that this node left (`Forget`). None: written before this was told."""


class Tip(msgspec.Struct, gc=False):
    """Where a group's log is while a batch is put together: block of its latest operation, base and end."""

    seq: int = 0
    base: int = 0
    last: int = 0

    def follow(self, op: AnyOp, seq: int) -> None:
        """`op` goes into block `seq`. An append leaves no gap and is not below the base."""
        self.seq = seq
        if isinstance(op, Append):
            first, last = op.first, self.last
            assert self.base < first <= last + 1, (
                f"{op.group}: append at {first}, log is ({self.base}, {last}]"
            )
            self.last = first + len(op.entries) - 1
        elif isinstance(op, Rebase):
            self.base = op.base.index
            self.last = max(self.last, self.base) if op.keep_suffix else self.base
        elif isinstance(op, Copy):
            self.last = max(self.last, op.first + len(op.entries) - 1)
        elif isinstance(op, Forget):
            self.seq = self.base = self.last = 0


@dataclass(slots=True)
class GroupIndex:
    group: GroupId
    seq: int = 0
    base: Base = NO_BASE
    hard: HardState = HardState()
    last: int = 0
    extents: list[Extent] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)

    def append(self, first: int, count: int, segment: int, size: int, entries: list[Entry] | None) -> None:
        """Entries from `first`; what was there from `first` on is replaced."""
        assert self.base.index < first, f"{self.group}: append at {first}, base {self.base.index}"
        self.truncate(first)
        tail = self.extents[-1] if self.extents else None
        if tail is not None and tail.segment == segment and tail.last == first - 1:
            tail.last += count
            tail.size += size
            if tail.entries is not None and entries is not None:
                tail.entries += entries
        else:
            kept = None if entries is None else list(entries)
            self.extents.append(Extent(first, first + count - 1, segment, size, kept))
        self.last = first + count - 1

    def truncate(self, first: int) -> None:
        """Forget the entries from `first` on."""
        while self.extents and self.extents[-1].first >= first:
            self.extents.pop()
        if self.extents and self.extents[-1].last >= first:
            self.extents[-1].cut_from(first)
        self.last = min(self.last, first - 1)

    def copy(self, first: int, count: int, segment: int, size: int, entries: list[Entry] | None) -> None:
        """The live entries from `first` are in `segment` too, and that is the place to remember."""
        last = first + count - 1
        assert self.base.index < first
        self.last = max(self.last, last)
        before = [e for e in self.extents if e.first < first]
        after = [e for e in self.extents if e.first >= first and e.last > last]
        if before and before[-1].last > last:
            whole = before[-1]
            tail = None if whole.entries is None else whole.entries[last + 1 - whole.first :]
            share = whole.size * (whole.last - last) // (whole.last - whole.first + 1)
            after.insert(0, Extent(last + 1, whole.last, whole.segment, share, tail))
        if before and before[-1].last >= first:
            before[-1].cut_from(first)
        if after and after[0].first <= last:
            after[0].cut_through(last)
        kept = None if entries is None else list(entries)
        self.extents = [*before, Extent(first, last, segment, size, kept), *after]

    def keep_places(self, places: Sequence[Place]) -> list[Place]:
        """Forget every entry that is not where it is said to be; what is said and not here is returned."""
        kept: list[Extent] = []
        lacking: list[Place] = []
        for first, last, segment in places:
            for extent in self.extents:
                low, high = max(first, extent.first), min(last, extent.last)
                if extent.segment == segment and low <= high:
                    if low > first:
                        lacking.append((first, low - 1, segment))
                    kept.append(extent.part(low, high))
                    first = high + 1
            if first <= last:
                lacking.append((first, last, segment))
        self.extents = kept
        return lacking

    def set_hard(self, hard: HardState) -> None:
        self.hard = hard
        self.damages = [
            msgspec.structs.replace(d, what="log") if d.what == "records" else d
            for d in self.damages
            if d.what != "hard"
        ]

    def rebase(self, base: Base, keep_suffix: bool) -> None:
        self.base = base
        if not keep_suffix:
            self._drop(base.index)
            return
        gone = sum(1 for e in self.extents if e.last <= base.index)
        del self.extents[:gone]
        if self.extents and self.extents[0].first <= base.index:
            self.extents[0].cut_through(base.index)
        self.last = max(self.last, base.index)
        self.damages = [
            d for d in self.damages if d.what != "base" and (d.what != "entries" or d.last > base.index)
        ]

    def lose(self, row: Row, segment: int, offset: int) -> None:
        """An operation whose payload is unreadable; the head still tells what it was."""
        first, last = row.first, row.last
        match row.kind:
            case RowKind.APPEND:
                self.truncate(first)
                self.last = last
                what, message = "entries", f"entries {first}..{last} of term {row.term} are corrupt"
            case RowKind.COPY:
                what, message = "entries", f"the copy of entries {first}..{last} is corrupt"
            case RowKind.HARD:
                first = last = 0
                what, message = "hard", f"the hard state of term {row.term} is corrupt"
            case _:
                last = first
                self._lose_base(first, drop=row.kind == RowKind.REBASE_DROP)
                what, message = "base", f"the base at index {first}, term {row.term}, is corrupt"
        self.damages.append(Damage(segment, offset, self.group, first, last, message, what))

    def _lose_base(self, index: int, drop: bool) -> None:
        if drop:
            self._drop(index)
        self.last = max(self.last, index)

    def _drop(self, index: int) -> None:
        """No entries any more, and the next one is at `index` + 1."""
        self.extents.clear()
        self.last = index
        self.damages = [
            msgspec.structs.replace(d, first=0, last=0, what="hard")
            for d in self.damages
            if d.what in ("hard", "records")
        ]

    def learn(self, mark: Mark) -> None:
        """Take over what the start of a later segment says of the same state, and its damages."""
        assert mark.seq == self.seq
        lost = {d.what for d in mark.damages}
        if lost.isdisjoint(("hard", "records")):
            self.set_hard(mark.hard)
        self.damages += [d for d in mark.damages if d not in self.damages]
        if "base" not in lost and any(d.what == "base" for d in self.damages):
            self.damages = [d for d in self.damages if d.what != "base"]
            self.rebase(mark.base, keep_suffix=True)

    def holes(self) -> list[tuple[int, int]]:
        """Ranges of indexes that should be there and are not."""
        found = []
        expected = self.base.index + 1
        for extent in self.extents:
            if extent.first > expected:
                found.append((expected, extent.first - 1))
            expected = extent.last + 1
        if expected <= self.last:
            found.append((expected, self.last))
        return found

    def open_damages(self, oldest: int) -> list[Damage]:
        """The damages that still matter, and one for each hole that none of them explains."""
        holes = self.holes()
        found = [
            d
            for d in self.damages
            if d.what != "entries" or any(d.first <= last and first <= d.last for first, last in holes)
        ]
        for first, last in holes:
            if not any(d.first <= first and last <= (d.last or last) for d in found if d.first):
                message = f"entries {first}..{last} are in no segment"
                found.append(Damage(oldest, 0, self.group, first, last, message, "entries"))
        return found


class Index:
    """All groups of the log."""

    def __init__(self) -> None:
        self.groups: dict[GroupId, GroupIndex] = {}
        self.left: dict[GroupId, HardState] = {}
        self.unknown: list[Damage] = []

    def tip(self, group: GroupId) -> Tip:
        state = self.groups.get(group)
        return Tip() if state is None else Tip(state.seq, state.base.index, state.last)

    def apply(self, row: Row, op: AnyOp, seq: int, segment: int, *, keep_entries: bool) -> None:
        """Follow one operation that is, or is about to be, in block `seq`."""
        if isinstance(op, Forget):
            self.forget(row.group, op.memory)
            return
        state = self.groups.get(row.group) or self.begin(row.group)
        state.seq = seq
        match op:
            case Append():
                entries = op.entries
                state.append(op.first, len(entries), segment, row.length, entries if keep_entries else None)
            case Copy():
                entries = op.entries
                state.copy(op.first, len(entries), segment, row.length, entries if keep_entries else None)
            case SetHard():
                state.set_hard(op.hard)
            case Rebase():
                state.rebase(op.base, op.keep_suffix)

    def begin(self, group: GroupId) -> GroupIndex:
        """The group's first operation, after a `Forget` too."""
        self.left.pop(group, None)
        found = self.groups[group] = GroupIndex(group)
        return found

    def forget(self, group: GroupId, memory: HardState | None) -> None:
        """The replica is gone, and so is what was remembered of an earlier one."""
        self.groups.pop(group, None)
        self.left.pop(group, None)
        if memory is not None:
            self.left[group] = memory

    def start(self, oldest: int) -> Start:
        """What to write first into a new segment; damage of no known group is told until every segment up to
        it is gone."""
        marks = [
            Mark(
                g.group,
                g.seq,
                g.base,
                g.hard,
                g.last,
                g.open_damages(oldest),
                [(e.first, e.last, e.segment) for e in g.extents],
            )
            for _, g in sorted(self.groups.items())
        ]
        unknown = [damage for damage in self.unknown if damage.segment >= oldest]
        return Start(marks, unknown, dict(sorted(self.left.items())))

    def damaged_segments(self, oldest: int) -> set[int]:
        """Segments with an open damage of some group: they stay, for the repair and as evidence."""
        return {d.segment for g in self.groups.values() for d in g.open_damages(oldest)}

    def live_bytes(self) -> dict[int, int]:
        """Segment -> bytes of the live entries in it; segments without any are not named."""
        found: dict[int, int] = {}
        for group in self.groups.values():
            for e in group.extents:
                found[e.segment] = found.get(e.segment, 0) + max(1, e.size)
        return found

    def extents_in(self, segment: int) -> list[tuple[GroupId, Extent]]:
        return [(g.group, e) for g in self.groups.values() for e in g.extents if e.segment == segment]
