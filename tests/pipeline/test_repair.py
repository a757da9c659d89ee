"""Which files are repaired, from which source, and which are left alone."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from iotctl.pipeline import replicas as pipeline_replicas
from iotctl.pipeline import verify
from iotctl.pipeline.repair import RepairAction, SignedOff, decide
from iotctl.pipeline.replicas import FileSelection, GroupView, Replica, damage_found, view_groups
from iotctl.pipeline.report import Silent, VerifyReport
from iotctl.pipeline.verify import _Comparison
from nodeagent.model.files import FileMeta, FileRef
from nodeagent.model.ids import PartitionKey
from nodeagent.model.operation import Ranges
from nodeagent.model.requests import Accepted, DamagedFile, GroupRecord, ManifestReply
from tests.pipeline.fake import Maker
from tests.pipeline.rows import MACHINES, machines, with_cell
from tests.pipeline.test_verify import Built, built, tamper

__all__ = ["built"]

FILE = FileMeta("f", 3, PartitionKey("sg", 1, 0), "t", (5,), 10, "a" * 32, 4, 1, 9, (4, 1, 1))
FORGED = msgspec.structs.replace(FILE, size=11, xxh3="b" * 32, rows=5, logical=(5, 2, 2))
NODES = ("n1", "n2", "n3")

Rows = dict[str, FileMeta | None]


def case(
    rows: Rows, bytes_: dict[str, str], members: int = 3
) -> tuple[GroupView, dict[tuple[str, str], str]]:
    """Manifest rows (None: not listed) of replicas that answered, and the hashes of their bytes."""
    replicas = [Replica(n, "n1.1", {row.name: row} if row else {}) for n, row in rows.items()]
    view = GroupView("n1.1", 100, (*NODES, "n4", "n5")[:members], replicas)
    return view, {(n, "f"): found for n, found in bytes_.items()}


GOOD, BAD = FILE.xxh3, "c" * 32


@pytest.mark.parametrize("found", [BAD, "missing", "unreadable"])
def test_the_majority_s_file_replaces_a_damaged_or_missing_one(found: str) -> None:
    """This holds at both depths, and the sources are only replicas with an intact copy."""
    view, hashes = case(dict.fromkeys(NODES, FILE), {"n1": GOOD, "n2": found, "n3": GOOD})
    for depth in ("hash", "content"):
        assert decide(view, hashes, depth) == ([RepairAction("n2", "n1.1", FILE, ("n1", "n3"))], [])


@pytest.mark.parametrize(
    "rows,bytes_,members",
    [
        (dict.fromkeys(NODES, FILE), {"n1": GOOD, "n2": BAD, "n3": BAD}, 3),
        (dict.fromkeys(NODES[:2], FILE), {"n1": GOOD, "n2": BAD}, 3),
        (dict.fromkeys(NODES[:2], FILE), {"n1": GOOD, "n2": BAD}, 2),
        (dict.fromkeys(NODES, FILE), {"n1": GOOD, "n2": BAD}, 3),
        ({"n1": FILE, "n2": FORGED}, {"n1": FILE.xxh3, "n2": FORGED.xxh3}, 3),
        (dict.fromkeys(NODES, FILE), {"n1": GOOD, "n2": BAD, "n3": GOOD}, 5),
        (dict.fromkeys(NODES[:1], FILE), {"n1": BAD}, 1),
    ],
    ids=[
        "two of three",
        "one is down",
        "two members",
        "one not hashed",
        "one each",
        "two of five are down",
        "alone",
    ],
)
def test_nothing_is_repaired_without_a_majority_of_all_members(
    rows: Rows, bytes_: dict[str, str], members: int
) -> None:
    """A replica that did not answer counts against it."""
    cures, hopeless = decide(*case(rows, bytes_, members), "content")
    assert not cures
    assert all("no majority" in h.reason for h in hopeless) and hopeless


ADOPTED = msgspec.structs.replace(FILE, order=(7, 5))
KEPT = (FileRef("n1", "s", "old", 10, GOOD), FileRef("n9", "s", "old", 10, GOOD))


def test_without_a_majority_a_signed_off_copy_is_used() -> None:
    """A previous holder retains the bytes of the only manifest row; a node is not its own source."""
    signed_off: SignedOff = {(3, (5,), GOOD): KEPT}
    view, hashes = case(dict.fromkeys(NODES, ADOPTED), {"n1": BAD, "n2": BAD, "n3": GOOD})
    assert decide(view, hashes, "hash", signed_off) == (
        [
            RepairAction("n1", "n1.1", ADOPTED, ("n3",), KEPT[1:]),
            RepairAction("n2", "n1.1", ADOPTED, ("n3",), KEPT),
        ],
        [],
    )
    other: SignedOff = {(3, (5,), "d" * 32): KEPT, (4, (5,), GOOD): KEPT, (3, (6,), GOOD): KEPT}
    assert not decide(view, hashes, "hash", other)[0]


def test_a_majority_takes_precedence_over_previous_holders() -> None:
    """Their copies were sealed earlier: the group's agreement is newer."""
    view, hashes = case(dict.fromkeys(NODES, ADOPTED), {"n1": BAD, "n2": GOOD, "n3": GOOD})
    assert decide(view, hashes, "hash", {(3, (5,), GOOD): KEPT}) == (
        [RepairAction("n1", "n1.1", ADOPTED, ("n2", "n3"))],
        [],
    )


