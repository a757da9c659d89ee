"""Sessions: a retried write takes effect once, also in another group after a slot migration.

A log entry opens a session; the group that opened it knows it for every slot. A slot that moves brings the
sessions of its old group along as *guests*: one `Table` for all slots that moved together, valid for those
slots only. For each session and slot with writes, the applied sequences are stored as a floor, up to which
every sequence is a duplicate, and a bounded set above it.

The cost grows with the slots and sessions that have writes. The sequences of a slot are stored packed (a byte
or two per session) until one of its sessions writes; the next checkpoint packs them again.
"""

from collections.abc import Collection, Iterable
from typing import Self

import msgspec

from nodeagent.data.packing import Places, packed, unpacked
from nodeagent.model import limits
from nodeagent.model.operation import Ranges
from nodeagent.partition.ranges import from_slots, to_slots

FORMAT = 2
"""Format of a `Table`. Format 1 is `Exported`, which begins with a list, not with a format number."""

_FORMAT_1 = 0x92


class Table(msgspec.Struct, array_like=True, frozen=True):
    """The sessions of sealed slots, as sent from group to group and stored in checkpoints."""

    format: int
    sessions: list[str]
    slots: Ranges
    """The slots for which the sessions are known."""

    seen: dict[int, bytes]
    """slot -> applied sequences, as an encoded `packing.Packed`"""


class Applied(msgspec.Struct, array_like=True):
    """Format 1: the sequences up to `floor` and those in `above` are applied."""

    floor: int = 0
    above: set[int] = set()


class Exported(msgspec.Struct, array_like=True):
    """A table in format 1."""

    sessions: list[str]
    seen: dict[int, dict[str, Applied]]


class Image(msgspec.Struct):
    """All sessions of a group, as stored in a checkpoint."""

    own: list[str] = []
    """Sessions that this group opened."""

    guests: dict[str, set[int]] = {}
    """Format 1: session -> slots that it came with."""

    seen: dict[int, dict[str, Applied]] = {}
    """Format 1: slot -> session -> applied sequences, of own sessions and guests."""

    packed: dict[int, bytes] = {}
    """slot -> applied sequences of own sessions, as an encoded `packing.Packed`."""

    tables: list[Table] = []
    """The guests."""


class SlotSequences:
    """What some sessions wrote in one slot: as dictionaries, packed, or both if they agree."""

    __slots__ = ("_above", "_floors", "_packed", "_places")

    def __init__(self, packed: bytes | None = None, places: Places | None = None) -> None:
        """Empty, or what was packed with `places`."""
        self._floors: dict[str, int] | None = None if packed is not None else {}
        self._above: dict[str, set[int]] = {}
        self._packed = packed
        self._places = places

    @classmethod
    def made_of(cls, floors: dict[str, int], above: dict[str, set[int]]) -> Self:
        made = cls()
        made._floors, made._above = floors, above
        return made

    def content(self) -> tuple[dict[str, int], dict[str, set[int]]]:
        """(session -> floor, session -> sequences applied above it); the caller must not change them."""
        return self._open(), self._above

    def floor(self, session: str) -> int:
        return self._open().get(session, 0)

    def has(self, session: str, sequence: int) -> bool:
        return sequence <= self.floor(session) or sequence in self._above.get(session, ())

    def record(self, session: str, sequence: int, acknowledged_through: int) -> bool:
        """Record a write; return whether it is new. The client never retries a sequence up to
        `acknowledged_through`."""
        floors = self._open()
        self._packed = None
        floor = max(floors.get(session, 0), acknowledged_through)
        if sequence == floor + 1 and session not in self._above:
            floors[session] = sequence
            return True
        above = {s for s in self._above.pop(session, ()) if s > floor}
        is_new = sequence > floor and sequence not in above
        if is_new:
            above.add(sequence)
            while floor + 1 in above:
                floor += 1
                above.remove(floor)
        floors[session] = floor
        if above:
            self._above[session] = above
        return is_new

    def pack(self, places: Places) -> bytes:
        """Encode what the sessions in `places` wrote. Other sessions have expired and are forgotten."""
        if self._packed is None or self._places is not places:
            floors = self._open()
            if not floors.keys() <= places.keys():
                self._forget(floors.keys() - places.keys())
            self._packed, self._places = packed(floors, self._above, places), places
        else:  # nothing was written since it was last packed
            self._floors, self._above = None, {}
        return self._packed

    def _forget(self, sessions: set[str]) -> None:
        floors = self._open()
        for session in sessions:
            del floors[session]
            self._above.pop(session, None)

    def _open(self) -> dict[str, int]:
        if self._floors is None:
            assert self._packed is not None and self._places is not None
            self._floors, self._above = unpacked(self._packed, list(self._places))
        return self._floors


