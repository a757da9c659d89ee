"""Run encoded units as Spark tasks, one task each, telling how many are done."""

import contextlib
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from iotctl.pipeline.report import Progress

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

POLL_S = 0.25


def run_tasks(
    session: "SparkSession",
    units: Sequence[bytes],
    task: Callable[[bytes], bytes],
    progress: Progress,
    phase: str,
) -> tuple[list[bytes], str | None]:
    """Results in the order of the units, or none of them and why the job failed.

    `task` catches what it expects; an exception or a dead worker fails the job after Spark's retries.
    An interrupt cancels the job.
    """
    if not units:
        return [], None
    context = session.sparkContext
    group = f"iotctl-{uuid.uuid4().hex[:8]}"
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context, group, len(units), progress, phase, over))

    def job() -> list[bytes]:
        context.setJobGroup(group, phase, interruptOnCancel=True)
        results: list[bytes] = context.parallelize(units, len(units)).map(task).collect()
        return results

    # A call that waits for the JVM cannot be left by a signal: this thread only waits for that one, and
    # its own connection is free to cancel the job.
    pool = ThreadPoolExecutor(1, "spark-job")
    watcher.start()
    try:
        results = pool.submit(job).result()
        over.set()
        watcher.join()
        progress.update(phase, len(units), len(units))
        return results, None
    except Exception as error:  # py4j wraps whatever ended the job
        return [], f"the Spark job failed: {_first_line(error)}"
    except BaseException:
        with contextlib.suppress(Exception):  # Spark may be past answering
            context.cancelJobGroup(group)
        raise
    finally:
        over.set()
        watcher.join()
        pool.shutdown()


def _watch(
    context: "SparkContext",
    group: str,
    total: int,
    progress: Progress,
    phase: str,
    over: threading.Event,
) -> None:
    progress.update(phase, 0, total)
    tracker = context.statusTracker()
    while not over.wait(POLL_S):
        done = 0
        try:
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                stages = [tracker.getStageInfo(s) for s in info.stageIds] if info else []
                done += sum(stage.numCompletedTasks for stage in stages if stage)
        except Exception:  # the JVM is gone; whoever waits for the job says so
            return
        progress.update(phase, done, total)


def _first_line(error: Exception) -> str:
    """The line that names the Python exception, when Spark's text has one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line and not line.startswith(("at ", "File ", "An error"))]
    return (named or lines or [type(error).__name__])[-1 if named else 0][:300]
