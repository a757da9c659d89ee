"""The demo as a use case: a cluster from start to end on this machine, with nothing mocked.

Five agents, real weather readings and a generated fleet. While a writer and a reader run, the demo adds a
node, migrates and verifies slots with Spark, kills a node during the migration, removes a node, and compares
every row of every replica. Every check that fails is reported.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from iotctl.demo.changes import DemoChanges, Moved
from iotctl.demo.fleet import DemoFleet
from iotctl.demo.generate import TABLE, TAG
from iotctl.demo.load import Load, Seen
from iotctl.demo.log import DemoLog, JobProgress, OnProgress
from iotctl.demo.rows import DemoRows
from iotctl.fleet.local import LocalFleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DemoReport(msgspec.Struct):
    """The results; `failures` is empty if every check passed."""

    changes: list[Moved]
    rows_before: int
    rows_after: int
    series: int
    acknowledged: int
    strong_reads: int
    write_pause_ms: dict[str, int]
    """Longest duration of one write, by owner of the data group at the start."""

    verified: str
    failures: list[str]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.failures


def run_demo(
    *,
    nodes: int,
    replicas: int,
    keep: bool,
    directory: Path | None,
    note: Callable[[str], None],
    on_progress: OnProgress,
) -> DemoReport:
    """Run the whole demo. Unless `keep` is set, nothing is left running, even after a failure."""
    home = directory or Path(tempfile.mkdtemp(prefix="iotctl-demo-"))
    fleet = LocalFleet(home)
    demo = Demo(fleet, nodes, replicas, DemoLog(note, on_progress))
    try:
        return demo.run()
    finally:
        demo.close()
        if keep:
            note(f"the fleet is kept: export IOTCTL_CLUSTER={fleet.spec_path}")
        elif fleet.exists:
            fleet.destroy()


class Demo:
    """The sequence of steps."""

    def __init__(self, fleet: LocalFleet, nodes: int, replicas: int, log: DemoLog) -> None:
        self._nodes = nodes
        self._replicas = replicas
        self._log = log
        self._fleet = DemoFleet(fleet, log)
        self._rows = DemoRows(self._fleet, log)
        self._load: Load | None = None

    def close(self) -> None:
        if self._load is not None:
            self._load.stop()
        self._fleet.close()

    def run(self) -> DemoReport:
        from iotctl.pipeline.session import spark_session

        self._fleet.start(self._nodes, self._replicas)
        rows = self._rows.load()
        self._log.say("starting Spark (local[*])")
        with spark_session("iotctl demo", "local[*]") as spark:
            return self._change_and_check(rows, spark)

    def _change_and_check(self, rows: int, spark: "SparkSession") -> DemoReport:
        changes = DemoChanges(self._fleet, self._log, spark)
        before = self._rows.fingerprint()
        self._load = Load(self._fleet.connect, TABLE, TAG, self._rows.places())
        self._load.start()
        changes.add(f"node{self._nodes + 1}")
        changes.remove("node2")
        seen = self._load.stop()
        self._load = None
        self._rows.check(seen)
        after = self._rows.fingerprint()
        if before != after:
            differ = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
            self._log.fail(
                f"{len(differ)} of {len(before)} series differ after the changes, first {differ[0]}"
            )
        counted = self._rows.count() - len(seen.acked)
        if counted != rows:
            self._log.fail(f"{rows} rows before, {counted} after")
        verified = self._verify(spark)
        return self._report(changes.made, rows, counted, len(after), seen, verified)

    def _verify(self, spark: "SparkSession") -> str:
        from iotctl.pipeline.verify import run

        self._log.say("comparing every row of every replica on Spark")
        report = run(self._fleet.spec(), depth="content", progress=JobProgress(self._log), session=spark)
        if report.mismatches or report.unread:
            self._log.fail(f"verify: {len(report.mismatches)} mismatches, {len(report.unread)} unread")
        return (
            f"{report.replicas_compared} replicas, {report.files:,} files, {report.rows:,} rows, "
            f"{report.series} series"
        )

    def _report(
        self, changes: list[Moved], rows: int, counted: int, series: int, seen: Seen, verified: str
    ) -> DemoReport:
        return DemoReport(
            changes=changes,
            rows_before=rows,
            rows_after=counted,
            series=series,
            acknowledged=len(seen.acked),
            strong_reads=seen.reads,
            write_pause_ms={h: round(1000 * s) for h, s in sorted(seen.pauses.items())},
            verified=verified,
            failures=self._log.failures,
            seconds=self._log.seconds,
        )
