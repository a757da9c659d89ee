"""Verification of whole clusters at every depth."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from iotctl.pipeline import replicas, verify
from iotctl.pipeline.report import VerifyReport
from iotctl.pipeline.verify import Filters
from nodeagent.model.errors import Refused
from nodeagent.model.operation import Operation, Options, Ranges, Stage
from nodeagent.model.requests import Accepted, CheckFiles, ManifestReply, Reply, Request
from nodeagent.storage.format import ClosedUnit
from tests.pipeline.fake import DirectoryCluster, DirectorySpec, Maker, create, one_move
from tests.pipeline.rows import MACHINES, machines, with_cell

NODES = ("n1", "n2", "n3")
GROUPS = {"n1.1": NODES, "n2.1": ("n2", "n3", "n1")}
SLOTS = (3, 4, 60)


@dataclass
class Built:
    """A cluster of two groups and three slots, and its files by slot."""

    cluster: DirectoryCluster
    spec: DirectorySpec
    files: dict[int, ClosedUnit]

    def group(self, slot: int) -> str:
        return "n1.1" if slot < 50 else "n2.1"

    def put(self, node: str, made: ClosedUnit) -> Path:
        return self.cluster.put(node, self.group(made.meta.slot), made)


@pytest.fixture
def built(maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Built:
    for name in ("RECHECK_DELAY_S", "SETTLE_S", "SETTLE_POLL_S"):
        monkeypatch.setattr(replicas, name, 0.05)
    cluster = create(tmp_path, GROUPS, (MACHINES,))
    files = {slot: maker.file(MACHINES, machines(seed=slot), slot, (5,)) for slot in SLOTS}
    result = Built(cluster, DirectorySpec(str(tmp_path)), files)
    for made in files.values():
        for node in NODES:
            result.put(node, made)
    return result


def run(
    built: Built, depth: str, filters: Filters | None = None, session: SparkSession | None = None
) -> VerifyReport:
    return verify.run(built.spec, depth, filters=filters, session=session)


def tamper(built: Built, maker: Maker) -> tuple[object, object]:
    """Change one value on n2 with a consistent manifest; returns the old and the new value."""
    rows = machines(seed=4)
    built.put("n2", maker.file(MACHINES, with_cell(rows, 1, "heat", 1234.5), 4, (5,)))
    return rows.column("heat")[1].as_py(), 1234.5


@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_every_completed_item_is_reported(count: int) -> None:
    done = list[int]()
    assert replicas.at_once(str, range(count), done.append) == [str(i) for i in range(count)]
    assert done == list(range(1, count + 1))


@pytest.mark.parametrize("depth", ["manifest", "hash"])
def test_equal_replicas_pass(built: Built, depth: str) -> None:
    """Counts are those of all replicas; rows count once."""
    report = run(built, depth)
    assert report.passed and report.replicas_compared == 6
    assert (report.files, report.rows) == (9, 450)
    assert report.bytes == 3 * sum(f.meta.size for f in built.files.values())


@pytest.mark.parametrize("merged_on", [NODES, ("n2",), ()])
def test_files_merged_while_bytes_are_read_are_checked_again(
    built: Built, maker: Maker, monkeypatch: pytest.MonkeyPatch, merged_on: tuple[str, ...]
) -> None:
    """The files of a slot are merged between listing and reading. The report does not pass if replicas then
    differ, or if nothing of the slot is left."""
    monkeypatch.setattr(replicas, "ASKS_MAX", 1)  # sequential, because the first request changes the files
    merged = maker.file(MACHINES, machines(seed=4), 4, (6,))
    asked = DirectoryCluster.call
    done: list[str] = []

    def call(self: DirectoryCluster, node: str, request: Request, timeout_s: float | None = None) -> Reply:
        if isinstance(request, CheckFiles) and not done:
            done.append(node)
            for holder in merged_on or NODES:
                replica = self.load(holder, "n1.1")
                replica.files = [f for f in replica.files if f.slot != 4]
                self.save(holder, "n1.1", replica)
                if merged_on:
                    self.put(holder, "n1.1", merged)
        return asked(self, node, request, timeout_s)

    monkeypatch.setattr(DirectoryCluster, "call", call)
    report = run(built, "hash")
    assert done and report.passed == (merged_on == NODES), (report.mismatches, report.unread)
    if merged_on == NODES:
        assert report.files == 9
    elif merged_on:
        assert {m.slot for m in report.mismatches} == {4}
    else:
        assert {u.slot for u in report.unread} == {4}


@pytest.mark.spark
def test_equal_replicas_pass_by_content(built: Built, spark: SparkSession) -> None:
    """Every replica's rows were read."""
    report = run(built, "content", session=spark)
    assert report.passed, (report.mismatches, report.unread)
    assert (report.files, report.rows, report.series) == (9, 450, 3)


