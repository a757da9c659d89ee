"""Migration of one operation: orders, retries, verification and sign-off."""

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from iotctl.pipeline import content, migrate, slot_migration
from iotctl.pipeline.report import MigrateReport, Silent, VerifyReport
from iotctl.pipeline.units import CompareUnit, PullOrder, Side, cut_slots, missing_slots, pull_orders
from nodeagent.model.errors import Busy, NotFound
from nodeagent.model.operation import CopyRecord, Lease, Operation, Options, Stage
from nodeagent.partition import ranges
from tests.pipeline.fake import DirectoryCluster, DirectorySpec, Maker, create, one_move
from tests.pipeline.rows import MACHINES, machines, with_cell

pytestmark = pytest.mark.spark

GROUPS = {"n1.1": ("n1", "n2", "n3"), "n4.9": ("n4", "n1", "n2")}
SLOTS = tuple(range(0, 40))
HELD = (3, 7, 30)


def operation(options: Options) -> Operation:
    move = one_move(ranges.from_slots(SLOTS), "n1.1", "n4.9", GROUPS)
    return Operation("op-5", "add-node", "n4", "me", 0, 1, 2, [move], [], options, Stage.COPYING)


def build(root: Path, maker: Maker, options: Options) -> DirectoryCluster:
    cluster = create(root, GROUPS, (MACHINES,), (operation(options),))
    for slot in HELD:
        made = maker.file(MACHINES, machines(seed=slot), slot, (5,))
        for node in GROUPS["n1.1"]:
            cluster.put(node, "n1.1", made)
    for node in GROUPS["n1.1"]:
        replica = cluster.load(node, "n1.1")
        replica.sealed = ranges.from_slots(SLOTS)
        cluster.save(node, "n1.1", replica)
    return cluster


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "PULL_BACKOFF_S", 0.01)
    monkeypatch.setattr(migrate, "POLL_S", 0.02)
    monkeypatch.setattr(content, "RECHECK_DELAY_S", 0.01)
    monkeypatch.setattr(content, "AWAY_DELAYS_S", (0.01,))
    monkeypatch.setattr(slot_migration, "AWAY_DELAYS_S", (0.01,))


def run(root: Path, spark: SparkSession, depth: str | None = None) -> MigrateReport:
    return migrate.run(DirectorySpec(str(root)), "op-5", depth, session=spark)


def log_of(cluster: DirectoryCluster) -> list[str]:
    with cluster.state() as state:
        return state.log


@pytest.mark.parametrize("depth", ["manifest", "hash", "content"])
def test_a_migration_copies_verifies_and_signs_off(
    tmp_path: Path, spark: SparkSession, maker: Maker, depth: str
) -> None:
    """Every target node has every slot; the slots are released only after the copies were compared."""
    cluster = build(tmp_path, maker, Options(verify=True))
    report = run(tmp_path, spark, depth)
    assert report.units_done == report.units_total == 3 * migrate.ORDERS_PER_NODE
    assert report.files == 9 and report.bytes > 0 and not report.failed
    assert report.verified is not None and report.verification is not None
    assert report.verification.passed, (report.verification.mismatches, report.verification.unread)
    assert report.verified.against == "previous-holders"
    assert report.verified.files == 18
    assert (report.released_slots, report.state) == (40, "done")
    steps = log_of(cluster)
    assert steps[0] == "lease" and steps[-1].startswith("sign-off") and "unlease" in steps


def test_without_depth_nothing_is_signed_off(tmp_path: Path, spark: SparkSession, maker: Maker) -> None:
    """An operation that waits for a sign-off keeps waiting."""
    cluster = build(tmp_path, maker, Options(verify=True))
    report = run(tmp_path, spark)
    assert (report.state, report.released_slots, report.verified) == ("waiting_signoff", 0, None)
    assert not any(s.startswith("sign-off") for s in log_of(cluster))


def test_wrong_copy_is_not_signed_off(tmp_path: Path, spark: SparkSession, maker: Maker) -> None:
    """A copy with other rows but a consistent hash and entry is reported, and the old copies stay."""
    cluster = build(tmp_path, maker, Options(verify=True))
    run(tmp_path, spark)
    rows = machines(seed=7)
    changed = maker.file(MACHINES, with_cell(rows, 1, "heat", 55.5), 7, (50, 5))
    name = next(f.name for f in cluster.load("n4", "n4.9").files if f.slot == 7)
    entry = msgspec.structs.replace(changed.meta, name=name)
    cluster.put("n4", "n4.9", msgspec.structs.replace(changed, meta=entry))
    report = run(tmp_path, spark, "content")
    assert report.verification is not None
    (found,) = report.verification.mismatches
    assert (found.node, found.slot, found.file, found.found) == ("n4", 7, name, 55.5)
    assert found.expected == rows.column("heat")[1].as_py()
    assert (report.state, report.released_slots) == ("waiting_signoff", 0)


def test_previous_holder_that_is_down_prevents_the_sign_off(
    tmp_path: Path, spark: SparkSession, maker: Maker
) -> None:
    """A holder that could not be read does not count as equal."""
    cluster = build(tmp_path, maker, Options(verify=True))
    (cluster.root / "n3" / "down").touch()
    report = run(tmp_path, spark, "content")
    assert report.verified is not None and report.verified.unread
    assert report.state == "waiting_signoff"


