"""What is held for a time and renewed by a thread, so that it lapses when its holder dies."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from nodeagent.model.errors import NodeAgentError

RENEWALS_PER_TTL = 3


def uptime() -> float:
    """Seconds since the machine started, those asleep too: the others' clocks did not stop."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Renewal:
    """Calls `renew` from `__enter__` to `__exit__`; `lost` names why it is not held any more.

    `is_lost` tells an answer that says so from one that may be better next time.
    """

    def __init__(
        self,
        renew: Callable[[], object],
        ttl_ms: int,
        name: str,
        is_lost: Callable[[NodeAgentError], bool],
        clock: Callable[[], float] = uptime,
    ) -> None:
        self._renew = renew
        self._is_lost = is_lost
        self._clock = clock
        self._ttl_s = ttl_ms / 1000
        self._held_until = 0.0
        self._told = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def lost(self) -> str:
        """Also when nobody told us: who was cut off, or slept, must not take it for his own."""
        if not self._told and self._clock() >= self._held_until:
            return f"it could not be renewed for {self._ttl_s:g} s"
        return self._told

    def __enter__(self) -> Self:
        """It was taken just now."""
        self._held_until = self._clock() + self._ttl_s
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._ttl_s / RENEWALS_PER_TTL):
            began = self._clock()
            try:
                self._renew()
            except NodeAgentError as error:
                if self._is_lost(error):
                    self._told = error.what
                    return
                continue  # the next renewal is still in time
            # Late, too: the cluster renews for who holds it still, so nobody else had it meanwhile.
            self._held_until = began + self._ttl_s
