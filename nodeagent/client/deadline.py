"""When a call ends without an answer, and how long it waits for a busy node."""

import asyncio

BUSY_TIMEOUTS_MAX = 6
"""A call stops waiting for a busy node after this many timeouts without progress. A node is busy while it
computes a read, or flushes earlier rows to files before it accepts a write."""


class Deadline:
    """When a call ends without an answer.

    `extend` restarts the deadline after progress. `extend_while_busy` restarts it too, but never beyond
    `BUSY_TIMEOUTS_MAX` timeouts after the last progress. Both count as `extend_while_busy` for the enclosing
    deadline `within`; until its first progress, a deadline is never restarted beyond the limit of `within`.
    """

    def __init__(self, timeout_s: float, within: "Deadline | None" = None) -> None:
        self.timeout_s = timeout_s
        self._within = within
        self._at = _now() + timeout_s
        self._last_at: float = (
            within._last_at if within is not None else _now() + BUSY_TIMEOUTS_MAX * timeout_s
        )

    def extend(self) -> None:
        self._last_at = _now() + BUSY_TIMEOUTS_MAX * self.timeout_s
        self.extend_while_busy()

    def extend_while_busy(self) -> None:
        self._at = max(self._at, min(_now() + self.timeout_s, self._last_at))
        if self._within is not None:
            self._within.extend_while_busy()

    @property
    def patience_s(self) -> float:
        """Seconds until the latest end that `extend_while_busy` can set without further progress."""
        return max(self.left_s, self._last_at - _now())

    @property
    def left_s(self) -> float:
        """Seconds until the end, never below zero."""
        return max(0.0, self._at - _now())

    @property
    def passed(self) -> bool:
        return _now() >= self._at


async def pause(delay_s: float, deadline: Deadline) -> None:
    await asyncio.sleep(min(delay_s, deadline.left_s))


def _now() -> float:
    return asyncio.get_running_loop().time()
