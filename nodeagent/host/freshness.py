"""The age of a replica's state, which limits bounded reads.

A replica asks its leader for a read index (`Raft.read`). Once the state has applied that index, it holds
everything that was acknowledged before the question, so the age counts from the question. Only this process's
monotonic clock is used: message delays and wall clocks do not matter, and a leader without its quorum
confirms nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

from nodeagent.host.effect_queue import EffectQueue

Read = Callable[[Callable[[], None], Callable[[str], None]], None]

ASK_AGAIN_MS = 500
"""The wait after a failed question; a bounded read asks at once."""


WAIT_MS = 2_000
"""A request waits this long for a confirmation."""


class _Waiting(NamedTuple):
    until: int
    bound_ms: int
    then: Callable[[], None]
    failed: Callable[[int], None]
    """Gets the age."""


def confirmed_text(age_ms: int) -> str:
    return f"a leader confirmed it {age_ms} ms ago" if age_ms >= 0 else "no leader has confirmed it yet"


class Freshness:
    """
    Args:
        read: calls its first argument once the state holds everything acknowledged before the question, or
            its second if the read fails.
        seen: the last entry given to the state; it decreases if an older state is installed.
    """

    def __init__(self, effects: EffectQueue, read: Read, seen: Callable[[], int]) -> None:
        self._effects = effects
        self._read = read
        self._seen = seen
        self._confirmed: tuple[int, int] | None = None
        """(time of the question, last entry given to the state when it had applied the read index)"""

        self._asked_at: int | None = None
        """Time of the open question."""

        self._not_before = effects.now
        self._waiting: list[_Waiting] = []

    @property
    def age_ms(self) -> int:
        """The state holds everything acknowledged longer ago than this; -1 if no leader has confirmed it."""
        if self._confirmed is None or self._seen() < self._confirmed[1]:
            return -1
        return self._effects.now - self._confirmed[0]

    def refresh(self, older_than_ms: int) -> None:
        """Ask for a new confirmation if the last is older than this; called now and then."""
        self._refuse_late()
        age = self.age_ms
        if (age < 0 or age > older_than_ms) and self._effects.now >= self._not_before:
            self._ask()

    def within(self, bound_ms: int, then: Callable[[], None], failed: Callable[[int], None]) -> None:
        """Run `then` if the state is no older than `bound_ms`, now or after a question; else `failed` with
        the age."""
        if 0 <= self.age_ms <= bound_ms:
            then()
        else:
            self._waiting.append(_Waiting(self._effects.now + WAIT_MS, bound_ms, then, failed))
            self._ask()

    def _ask(self) -> None:
        if self._asked_at is not None:
            return
        asked_at = self._asked_at = self._effects.now

        def confirmed() -> None:
            self._confirmed = (asked_at, self._seen())
            self._answer()

        def failed(_: str) -> None:
            self._not_before = self._effects.now + ASK_AGAIN_MS
            self._answer()

        self._read(confirmed, failed)

    def _answer(self) -> None:
        self._asked_at = None
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if 0 <= self.age_ms <= request.bound_ms:
                request.then()
            else:
                request.failed(self.age_ms)

    def _refuse_late(self) -> None:
        """The leader confirms, but the state does not reach the index: entries are applied too slowly."""
        late = [w for w in self._waiting if w.until <= self._effects.now]
        if late:
            self._waiting = [w for w in self._waiting if w.until > self._effects.now]
            for request in late:
                request.failed(self.age_ms)