class Returns(Silent):
    """Brings a node back when the job reports that it waits for it."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag
        self.waited: list[str] = []

    def update(self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = "") -> None:
        if "did not answer" in phase:
            self.waited.append(phase)
            self.flag.unlink(missing_ok=True)


def test_a_holder_that_returns_soon_does_not_prevent_the_sign_off(
    tmp_path: Path, spark: SparkSession, maker: Maker
) -> None:
    """The job waits for a node that restarts."""
    cluster = build(tmp_path, maker, Options(verify=True))
    (cluster.root / "n3" / "down").touch()
    progress = Returns(cluster.root / "n3" / "down")
    report = migrate.run(DirectorySpec(str(tmp_path)), "op-5", "content", session=spark, progress=progress)
    assert progress.waited == ["waiting for holders that did not answer"]
    assert report.verification is not None and report.verification.passed
    assert (report.state, report.released_slots) == ("done", 40)


def test_units_left_unread_run_again(tmp_path: Path, spark: SparkSession, maker: Maker) -> None:
    """A holder that fails between the list and the rows is read when it is back, and counted once."""
    cluster = build(tmp_path, maker, Options(verify=True))
    (cluster.root / "n3" / "down").touch()
    progress = Returns(cluster.root / "n3" / "down")
    sides = tuple(Side(n, "n1.1", operation="op-5") for n in GROUPS["n1.1"])
    units = [
        CompareUnit(ranges.from_slots(SLOTS[:10]), sides),
        CompareUnit(ranges.from_slots(SLOTS[10:]), sides),
    ]
    report = VerifyReport("content")
    content.compare_units(
        session=spark,
        spec=DirectorySpec(str(tmp_path)),
        units=units,
        schemas=(MACHINES,),
        progress=progress,
        report=report,
    )
    assert progress.waited == ["waiting for replicas that did not answer"]
    assert not report.unread and (report.files, report.rows) == (9, 450)


def test_failed_orders_are_retried(tmp_path: Path, spark: SparkSession, maker: Maker) -> None:
    """Failed orders cost retries but not the migration."""
    cluster = build(tmp_path, maker, Options())
    with cluster.state() as state:
        state.pull_failures = 5
    report = run(tmp_path, spark)
    assert report.retries == 5 and not report.failed
    assert (report.units_done, report.state) == (report.units_total, "done")


def test_a_resumed_migration_orders_only_missing_copies(
    tmp_path: Path, spark: SparkSession, maker: Maker
) -> None:
    """A copy on record is not ordered again, unless another incarnation made it."""
    cluster = build(tmp_path, maker, Options())
    slots = ranges.from_slots(SLOTS)
    with cluster.state() as state:
        recorded = [("n4", "i-n4"), ("n1", "i-n1"), ("n2", "older")]
        state.meta.operations[0].copies = [CopyRecord("n4.9", n, i, slots, "d", 0, 0) for n, i in recorded]
    report = run(tmp_path, spark)
    assert {o.node for o in orders(cluster)} <= {"n2"}
    assert report.units_total == migrate.ORDERS_PER_NODE


def orders(cluster: DirectoryCluster) -> list[PullOrder]:
    meta = cluster.meta()
    return pull_orders(meta.operations[0], {n.node: n.incarnation for n in meta.nodes}, 4)


def test_the_lease_of_another_job_is_respected(tmp_path: Path, spark: SparkSession, maker: Maker) -> None:
    """The job ends as busy and names the owner; nothing was ordered."""
    cluster = build(tmp_path, maker, Options())
    with cluster.state() as state:
        state.meta.operations[0].lease = Lease("somebody", 1, 30_000)
    with pytest.raises(Busy, match="somebody"):
        run(tmp_path, spark)
    with cluster.state() as state:
        assert state.pulls == 0


def test_a_change_on_hold_before_copying_is_started(
    tmp_path: Path, spark: SparkSession, maker: Maker
) -> None:
    """The job starts an operation that is on hold before COPYING."""
    cluster = build(tmp_path, maker, Options(no_migrate=True))
    assert run(tmp_path, spark).state == "done"
    assert "go" in log_of(cluster)


def test_finished_operation_is_verified_among_new_holders(
    tmp_path: Path, spark: SparkSession, maker: Maker
) -> None:
    """Previous holders have released: the report says that only replicas were compared."""
    build(tmp_path, maker, Options())
    run(tmp_path, spark)
    report = run(tmp_path, spark, "content")
    assert report.verified is not None and report.verified.against == "replicas"
    assert report.verification is not None and report.verification.passed
    assert report.units_total == 0 and report.verified.rows == 450


def test_unknown_operation(tmp_path: Path, spark: SparkSession, maker: Maker) -> None:
    """The error names the operation and the command that lists operations."""
    create(tmp_path, GROUPS, ())
    with pytest.raises(NotFound, match="op-5"):
        run(tmp_path, spark)


def test_orders_alternate_between_nodes_and_cover_the_move() -> None:
    """The orders of each node cover the move; the first orders go to different nodes."""
    found = pull_orders(operation(Options()), {}, 4)
    assert {o.node for o in found[:3]} == {"n4", "n1", "n2"}
    for node in GROUPS["n4.9"]:
        covered = ranges.union(*(o.slots for o in found if o.node == node))
        assert covered == ranges.from_slots(SLOTS)
    assert missing_slots(operation(Options()), {}) == 120


def test_slots_are_cut_by_bytes() -> None:
    """Pieces are disjoint and complete, and a heavy slot shares its piece with few others."""
    sizes = {slot: 100_000 for slot in range(1000)} | {500: 200_000_000}
    pieces = cut_slots(sizes, 2)
    assert ranges.union(*pieces) == ((0, 1000),)
    assert sum(ranges.count(p) for p in pieces) == 1000
    assert len(pieces) > 8
    assert cut_slots({}, 2) == []
