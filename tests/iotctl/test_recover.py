"""`cluster recover`: what it shows, refuses and requests from the meta group. Six nodes, R = 3."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from iotctl.errors import Exit
from nodeagent.model.errors import Refused
from nodeagent.model.ids import META
from nodeagent.model.operation import GroupChange, Stage
from nodeagent.model.requests import Accepted, ForceRecover, GroupStatus, MetaView, NodeStatus, Reply, Request
from nodeagent.partition.recovery import TERMS_BEYOND, recovery_leader_of
from tests.iotctl.fakes import SPEC, FakeCluster, iotctl, make_operation


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC + "  - {name: node6, host: 127.0.0.1, port: 7006}\n")
    return tmp_path


@dataclass(slots=True)
class Losing(FakeCluster):
    """node2 and node3 are down: in the groups of node1 and node2, one member of three survives."""

    names: list[str] = field(default_factory=lambda: [f"node{i}" for i in range(1, 7)])
    down: set[str] = field(default_factory=lambda: {"node2", "node3"})
    given_up: list[ForceRecover] = field(default_factory=list)
    forces: bool = True
    damaged: str = ""
    stopped: str = ""

    def view(self) -> MetaView:
        view = FakeCluster.view(self)
        if not self.given_up:
            return view
        gone = self.given_up[0]
        heirs = {h.group for h in gone.leaders}
        return msgspec.structs.replace(
            view,
            nodes=tuple(
                msgspec.structs.replace(n, state="dead" if n.node in gone.nodes else n.state)
                for n in view.nodes
            ),
            groups=tuple(
                msgspec.structs.replace(g, members=tuple(m for m in g.members if m not in gone.nodes))
                if g.group in heirs
                else g
                for g in view.groups
            ),
        )

    def status(self, node: str) -> NodeStatus:
        found = FakeCluster.status(self, node)
        heirs = {h.group: h for gone in self.given_up for h in gone.leaders}
        return msgspec.structs.replace(
            found, groups=tuple(self._told(node, g, heirs.get(g.group)) for g in found.groups)
        )

    def _told(self, node: str, group: GroupStatus, heir: object) -> GroupStatus:
        if group.group == "node1.1" and node == self.damaged:
            return msgspec.structs.replace(group, state="damaged", error="entries 3 to 9 are unreadable")
        if group.group == "node1.1" and node == self.stopped:
            hint = f"iotctl cluster upgrade {node}"
            return msgspec.structs.replace(group, state="stopped", error="entry 9", hint=hint)
        if heir is None or not self.forces:
            return msgspec.structs.replace(group, role="follower") if heir else group
        return msgspec.structs.replace(group, term=3 + TERMS_BEYOND)

    def call_meta(self, request: Request) -> Reply:
        if not isinstance(request, ForceRecover):
            return FakeCluster.call_meta(self, request)
        self.given_up.append(request)
        return Accepted(52)


def refused(spec: Path, cluster: FakeCluster, *words: str, text: str, code: int = Exit.REFUSED) -> None:
    """The command is refused with and without the flag, and requests nothing from the meta group."""
    for flags in ((), ("--accept-data-loss", "--confirm", "plant")):
        done = iotctl(spec, "cluster", "recover", *words, *flags, cluster=cluster)
        assert done.code == code and text in done.err, (done.code, done.err)
    assert not getattr(cluster, "given_up", [])


def test_the_preview_shows_groups_recovery_leaders_and_the_command(spec: Path) -> None:
    cluster = Losing()
    done = iotctl(spec, "cluster", "recover", "node2", "node3", "-o", "json", cluster=cluster)
    assert done.code == Exit.REFUSED and not cluster.given_up
    found = json.loads(done.out)
    assert (found["kind"], found["done"], found["gone"]) == ("cluster-recover", False, [])
    assert [(g["group"], g["lost"], g["head"]) for g in found["groups"]] == [
        ("node1.1", ["node2", "node3"], "node1"),
        ("node2.1", ["node2", "node3"], "node4"),
    ]
    (survivor,) = found["groups"][0]["survivors"]
    assert survivor == {"node": "node1", "last": 9, "last_term": 0, "commit": 9, "behind": 0}
    assert found["groups"][0]["slots"], "the affected slots are listed"
    assert found["next"] == "iotctl cluster recover node2 node3 --accept-data-loss --confirm plant"
    table = iotctl(spec, "cluster", "recover", "node2", "node3", cluster=cluster)
    assert table.code == Exit.REFUSED and "lost their majority" in table.out and found["next"] in table.err


def test_a_recovery_is_recorded_with_leaders_and_terms_and_awaited(spec: Path) -> None:
    cluster = Losing()
    words = ("cluster", "recover", "node2", "node3", "--accept-data-loss")
    unconfirmed = iotctl(spec, *words, cluster=cluster)
    assert unconfirmed.code == Exit.REFUSED and "--confirm plant" in unconfirmed.err and not cluster.given_up
    done = iotctl(spec, *words, "--confirm", "plant", "-o", "json", cluster=cluster)
    assert done.code == 0, done.err
    (asked,) = cluster.given_up
    assert asked.nodes == ("node2", "node3") and asked.table_version == cluster.version
    assert [(h.group, h.head, h.term) for h in asked.leaders] == [
        ("node1.1", "node1", 3 + TERMS_BEYOND),
        ("node2.1", "node4", 3 + TERMS_BEYOND),
    ]
    found = json.loads(done.out)
    assert found["done"] and found["next"] == "iotctl cluster remove-node node2 --dead"
    status = json.loads(iotctl(spec, "cluster", "status", "-o", "json", cluster=cluster).out)
    problem = next(p for p in status["problems"] if p["node"] == "node2")
    assert problem["next"] == "iotctl cluster remove-node node2 --dead"
    plan = iotctl(spec, "plan", "remove-node", "node2", "-o", "json", cluster=cluster)
    assert plan.code == 0, f"quorums are those of the members there are: {plan.err}"


def test_a_recovery_that_does_not_complete_in_time_is_partly_done(spec: Path) -> None:
    cluster = Losing(forces=False)
    words = ("--accept-data-loss", "--confirm", "plant", "--timeout", "300ms")
    done = iotctl(spec, "cluster", "recover", "node2", "node3", *words, cluster=cluster)
    assert done.code == Exit.PARTLY and "node1.1" in done.err and len(cluster.given_up) == 1


def test_a_group_without_survivors_is_listed_as_gone(spec: Path) -> None:
    """Its rows only come back with one of its nodes; the flag does not change that."""
    cluster = Losing(down={"node3", "node4", "node5"}, names=[f"node{i}" for i in range(1, 9)])
    for flags in ((), ("--accept-data-loss", "--confirm", "plant")):
        words = ("recover", "node3", "node4", "node5", *flags)
        cluster.names = [f"node{i}" for i in range(1, 9)]
        done = iotctl(spec, "cluster", *words, "-o", "json", cluster=_wide_meta(cluster))
        found = json.loads(done.out)
        assert done.code == Exit.REFUSED and [g["group"] for g in found["gone"]] == ["node3.1"], done.err
        assert found["gone"][0]["slots"] and found["next"] == "start the agent of node3 or node4 or node5"
    assert not cluster.given_up


def _wide_meta(cluster: Losing) -> Losing:
    """All eight vote in the meta group, so five live nodes are a majority."""

    class Wide(Losing):
        def view(self) -> MetaView:
            return msgspec.structs.replace(Losing.view(self), voters=tuple(self.names))

    return Wide(down=cluster.down, names=cluster.names, given_up=cluster.given_up)


def test_live_recently_heard_and_unknown_nodes_are_refused(spec: Path) -> None:
    """The next step fits the command, which has no --dead."""
    refused(spec, Losing(), "node2", "node3", "node4", text="it answers")
    refused(spec, Losing(), "node2", "node3", "node4", text="next: omit node4")
    refused(spec, Losing(silent_ms=4_000), "node2", "node3", text="ms ago")
    refused(spec, Losing(silent_ms=4_000), "node2", "node3", text="or omit node2")
    refused(spec, Losing(), "node2", "node9", text="node9 is not in the cluster")


def test_a_member_that_left_the_cluster_is_not_a_survivor(spec: Path) -> None:
    """The member stayed in place of a node that died before it joined, and the group has no majority left."""

    class Left(Losing):
        def view(self) -> MetaView:
            view = Losing.view(self)
            first = msgspec.structs.replace(view.groups[0], members=("node1", "node3", "gone"))
            return msgspec.structs.replace(view, groups=(first, *view.groups[1:]))

    words = ("cluster", "recover", "node3", "-o", "json")
    done = iotctl(spec, *words, cluster=Left(down={"node3"}))
    assert "nothing to recover" not in done.err and done.code == Exit.REFUSED, done.err
    (lost,) = json.loads(done.out)["groups"]
    assert (lost["group"], lost["lost"], lost["head"]) == ("node1.1", ["node3", "gone"], "node1")


def test_without_a_lost_group_the_ordinary_command_is_shown(spec: Path) -> None:
    refused(spec, Losing(down={"node2"}), "node2", text="iotctl cluster remove-node node2 --dead")


def test_every_other_member_must_report_its_log(spec: Path) -> None:
    """A member that is down but not named may have the newest entries; a damaged member cannot report its
    log."""
    eight = Losing(down={"node2", "node3", "node4"}, names=[f"node{i}" for i in range(1, 9)])
    refused(spec, _wide_meta(eight), "node2", "node3", text="start the agent of node4")
    refused(spec, Losing(damaged="node1"), "node2", "node3", text="entries 3 to 9")


def test_a_stopped_replica_does_not_become_the_recovery_leader(spec: Path) -> None:
    """It would refuse every request, and the recovery would be reported as done."""
    refused(spec, Losing(stopped="node1"), "node2", "node3", text="iotctl cluster upgrade node1")


def test_without_a_meta_majority_its_voters_are_named(spec: Path) -> None:
    cluster = Losing(down={"node1", "node2", "node3"})
    refused(spec, cluster, "node2", "node3", text="meta group has lost its majority", code=Exit.UNREACHABLE)
    refused(
        spec,
        cluster,
        "node2",
        "node3",
        text="start the agent of node1 or node2 or node3",
        code=Exit.UNREACHABLE,
    )


@pytest.mark.parametrize("down", [{"node2", "node3"}, {"node3"}])
def test_damaged_voters_of_the_meta_group_are_not_named_as_down(spec: Path, down: set[str]) -> None:
    """Nothing is to be started if every voter answers."""

    class Unreadable(Losing):
        def view(self) -> MetaView:
            return msgspec.structs.replace(Losing.view(self), voters=("node1", "node4", "node5"))

        def status(self, node: str) -> NodeStatus:
            found = Losing.status(self, node)
            if node not in ("node4", "node5"):
                return found
            groups = (
                msgspec.structs.replace(g, state="damaged") if g.group == META else g for g in found.groups
            )
            return msgspec.structs.replace(found, groups=tuple(groups))

    cluster, said = Unreadable(down=down), "replicas damaged: node4, node5"
    refused(spec, cluster, *sorted(down), text=said, code=Exit.UNREACHABLE)
    refused(spec, cluster, *sorted(down), text="next: iotctl cluster status", code=Exit.UNREACHABLE)


def test_a_recovery_during_a_change_needs_a_feature_level(spec: Path) -> None:
    cluster = Losing(operations=[make_operation("op-9", stage=Stage.COPYING)])
    refused(spec, cluster, "node2", "node3", text="op-9")
    refused(spec, cluster, "node2", "node3", text="iotctl cluster finalize-upgrade")


def test_after_a_recovery_the_open_change_is_awaited(spec: Path) -> None:
    cluster = Losing(operations=[make_operation("op-9", stage=Stage.COPYING)], level=2)
    words = ("cluster", "recover", "node2", "node3", "--accept-data-loss", "--confirm", "plant", "-o", "json")
    done = iotctl(spec, *words, cluster=cluster)
    assert done.code == 0, done.err
    assert json.loads(done.out)["next"] == "iotctl ops wait op-9"


@pytest.mark.parametrize("leads", [False, True])
def test_a_group_whose_members_change_is_lost_if_nobody_leads_it(spec: Path, leads: bool) -> None:
    """node3 joins the group of node4, node5 and node6, and node4 leaves it. Without node4 and node5 there is
    a majority only if node4 has left already."""

    class Changing(Losing):
        def status(self, node: str) -> NodeStatus:
            found = FakeCluster.status(self, node)
            role = "leader" if leads and node == "node6" else "follower"
            groups = (
                msgspec.structs.replace(g, role=role) if g.group == "node4.1" else g for g in found.groups
            )
            return msgspec.structs.replace(found, groups=tuple(groups))

    operation = make_operation("op-9", stage=Stage.RECONFIGURING)
    members = ("node4", "node5", "node6")
    operation.changes = [GroupChange("node4.1", "node3", "node4", members, (*members[1:], "node3"))]
    cluster = Changing(down={"node4", "node5"}, operations=[operation], level=2)
    done = iotctl(spec, "cluster", "recover", "node4", "node5", "-o", "json", cluster=cluster)
    assert done.code == Exit.REFUSED, done.err
    assert ("node4.1" in [g["group"] for g in json.loads(done.out)["groups"]]) != leads


def test_a_refusal_of_the_meta_group_is_reported(spec: Path) -> None:
    class Strict(Losing):
        def call_meta(self, request: Request) -> Reply:
            raise Refused("the look was at table version 7", next_step="look again")

    words = ("--accept-data-loss", "--confirm", "plant")
    done = iotctl(spec, "cluster", "recover", "node2", "node3", *words, cluster=Strict())
    assert done.code != 0 and "look again" in done.err


def test_status_shows_both_next_commands(spec: Path) -> None:
    found = json.loads(iotctl(spec, "cluster", "status", "-o", "json", cluster=Losing()).out)
    lost = [p for p in found["problems"] if p["code"] == "quorum_lost"]
    assert {p["group"] for p in lost} == {"node1.1", "node2.1"}
    assert all("iotctl cluster recover node2 node3" in p["next"] and "start" in p["next"] for p in lost)
    meta_lost = Losing(down={"node1", "node2", "node3"})
    found = json.loads(iotctl(spec, "cluster", "status", "-o", "json", cluster=meta_lost).out)
    helps = {p["next"] for p in found["problems"] if "recover" in p["next"]}
    assert len(helps) == 1, "the meta group comes first: it has no majority for a recovery of other groups"
    assert helps.pop().endswith("if permanently lost: iotctl meta recover node1 node2 node3")


def test_the_recovery_leader_has_the_last_entry_by_term_first() -> None:
    """A longer log of an older term lacks what the newer term committed."""
    said = GroupStatus("g", "follower", None, 9, (), (), 0, 0, 0)
    long = msgspec.structs.replace(said, last=90, last_term=3)
    new = msgspec.structs.replace(said, last=40, last_term=4, term=7)
    heir = recovery_leader_of("g", {"a": long, "b": new})
    assert (heir.head, heir.term) == ("b", 9 + TERMS_BEYOND)
    heir = recovery_leader_of("g", {"a": new, "b": msgspec.structs.replace(new, last=41)})
    assert heir.head == "b"
