"""The deadline of a frame that arrives in pieces."""

import asyncio
from collections.abc import Callable

from nodeagent.model.limits import KIB

FRAME_TIMEOUT_S = 30.0
FRAME_BYTES_PER_S_MIN = 64 * KIB
"""An unfinished frame ends the connection after `FRAME_TIMEOUT_S` plus the time its length takes at the
minimum rate."""

TIMER_S = 0.001
"""A timer may fire early by this much."""


class FrameDeadline:
    """Calls `on_late` if a frame of one connection is not complete in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_late: Callable[[], None]) -> None:
        self._loop = loop
        self._on_late = on_late
        self.due = 0.0
        """Deadline of the unfinished frame, by the loop's clock; 0 if there is none."""

        self._timer: asyncio.TimerHandle | None = None
        """Fires at or before `due`. Most frames of a busy connection arrive in two pieces: a timer for each
        frame would cost more than the frame."""

    def follow(self, announced: int, any_came: bool) -> None:
        """Note that bytes arrived.

        Args:
            announced: length of the unfinished frame, 0 if there is none.
            any_came: whether the bytes completed a frame.
        """
        if any_came or not announced:
            self.due = 0.0
        if announced and not self.due:
            self.due = self._loop.time() + FRAME_TIMEOUT_S + announced / FRAME_BYTES_PER_S_MIN
            if self._timer is None or self.due < self._timer.when():
                self._set_timer()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self.due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self.due:
            return
        if self.due - self._loop.time() > TIMER_S:  # a later frame began since
            self._set_timer()
            return
        self._on_late()
