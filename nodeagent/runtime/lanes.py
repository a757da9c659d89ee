"""Threads for blocking work, one per lane, so that slow work delays only work of its own kind."""

import sys
import threading
from collections import deque
from collections.abc import Callable


class Lane:
    """A thread with a bounded queue of calls, run in order of submission."""

    def __init__(self, name: str, queued_max: int) -> None:
        self._queued_max = queued_max
        self._wake = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._running = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Queued and running calls."""
        return len(self._queue) + self._running

    def submit(self, call: Callable[[], None]) -> bool:
        """Queue a call; return False if the lane is full or stopping. `call` must not raise."""
        with self._wake:
            if len(self._queue) >= self._queued_max or self._stopping:
                return False
            self._queue.append(call)
            self._wake.notify()
        return True

    def stop(self, timeout_s: float) -> None:
        """Drop queued calls and wait for the running call; jobs are idempotent and submitted again later."""
        with self._wake:
            self._stopping = True
            self._queue.clear()
            self._wake.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._stopping:
                    self._wake.wait()
                if self._stopping:
                    return
                call = self._queue.popleft()
                self._running = True
            try:
                call()
            except Exception:  # report it and continue: the queued calls must still run
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))
            self._running = False
