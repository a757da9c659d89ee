"""The one thread that writes the log.

It swaps the queue of batches for an empty one, writes each batch, syncs once, and posts the highest
batch number: completing n implies all before n. Batches that arrive while it syncs leave together in
the next round (group commit); one long-lived thread costs less than an executor hop per batch.

On a full disk it keeps what was not written and tries again, in order, until there is room. After any other
error the thread has ended for good: nothing may be assumed about what is durable, so the agent has to stop
(never retry a failed fsync).
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from nodeagent.log import NoSpace
from nodeagent.model.entries import LogOp

Batch = tuple[int, list[LogOp]]

NO_SPACE_RETRY_S = 0.5
"""Between two attempts to write on a full disk."""

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
        self._queue: list[Batch] = []
        self._stopping = False
        self.syncs = 0
        self.batches = 0
        self.sync_seconds = 0.0
        self.reclaimed_bytes = 0
        self.held = 0
        """Batches that wait for room on the disk."""

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
        held: list[Batch] = []
        while True:
            queue = self._next(reclaim_at, held)
            held = self._write(queue)
            if not queue and not self._stopping:
                self._log.mark_synced()
            if held or time.monotonic() >= reclaim_at:
                self.reclaimed_bytes += self._log.reclaim()
                reclaim_at = time.monotonic() + self._reclaim_every_s
            if self._stopping and not self._queue:
                self._log.close()  # what is still held promised nothing to anybody
                return

    def _next(self, until: float, held: list[Batch]) -> list[Batch]:
        """Everything queued, behind what is held; waits for something until the given time, when something is
        held for a moment in any case."""
        with self._wake:
            if held:
                self._wake.wait_for(lambda: self._stopping, NO_SPACE_RETRY_S)
            while not self._queue and not held and not self._stopping:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._wake.wait(left)
            queue, self._queue = [*held, *self._queue], []
            return queue

    def _write(self, queue: list[Batch]) -> list[Batch]:
        """Write and sync what there is room for; returns the rest."""
        written = 0
        with contextlib.suppress(NoSpace):
            for _, ops in queue:
                self._log.write(ops)
                written += 1
        self.held = len(queue) - written
        if written:
            start = time.perf_counter()
            self._log.sync()
            self.sync_seconds += time.perf_counter() - start
            self.syncs += 1
            self.batches += written
            self._post(queue[written - 1][0])
        return queue[written:]
