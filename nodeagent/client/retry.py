"""Which member to ask next, and after what delay. Pure except for the random source passed in."""

import random
from collections.abc import Sequence

BACKOFF_MIN_S = 0.02
BACKOFF_MAX_S = 0.25

NO_ROOM_PAUSE_MAX_S = 1.0
"""The longest pause before a write is retried at a leader that had no room for it. Longer than
`BACKOFF_MAX_S`, because every attempt sends all the rows."""

HOPS_MAX = 2
"""Hints in a row that are followed without a pause."""


class Backoff:
    """Delays that double, each drawn from [d/2, d)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next_s = BACKOFF_MIN_S

    def delay_s(self, max_s: float = BACKOFF_MAX_S) -> float:
        delay = min(self._next_s, max_s) * (0.5 + self._rng.random() / 2)
        self._next_s = min(2 * self._next_s, max_s)
        return delay


class MemberSearch:
    """Finds the member that can answer.

    Invariant: without new hints every member is the target once in any len(members) advances.
    """

    def __init__(self, members: Sequence[str], first: str | None = None) -> None:
        assert members or first, "there must be a node to ask"
        self._members = tuple(members) or (str(first),)
        self._turn = self._members.index(first) if first in self._members else 0
        self.target = first or self._members[self._turn]
        self._hops = 0

    def advance(self) -> None:
        """The target did not answer, or cannot: move on to the next member."""
        if self.target in self._members:
            self._turn = self._members.index(self.target)
        self._turn = (self._turn + 1) % len(self._members)
        self.target = self._members[self._turn]
        self._hops = 0

    def follow(self, leader: str | None) -> bool:
        """The target names `leader`. Return whether to ask it without a pause."""
        if not leader or leader == self.target:
            self.advance()
            return False
        self.target = leader
        self._hops += 1
        return self._hops <= HOPS_MAX

    def paused(self) -> None:
        """After a pause: hints may be followed at once again."""
        self._hops = 0
