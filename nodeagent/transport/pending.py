"""The requests of one connection that wait for their replies."""

import asyncio
from collections.abc import Callable

from nodeagent.model.errors import OutcomeUnknown
from nodeagent.model.requests import Reply
from nodeagent.wire.faults import to_reply

SWEEP_S = 0.05
"""Deadlines of calls are checked this often."""

OnReply = Callable[[Reply], None]


class Pending:
    """Requests by number, each with its deadline. `name` is the peer, for error texts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: Callable[[], str]) -> None:
        self._loop = loop
        self._name = name
        self._calls: dict[int, tuple[float, OnReply]] = {}
        self._last_number = 0
        self._sweeper: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def next_number(self) -> int:
        """The number of the next request."""
        return self._last_number + 1

    def add(self, timeout_s: float, on_reply: OnReply) -> None:
        """Wait for the reply to `next_number`."""
        self._last_number += 1
        self._calls[self._last_number] = (self._loop.time() + timeout_s, on_reply)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def answer(self, number: int, reply: Reply) -> None:
        """Call `on_reply` of the request; does nothing if its deadline has passed."""
        waiting = self._calls.pop(number, None)
        if waiting is not None:
            waiting[1](reply)

    def cancel(self) -> None:
        """Stop checking deadlines."""
        if self._sweeper is not None:
            self._sweeper.cancel()

    def fail(self, reply: Reply) -> None:
        """Answer all requests with `reply`."""
        calls, self._calls = self._calls, {}
        for _, on_reply in calls.values():
            on_reply(reply)

    def _sweep(self) -> None:
        self._sweeper = None
        now = self._loop.time()
        late = [number for number, (deadline, _) in self._calls.items() if deadline <= now]
        for number in late:
            _, on_reply = self._calls.pop(number)
            on_reply(to_reply(OutcomeUnknown(f"{self._name()} did not answer in time", lost=True)))
        if self._calls and self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