@pytest.mark.parametrize(
    "filters,says",
    [
        (Filters(storage_groups=("root.nope",)), "no storage group root.nope"),
        (Filters(nodes=("n1", "nope")), "no node nope"),
        (Filters(slots=((99999, 100000),)), "no slot 99999"),
        (Filters(slots=((7, 8),)), "no file matches"),
    ],
)
def test_a_filter_that_selects_nothing_never_passes(built: Built, filters: Filters, says: str) -> None:
    """It is refused before Spark starts, because an empty selection would show no difference."""
    with pytest.raises(Refused, match=says):
        run(built, "content", filters)


def test_flipped_byte_is_found_by_hash_not_by_manifest(built: Built) -> None:
    """The manifest still agrees; re-reading the bytes does not."""
    path = built.put("n3", built.files[60])
    content = bytearray(path.read_bytes())
    content[100] ^= 4
    path.write_bytes(content)
    assert run(built, "manifest").passed
    report = run(built, "hash")
    (found,) = report.mismatches
    assert (found.node, found.slot, found.file) == ("n3", 60, built.files[60].meta.name)
    assert found.expected == built.files[60].meta.xxh3 and not report.passed


@pytest.mark.spark
def test_consistent_tampering_is_named_by_content_alone(
    built: Built, spark: SparkSession, maker: Maker
) -> None:
    """Depth content names node, slot, file, series, time and both values; the others only a file."""
    was, now = tamper(built, maker)
    (shallow,) = run(built, "hash").mismatches
    assert (shallow.node, shallow.series) == ("n2", "")
    (found,) = run(built, "content", session=spark).mismatches
    assert (found.node, found.slot, found.file) == ("n2", 4, built.files[4].meta.name)
    assert found.series == "root.a.machines{device=d0}.heat"
    assert (found.time_ms, found.expected, found.found) == (3_600_000, was, now)


@pytest.mark.spark
def test_replica_that_is_down_is_unread_and_fails(built: Built, spark: SparkSession) -> None:
    """Nothing differs, but the report does not pass."""
    (built.cluster.root / "n3" / "down").touch()
    for report in (run(built, "manifest"), run(built, "content", session=spark)):
        assert not report.mismatches and not report.passed
        assert {u.node for u in report.unread} == {"n3"}


def test_replica_that_is_behind_is_unread(built: Built) -> None:
    """A replica that has not made the files up to the cut is not compared."""
    replica = built.cluster.load("n2", "n1.1")
    replica.index = 3
    built.cluster.save("n2", "n1.1", replica)
    report = run(built, "manifest")
    assert [(u.node, u.group) for u in report.unread] == [("n2", "n1.1")]
    assert "lags" in report.unread[0].reason


@pytest.mark.parametrize("moves", ["index", "files", "at_work"])
def test_verify_waits_for_a_replica_that_makes_its_files_slowly(
    built: Built, monkeypatch: pytest.MonkeyPatch, moves: str
) -> None:
    """It waits ten times as long as for a replica without progress, as long as each poll shows progress or a
    busy worker; writes continue."""
    monkeypatch.setattr(replicas, "SETTLE_POLL_S", 0.02)
    listed, asked = DirectoryCluster.manifest, 0

    def slow(self: DirectoryCluster, node: str, group: str, slots: Ranges = ()) -> ManifestReply:
        nonlocal asked
        reply = listed(self, node, group, slots)
        if (node, group) != ("n2", "n1.1") or asked == 25:
            return reply
        asked += 1
        index, files = (50 + asked, ()) if moves == "index" else (50, reply.files[:1])
        if moves == "files":
            files = tuple(msgspec.structs.replace(f, name=f"{asked}-{f.name}") for f in files)
        busy = moves == "at_work" and asked < 25
        return msgspec.structs.replace(
            reply, materialised=index, pending=7 + asked, files=files, at_work=busy
        )

    monkeypatch.setattr(DirectoryCluster, "manifest", slow)
    report = run(built, "manifest")
    assert report.passed and asked == 25, report.unread


