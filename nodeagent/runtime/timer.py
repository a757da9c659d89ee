"""One timer for a deadline that often moves."""

import asyncio
from collections.abc import Callable

from nodeagent.runtime.clock import Clock


class Timer:
    """Calls `ring` at the armed deadline, or before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    def arm(self, deadline: int) -> None:
        """Ring at `deadline` at the latest; an early ring is cheaper than moving the timer each turn."""
        if self._timer is not None and self._timer_at <= deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        delay_ms = max(0, deadline - self._clock.now())
        self._timer = self._loop.call_later(delay_ms / 1000, self._on_ring)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_ring(self) -> None:
        self._timer = None
        self._ring()
