"""Sessions: a write that is sent again counts once, also in another group after a hand-over.

A session is opened by a log entry and known to the group that opened it, for every slot. A slot that moves
brings the sessions of its old group along as *guests*: one `Table` for all slots that moved together,
valid for those slots alone. What was seen is kept per (session, slot) that was written: a floor below which
everything is a duplicate, and a bounded set above it.

Cost follows the slots and sessions with writes. What a slot's sessions wrote lies there packed (a byte or
two for each) until one of them writes, and is packed again by the checkpoint after the last write.
"""

from collections.abc import Collection, Iterable
from typing import Self

import msgspec

from nodeagent.data.packing import Places, packed, unpacked
from nodeagent.model import limits
from nodeagent.model.operation import Ranges
from nodeagent.partition.ranges import from_slots, to_slots

FORMAT = 2
"""Of a `Table`. Format 1 is `Exported`: it begins with a list, which no number does."""

_FORMAT_1 = 0x92


class Table(msgspec.Struct, array_like=True, frozen=True):
    """Sessions of sealed slots, as they travel from group to group and lie in checkpoints."""

    format: int
    sessions: list[str]
    slots: Ranges
    """Where they are known."""

    seen: dict[int, bytes]
    """slot -> `packing.Packed`"""


class Seen(msgspec.Struct, array_like=True):
    """In format 1: all <= `floor` are seen, and those in `above`."""

    floor: int = 0
    above: set[int] = set()


class Exported(msgspec.Struct, array_like=True):
    """A table in format 1."""

    sessions: list[str]
    seen: dict[int, dict[str, Seen]]


class Image(msgspec.Struct):
    """All sessions of a group, as a checkpoint has them."""

    own: list[str] = []
    guests: dict[str, set[int]] = {}
    """Format 1: session -> slots it came with."""

    seen: dict[int, dict[str, Seen]] = {}
    """Format 1: of own sessions and guests."""

    packed: dict[int, bytes] = {}
    """slot -> `packing.Packed`, of own sessions."""

    tables: list[Table] = []
    """Guests."""


class InSlot:
    """What some sessions wrote in one slot: as dictionaries, packed, or both when they agree."""

    __slots__ = ("_above", "_floors", "_packed", "_places")

    def __init__(self, packed: bytes | None = None, places: Places | None = None) -> None:
        """Empty, or what was packed by `places`."""
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
        """(session -> floor, session -> what was seen above it); not to be changed."""
        return self._open(), self._above

    def floor(self, session: str) -> int:
        return self._open().get(session, 0)

    def has(self, session: str, sequence: int) -> bool:
        return sequence <= self.floor(session) or sequence in self._above.get(session, ())

    def take(self, session: str, sequence: int, settled: int) -> bool:
        """Note a write; whether it is new. The client asks never again about sequences <= `settled`."""
        floors = self._open()
        self._packed = None
        floor = max(floors.get(session, 0), settled)
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
        """Of the sessions in `places`. Others have expired and are forgotten."""
        if self._packed is None or self._places is not places:
            floors = self._open()
            if not floors.keys() <= places.keys():
                self._forget(floors.keys() - places.keys())
            self._packed, self._places = packed(floors, self._above, places), places
        else:  # nothing was written since the last time
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


class _Book:
    """Sessions that are known for the same slots (own ones for all), and what they wrote in each."""

    __slots__ = ("places", "seen", "slots")

    def __init__(
        self, sessions: Iterable[str], slots: Iterable[int] = (), seen: dict[int, bytes] | None = None
    ):
        self.places: Places = {session: place for place, session in enumerate(sessions)}
        self.slots = set(slots)
        self.seen = {slot: InSlot(data, self.places) for slot, data in (seen or {}).items()}

    def expire(self, gone: set[str]) -> None:
        """What they wrote goes when it is packed next: names are never used again."""
        if not gone.isdisjoint(self.places):
            left = [session for session in self.places if session not in gone]
            self.places = {session: place for place, session in enumerate(left)}

    def packed(self) -> dict[int, bytes]:
        return {slot: self.seen[slot].pack(self.places) for slot in sorted(self.seen)}

    def content(self, slot: int) -> tuple[dict[str, int], dict[str, set[int]]]:
        """Of the sessions that have not expired."""
        if slot not in self.seen:
            return {}, {}
        floors, above = self.seen[slot].content()
        if floors.keys() <= self.places.keys():
            return floors, above
        return (
            {session: floor for session, floor in floors.items() if session in self.places},
            {session: over for session, over in above.items() if session in self.places},
        )


