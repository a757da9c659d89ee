"""Runs encoded units as Spark tasks, one task per unit, and reports progress."""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from iotctl.pipeline.executors import (
    EXECUTOR_WAIT_S,
    POLL_S,
    Patience,
    executors,
    first_line,
    starved,
    waiting,
)
from iotctl.pipeline.report import Progress
from nodeagent.model.errors import Unavailable

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def run_tasks(
    session: "SparkSession",
    units: Sequence[bytes],
    task: Callable[[bytes], bytes],
    progress: Progress,
    phase: str,
    executor_wait_s: float = EXECUTOR_WAIT_S,
) -> tuple[list[bytes], str | None]:
    """Results in the order of the units, or no results and why the job failed.

    `task` catches the errors it expects. Another exception or a dead worker fails the job after Spark's
    retries, and so does `executor_wait_s` without any executor. An interrupt cancels the job.
    """
    if not units:
        return [], None
    results, why = _run(session, units, task, progress, phase, executor_wait_s)
    return results, f"the Spark job failed: {why}" if why else None


def await_executors(session: "SparkSession", progress: Progress, wait_s: float = EXECUTOR_WAIT_S) -> None:
    """Return once a task has run: Spark then knows how many tasks run in parallel. A cluster with dynamic
    allocation provides no executor before there is a task.

    Raises:
        Unavailable: there was no executor, or the executor cannot run iotctl.
    """
    _, why = _run(session, [b""], _probe, progress, "waiting for Spark executors", wait_s)
    if why:
        raise Unavailable(
            why, next_step="check the master's web page, start or free a worker, and repeat the command"
        )


def _probe(unit: bytes) -> bytes:
    """A task that needs the same packages as the real tasks."""
    import iotctl.pipeline.compare
    import iotctl.pipeline.fetch
    import iotctl.pipeline.link  # noqa: F401

    return unit


def _run(
    session: "SparkSession",
    units: Sequence[bytes],
    task: Callable[[bytes], bytes],
    progress: Progress,
    phase: str,
    executor_wait_s: float,
) -> tuple[list[bytes], str]:
    """As `run_tasks`, with "" if the job did not fail."""
    context = session.sparkContext
    group = f"iotctl-{uuid.uuid4().hex[:8]}"
    watcher = _Watcher(context, group, len(units), progress, phase, executor_wait_s)

    def job() -> list[bytes]:
        context.setJobGroup(group, phase, interruptOnCancel=True)
        results: list[bytes] = context.parallelize(units, len(units)).map(task).collect()
        return results

    # A signal cannot interrupt a call that waits for the JVM. So another thread makes that call, and the
    # connection of this thread stays free to cancel the job.
    pool = ThreadPoolExecutor(1, "spark-job")
    watcher.start()
    try:
        results = pool.submit(job).result()
        watcher.end()
        progress.update(phase, len(units), len(units))
        return results, ""
    except Exception as error:  # py4j wraps whatever ended the job
        return [], watcher.starved or first_line(error)
    except BaseException:
        with contextlib.suppress(Exception):  # Spark may no longer answer
            context.cancelJobGroup(group)
        raise
    finally:
        watcher.end()
        pool.shutdown()


class _Watcher(threading.Thread):
    """Reports the progress of a job, and cancels it if there has been no executor for too long."""

    def __init__(
        self,
        context: "SparkContext",
        group: str,
        total: int,
        progress: Progress,
        phase: str,
        executor_wait_s: float,
    ) -> None:
        super().__init__(name="spark-watch")
        self._context = context
        self._group = group
        self._total = total
        self._progress = progress
        self._phase = phase
        self._wait_s = executor_wait_s
        self._over = threading.Event()
        self.starved = ""
        """Why the job was cancelled; "" if it was not."""

    def end(self) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        self._progress.update(self._phase, 0, self._total)
        patience = Patience(self._wait_s, time.monotonic())
        while not self.starved and not self._over.wait(POLL_S):
            try:
                self._look(patience)
            except Exception:  # the JVM has ended; the thread that waits for the job reports it
                return

    def _look(self, patience: Patience) -> None:
        waits = patience.waits(executors(self._context), time.monotonic())
        if waits and patience.over(time.monotonic()):
            self.starved = starved(str(self._context.master), self._wait_s)
            self._context.cancelJobGroup(self._group)
            return
        note = waiting(self._wait_s) if waits else ""
        self._progress.update(self._phase, self._done(), self._total, note=note)

    def _done(self) -> int:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(s) for info in jobs if info for s in info.stageIds]
        return sum(stage.numCompletedTasks for stage in stages if stage)
