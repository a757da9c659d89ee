"""An event loop with a simulated clock: waiting takes no time, and a test depends only on its seed."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting, advances the clock to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "deadlock: no timer and no I/O is pending"
        self.now += max(0.0, timeout)
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(coroutine: Coroutine[Any, Any, _T], limit_s: float = 300.0) -> _T:
    """Run to the end; fail after more than `limit_s` of the loop's time."""

    async def bounded() -> _T:
        return await asyncio.wait_for(coroutine, limit_s)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(bounded())
