"""The age of a replica's state, which limits bounded reads.

A replica asks its leader for a read index (`Raft.read`). Once the state has applied that index, it holds
everything that was acknowledged before the question, so the age counts from the question. Only this process's
monotonic clock is used: message delays and wall clocks do not matter, and a leader without its quorum
confirms nothing.
"""

from collections.abc import Callable

from nodeagent.host.effect_queue import EffectQueue

Read = Callable[[Callable[[], None], Callable[[str], None]], None]

ASK_AGAIN_MS = 500
"""The wait after a failed question; a bounded read asks at once."""


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
        self._waiting: list[tuple[int, Callable[[], None], Callable[[int], None]]] = []
        """(bound in ms, call if the age is within it, call with the age if not) of requests that wait."""

    @property
    def age_ms(self) -> int:
        """The state holds everything acknowledged longer ago than this; -1 if no leader has confirmed it."""
        if self._confirmed is None or self._seen() < self._confirmed[1]:
            return -1
        return self._effects.now - self._confirmed[0]

    def refresh(self, older_than_ms: int) -> None:
        """Ask for a new confirmation if the last is older than this; called now and then."""
        age = self.age_ms
        if (age < 0 or age > older_than_ms) and self._effects.now >= self._not_before:
            self._ask()

    def within(self, bound_ms: int, then: Callable[[], None], failed: Callable[[int], None]) -> None:
        """Run `then` if the state is no older than `bound_ms`, now or after a question; else `failed` with
        the age."""
        if 0 <= self.age_ms <= bound_ms:
            then()
        else:
            self._waiting.append((bound_ms, then, failed))
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
        for bound_ms, then, failed in waiting:
            if 0 <= self.age_ms <= bound_ms:
                then()
            else:
                failed(self.age_ms)
