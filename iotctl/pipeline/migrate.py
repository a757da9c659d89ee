"""Migrates the slots of one operation: orders the pulls, verifies the copies, signs off.

Bytes go from node to node; a Spark task only orders a target node to pull some slots now. Every step is
idempotent: for a repeated order, the files are already there, and the remaining work is always computed from
the copies recorded in the meta group. If this job dies, the agents finish without it.
"""

import getpass
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from iotctl.pipeline.jobs import run_tasks
from iotctl.pipeline.lease import HeldLease
from iotctl.pipeline.link import Cluster, Spec, connect, connect_cached, expect
from iotctl.pipeline.report import FailedUnit, MigrateReport, Progress, Silent, Verified, VerifyReport
from iotctl.pipeline.session import DEFAULT_MASTER, spark_session
from iotctl.pipeline.slot_migration import verify_migration
from iotctl.pipeline.units import PullOrder, missing_slots, pull_orders
from nodeagent.model.errors import (
    FileCorrupt,
    NodeAgentError,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    Refused,
    Unavailable,
)
from nodeagent.model.ids import NodeId
from nodeagent.model.operation import Operation, Stage
from nodeagent.model.requests import (
    ControlOperation,
    GetOperation,
    MetaView,
    OperationReply,
    PullUnit,
    UnitPulled,
)
from nodeagent.partition import ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS_PER_NODE = 8
"""Orders per node and gaining group: enough that progress is visible and a retry repeats little."""

PULL_TIMEOUT_S = 600.0
PULL_ATTEMPTS = 4
PULL_BACKOFF_S = 0.5
ROUNDS = 3
"""How many times the missing copies are computed and ordered."""

STAGE_TIMEOUT_S = 600.0
ADOPT_TIMEOUT_S = 300.0
RELEASE_TIMEOUT_S = 120.0
POLL_S = 0.3

_AGAIN = (Unavailable, Overloaded, OutcomeUnknown, FileCorrupt)
"""Errors after which the same order may be retried, since pulling is idempotent."""


class PullResult(msgspec.Struct):
    """The result of one order; `error` is "" if its slots were copied."""

    files: int = 0
    bytes: int = 0
    retries: int = 0
    refetched: int = 0
    error: str = ""


def run(
    spec: Spec,
    operation: str,
    depth: str | None = None,
    master: str = DEFAULT_MASTER,
    rate: int | None = None,
    concurrency: int | None = None,
    progress: Progress | None = None,
    session: "SparkSession | None" = None,
) -> MigrateReport:
    """Take an open operation from COPYING as far towards its end as this job can.

    Args:
        operation: the id of the operation.
        depth: verify the copies at this depth and sign off; None does neither.
        rate: bytes per second in the whole cluster; None keeps the operation's rate.
        concurrency: orders in flight at a time; None is two per target node, and at least one per core.

    Returns:
        The report. `failed` lists orders that did not succeed (the agents continue with them), or else the
        groups that did not adopt the copies in time.
        `verification.passed` is False if a copy differs or could not be read; the job then does not sign off,
        and the previous holders retain their copies.

    Raises:
        NotFound: there is no such operation.
        Busy: another job holds the lease.
        Refused: the operation is paused.
        Unavailable: the slots were not open within `STAGE_TIMEOUT_S`.
        NodeAgentError: the meta group cannot be reached, or Spark does not start.
    """
    started = time.monotonic()
    cluster = connect(spec)
    try:
        job = _Migration(cluster, spec, operation, progress or Silent())
        if session is not None:
            return job.run(session, depth, rate, concurrency, started)
        job.check_running()
        with spark_session("iotctl migrate", master, job.progress) as own:
            return job.run(own, depth, rate, concurrency, started)
    finally:
        cluster.close()


