"""The demo as a use case: the main job from nothing, on this machine, with nothing mocked.

Five agents, real weather readings and a generated fleet; a writer and a reader run through all of it:
add a node, move and verify with Spark, kill a node in the middle, remove a node, compare every row of
every replica. It fails on the first thing that differs.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from iotctl.change import execute as change
from iotctl.change import provision
from iotctl.demo.generate import (
    EPOCH_MS,
    HOUR_MS,
    TABLE,
    TAG,
    WEEK_MS,
    Fleet,
    generate,
    storage_group_name,
)
from iotctl.demo.load import Load, Seen
from iotctl.errors import VerificationFailed
from iotctl.fleet.local import LocalFleet
from iotctl.lifecycle.startup import wait_healthy
from iotctl.observe import facts
from iotctl.observe.cluster import Cluster, cluster_spec, connect
from iotctl.observe.layout import table_of
from iotctl.observe.operations import received_bytes
from iotctl.plan.facts import ClusterFacts
from iotctl.plan.make import make_add, make_remove
from iotctl.plan.model import Plan
from iotctl.rows.examples import named_file
from nodeagent.model.config import ClusterSettings
from nodeagent.model.operation import Operation, Options, Stage
from nodeagent.model.schema import TableSchema
from nodeagent.partition.hash import shard_of, slot_of, time_partition
from nodeagent.table.checksum import checksum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WEATHER_GROUP, WEATHER_TABLE = "root.weather", "weather"
FLEET = Fleet(storage_groups=44, weeks=52)
PLACES = 60
"""Slots the writer goes round."""

MOVED_MIN = 200
UP_TIMEOUT_S = 60.0
MIGRATE_TRIES = 3
"""The job ends when a node it needs is away for long; starting it again goes on."""


class OnProgress(Protocol):
    def __call__(
        self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = ""
    ) -> None: ...


class Moved(msgspec.Struct):
    """One change of the demo, as planned and as it went."""

    what: str
    slots: int
    lower_bound: int
    nonempty: int
    planned_bytes: int
    received_bytes: dict[str, int]
    seconds: float


class DemoReport(msgspec.Struct):
    """What happened; `failures` is empty when everything held."""

    changes: list[Moved]
    rows_before: int
    rows_after: int
    series: int
    acknowledged: int
    strong_reads: int
    write_pause_ms: dict[str, int]
    """Longest time one write took, per data group (by its header at the start)."""

    verified: str
    failures: list[str]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.failures


def weather_rows() -> pa.Table:
    """The packaged readings, as `data import --time time_hour --tag origin` takes them."""
    here = named_file("example:weather", Path.cwd())
    from nodeagent.table.arrow import TIME

    table = pq.read_table(here)
    names = [TIME if n == "time_hour" else n for n in table.column_names]
    return table.rename_columns(names)


def run_demo(
    *,
    nodes: int,
    replicas: int,
    keep: bool,
    directory: Path | None,
    note: Callable[[str], None],
    on_progress: OnProgress,
) -> DemoReport:
    """Run the whole demo; whatever happens, nothing is left running unless `keep`."""
    home = directory or Path(tempfile.mkdtemp(prefix="iotctl-demo-"))
    fleet = LocalFleet(home)
    demo = Demo(fleet, nodes, replicas, note, on_progress)
    try:
        return demo.run()
    finally:
        demo.close()
        if keep:
            note(f"the fleet is kept: export IOTCTL_CLUSTER={fleet.spec_path}")
        elif fleet.exists:
            fleet.destroy()


class Demo:
    def __init__(
        self,
        fleet: LocalFleet,
        nodes: int,
        replicas: int,
        note: Callable[[str], None],
        on_progress: OnProgress,
    ) -> None:
        self.fleet = fleet
        self.nodes = nodes
        self.replicas = replicas
        self.note = note
        self.progress = on_progress
        self.began = time.monotonic()
        self.failures: list[str] = []
        self.changes: list[Moved] = []
        self._cluster: Cluster | None = None
        self._load: Load | None = None
        self._spark: SparkSession

    # --- pieces ------------------------------------------------------------------------------------

    def connect(self) -> Cluster:
        source = self.fleet.source()
        return connect(cluster_spec(source, self.identity, os.environ))

    @property
    def identity(self) -> Path:
        return self.fleet.directory / "operator"

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self.connect()
        return self._cluster

    def close(self) -> None:
        if self._load is not None:
            self._load.stop()
        if self._cluster is not None:
            self._cluster.close()

    def say(self, what: str) -> None:
        self.note(f"[{time.monotonic() - self.began:5.1f} s] {what}")

    def fail(self, what: str) -> None:
        self.failures.append(what)
        self.note(f"FAILED: {what}")

    # --- the story ---------------------------------------------------------------------------------

    def run(self) -> DemoReport:
        from iotctl.pipeline.session import spark_session

        self.start()
        rows = self.load_rows()
        self.say("starting Spark (local[*])")
        with spark_session("iotctl demo", "local[*]") as spark:
            return self.story(rows, spark)

    def story(self, rows: int, spark: "SparkSession") -> DemoReport:
        self._spark = spark
        before = self.fingerprint()
        self._load = Load(self.connect, TABLE, TAG, self.places())
        self._load.start()
        newcomer = f"node{self.nodes + 1}"
        self.add(newcomer)
        self.remove("node2")
        seen = self._load.stop()
        self._load = None
        self.check_load(seen)
        after = self.fingerprint()
        if before != after:
            differ = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
            self.fail(f"{len(differ)} of {len(before)} series differ after the moves, first {differ[0]}")
        counted = self.count_rows() - self.probe_rows(seen)
        if counted != rows:
            self.fail(f"{rows} rows before, {counted} after")
        verified = self.verify()
        return self.report(rows, counted, len(after), seen, verified)

    def start(self) -> None:
        settings = ClusterSettings(name="demo", replicas=self.replicas)
        self.say(f"starting {self.nodes} agents on loopback, TLS on, in {self.fleet.directory}")
        self.fleet.create(settings, self.nodes, node_settings={})
        self.fleet.start()
        wait_healthy(
            self.cluster,
            self.fleet.source(),
            on_status=lambda s: self.progress(
                "nodes answering", sum(n.reachable for n in s.nodes), len(s.nodes)
            ),
            timeout_s=UP_TIMEOUT_S,
            fleet=self.fleet,
        )

    def load_rows(self) -> int:
        """Rows written: the weather readings and the generated fleet."""
        weather = weather_rows()
        self.say(f"loading {weather.num_rows} weather readings and {FLEET.points:,} generated points")
        done = self.cluster.write(WEATHER_GROUP, WEATHER_TABLE, weather, tags=["origin"])
        fleet_rows = self.cluster.write_many(self._watched(generate(FLEET)), tags=[TAG])  # type: ignore[attr-defined]
        total = self.count_rows()
        if total != done.rows + fleet_rows.rows:
            self.fail(f"wrote {done.rows + fleet_rows.rows} rows, the cluster counts {total}")
        return total

    def _watched(self, tables: Iterator[tuple[str, str, pa.Table]]) -> Iterator[tuple[str, str, pa.Table]]:
        for i, item in enumerate(tables):
            self.progress("storage groups loaded", i + 1, FLEET.storage_groups)
            yield item

    def count_rows(self) -> int:
        return sum(int(str(t["rows"])) for t in self.cluster.count())

    def probe_rows(self, seen: Seen) -> int:
        return len(seen.acked)

    def fingerprint(self) -> dict[tuple[str, ...], tuple[int, int, int]]:
        """(storage group, tags) -> count and two sums over every value, without the writer's rows."""
        out: dict[tuple[str, ...], tuple[int, int, int]] = {}
        schemas = {s.storage_group: s for s in self.cluster.schemas()}
        for i, (group, schema) in enumerate(sorted(schemas.items())):
            self.progress("series checksums", i + 1, len(schemas))
            out |= self._fingerprint_one(group, schema)
        return out

    def _fingerprint_one(
        self, group: str, schema: TableSchema
    ) -> dict[tuple[str, ...], tuple[int, int, int]]:
        fields = [f for f in schema.fields if f != "probe"]
        rows = self.cluster.scan(group, schema.table, fields=fields)
        narrow = msgspec.structs.replace(
            schema, columns=tuple(c for c in schema.columns if c.tag or c.name in fields)
        )
        sums = checksum(rows, narrow)
        tags = [str(t) for t in sums.column(schema.tags[0]).to_pylist()]
        out: dict[tuple[str, ...], tuple[int, int, int]] = {}
        counts = sums.column("$count").to_pylist()
        first, second = sums.column("$h1").to_pylist(), sums.column("$h2").to_pylist()
        for tag, count, h1, h2 in zip(tags, counts, first, second, strict=True):
            if tag != "probe":
                old = out.get((group, tag), (0, 0, 0))
                out[group, tag] = (old[0] + count, (old[1] + h1) % 2**64, (old[2] + h2) % 2**64)
        return out

    def places(self) -> dict[tuple[str, int], str]:
        """Where the writer writes: (storage group, time) -> header, spread over all groups."""
        meta = self.cluster.meta()
        table = table_of(meta)
        out: dict[tuple[str, int], str] = {}
        for i in range(PLACES):
            group = storage_group_name(i % FLEET.storage_groups)
            at = EPOCH_MS + (i * 7 % FLEET.weeks) * WEEK_MS + HOUR_MS // 2
            week = time_partition(at, meta.settings.time_partition_interval_ms)
            slot = slot_of(group, week, shard_of(["probe"], meta.settings.shards), meta.settings)
            out[group, at] = table.route(slot)
        return out

    # --- changes -----------------------------------------------------------------------------------

    def add(self, newcomer: str) -> None:
        """Plan and add a node; Spark orders the copies and verifies every row; a node dies meanwhile."""
        plan = self._plan(lambda known: make_add(known, [newcomer], None))
        began = time.monotonic()
        self.say(
            f"adding {newcomer}: {plan.summary.slots_moved} slots (bound {plan.summary.lower_bound_slots})"
        )
        operation = self._begin(plan, Options(verify=True, depth="content", no_migrate=True))
        self._wait(operation, lambda op: op.state() != "running" or op.stage is Stage.DONE)
        killer = threading.Thread(target=self._kill_and_restart, args=("node4",), daemon=True)
        killer.start()
        self._migrate(operation)
        killer.join(60)
        self._wait(operation, lambda op: op.stage is Stage.DONE)
        self._note_change(f"add {newcomer}", plan, operation, began)

    def remove(self, leaver: str) -> None:
        """The agents do it all by themselves."""
        plan = self._plan(lambda known: make_remove(known, [leaver]))
        began = time.monotonic()
        self.say(f"removing {leaver}: {plan.summary.slots_moved} slots")
        operation = self._begin(plan, Options())
        self._wait(operation, lambda op: op.stage is Stage.DONE)
        self._note_change(f"remove {leaver}", plan, operation, began)
        self.fleet.retire(leaver)

    def _plan(self, make: Callable[[ClusterFacts], Plan]) -> Plan:
        known, _ = facts.plan_facts(self.cluster, self.fleet.source())
        plan = make(known)
        change.check_plan(plan)
        return plan

    def _begin(self, plan: Plan, options: Options) -> str:
        source = self.fleet.source()
        request = change.ChangeRequest(by="demo", options=options, wait=False)
        probe = provision.probe_of(source, self.identity, os.environ)
        executed = change.execute(
            lambda: self.cluster,
            source,
            plan,
            request,
            provisioner=provision.LocalProvisioner(self.fleet, probe),
            on_note=lambda _: None,
            on_update=lambda _: None,
        )
        return executed.operations[0]

    def _wait(self, operation: str, done: Callable[[Operation], bool], limit_s: float = 180.0) -> Operation:
        from iotctl.errors import Partly
        from nodeagent.model.errors import NodeAgentError

        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            try:
                found = next(o for o in self.cluster.meta().operations if o.id == operation)
            except (NodeAgentError, StopIteration):
                time.sleep(0.2)
                continue
            self.progress(f"{operation} {found.stage}", note=found.state())
            if done(found):
                return found
            time.sleep(0.1)
        raise Partly(f"{operation} is not over after {limit_s:.0f} s", next=f"iotctl ops show {operation}")

    def _migrate(self, operation: str) -> None:
        from iotctl.pipeline.migrate import run

        self.say("Spark orders the copies and compares every row of old and new holders")
        source = self.fleet.source()
        spec = cluster_spec(source, self.identity, os.environ)
        for _ in range(MIGRATE_TRIES):
            report = run(
                spec, operation, depth="content", progress=_Progress(self.progress), session=self._spark
            )
            found = report.verification
            if found is not None and (found.passed or found.mismatches_total):
                break
            away = report.failed[:1] or (found.unread[:1] if found is not None else [])
            self.say(f"migrate goes on: {away}")
        if found is None or not found.passed:
            raise VerificationFailed(
                f"{operation} is not signed off: {report.verified}", next=f"iotctl ops show {operation}"
            )
        self.say(f"signed off: {found.rows:,} rows, {found.series} series equal")

    def _kill_and_restart(self, name: str) -> None:
        """SIGKILL in the middle of the copies; back a moment later."""
        time.sleep(1.0)
        self.fleet.kill(name)
        self.say(f"killed {name} (SIGKILL)")
        time.sleep(3.0)
        self.fleet.start([name])
        self.say(f"{name} is back")

    def _note_change(self, what: str, plan: Plan, operation: str, began: float) -> None:
        received = received_bytes(self.cluster.statuses(2.0), operation)
        summary = plan.summary
        self.changes.append(
            Moved(
                what,
                summary.slots_moved,
                summary.lower_bound_slots,
                summary.nonempty_slots_moved,
                summary.bytes_copied,
                received,
                time.monotonic() - began,
            )
        )
        if summary.nonempty_slots_moved < MOVED_MIN:
            self.fail(f"{what}: only {summary.nonempty_slots_moved} non-empty slots moved")

    # --- checks ------------------------------------------------------------------------------------

    def check_load(self, seen: Seen) -> None:
        for why in seen.missing[:3]:
            self.fail(f"a strong read missed an acknowledged row: {why}")
        for (group, at), value in seen.acked.items():
            rows = self.cluster.scan(
                group, TABLE, fields=["probe"], tags={TAG: "probe"}, time_from=at, time_to=at
            )
            if rows.column("probe").to_pylist() != [value]:
                self.fail(f"acknowledged {value} at {group}@{at}, found {rows.column('probe').to_pylist()}")

    def verify(self) -> str:
        from iotctl.pipeline.verify import run

        self.say("comparing every row of every replica on Spark")
        source = self.fleet.source()
        spec = cluster_spec(source, self.identity, os.environ)
        report = run(spec, depth="content", progress=_Progress(self.progress), session=self._spark)
        if report.mismatches or report.unread:
            self.fail(f"verify: {len(report.mismatches)} mismatches, {len(report.unread)} unread")
        return (
            f"{report.replicas_compared} replicas, {report.files:,} files, {report.rows:,} rows, "
            f"{report.series} series"
        )

    def report(self, rows: int, counted: int, series: int, seen: Seen, verified: str) -> DemoReport:
        return DemoReport(
            changes=self.changes,
            rows_before=rows,
            rows_after=counted,
            series=series,
            acknowledged=len(seen.acked),
            strong_reads=seen.reads,
            write_pause_ms={h: round(1000 * s) for h, s in sorted(seen.pauses.items())},
            verified=verified,
            failures=self.failures,
            seconds=time.monotonic() - self.began,
        )


class _Progress:
    """The pipeline's progress on the demo's."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on = on_progress

    def update(self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = "") -> None:
        self._on(phase, done, total, unit=unit, note=note)
