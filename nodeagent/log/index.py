"""Index of the log: which segments hold each group's live entries.

The writer and the recovery run the same methods, so that the index after a restart equals the index
before it.

Invariants of a `GroupIndex`:

- extents are ordered by index, do not overlap and are within (base.index, last];
- an index in (base.index, last] that no extent covers is lost, and a `Damage` reports it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from nodeagent.log.record import AnyOp, Copy, Row, RowKind
from nodeagent.model.entries import Append, Base, Config, Entry, Forget, HardState, Rebase, SetHard
from nodeagent.model.ids import GroupId

NO_BASE = Base(0, 0, Config())


class Damage(msgspec.Struct, frozen=True):
    """A lost or corrupt part of the log.

    `offset` is in bytes within segment number `segment`; `segment` is 0 if the damage is outside the log.
    `group` is "" if the damage may also concern a group that the readable log does not mention. `first` and
    `last` are indexes; both are 0 if no entry is affected, and only `last` is 0 if the end is unknown. `what`
    is one of these kinds of damage:

    - `entries`: only these entries; ended by appending them once more, or by a base past them;
    - `hard`: the hard state; ended by a new hard state;
    - `base`: the start of the log; ended by another base;
    - `log`: operations of unknown kind, with the hard state known; ended by a new base without a suffix;
    - `records`: operations of unknown kind; ended by a new hard state and such a base, in any order.
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
        """Place, group, entries and cause, for the operator."""
        if not self.segment:
            return self.message
        last = self.last or "?"
        entries = f", entries {self.first}..{last}" if self.first else ""
        place = f"segment {self.segment} offset {self.offset}, group {self.group or '?'}"
        return f"{place}{entries}: {self.message}"


class Extent(msgspec.Struct):
    """Live entries `first`..`last` in one segment; `entries` is set only during recovery.

    `size` in bytes is exact for entries written together, and estimated in proportion after a cut.
    """

    first: int
    last: int
    segment: int
    size: int
    entries: list[Entry] | None = None

    def cut_from(self, index: int) -> None:
        """Keep the entries before `index`; at least one entry stays."""
        assert self.first < index <= self.last
        self._resize(index - self.first)
        self.last = index - 1
        if self.entries is not None:
            del self.entries[index - self.first :]

    def cut_through(self, index: int) -> None:
        """Keep the entries after `index`; at least one entry stays."""
        assert self.first <= index < self.last
        self._resize(self.last - index)
        if self.entries is not None:
            del self.entries[: index + 1 - self.first]
        self.first = index + 1

    def part(self, first: int, last: int) -> "Extent":
        """A copy of `first`..`last`, which this extent must cover."""
        assert self.first <= first <= last <= self.last
        kept = None if self.entries is None else self.entries[first - self.first : last + 1 - self.first]
        size = self.size * (last + 1 - first) // (self.last - self.first + 1)
        return Extent(first, last, self.segment, size, kept)

    def _resize(self, count: int) -> None:
        self.size = self.size * count // (self.last - self.first + 1)


Place = tuple[int, int, int]
"""(first, last, segment): live entries `first`..`last` are in that segment."""


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """A group's state at the start of a segment. `seq` is the block of the group's latest operation.

    `places` lists all live entries, so an earlier segment that no mark names is not needed; it is None in a
    log written before this field existed.
    """

    group: GroupId
    seq: int
    base: Base
    hard: HardState
    last: int
    damages: list[Damage]
    places: list[Place] | None = None


class Start(msgspec.Struct, array_like=True, frozen=True):
    """The body of a segment's first block: the state of all groups when the segment begins."""

    marks: list[Mark]
    unknown: list[Damage]
    """Damage that cannot be assigned to a group (`group` is "")."""

    left: dict[GroupId, HardState] | None = None
    """Hard states retained for groups that this node left (`Forget`); None in a log written before this field
    existed."""


