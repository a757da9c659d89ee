"""The one thread that writes the log.

It swaps the queue of batches for an empty one, writes each batch, syncs once, and posts the highest batch
number: the completion of n implies that of all batches before n. Batches that arrive during a sync are
written together in the next round (group commit). One long-lived thread costs less than an executor hop per
batch.

On a full disk it holds the unwritten batches and retries them, in order, until there is room. Any other error
ends the thread: nothing may be assumed about what is durable, so the agent has to stop (never retry a failed
fsync).
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
"""Pause between two attempts to write to a full disk."""

RECLAIM_EVERY_S = 1.0
"""Log space is reclaimed this often, and after each write that a full disk refused."""


class LogWriter(Protocol):
    """The part of `nodeagent.log.Log` that the thread uses."""

    def write(self, ops: Sequence[LogOp]) -> None: ...

    def sync(self) -> None: ...

    def mark_synced(self) -> None: ...

    def reclaim(self) -> int: ...

    def close(self) -> None: ...


class LogThread:
    """Writes batches of log operations. `post` and `fail` are called on this thread; the caller must forward
    them to the loop.

    Once started, the thread ends only by `stop` or after it has called `fail`.
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
        """Batches that wait for free disk space."""

        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, batch: int, ops: list[LogOp]) -> None:
        """Queue a batch. Numbers must increase. The host's limits bound the queue."""
        with self._wake:
            self._queue.append((batch, ops))
            self._wake.notify()

    def stop(self) -> None:
        """Write and sync the queued batches that fit, close the log, and wait for the thread to end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # after any error the log is no longer written
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
                self._log.close()  # nothing was acknowledged for the batches still held
                return

    def _next(self, until: float, held: list[Batch]) -> list[Batch]:
        """The held batches, then the queued ones. If batches are held, wait for `NO_SPACE_RETRY_S`; else wait
        for a batch, but at most until the given time."""
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
        """Write and sync the batches that fit on the disk; return the rest."""
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
