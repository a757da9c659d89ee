"""Threads for blocking work, one lane each, so that slow work delays only its own kind."""

import sys
import threading
from collections import deque
from collections.abc import Callable


class Lane:
    """A thread with a bounded queue of calls, run in the order they came."""

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
        """Calls that wait or run."""
        return len(self._queue) + self._running

    def submit(self, call: Callable[[], None]) -> bool:
        """Whether it was queued; False when the lane is full. `call` must not raise."""
        with self._wake:
            if len(self._queue) >= self._queued_max or self._stopping:
                return False
            self._queue.append(call)
            self._wake.notify()
        return True

    def stop(self, timeout_s: float) -> None:
        """Drop what is queued and wait for the call that runs; jobs are idempotent and come again."""
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
            except Exception:  # nobody waits for this one, and the others must not wait for ever
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))
            self._running = False
