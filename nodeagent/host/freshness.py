"""How old what a replica holds may be: the bound of `mid` reads.

A replica asks its leader for a read index (`Raft.read`). When the answer has come and the state has reached
it, everything acknowledged before the question is here, so the time of the question is the state's age. Only
this process's monotonic clock is looked at: how long a message took and what wall clocks show is no matter,
and a leader that was cut off from its quorum confirms nothing.
"""

from collections.abc import Callable

from nodeagent.host.desk import Desk

Read = Callable[[Callable[[], None], Callable[[str], None]], None]

ASK_AGAIN_MS = 500
"""After a question that failed; requests that wait ask at once."""


class Freshness:
    """
    Args:
        read: runs the first call once the state holds what was acknowledged before, the second if it cannot.
        seen: the last entry the state was given. It may go back, to an older state that was installed.
    """

    def __init__(self, desk: Desk, read: Read, seen: Callable[[], int]) -> None:
        self._desk = desk
        self._read = read
        self._seen = seen
        self._confirmed: tuple[int, int] | None = None
        """(when it was asked, the last entry of the state when it had reached the answer)"""

        self._asked_at: int | None = None
        """Since when an answer is waited for."""

        self._not_before = desk.now
        self._waiting: list[tuple[int, Callable[[], None], Callable[[int], None]]] = []
        """(bound, what to do within it, what else, with the age): those that the next answer is for."""

    @property
    def age_ms(self) -> int:
        """Everything acknowledged before that is here; -1 when no leader confirmed it yet."""
        if self._confirmed is None or self._seen() < self._confirmed[1]:
            return -1
        return self._desk.now - self._confirmed[0]

    def refresh(self, older_than_ms: int) -> None:
        """Ask for a new confirmation when the last one is older; called now and then."""
        age = self.age_ms
        if (age < 0 or age > older_than_ms) and self._desk.now >= self._not_before:
            self._ask()

    def within(self, bound_ms: int, then: Callable[[], None], failed: Callable[[int], None]) -> None:
        """Run `then` when the state is no older than `bound_ms`, at once or after asking; else `failed`, with
        the age."""
        if 0 <= self.age_ms <= bound_ms:
            then()
        else:
            self._waiting.append((bound_ms, then, failed))
            self._ask()

    def _ask(self) -> None:
        if self._asked_at is not None:
            return
        asked_at = self._asked_at = self._desk.now

        def confirmed() -> None:
            self._confirmed = (asked_at, self._seen())
            self._answer()

        def failed(_: str) -> None:
            self._not_before = self._desk.now + ASK_AGAIN_MS
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
