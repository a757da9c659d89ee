"""The log thread: order, group commit, and the end after a failed sync."""

import queue
import threading
from collections.abc import Sequence

import pytest

from nodeagent.log import NoSpace
from nodeagent.model.entries import HardState, LogOp, SetHard
from nodeagent.runtime.log_thread import LogThread


class SlowLog:
    """A log whose sync waits for permission, and that records its calls."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.permits: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
        self.syncing = threading.Semaphore(0)

    def write(self, ops: Sequence[LogOp]) -> None:
        for op in ops:
            assert isinstance(op, SetHard)
            self.done.append(f"write {op.hard.term}")

    def sync(self) -> None:
        self.syncing.release()
        error = self.permits.get(timeout=5)
        if error is not None:
            raise error
        self.done.append("sync")

    def mark_synced(self) -> None:
        self.done.append("mark")

    def reclaim(self) -> int:
        return 0

    def close(self) -> None:
        self.done.append("close")


def ops(term: int) -> list[LogOp]:
    return [SetHard("meta", HardState(term))]


def test_batches_that_arrive_during_a_sync_share_the_next_sync() -> None:
    """One sync for all waiting batches; one completion with the highest number, after the sync."""
    log = SlowLog()
    posted: queue.SimpleQueue[int] = queue.SimpleQueue()
    thread = LogThread(log, posted.put, lambda error: None, 60)
    thread.start()
    thread.submit(1, ops(1))
    assert log.syncing.acquire(timeout=5)
    for batch in (2, 3, 4):
        thread.submit(batch, ops(batch))
    assert posted.empty()
    log.permits.put(None)
    assert posted.get(timeout=5) == 1
    log.permits.put(None)
    assert posted.get(timeout=5) == 4
    thread.stop()
    assert log.done == ["write 1", "sync", "write 2", "write 3", "write 4", "sync", "close"]
    assert (thread.syncs, thread.batches) == (2, 4)


def test_full_disk_holds_batches_back_until_there_is_room() -> None:
    """The batches that fit are synced and completed; the rest is retried in order, before any later batch.
    Nothing fails."""
    log = SlowLog()
    posted: queue.SimpleQueue[int] = queue.SimpleQueue()
    failed: list[BaseException] = []
    full = threading.Event()
    full.set()
    refused = threading.Semaphore(0)
    write = log.write

    def write_if_room(ops: Sequence[LogOp]) -> None:
        assert isinstance(ops[0], SetHard)
        if full.is_set() and ops[0].hard.term >= 2:
            refused.release()
            raise NoSpace(28, "no room")
        write(ops)

    log.write = write_if_room  # type: ignore[method-assign]
    thread = LogThread(log, posted.put, failed.append, 60)
    for batch in (1, 2):
        thread.submit(batch, ops(batch))
    thread.start()
    log.permits.put(None)
    assert posted.get(timeout=5) == 1
    thread.submit(3, ops(3))
    for _ in range(2):
        assert refused.acquire(timeout=5)
    assert posted.empty() and thread.held
    full.clear()
    log.permits.put(None)
    log.permits.put(None)
    assert posted.get(timeout=5) in (2, 3)
    thread.stop()
    assert [d for d in log.done if d.startswith("write")] == ["write 1", "write 2", "write 3"]
    assert failed == [] and thread.held == 0


def test_stop_on_a_full_disk_does_not_wait_for_room() -> None:
    """Nothing was acknowledged for the held batches: the log is closed without them."""
    log = SlowLog()

    def refuse(ops: Sequence[LogOp]) -> None:
        raise NoSpace(28, "no room")

    log.write = refuse  # type: ignore[method-assign]
    thread = LogThread(log, lambda batch: None, lambda error: None, 60)
    thread.submit(1, ops(1))
    thread.start()
    thread.stop()
    assert log.done == ["close"]


def test_failed_sync_is_final() -> None:
    """After an error nothing is completed and nothing is written any more."""
    log = SlowLog()
    posted: list[int] = []
    failed: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    thread = LogThread(log, posted.append, failed.put, 60)
    thread.start()
    log.permits.put(OSError(5, "Input/output error"))
    thread.submit(1, ops(1))
    assert isinstance(failed.get(timeout=5), OSError)
    thread.submit(2, ops(2))
    thread.stop()
    assert posted == [] and log.done == ["write 1"]


def test_stop_writes_what_was_submitted() -> None:
    """A clean stop writes every submitted batch."""
    log = SlowLog()
    posted: list[int] = []
    thread = LogThread(log, posted.append, lambda error: None, 60)
    for batch in (1, 2):
        thread.submit(batch, ops(batch))
    log.permits.put(None)
    thread.start()
    thread.stop()
    assert posted == [2] and log.done == ["write 1", "write 2", "sync", "close"]


@pytest.mark.parametrize("busy", [False, True])
def test_space_is_reclaimed_busy_or_idle(busy: bool) -> None:
    """`reclaim` is called when it is due, between syncs too."""

    class Log(SlowLog):
        reclaimed = threading.Semaphore(0)

        def sync(self) -> None:
            pass

        def reclaim(self) -> int:
            self.reclaimed.release()
            return 7

    log = Log()
    thread = LogThread(log, lambda batch: None, lambda error: None, 0.001)
    thread.start()
    for batch in range(1, 50 if busy else 1):
        thread.submit(batch, ops(batch))
    assert log.reclaimed.acquire(timeout=5) and log.reclaimed.acquire(timeout=5)
    thread.stop()
    assert thread.reclaimed_bytes >= 14