class _SessionSet:
    """Sessions that are known for the same slots (own sessions for all slots), and their writes per slot."""

    __slots__ = ("places", "sequences", "slots")

    def __init__(
        self, sessions: Iterable[str], slots: Iterable[int] = (), seen: dict[int, bytes] | None = None
    ):
        self.places: Places = {session: place for place, session in enumerate(sessions)}
        self.slots = set(slots)
        self.sequences = {slot: SlotSequences(data, self.places) for slot, data in (seen or {}).items()}

    def expire(self, expired: set[str]) -> None:
        """Forget sessions. What they wrote is removed at the next packing: their names are never reused."""
        if not expired.isdisjoint(self.places):
            left = [session for session in self.places if session not in expired]
            self.places = {session: place for place, session in enumerate(left)}

    def packed(self) -> dict[int, bytes]:
        return {slot: self.sequences[slot].pack(self.places) for slot in sorted(self.sequences)}

    def content(self, slot: int) -> tuple[dict[str, int], dict[str, set[int]]]:
        """Like `SlotSequences.content`, for the sessions that have not expired."""
        if slot not in self.sequences:
            return {}, {}
        floors, above = self.sequences[slot].content()
        if floors.keys() <= self.places.keys():
            return floors, above
        return (
            {session: floor for session, floor in floors.items() if session in self.places},
            {session: over for session, over in above.items() if session in self.places},
        )


class Sessions:
    """All sessions of one group. It opens at most `SESSIONS_PER_GROUP_MAX`; the caller checks
    `SESSION_WINDOW`."""

    def __init__(self) -> None:
        self._own = _SessionSet(())
        self._guests: dict[int, _SessionSet] = {}
        """slot -> the set that came with it"""

    def open(self, session: str) -> bool:
        """Open a session; return False if the group has too many."""
        if len(self._own.places) >= limits.SESSIONS_PER_GROUP_MAX:
            return False
        self._own.places.setdefault(session, len(self._own.places))
        return True

    def known(self) -> set[str]:
        """Own sessions and guests."""
        return {
            session for session_set in (self._own, *self._session_sets()) for session in session_set.places
        }

    def expire(self, sessions: Iterable[str]) -> None:
        expired = set(sessions)
        for session_set in (self._own, *self._session_sets()):
            session_set.expire(expired)
        self._guests = {slot: session_set for slot, session_set in self._guests.items() if session_set.places}

    def knows(self, session: str, slot: int) -> bool:
        return self._set_of(session, slot) is not None

    def floor(self, session: str, slot: int) -> int:
        """The sequence up to which every write of the session to the slot is a duplicate."""
        seen = self._sequences(session, slot)
        return seen.floor(session) if seen is not None else 0

    def has(self, session: str, slot: int, sequence: int) -> bool:
        seen = self._sequences(session, slot)
        return seen is not None and seen.has(session, sequence)

    def record(self, session: str, slot: int, sequence: int, acknowledged_through: int) -> bool:
        """Record a write of a known session; return whether it is new (`SlotSequences.record`)."""
        session_set = self._set_of(session, slot)
        assert session_set is not None, (session, slot)
        seen = session_set.sequences.get(slot)
        if seen is None:
            seen = session_set.sequences[slot] = SlotSequences()
        return seen.record(session, sequence, acknowledged_through)

    def written(self) -> set[int]:
        """Slots that any session wrote."""
        return {slot for session_set in (self._own, *self._session_sets()) for slot in session_set.sequences}

    # --- slot migration ------------------------------------------------------------------------------

    def export(self, slots: Collection[int]) -> bytes:
        """Encode what the gaining groups of `slots` must know. Every member makes the same bytes."""
        wanted = sorted(slots)
        session_sets = [
            self._own,
            *{id(b): b for s in wanted if (b := self._guests.get(s)) is not None}.values(),
        ]
        sessions = sorted({session for session_set in session_sets for session in session_set.places})
        places = {session: place for place, session in enumerate(sessions)}
        seen = {}
        for slot in wanted:
            floors, above = self._content(slot)
            if floors:
                seen[slot] = packed(floors, above, places)
        return msgspec.msgpack.encode(Table(FORMAT, sessions, from_slots(wanted), seen))

    def import_tables(self, exported: Iterable[bytes], slots: set[int]) -> None:
        """Take over the sessions of `slots` from their previous groups."""
        self.forget(slots)
        for table in tables(exported, slots):
            self._admit(table, slots)

    def _admit(self, table: Table, slots: set[int]) -> None:
        brought = slots.intersection(to_slots(table.slots))
        seen = {slot: data for slot, data in table.seen.items() if slot in brought}
        session_set = _SessionSet(table.sessions, brought, seen)
        if session_set.places:
            self._guests.update(dict.fromkeys(brought, session_set))

    def forget(self, slots: Iterable[int]) -> None:
        """Forget what is known for these slots: they leave the group."""
        for slot in slots:
            self._own.sequences.pop(slot, None)
            session_set = self._guests.pop(slot, None)
            if session_set is not None:
                session_set.slots.discard(slot)
                session_set.sequences.pop(slot, None)

    # --- checkpoints ---------------------------------------------------------------------------------

    def image(self) -> Image:
        guests = [
            Table(FORMAT, list(b.places), from_slots(sorted(b.slots)), b.packed())
            for b in self._session_sets()
        ]
        return Image(own=list(self._own.places), packed=self._own.packed(), tables=guests)

    @classmethod
    def restore(cls, image: Image) -> Self:
        made = cls()
        made._own = _SessionSet(image.own, (), image.packed)
        for table in image.tables:
            made._admit(table, set(to_slots(table.slots)))
        if image.seen or image.guests:
            made._restore_format_1(image)
        return made

    def _restore_format_1(self, image: Image) -> None:
        by_slot: dict[int, set[str]] = {}
        for session, slots in image.guests.items():
            for slot in slots:
                by_slot.setdefault(slot, set()).add(session)
        alike: dict[frozenset[str], list[int]] = {}
        for slot, sessions in sorted(by_slot.items()):
            alike.setdefault(frozenset(sessions), []).append(slot)
        for guests, slots_alike in alike.items():
            seen = {slot: image.seen.get(slot, {}) for slot in slots_alike}
            self._admit(_converted(sorted(guests), seen, slots_alike), set(slots_alike))
        for slot, per_session in image.seen.items():
            own = {s: seen for s, seen in per_session.items() if self._set_of(s, slot) is self._own}
            if own:
                self._own.sequences[slot] = _of_format_1(own)

    # --- look-up ---------------------------------------------------------------------------------------

    def _session_sets(self) -> list[_SessionSet]:
        return list({id(session_set): session_set for session_set in self._guests.values()}.values())

    def _set_of(self, session: str, slot: int) -> _SessionSet | None:
        """The set that knows the session for the slot. A session that left with the slot and came back with
        it is a guest: its table includes what it wrote in the other group."""
        session_set = self._guests.get(slot)
        if session_set is not None and session in session_set.places:
            return session_set
        return self._own if session in self._own.places else None

    def _sequences(self, session: str, slot: int) -> SlotSequences | None:
        session_set = self._set_of(session, slot)
        return session_set.sequences.get(slot) if session_set is not None else None

    def _content(self, slot: int) -> tuple[dict[str, int], dict[str, set[int]]]:
        floors, above = self._own.content(slot)
        session_set = self._guests.get(slot)
        if session_set is None:
            return floors, above
        more_floors, more_above = session_set.content(slot)
        return floors | more_floors, above | more_above


