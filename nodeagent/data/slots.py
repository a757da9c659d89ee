"""Which slots a group may write, and the state of slots that migrate.

    (unknown) --Open--> open --Seal--> sealed --Release--> (unknown)
                          ^              |
                          +---Unseal-----+

An operation that was cancelled or released is remembered, so that a late duplicate of any of its commands has
no effect. A cancelled operation is remembered even if its seal was never applied.
"""

import msgspec

from nodeagent.model.ids import GroupId
from nodeagent.model.operation import Ranges
from nodeagent.partition.ranges import to_slots

ENDED_KEPT = 1024
"""Ended operations that a group remembers."""


class Sealed(msgspec.Struct):
    """Slots sealed by one operation; they stay a source of copies until released."""

    slots: set[int]
    index: int
    """Log index of the seal."""

    sessions: bytes
    """The exported session table of these slots (`Sessions.export`)."""

    metadata_only: bool = msgspec.field(default=False, name="hollow")
    """Metadata-only seal: this member joined after the seal was planned and received no files of these
    slots."""


class Arriving(msgspec.Struct):
    """Slots opened by an operation whose older rows are not adopted yet."""

    slots: set[int]
    index: int
    """Log index of the `Open`."""

    sources: list[GroupId]
    """The groups that the slots come from."""


def expand(ranges: Ranges) -> set[int]:
    return set(to_slots(ranges))


class Slots(msgspec.Struct):
    open: set[int] = msgspec.field(default_factory=set)
    sealed: dict[str, Sealed] = msgspec.field(default_factory=dict)
    arriving: dict[str, Arriving] = msgspec.field(default_factory=dict)
    ended: dict[str, str] = msgspec.field(default_factory=dict)
    """operation -> `cancelled`, `adopted` or `released`, newest last, bounded by `ENDED_KEPT`"""

    def sealed_by(self, slot: int) -> str | None:
        return next((op for op, s in self.sealed.items() if slot in s.slots), None)

    def arriving_by(self, slot: int) -> str | None:
        return next((op for op, a in self.arriving.items() if slot in a.slots), None)

    def sources(self, operations: set[str]) -> set[int]:
        """Slots that left with any of `operations` and are retained only as a source of copies."""
        sealed = (self.sealed[op].slots for op in operations if op in self.sealed)
        return set[int]().union(*sealed) - self.open

    def without_files(self, operations: set[str]) -> "Slots":
        """The slots as sent to a new member, which gets the seals of `operations` without their files."""
        sealed = {
            op: Sealed(s.slots, s.index, s.sessions, s.metadata_only or op in operations)
            for op, s in self.sealed.items()
        }
        return Slots(self.open, sealed, self.arriving, self.ended)

    def seal(self, operation: str, slots: Ranges, index: int, sessions: bytes) -> bool:
        """Seal those of `slots` that are open; return whether the command had an effect."""
        if operation in self.ended or operation in self.sealed:
            return False
        moved = expand(slots) & self.open
        self.open -= moved
        self.sealed[operation] = Sealed(moved, index, sessions)
        return True

    def unseal(self, operation: str) -> bool:
        if operation in self.ended:
            return False
        self._end(operation, "cancelled")
        sealed = self.sealed.pop(operation, None)
        if sealed is None:
            return False
        self.open |= sealed.slots
        return True

    def open_slots(self, operation: str, slots: Ranges, index: int, sources: list[GroupId]) -> bool:
        if operation in self.ended or operation in self.arriving:
            return False
        opened = expand(slots) - self.open
        self.open |= opened
        self.arriving[operation] = Arriving(opened, index, sources)
        return True

    def adopted(self, operation: str, slots: Ranges) -> None:
        arriving = self.arriving.get(operation)
        if arriving is None:
            return
        arriving.slots -= expand(slots)
        if not arriving.slots:
            del self.arriving[operation]
            self._end(operation, "adopted")

    def release(self, operation: str) -> set[int]:
        """End the operation; return the slots to forget. They no longer wait for adoption."""
        self._end(operation, "released")
        sealed = self.sealed.pop(operation, None)
        released = sealed.slots - self.open if sealed else set[int]()
        for name, arriving in list(self.arriving.items()):
            arriving.slots -= released
            if not arriving.slots:
                del self.arriving[name]
                self._end(name, "adopted")
        return released

    def ended_here(self) -> set[str]:
        """Operations that have ended here. A rebalance in which the group both loses and gains
        slots ends twice: a lagging member may release the lost slots while it still waits for files of the
        gained ones."""
        return set(self.ended) - set(self.arriving)

    def _end(self, operation: str, how: str) -> None:
        self.ended.pop(operation, None)
        self.ended[operation] = how
        while len(self.ended) > ENDED_KEPT:
            self.ended.pop(next(iter(self.ended)))
