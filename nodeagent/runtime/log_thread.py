"""The one thread that writes the log.

It swaps the queue of batches for an empty one, writes each batch, syncs once, and posts the highest
batch number: completing n implies all before n. Batches that arrive while it syncs leave together in
the next round (group commit); one long-lived thread costs less than an executor hop per batch.

After any error the thread has ended for good: nothing may be assumed about what is durable, so the
agent has to stop (never retry a failed fsync).
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from nodeagent.model.entries import LogOp

RECLAIM_EVERY_S = 1.0
"""Space is looked after this often, right after a sync or when nothing is to be written."""


class LogWriter(Protocol):
    """What the thread needs of `nodeagent.log.Log`."""

    def write(self, ops: Sequence[LogOp]) -> None: ...

    def sync(self) -> None: ...

    def mark_synced(self) -> None: ...

    def reclaim(self) -> int: ...

    def close(self) -> None: ...


class LogThread:
    """`post` and `fail` are called on this thread: hand them over to the loop.

    Exactly one of these is true at any time: the thread runs, it was stopped, `fail` was called.
    """

    def __init__(
        self,
        log: LogWriter,
        post: Callable[[int], None],
        fail: Callable[[BaseException], None],
        reclaim_every_s: float = RECLAIM_EVERY_S,
    ) -> None:
        self._log = log
        self._post = post
        self._fail = fail
        self._reclaim_every_s = reclaim_every_s
        self._wake = threading.Condition()
        self._queue: list[tuple[int, list[LogOp]]] = []
        self._stopping = False
        self.syncs = 0
        self.batches = 0
        self.sync_seconds = 0.0
        self.reclaimed_bytes = 0
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, batch: int, ops: list[LogOp]) -> None:
        """Queue a batch. Numbers grow. The host's own limits bound what is queued."""
        with self._wake:
            self._queue.append((batch, ops))
            self._wake.notify()

    def stop(self) -> None:
        """Write and sync what is queued, then close the log. Waits for that."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # whatever it is, the log is not written any more
            self._fail(error)

    def _loop(self) -> None:
        reclaim_at = time.monotonic() + self._reclaim_every_s
        while True:
            queue = self._next(reclaim_at)
            if queue:
                self._write(queue)
            elif not self._stopping:
                self._log.mark_synced()
            if time.monotonic() >= reclaim_at:
                self.reclaimed_bytes += self._log.reclaim()
                reclaim_at = time.monotonic() + self._reclaim_every_s
            if self._stopping and not self._queue:
                self._log.close()
                return

    def _next(self, until: float) -> list[tuple[int, list[LogOp]]]:
        """Everything queued; waits for something until the given time."""
        with self._wake:
            while not self._queue and not self._stopping:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._wake.wait(left)
            queue, self._queue = self._queue, []
            return queue

    def _write(self, queue: list[tuple[int, list[LogOp]]]) -> None:
        for _, ops in queue:
            self._log.write(ops)
        start = time.perf_counter()
        self._log.sync()
        self.sync_seconds += time.perf_counter() - start
        self.syncs += 1
        self.batches += len(queue)
        self._post(queue[-1][0])
