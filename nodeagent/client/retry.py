"""Whom to ask next, and after how long. Pure but for the random source it is given."""

import random
from collections.abc import Sequence

BACKOFF_MIN_S = 0.02
BACKOFF_MAX_S = 0.25

PRESSED_MAX_S = 1.0
"""The longest pause before rows go again to a leader that had no room for them; each try sends them whole."""

HOPS_MAX = 2
"""Hints that are followed at once; after that many without an answer a pause is due."""


class Backoff:
    """Delays that double, each drawn from [d/2, d)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next_s = BACKOFF_MIN_S

    def delay_s(self, max_s: float = BACKOFF_MAX_S) -> float:
        delay = min(self._next_s, max_s) * (0.5 + self._rng.random() / 2)
        self._next_s = min(2 * self._next_s, max_s)
        return delay


class Chase:
    """Looks for the one among `members` that can answer.

    Invariant: without new hints every member is the target once in any len(members) advances.
    """

    def __init__(self, members: Sequence[str], first: str | None = None) -> None:
        assert members or first, "someone to ask"
        self._members = tuple(members) or (str(first),)
        self._turn = self._members.index(first) if first in self._members else 0
        self.target = first or self._members[self._turn]
        self._hops = 0

    def advance(self) -> None:
        """The target did not answer, or cannot: the next in turn."""
        if self.target in self._members:
            self._turn = self._members.index(self.target)
        self._turn = (self._turn + 1) % len(self._members)
        self.target = self._members[self._turn]
        self._hops = 0

    def follow(self, leader: str | None) -> bool:
        """The target names `leader`. Whether that is worth asking without a pause."""
        if not leader or leader == self.target:
            self.advance()
            return False
        self.target = leader
        self._hops += 1
        return self._hops <= HOPS_MAX

    def rested(self) -> None:
        """A pause was made: hints may be followed at once again."""
        self._hops = 0