class Sessions:
    """All sessions of one group. Bounded by `SESSIONS_PER_GROUP_MAX` and `SESSION_WINDOW`."""

    def __init__(self) -> None:
        self._own = _Book(())
        self._guests: dict[int, _Book] = {}
        """slot -> the book it came with"""

    def open(self, session: str) -> bool:
        """Whether there was room."""
        if len(self._own.places) >= limits.SESSIONS_PER_GROUP_MAX:
            return False
        self._own.places.setdefault(session, len(self._own.places))
        return True

    def known(self) -> set[str]:
        """Own ones and guests."""
        return {session for book in (self._own, *self._books()) for session in book.places}

    def expire(self, sessions: Iterable[str]) -> None:
        gone = set(sessions)
        for book in (self._own, *self._books()):
            book.expire(gone)
        self._guests = {slot: book for slot, book in self._guests.items() if book.places}

    def knows(self, session: str, slot: int) -> bool:
        return self._book(session, slot) is not None

    def floor(self, session: str, slot: int) -> int:
        """All its sequences up to this one are duplicates."""
        seen = self._seen(session, slot)
        return seen.floor(session) if seen is not None else 0

    def has(self, session: str, slot: int, sequence: int) -> bool:
        seen = self._seen(session, slot)
        return seen is not None and seen.has(session, sequence)

    def take(self, session: str, slot: int, sequence: int, settled: int) -> bool:
        """Note a write of a session that is known; whether it is new (`InSlot.take`)."""
        book = self._book(session, slot)
        assert book is not None, (session, slot)
        seen = book.seen.get(slot)
        if seen is None:
            seen = book.seen[slot] = InSlot()
        return seen.take(session, sequence, settled)

    def written(self) -> set[int]:
        """Slots in which a session wrote something."""
        return {slot for book in (self._own, *self._books()) for slot in book.seen}

    # --- hand-over -----------------------------------------------------------------------------------

    def export(self, slots: Collection[int]) -> bytes:
        """What the gaining groups of `slots` must know. Every member makes the same bytes."""
        wanted = sorted(slots)
        books = [self._own, *{id(b): b for s in wanted if (b := self._guests.get(s)) is not None}.values()]
        sessions = sorted({session for book in books for session in book.places})
        places = {session: place for place, session in enumerate(sessions)}
        seen = {}
        for slot in wanted:
            floors, above = self._content(slot)
            if floors:
                seen[slot] = packed(floors, above, places)
        return msgspec.msgpack.encode(Table(FORMAT, sessions, from_slots(wanted), seen))

    def admit(self, exported: Iterable[bytes], slots: set[int]) -> None:
        """Take over the sessions of `slots` from their previous groups."""
        self.forget(slots)
        for table in tables(exported, slots):
            self._admit(table, slots)

    def _admit(self, table: Table, slots: set[int]) -> None:
        brought = slots.intersection(to_slots(table.slots))
        seen = {slot: data for slot, data in table.seen.items() if slot in brought}
        book = _Book(table.sessions, brought, seen)
        if book.places:
            self._guests.update(dict.fromkeys(brought, book))

    def forget(self, slots: Iterable[int]) -> None:
        """The slots were released."""
        for slot in slots:
            self._own.seen.pop(slot, None)
            book = self._guests.pop(slot, None)
            if book is not None:
                book.slots.discard(slot)
                book.seen.pop(slot, None)

    # --- checkpoints ---------------------------------------------------------------------------------

    def image(self) -> Image:
        guests = [
            Table(FORMAT, list(b.places), from_slots(sorted(b.slots)), b.packed()) for b in self._books()
        ]
        return Image(own=list(self._own.places), packed=self._own.packed(), tables=guests)

    @classmethod
    def restore(cls, image: Image) -> Self:
        made = cls()
        made._own = _Book(image.own, (), image.packed)
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
            own = {s: seen for s, seen in per_session.items() if self._book(s, slot) is self._own}
            if own:
                self._own.seen[slot] = _of_format_1(own)

    # --- where it is -----------------------------------------------------------------------------------

    def _books(self) -> list[_Book]:
        return list({id(book): book for book in self._guests.values()}.values())

    def _book(self, session: str, slot: int) -> _Book | None:
        """A session that left with the slot and came back with it is a guest here: what it wrote elsewhere
        is known with the slot."""
        book = self._guests.get(slot)
        if book is not None and session in book.places:
            return book
        return self._own if session in self._own.places else None

    def _seen(self, session: str, slot: int) -> InSlot | None:
        book = self._book(session, slot)
        return book.seen.get(slot) if book is not None else None

    def _content(self, slot: int) -> tuple[dict[str, int], dict[str, set[int]]]:
        floors, above = self._own.content(slot)
        book = self._guests.get(slot)
        if book is None:
            return floors, above
        more_floors, more_above = book.content(slot)
        return floors | more_floors, above | more_above


def tables(exported: Iterable[bytes], slots: set[int]) -> list[Table]:
    """The tables of the groups that `slots` come from. Those of format 1 do not tell which slots they know:
    they become one for all."""
    given = list(exported)
    old = [msgspec.msgpack.decode(e, type=Exported) for e in given if e[0] == _FORMAT_1]
    out = [msgspec.msgpack.decode(e, type=Table) for e in given if e[0] != _FORMAT_1]
    if old:
        sessions = sorted({session for e in old for session in e.sessions})
        seen: dict[int, dict[str, Seen]] = {}
        for slot, per_session in (item for e in old for item in e.seen.items()):
            seen.setdefault(slot, {}).update(per_session)
        out.append(_converted(sessions, seen, sorted(slots)))
    return out


def _converted(sessions: list[str], seen: dict[int, dict[str, Seen]], slots: list[int]) -> Table:
    """Of format 1, without what it says of sessions it does not list."""
    places = {session: place for place, session in enumerate(sessions)}
    packed_seen = {}
    for slot, per_session in sorted(seen.items()):
        listed = {s: per_session[s] for s in per_session if s in places}
        if listed:
            packed_seen[slot] = _of_format_1(listed).pack(places)
    return Table(FORMAT, sessions, from_slots(slots), packed_seen)


def _of_format_1(seen: dict[str, Seen]) -> InSlot:
    floors = {session: s.floor for session, s in seen.items()}
    return InSlot.made_of(floors, {session: set(s.above) for session, s in seen.items() if s.above})
