"""Sessions: a write that is sent again counts once, also in another group after a hand-over.

A session is opened by a log entry and known to the group that opened it; a slot that moves brings
the sessions of its old group along as *guests*, valid for that slot alone. What was seen is kept per
(session, slot): a floor below which everything is a duplicate, and a bounded set above it.
"""

from collections.abc import Iterable

import msgspec

from nodeagent.model import limits


class Seen(msgspec.Struct, array_like=True):
    """Sequences seen: all <= `floor`, and those in `above`."""

    floor: int = 0
    above: set[int] = msgspec.field(default_factory=set)

    def has(self, sequence: int) -> bool:
        return sequence <= self.floor or sequence in self.above

    def settle(self, settled: int) -> None:
        """The client will never again ask about sequences <= `settled`."""
        if settled > self.floor:
            self.floor = settled
            self.above = {s for s in self.above if s > settled}

    def add(self, sequence: int) -> None:
        self.above.add(sequence)
        while self.floor + 1 in self.above:
            self.floor += 1
            self.above.remove(self.floor)

    def copy(self) -> "Seen":
        return Seen(self.floor, set(self.above))


class Exported(msgspec.Struct, array_like=True):
    """Sessions of sealed slots, as they travel in a `SealResult`."""

    sessions: list[str]
    seen: dict[int, dict[str, Seen]]


class Sessions(msgspec.Struct):
    """All sessions of one group. Bounded by `SESSIONS_PER_GROUP_MAX` and `SESSION_WINDOW`."""

    own: set[str] = msgspec.field(default_factory=set)
    guests: dict[str, set[int]] = msgspec.field(default_factory=dict)
    """session -> slots it came with"""

    seen: dict[int, dict[str, Seen]] = msgspec.field(default_factory=dict)
    """slot -> session -> sequences"""

    def open(self, session: str) -> bool:
        """Whether there was room."""
        if len(self.own) >= limits.SESSIONS_PER_GROUP_MAX:
            return False
        self.own.add(session)
        return True

    def expire(self, sessions: Iterable[str]) -> None:
        for session in sessions:
            self.own.discard(session)
            self.guests.pop(session, None)
            for per_slot in self.seen.values():
                per_slot.pop(session, None)

    def knows(self, session: str, slot: int) -> bool:
        return session in self.own or slot in self.guests.get(session, ())

    def of(self, session: str, slot: int) -> Seen:
        return self.seen.setdefault(slot, {}).setdefault(session, Seen())

    def export(self, slots: Iterable[int]) -> bytes:
        """What the gaining groups of `slots` must know."""
        wanted = sorted(slots)
        seen = {s: {k: self.seen[s][k] for k in sorted(self.seen[s])} for s in wanted if self.seen.get(s)}
        guests = {k for k, ss in self.guests.items() if not ss.isdisjoint(wanted)}
        return msgspec.msgpack.encode(Exported(sorted(self.own | guests), seen))

    def admit(self, exported: bytes, slots: set[int]) -> None:
        """Take over the sessions of `slots` from their previous group."""
        arrived = msgspec.msgpack.decode(exported, type=Exported)
        for session in arrived.sessions:
            self.guests.setdefault(session, set()).update(slots)
        for slot, per_session in arrived.seen.items():
            if slot in slots:
                target = self.seen.setdefault(slot, {})
                for session, seen in per_session.items():
                    target[session] = seen.copy()

    def forget(self, slots: Iterable[int]) -> None:
        """The slots were released."""
        for slot in slots:
            self.seen.pop(slot, None)
            for guest_slots in self.guests.values():
                guest_slots.discard(slot)
        self.guests = {k: v for k, v in self.guests.items() if v}