def test_verify_stops_waiting_for_a_replica_that_finishes_no_file(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "SETTLE_POLL_S", 0.01)
    monkeypatch.setattr(replicas, "AT_WORK_S", 0.1)
    listed = DirectoryCluster.manifest

    def stuck(self: DirectoryCluster, node: str, group: str, slots: Ranges = ()) -> ManifestReply:
        reply = listed(self, node, group, slots)
        if (node, group) != ("n2", "n1.1"):
            return reply
        return msgspec.structs.replace(reply, materialised=3, pending=7, at_work=True)

    monkeypatch.setattr(DirectoryCluster, "manifest", stuck)
    report = run(built, "manifest")
    assert [(u.node, u.group) for u in report.unread] == [("n2", "n1.1")]
    assert report.unread[0].reason.endswith("7 pending and in progress")


@pytest.mark.parametrize("quiet_s", [0.0, 1e9])
def test_merges_are_suspended_while_verify_waits_for_a_replica(
    built: Built, monkeypatch: pytest.MonkeyPatch, quiet_s: float
) -> None:
    """The close is repeated on the leader; files that it merged anyway are awaited at a newer cut."""
    monkeypatch.setattr(replicas, "SETTLE_POLL_S", 0.02)
    monkeypatch.setattr(replicas, "QUIET_S", quiet_s)
    listed, closed = DirectoryCluster.manifest, DirectoryCluster.call_group
    cuts, left = 0, 20

    def close_all(self: DirectoryCluster, group: str, request: Request) -> Reply:
        nonlocal cuts
        cuts += group == "n1.1"
        return Accepted(100 + cuts) if group == "n1.1" else closed(self, group, request)

    def manifest(self: DirectoryCluster, node: str, group: str, slots: Ranges = ()) -> ManifestReply:
        """n2 works for 20 polls and lacks a file until it has made all files up to the second cut."""
        nonlocal left
        reply = listed(self, node, group, slots)
        if group != "n1.1":
            return reply
        if node != "n2":
            return msgspec.structs.replace(reply, materialised=1_000)
        left -= 1
        if left > 0:
            return msgspec.structs.replace(reply, materialised=50, pending=1, at_work=True)
        if cuts < 2 or left > -20:
            behind = msgspec.structs.replace(reply, materialised=101, pending=1, at_work=True)
            return msgspec.structs.replace(behind, files=reply.files[1:])
        return msgspec.structs.replace(reply, materialised=1_000)

    monkeypatch.setattr(DirectoryCluster, "call_group", close_all)
    monkeypatch.setattr(DirectoryCluster, "manifest", manifest)
    report = run(built, "manifest")
    assert report.passed, (report.mismatches, report.unread)
    assert cuts == 2 if quiet_s else cuts > 10


def test_files_after_the_cut_are_ignored(built: Built, maker: Maker) -> None:
    """Concurrent writes create files on one replica before the others."""
    built.put("n1", maker.file(MACHINES, machines(seed=9), 4, (101,)))
    assert run(built, "hash").passed


def test_missing_manifest_entry_is_a_mismatch(built: Built) -> None:
    """A replica at the same index without a file has lost it."""
    replica = built.cluster.load("n1", "n1.1")
    replica.files = [f for f in replica.files if f.slot != 3]
    built.cluster.save("n1", "n1.1", replica)
    (found,) = run(built, "manifest").mismatches
    assert (found.node, found.slot, found.found) == ("n1", 3, "missing")


@pytest.mark.spark
def test_a_filter_limits_the_slots_that_are_read(built: Built, spark: SparkSession, maker: Maker) -> None:
    """A slot that is not selected is not read."""
    tamper(built, maker)
    report = run(built, "content", Filters(slots=((60, 61),)), session=spark)
    assert report.passed and report.rows == 150


def test_slots_in_migration_are_unread(built: Built) -> None:
    """While a change migrates slots, no manifest is complete."""
    move = one_move(((3, 4),), "n1.1", "n2.1", GROUPS)
    operation = Operation("op-7", "move", "n2", "me", 0, 1, 2, [move], [], Options(), Stage.COPYING)
    with built.cluster.state() as state:
        state.meta = msgspec.structs.replace(state.meta, operations=(operation,))
    report = run(built, "manifest")
    assert [u.group for u in report.unread] == ["n2.1"] and not report.passed


def test_a_verification_of_nothing_does_not_pass() -> None:
    """Zero replicas compared is not a success."""
    assert not VerifyReport("manifest").passed