class _Migration:
    """One run of the job for one operation."""

    def __init__(self, cluster: Cluster, spec: Spec, operation: str, progress: Progress) -> None:
        self.cluster = cluster
        self.spec = spec
        self.id = operation
        self.progress = progress
        self.by = f"{_user()}@{socket.gethostname()}"
        self.report = MigrateReport(operation)

    def run(
        self,
        session: "SparkSession",
        depth: str | None,
        rate: int | None,
        concurrency: int | None,
        started: float,
    ) -> MigrateReport:
        operation = self._wait("waiting for the slots to open", STAGE_TIMEOUT_S, _movable)
        if not operation.ended and not _movable(operation):
            raise Unavailable(
                f"{self.id} is still in stage {operation.stage.name} after {STAGE_TIMEOUT_S:.0f} s",
                next_step=f"iotctl ops show {self.id}",
            )
        self.check_running()
        if operation.stage is Stage.COPYING:
            owner = f"migrate-{uuid.uuid4().hex[:12]}"
            with HeldLease(self.cluster, self.id, self.by, owner) as lease:
                self._go(rate)
                self._pull(session, concurrency, lease)
                # Later rounds divide the rest into other units: those done are the first total without the
                # final failures.
                self.report.units_done = max(0, self.report.units_total - len(self.report.failed))
                self._await_adoption()
        if depth is not None and not self.report.failed and operation.stage is not Stage.CANCELLED:
            self._verify(session, depth)
        self._finish()
        self.report.seconds = time.monotonic() - started
        return self.report

    def check_running(self) -> None:
        """Raises `Refused` if the operation is paused: no agent would accept a request for copies."""
        if self.find().state() == "paused":
            raise Refused(
                f"{self.id} is paused; no copy was requested", next_step=f"iotctl ops resume {self.id}"
            )

    def find(self) -> Operation:
        """The operation as now recorded in the meta group."""
        return self._find()[1]

    def _find(self) -> tuple[MetaView, Operation]:
        meta = self.cluster.meta(strong=True)
        for operation in meta.operations:
            if operation.id == self.id:
                return meta, self._whole(operation)
        raise NotFound(f"there is no operation {self.id}", next_step="iotctl ops list")

    def _whole(self, operation: Operation) -> Operation:
        if not operation.is_short:
            return operation
        return expect(self.cluster.call_meta(GetOperation(self.id)), OperationReply).operation

    def _control(self, verb: str, *, rate: int = -1, report: str = "") -> Operation:
        request = ControlOperation(self.id, verb, self.by, rate_bytes_per_s=rate, report=report)
        return expect(self.cluster.call_meta(request), OperationReply).operation

    def _go(self, rate: int | None) -> None:
        operation = self.find()
        if operation.options.no_migrate and not operation.migrate_go:
            self._control("go")
        if rate is not None:
            self._control("set", rate=rate)

    def _wait(self, phase: str, timeout_s: float, until: Callable[[Operation], bool]) -> Operation:
        """Poll until the condition holds, the operation has ended or the timeout expires."""
        deadline = time.monotonic() + timeout_s
        while True:
            operation = self.find()
            if until(operation) or operation.ended or time.monotonic() > deadline:
                return operation
            self.progress.update(phase, note=f"{operation.id} {operation.stage.name}")
            time.sleep(POLL_S)

    def _pull(self, session: "SparkSession", concurrency: int | None, lease: HeldLease) -> None:
        """Request the missing copies, up to `ROUNDS` times; failures of the last round are reported."""
        for round_number in range(ROUNDS):
            meta, operation = self._find()
            incarnations = {n.node: n.incarnation for n in meta.nodes}
            orders = pull_orders(operation, incarnations, ORDERS_PER_NODE)
            if operation.stage is not Stage.COPYING or not orders:
                self.report.failed = []
                return
            if lease.lost:
                break
            if round_number == 0:
                self.report.units_total = len(orders)
            self._order(session, orders, concurrency)
            if not self.report.failed:
                self._await_records(incarnations)
                return
            self.report.retries += len(self.report.failed)

    def _order(self, session: "SparkSession", orders: Sequence[PullOrder], concurrency: int | None) -> None:
        """One round: each order is given to one task, which retries it."""
        bundles = bundles_of(orders, concurrency, session.sparkContext.defaultParallelism)
        spec = self.spec

        def task(bundle: bytes) -> bytes:
            return msgspec.msgpack.encode(_pull_bundle(spec, bundle))

        encoded = [msgspec.msgpack.encode(bundle) for bundle in bundles]
        results, error = run_tasks(session, encoded, task, self.progress, "ordering pulls")
        decoded = [msgspec.msgpack.decode(r, type=list[PullResult]) for r in results]
        if error is not None:
            decoded = [[PullResult(error=error) for _ in bundle.orders] for bundle in bundles]
        self.report.failed = []
        for bundle, outcome in zip(bundles, decoded, strict=True):
            for order, result in zip(bundle.orders, outcome, strict=True):
                self._count(order, result)

    def _count(self, order: PullOrder, result: PullResult) -> None:
        report = self.report
        report.retries += result.retries + result.refetched
        report.bytes += result.bytes
        report.files += result.files
        if result.error:
            slots = ranges.count(order.slots)
            report.failed.append(FailedUnit(order.group, order.node, slots, result.error))

    def _await_records(self, incarnations: dict[NodeId, str]) -> None:
        """Wait until all copies are recorded: the nodes record them in the meta group in batches."""
        self._wait(
            "waiting for the copies to be recorded",
            ADOPT_TIMEOUT_S,
            lambda op: op.stage is not Stage.COPYING or not missing_slots(op, incarnations),
        )

    def _await_adoption(self) -> None:
        """Wait until every gaining group has adopted the copies; a group that has not adopted them counts as
        failed."""
        if self.report.failed:
            return
        operation = self._wait("waiting for adoption", ADOPT_TIMEOUT_S, _adopted)
        if _adopted(operation):
            return
        for group in sorted(set(operation.gaining) - set(operation.adopted)):
            slots = ranges.count(ranges.union(*(m.slots for m in operation.moves if m.target == group)))
            reason = f"not adopted within {ADOPT_TIMEOUT_S:.0f} s; {operation.last_error}".rstrip("; ")
            self.report.failed.append(FailedUnit(group, "", slots, reason))

    def _verify(self, session: "SparkSession", depth: str) -> None:
        """Compare the copies, and sign off if they pass."""
        meta, operation = self._find()
        against = "previous-holders" if operation.stage is Stage.COPYING else "replicas"
        found = verify_migration(
            session, self.cluster, self.spec, meta, operation, depth, against, self.progress
        )
        self.report.verification = found
        self.report.verified = Verified(
            depth,
            found.files,
            found.rows,
            found.series,
            found.mismatches_total,
            len(found.unread),
            against,
        )
        if found.passed and operation.options.verify and not operation.signed_off and not operation.ended:
            self._control("sign-off", report=_sign_off_text(found, against))

    def _finish(self) -> None:
        """Wait for the release that follows by itself, then record the operation's state."""
        operation = self.find()
        if operation.state() == "running" and not self.report.failed:
            operation = self._wait("waiting for the release", RELEASE_TIMEOUT_S, _over)
        self.report.released_slots = ranges.count(
            ranges.union(*(m.slots for m in operation.moves if m.source in operation.released))
        )
        self.report.state = operation.state()


