"""The demo's changes: adds a node with Spark while a node is killed, and removes a node without Spark."""

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from iotctl.change import execute as change
from iotctl.change import provision
from iotctl.demo.fleet import DemoFleet
from iotctl.demo.log import DemoLog, JobProgress
from iotctl.errors import Partly, VerificationFailed
from iotctl.observe import facts
from iotctl.observe.operations import received_bytes
from iotctl.plan.facts import ClusterFacts
from iotctl.plan.make import make_add, make_remove
from iotctl.plan.model import Plan
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.operation import Operation, Options, Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from iotctl.pipeline.report import MigrateReport

MOVED_MIN = 200
MIGRATE_TRIES = 3
"""The job ends if a node that it needs is down for long; the next try continues where it stopped."""

INSPECT = "repeat with `iotctl demo --keep`, then `iotctl ops list`"
"""Without --keep the demo's nodes are gone when the error is printed."""


class Moved(msgspec.Struct):
    """One change of the demo, as planned and as executed."""

    what: str
    slots: int
    lower_bound: int
    nonempty: int
    planned_bytes: int
    received_bytes: dict[str, int]
    seconds: float


class DemoChanges:
    """Makes changes to the demo's cluster; `made` lists them."""

    def __init__(self, fleet: DemoFleet, log: DemoLog, spark: "SparkSession") -> None:
        self.made: list[Moved] = []
        self._fleet = fleet
        self._log = log
        self._spark = spark

    def add(self, node: str) -> None:
        """Plan and add a node; Spark requests the copies and verifies every row while another node dies."""
        plan = self._plan(lambda known: make_add(known, [node], None))
        began = time.monotonic()
        self._log.say(
            f"adding {node}: {plan.summary.slots_moved} slots (bound {plan.summary.lower_bound_slots})"
        )
        operation = self._begin(plan, Options(verify=True, depth="content", no_migrate=True))
        self._wait(operation, lambda op: op.state() != "running" or op.stage is Stage.DONE)
        killer = threading.Thread(target=self._kill_and_restart, args=("node4",), daemon=True)
        killer.start()
        self._migrate(operation)
        killer.join(60)
        self._wait(operation, lambda op: op.stage is Stage.DONE)
        self._record(f"add {node}", plan, operation, began)

    def remove(self, node: str) -> None:
        """Plan and remove a node; the agents migrate its slots without Spark."""
        plan = self._plan(lambda known: make_remove(known, [node]))
        began = time.monotonic()
        self._log.say(f"removing {node}: {plan.summary.slots_moved} slots")
        operation = self._begin(plan, Options())
        self._wait(operation, lambda op: op.stage is Stage.DONE)
        self._record(f"remove {node}", plan, operation, began)
        self._fleet.local.retire(node)

    def _plan(self, make: Callable[[ClusterFacts], Plan]) -> Plan:
        known, _ = facts.plan_facts(self._fleet.cluster, self._fleet.source())
        plan = make(known)
        change.check_plan(plan)
        return plan

    def _begin(self, plan: Plan, options: Options) -> str:
        source = self._fleet.source()
        request = change.ChangeRequest(by="demo", options=options, wait=False)
        probe = provision.probe_of(source, self._fleet.identity, os.environ)
        executed = change.execute(
            lambda: self._fleet.cluster,
            source,
            plan,
            request,
            provisioner=provision.LocalProvisioner(self._fleet.local, probe),
            on_note=lambda _: None,
            on_update=lambda _: None,
        )
        return executed.operations[0]

    def _wait(self, operation: str, done: Callable[[Operation], bool], limit_s: float = 180.0) -> Operation:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            try:
                found = next(o for o in self._fleet.cluster.meta().operations if o.id == operation)
            except (NodeAgentError, StopIteration):
                time.sleep(0.2)
                continue
            self._log.progress(f"{operation} {found.stage}", note=found.state())
            if done(found):
                return found
            time.sleep(0.1)
        raise Partly(f"{operation} has not ended after {limit_s:.0f} s", next=INSPECT)

    def _migrate(self, operation: str) -> None:
        from iotctl.pipeline.migrate import run

        self._log.say("Spark requests the copies and compares every row of previous and new holders")
        spec = self._fleet.spec()
        for _ in range(MIGRATE_TRIES):
            report = run(
                spec, operation, depth="content", progress=JobProgress(self._log), session=self._spark
            )
            found = report.verification
            if found is not None and (found.passed or found.mismatches_total):
                break
            self._log.say(f"the migration did not succeed: {_failure(report)}")
        if found is None or not found.passed:
            what = f"{operation} was not signed off: {_failure(report)}"
            raise VerificationFailed(what, next=INSPECT)
        self._log.say(f"signed off: {found.rows:,} rows, {found.series} series equal")

    def _kill_and_restart(self, name: str) -> None:
        """SIGKILL a node during the copies, and restart it a moment later."""
        time.sleep(1.0)
        self._fleet.local.kill(name)
        self._log.say(f"killed {name} (SIGKILL)")
        time.sleep(3.0)
        self._fleet.local.start([name])
        self._log.say(f"restarted {name}")

    def _record(self, what: str, plan: Plan, operation: str, began: float) -> None:
        received = received_bytes(self._fleet.cluster.statuses(2.0), operation)
        summary = plan.summary
        self.made.append(
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
            self._log.fail(f"{what}: only {summary.nonempty_slots_moved} non-empty slots moved")


def _failure(report: "MigrateReport") -> str:
    """Why a migration was not signed off."""
    found = report.verification
    failed = next(iter([*report.failed, *(found.unread if found is not None else ())]), None)
    if failed is not None:
        place = f" on {failed.node}" if failed.node else ""
        return f"group {failed.group}{place}: {failed.reason}"
    count = found.mismatches_total if found is not None else 0
    return f"{count} differences were found" if count else "nothing was compared"
