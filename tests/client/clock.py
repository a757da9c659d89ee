"""A loop whose clock jumps: waiting costs no time, and a test is a function of its seed."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting, the clock moves to when the next timer is due."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen: a deadlock"
        self.now += max(0.0, timeout)
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(coroutine: Coroutine[Any, Any, _T], limit_s: float = 300.0) -> _T:
    """Run to the end; more than `limit_s` of the loop's time is a failure."""

    async def bounded() -> _T:
        return await asyncio.wait_for(coroutine, limit_s)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(bounded())