def tables(exported: Iterable[bytes], slots: set[int]) -> list[Table]:
    """The tables of the groups that `slots` come from. A table of format 1 does not name its slots, so all
    tables of format 1 become one table for all `slots`."""
    given = list(exported)
    old = [msgspec.msgpack.decode(e, type=Exported) for e in given if e[0] == _FORMAT_1]
    out = [msgspec.msgpack.decode(e, type=Table) for e in given if e[0] != _FORMAT_1]
    if old:
        sessions = sorted({session for e in old for session in e.sessions})
        seen: dict[int, dict[str, Applied]] = {}
        for slot, per_session in (item for e in old for item in e.seen.items()):
            seen.setdefault(slot, {}).update(per_session)
        out.append(_converted(sessions, seen, sorted(slots)))
    return out


def _converted(sessions: list[str], seen: dict[int, dict[str, Applied]], slots: list[int]) -> Table:
    """A table of format 1 in the current format, without writes of sessions that it does not list."""
    places = {session: place for place, session in enumerate(sessions)}
    packed_seen = {}
    for slot, per_session in sorted(seen.items()):
        listed = {s: per_session[s] for s in per_session if s in places}
        if listed:
            packed_seen[slot] = _of_format_1(listed).pack(places)
    return Table(FORMAT, sessions, from_slots(slots), packed_seen)


def _of_format_1(seen: dict[str, Applied]) -> SlotSequences:
    floors = {session: s.floor for session, s in seen.items()}
    return SlotSequences.made_of(floors, {session: set(s.above) for session, s in seen.items() if s.above})