def _movable(operation: Operation) -> bool:
    return operation.stage in (Stage.COPYING, Stage.CLEANUP)


def _adopted(operation: Operation) -> bool:
    return operation.ended or set(operation.adopted) >= set(operation.gaining)


def _over(operation: Operation) -> bool:
    """Whether the slots are released or the operation waits for a command."""
    return set(operation.released) >= set(operation.losing) or operation.state() != "running"


class Bundle(msgspec.Struct, frozen=True):
    """The orders of one task, with `width` of them in flight at a time."""

    width: int
    orders: list[PullOrder]


def bundles_of(orders: Sequence[PullOrder], concurrency: int | None, cores: int) -> list[Bundle]:
    """Bundle the orders so that `concurrency` of them are in flight if Spark runs one task per core.

    The default is two per target node, and at least one per core.
    """
    wanted = concurrency or max(cores, 2 * len({o.node for o in orders}))
    if wanted < cores:
        return [Bundle(1, list(orders[i::wanted])) for i in range(min(wanted, len(orders)))]
    width = max(1, wanted // cores)
    return [Bundle(width, list(orders[i : i + width])) for i in range(0, len(orders), width)]


def _pull_bundle(spec: Spec, encoded: bytes) -> list[PullResult]:
    """Send the orders; runs in a Spark task."""
    cluster = connect_cached(spec)
    bundle = msgspec.msgpack.decode(encoded, type=Bundle)
    with ThreadPoolExecutor(bundle.width) as pool:
        return list(pool.map(lambda order: _pull_one(cluster, order), bundle.orders))


def _pull_one(cluster: Cluster, order: PullOrder) -> PullResult:
    result = PullResult()
    request = PullUnit(order.operation, order.group, order.slots)
    for attempt in range(PULL_ATTEMPTS):
        if attempt:
            result.retries += 1
            time.sleep(PULL_BACKOFF_S * 2 ** (attempt - 1) * (0.5 + random.random() / 2))
        try:
            copy = expect(cluster.call(order.node, request, PULL_TIMEOUT_S), UnitPulled).copy
        except _AGAIN as error:
            result.error = error.what
        except NodeAgentError as error:
            result.error = error.what
            return result
        else:
            result.error = ""
            result.files, result.bytes = copy.files, copy.bytes_received
            result.refetched = copy.refetched
            return result
    return result


def _sign_off_text(found: VerifyReport, against: str) -> str:
    """The report that is stored with the operation."""
    return msgspec.json.encode(
        {
            "depth": found.depth,
            "against": against,
            "replicas_compared": found.replicas_compared,
            "files": found.files,
            "rows": found.rows,
            "series": found.series,
            "mismatches": found.mismatches_total,
        }
    ).decode()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
