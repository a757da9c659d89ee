"""A lease that a thread renews, so that it expires when its holder dies."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from nodeagent.model.errors import NodeAgentError

RENEWALS_PER_TTL = 3


def uptime() -> float:
    """Seconds since the machine started, including sleep: the other machines' clocks did not stop."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Renewal:
    """Calls `renew` regularly between `__enter__` and `__exit__`; `lost` says why the lease was lost.

    `is_lost` says whether an error means that the lease is lost; after other errors, the renewal is retried.
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
        self._reason = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def lost(self) -> str:
        """Why the lease was lost, "" while it is held. A holder that was cut off or slept lost it, too."""
        if not self._reason and self._clock() >= self._held_until:
            return f"it could not be renewed for {self._ttl_s:g} s"
        return self._reason

    def __enter__(self) -> Self:
        """Start the renewal of a lease that was just taken."""
        self._held_until = self._clock() + self._ttl_s
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._ttl_s / RENEWALS_PER_TTL):
            began = self._clock()
            try:
                self._renew()
            except NodeAgentError as error:
                if self._is_lost(error):
                    self._reason = error.what
                    return
                continue  # the next renewal may still be in time
            # A late renewal counts, too: the cluster renews only for the current holder.
            self._held_until = began + self._ttl_s