def test_only_depth_content_repairs_a_forged_row() -> None:
    """Two honest replicas outvote it; at depth hash it is reported and left alone."""
    view, hashes = case({"n1": FILE, "n2": FORGED, "n3": FILE}, {"n1": GOOD, "n2": FORGED.xxh3, "n3": GOOD})
    assert decide(view, hashes, "content") == ([RepairAction("n2", "n1.1", FILE, ("n1", "n3"))], [])
    cures, (left,) = decide(view, hashes, "hash")
    assert not cures and "--depth content" in left.reason


@pytest.mark.parametrize("change", [{"order": (6,)}, {"slot": 4}, {"table": "u"}])
def test_another_history_is_not_repaired(change: dict[str, object]) -> None:
    """Copying a file does not repair a manifest with another age or place."""
    other = msgspec.structs.replace(FILE, **change)
    view, hashes = case({"n1": FILE, "n2": other, "n3": FILE}, {"n1": GOOD, "n2": GOOD, "n3": GOOD})
    cures, (left,) = decide(view, hashes, "content")
    assert not cures and left.node == "n2"


def test_a_file_that_only_some_manifests_list_is_not_repaired() -> None:
    """No entry is added to or removed from a manifest."""
    view, hashes = case({"n1": FILE, "n2": None, "n3": FILE}, {"n1": GOOD, "n3": GOOD})
    cures, (left,) = decide(view, hashes, "content")
    assert not cures and left.node == "n2"
    assert decide(*case({"n1": None, "n2": FILE, "n3": None}, {"n2": GOOD}), "content")[0] == []


def test_without_a_cut_nothing_is_repaired() -> None:
    """Replicas at different log indexes prove nothing."""
    view, hashes = case(dict.fromkeys(NODES, FILE), {"n1": GOOD, "n2": BAD, "n3": GOOD})
    assert decide(replace(view, cut=None), hashes, "hash")[0] == []


# --- whole clusters --------------------------------------------------------------------------------


def run(built: Built, depth: str, session: SparkSession | None = None) -> VerifyReport:
    return verify.run(built.spec, depth, repair=True, session=session)


def flip(path: Path) -> bytes:
    content = bytearray(path.read_bytes())
    content[100] ^= 4
    path.write_bytes(content)
    return bytes(content)


def test_a_flipped_byte_is_repaired_and_verified_again(built: Built) -> None:
    """The report passes and names the quarantined file; another verification finds nothing."""
    path = built.put("n3", built.files[60])
    bad = flip(path)
    report = run(built, "hash")
    (found,) = report.mismatches
    assert found.repaired and report.passed and not report.remaining
    (done,) = report.repairs
    assert (done.node, done.slot, done.file) == ("n3", 60, built.files[60].meta.name)
    assert (built.cluster.root / "n3" / done.quarantined).read_bytes() == bad
    assert verify.run(built.spec, "hash").passed


def test_a_missing_file_is_put_back(built: Built) -> None:
    """No file is in quarantine."""
    built.put("n1", built.files[3]).unlink()
    report = run(built, "hash")
    assert report.passed and [(m.found, m.repaired) for m in report.mismatches] == [("missing", True)]
    assert report.repairs[0].quarantined == ""


def test_two_damaged_copies_of_three_are_not_repaired(built: Built) -> None:
    """Each is reported as not repairable; a neighbouring slot is still repaired."""
    bad = [flip(built.put(node, built.files[3])) for node in ("n1", "n2")]
    flip(built.put("n1", built.files[4]))
    report = run(built, "hash")
    assert report.remaining == 2 and not report.passed
    assert {(m.node, m.slot, m.repaired) for m in report.mismatches} == {
        ("n1", 3, False),
        ("n2", 3, False),
        ("n1", 4, True),
    }
    assert all("no majority" in m.reason for m in report.mismatches if not m.repaired)
    name = built.files[3].meta.name
    assert [(built.cluster.root / n / "n1.1" / name).read_bytes() for n in ("n1", "n2")] == bad


@pytest.mark.parametrize("how", ["stuck", "lying"])
def test_a_node_that_does_not_repair_is_reported(built: Built, how: str) -> None:
    """Whether it refuses or falsely confirms: only the second verification counts."""
    flip(built.put("n3", built.files[60]))
    (built.cluster.root / "n3" / how).touch()
    report = run(built, "hash")
    (found,) = report.mismatches
    assert not found.repaired and report.remaining == 1
    assert ("installing" if how == "stuck" else "still differs") in found.reason


def test_a_forged_row_is_left_at_depth_hash(built: Built, maker: Maker) -> None:
    """It is reported, with the depth at which it can be repaired."""
    tamper(built, maker)
    (found,) = run(built, "hash").mismatches
    assert not found.repaired and "--depth content" in found.reason