class Tip(msgspec.Struct, gc=False):
    """A group's position while a batch is built: block of its latest operation, base and last index."""

    seq: int = 0
    base: int = 0
    last: int = 0

    def follow(self, op: AnyOp, seq: int) -> None:
        """Advance by `op`, which goes into block `seq`. An append must leave no gap and be above the base."""
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
        """Add entries from `first`; they replace all entries from `first` on."""
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
        """Remove the entries from `first` on."""
        while self.extents and self.extents[-1].first >= first:
            self.extents.pop()
        if self.extents and self.extents[-1].last >= first:
            self.extents[-1].cut_from(first)
        self.last = min(self.last, first - 1)

    def copy(self, first: int, count: int, segment: int, size: int, entries: list[Entry] | None) -> None:
        """Note that `segment` now holds the `count` live entries that begin at index `first`."""
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
        """Keep only the entries that are at one of `places`; return the parts of `places` without entries."""
        kept: list[Extent] = []
        missing: list[Place] = []
        for first, last, segment in places:
            for extent in self.extents:
                low, high = max(first, extent.first), min(last, extent.last)
                if extent.segment == segment and low <= high:
                    if low > first:
                        missing.append((first, low - 1, segment))
                    kept.append(extent.part(low, high))
                    first = high + 1
            if first <= last:
                missing.append((first, last, segment))
        self.extents = kept
        return missing

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
        purged = sum(1 for e in self.extents if e.last <= base.index)
        del self.extents[:purged]
        if self.extents and self.extents[0].first <= base.index:
            self.extents[0].cut_through(base.index)
        self.last = max(self.last, base.index)
        self.damages = [
            d for d in self.damages if d.what != "base" and (d.what != "entries" or d.last > base.index)
        ]

    def lose(self, row: Row, segment: int, offset: int) -> None:
        """Record the damage of an operation whose payload is unreadable but whose row is readable."""
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
        """Remove all entries; the next entry will be at `index` + 1."""
        self.extents.clear()
        self.last = index
        self.damages = [
            msgspec.structs.replace(d, first=0, last=0, what="hard")
            for d in self.damages
            if d.what in ("hard", "records")
        ]

    def learn(self, mark: Mark) -> None:
        """Merge the mark of a later segment: the same state, read from another place, and its damages."""
        assert mark.seq == self.seq
        lost = {d.what for d in mark.damages}
        if lost.isdisjoint(("hard", "records")):
            self.set_hard(mark.hard)
        self.damages += [d for d in mark.damages if d not in self.damages]
        if "base" not in lost and any(d.what == "base" for d in self.damages):
            self.damages = [d for d in self.damages if d.what != "base"]
            self.rebase(mark.base, keep_suffix=True)

    def holes(self) -> list[tuple[int, int]]:
        """Ranges of indexes in (base, last] without entries."""
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
        """The damages that are not ended yet, and a new damage for each hole that they do not explain."""
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
        """Apply one operation that is, or will be, in block `seq`."""
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
        """Start the index of a group at its first operation, or at its first operation after a `Forget`."""
        self.left.pop(group, None)
        found = self.groups[group] = GroupIndex(group)
        return found

    def forget(self, group: GroupId, memory: HardState | None) -> None:
        """Remove the group; `memory` replaces the hard state retained for an earlier replica of it."""
        self.groups.pop(group, None)
        self.left.pop(group, None)
        if memory is not None:
            self.left[group] = memory

    def start(self, oldest: int) -> Start:
        """The first block of a new segment. Damage without a known group is included until every segment up
        to its own is deleted."""
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
        """Segments with damage of a known group that is not ended: retained for repair and analysis."""
        return {d.segment for g in self.groups.values() for d in g.open_damages(oldest)}

    def live_bytes(self) -> dict[int, int]:
        """Segment -> bytes of the live entries in it; segments without live entries are absent."""
        found: dict[int, int] = {}
        for group in self.groups.values():
            for e in group.extents:
                found[e.segment] = found.get(e.segment, 0) + max(1, e.size)
        return found

    def extents_in(self, segment: int) -> list[tuple[GroupId, Extent]]:
        return [(g.group, e) for g in self.groups.values() for e in g.extents if e.segment == segment]