@pytest.mark.spark
def test_consistent_tampering_is_repaired_by_content(built: Built, spark: SparkSession, maker: Maker) -> None:
    """The cell is named; bytes and manifest row become the majority's. A damaged file is repaired, too."""
    tamper(built, maker)
    flip(built.put("n3", built.files[60]))
    report = run(built, "content", session=spark)
    found, damaged = sorted(report.mismatches, key=lambda m: m.slot)
    assert found.repaired and found.series and report.passed, report
    assert damaged.repaired and not damaged.series and {r.node for r in report.repairs} == {"n2", "n3"}
    assert verify.run(built.spec, "content", session=spark).passed
    assert built.files[4].meta in built.cluster.load("n2", "n1.1").files


@pytest.mark.spark
def test_three_different_replicas_are_not_repaired_by_content(
    built: Built, spark: SparkSession, maker: Maker
) -> None:
    """No replica is known to be right."""
    rows = machines(seed=4)
    for node, value in (("n1", 1.5), ("n2", 2.5)):
        built.put(node, maker.file(MACHINES, with_cell(rows, 1, "heat", value), 4, (5,)))
    report = run(built, "content", session=spark)
    assert report.mismatches and not report.repairs and report.remaining == report.mismatches_total


def test_the_output_of_a_compaction_blocked_by_damage_is_copied() -> None:
    """The others have merged the file: the replica gets their output, which replaces its inputs."""
    made = msgspec.structs.replace(FILE, name="made", order=(7,), xxh3="e" * 32)
    damage = DamagedFile("f", 3, FILE.xxh3, BAD, "made", ("f",))
    stuck = Replica("n2", "n1.1", {"f": FILE}, (damage,))
    others = [Replica(n, "n1.1", {"made": made}) for n in ("n1", "n3")]
    view = GroupView("n1.1", 100, NODES, [others[0], stuck, others[1]])
    hashes = {("n1", "made"): made.xxh3, ("n3", "made"): made.xxh3, ("n2", "f"): BAD}
    assert decide(view, hashes, "hash") == ([RepairAction("n2", "n1.1", made, ("n1", "n3"))], [])


def test_an_input_that_the_others_still_have_is_repaired() -> None:
    damage = DamagedFile("f", 3, FILE.xxh3, BAD, "made", ("f",))
    replicas = [Replica(n, "n1.1", {"f": FILE}, (damage,) if n == "n2" else ()) for n in NODES]
    view = GroupView("n1.1", 100, NODES, replicas)
    hashes = {("n1", "f"): GOOD, ("n2", "f"): BAD, ("n3", "f"): GOOD}
    assert decide(view, hashes, "hash") == ([RepairAction("n2", "n1.1", FILE, ("n1", "n3"))], [])


class _Stuck:
    """A cluster with a replica whose compaction is blocked by a damaged file: it never settles."""

    def call_group(self, group: str, request: object) -> Accepted:
        return Accepted(100)

    def manifest(self, node: str, group: str, slots: Ranges = ()) -> ManifestReply:
        damage = DamagedFile("f", 3, FILE.xxh3, BAD, "made", ("f",))
        return ManifestReply("n1.1", node, 100, 60, 1, (FILE,), (damage,))


def test_a_replica_blocked_by_damage_is_a_mismatch_and_not_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A17: damage that a compaction detected is reported with file and both hashes, not as unread."""
    monkeypatch.setattr(pipeline_replicas, "DAMAGED_SETTLE_S", 0.0)
    record = GroupRecord("n1.1", "n1", ("n1",), ("n1",))
    views, unread = view_groups(_Stuck(), [record], FileSelection(), Silent())  # type: ignore[arg-type]
    assert not unread
    (found,) = damage_found(views)
    assert (found.node, found.slot, found.file, found.expected, found.found) == ("n1", 3, "f", GOOD, BAD)


class _Keeping(_Stuck):
    """Retains a damaged file of a slot that left the group: its manifest of open slots does not list it."""

    def manifest(self, node: str, group: str, slots: Ranges = ()) -> ManifestReply:
        return ManifestReply("n1.1", node, 100, 100, 0, (FILE,), (DamagedFile("left", 9, GOOD, BAD),))


def test_damage_of_a_slot_that_left_the_group_is_a_mismatch_at_every_depth() -> None:
    """A17: a pull detected it; the hashes of open slots do not cover it. A choice of slots leaves it out."""
    record = GroupRecord("n1.1", "n1", ("n1",), ("n1",))
    views, _ = view_groups(_Keeping(), [record], FileSelection(), Silent())  # type: ignore[arg-type]
    (found,) = damage_found(views)
    assert (found.node, found.slot, found.file, found.expected, found.found) == ("n1", 9, "left", GOOD, BAD)
    for depth in ("manifest", "hash", "content"):
        comparison = _Comparison(None, None, depth, None, Silent(), None)  # type: ignore[arg-type]
        assert list(comparison._still_damaged(views, VerifyReport(depth))) == [found]
    views, _ = view_groups(_Keeping(), [record], FileSelection(((0, 5),)), Silent())  # type: ignore[arg-type]
    assert not damage_found(views)
