"""The status of clusters in every state of health."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from iotctl.errors import Exit
from iotctl.observe.collect import HEARD_MS_MAX
from iotctl.observe.problems import SERVING_MS_MAX
from iotctl.observe.status import cluster_status
from iotctl.spec.cluster import load_cluster
from nodeagent.model.errors import Unavailable
from nodeagent.model.operation import Options, Stage
from nodeagent.model.requests import LogPin, MetaView, NodeStatus, Reply, Request
from tests.iotctl.fakes import NOW_MS, SPEC, FakeCluster, iotctl, make_operation


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def status(spec: Path, cluster: FakeCluster) -> tuple[int, dict[str, Any]]:
    done = iotctl(spec, "cluster", "status", "-o", "json", cluster=cluster)
    return done.code, json.loads(done.out)


def test_a_whole_cluster_is_healthy(spec: Path) -> None:
    """Exit 0, quorum, no problem, every node with its numbers."""
    code, found = status(spec, FakeCluster())
    assert code == 0
    assert found["healthy"] and found["quorum"] and found["problems"] == []
    assert found["meta"]["leader"] == "node1"
    first = found["nodes"][0]
    assert (first["id"], first["slots"], first["groups_led"], first["lag_ms"]) == ("node1", 20, 1, 40)
    assert first["bytes"] == 12_000


def test_a_wrong_clock_is_a_problem_with_its_offset(spec: Path) -> None:
    """It is reported once even if several leaders detect it. No rows expire: the cluster is not healthy."""

    class Skewed(FakeCluster):
        def status(self, node: str) -> NodeStatus:
            given = super().status(node)
            return msgspec.structs.replace(given, clock_skew_ms={"node2": 60 * 86_400_000, "node3": -11_000})

    found = cluster_status(Skewed(), load_cluster(spec / "cluster.yaml"), now_ms=NOW_MS)
    assert not found.healthy
    assert [(p.code, p.node) for p in found.problems] == [("clock_skew", "node2"), ("clock_skew", "node3")]
    assert "60 d" in found.problems[0].message and "ahead" in found.problems[0].message
    assert "11 s behind" in found.problems[1].message


@pytest.mark.parametrize(
    ("left_ms", "says"), [(36 * 3_600_000, "expires in 1 d 12 h"), (-5_000, "expired 5 s ago")]
)
def test_a_certificate_that_expires_soon_or_has_expired_is_a_problem(
    spec: Path, left_ms: int, says: str
) -> None:
    class Expiring(FakeCluster):
        def status(self, node: str) -> NodeStatus:
            given = super().status(node)
            return (
                given if node != "node2" else msgspec.structs.replace(given, cert_expires_ms=NOW_MS + left_ms)
            )

    found = cluster_status(Expiring(), load_cluster(spec / "cluster.yaml"), now_ms=NOW_MS)
    assert [(p.code, p.message) for p in found.problems] == [
        ("cert_expiring", f"the certificate of node2 {says}")
    ]


def test_a_directory_that_cannot_be_removed_is_a_problem(spec: Path) -> None:
    """The problem has the path and the error of the disk."""

    class Refusing(FakeCluster):
        def status(self, node: str) -> NodeStatus:
            left = {"staging/op-3": "Input/output error", "groups/x.1": "busy"} if node == "node2" else {}
            return msgspec.structs.replace(super().status(node), unremoved=left)

    found = cluster_status(Refusing(), load_cluster(spec / "cluster.yaml"), now_ms=NOW_MS)
    (problem,) = found.problems
    assert (problem.severity, problem.code, problem.node) == ("warning", "not_removed", "node2")
    assert "data/groups/x.1 and 1 more directory " in problem.message and "busy" in problem.message


def test_a_node_without_room_and_a_pinned_log_are_problems(spec: Path) -> None:
    """A node that accepts no rows is an error with its free disk; a large pinned log is a warning, a small
    one is not reported."""

    class Full(FakeCluster):
        def status(self, node: str) -> NodeStatus:
            given = super().status(node)
            if node == "node1":
                return msgspec.structs.replace(given, room="low", disk_free_bytes=70_000_000)
            held = {"node2": 40_000_000, "node3": 4_000_000}.get(node, 0)
            groups = [
                msgspec.structs.replace(g, log_bytes=held, log_pin=LogPin("follower", "node4"))
                for g in given.groups
            ]
            return msgspec.structs.replace(given, groups=tuple(groups))

    found = cluster_status(Full(), load_cluster(spec / "cluster.yaml"), now_ms=NOW_MS)
    assert not found.healthy
    assert [(p.severity, p.code, p.node) for p in found.problems] == [
        ("error", "disk_full", "node1"),
        ("warning", "log_held", "node2"),
    ]
    full, pinned = found.problems
    assert "70 MB" in full.message and "accepts no rows" in full.message
    assert "40 MB" in pinned.message and "follower node4" in pinned.message
    assert pinned.next == "iotctl cluster logs node4"


def test_one_dead_node_keeps_the_quorum_and_is_a_problem(spec: Path) -> None:
    """Exit 0 (nothing is lost), not healthy, and the command that starts it."""
    code, found = status(spec, FakeCluster(down={"node2"}))
    assert code == 0
    assert found["quorum"] and not found["healthy"] and found["lost_groups"] == []
    (problem,) = found["problems"]
    assert (problem["code"], problem["node"]) == ("node_unreachable", "node2")
    assert problem["next"] == "iotctl cluster start node2"
    dead = next(n for n in found["nodes"] if n["id"] == "node2")
    assert dead["reachable"] is False and dead["bytes"] is None and "refused" in dead["error"]


def test_three_dead_of_five_name_the_lost_groups_and_the_nodes_to_start(spec: Path) -> None:
    """Exit 4; groups with two of three members down and the meta group are lost, but no other group."""
    code, found = status(spec, FakeCluster(down={"node1", "node2", "node3"}))
    assert code == Exit.UNREACHABLE
    assert not found["quorum"]
    # R = 3: node1's group {1,2,3}, node2's {2,3,4}, node5's {5,1,2} have lost their majority.
    assert found["lost_groups"] == ["meta", "node1.1", "node2.1", "node5.1"]
    assert found["start_nodes"] == ["node1", "node2", "node3"]
    assert found["source"] in ("node4", "node5")
    lost = [p for p in found["problems"] if p["code"] == "quorum_lost"]
    assert {p["group"] for p in lost} == set(found["lost_groups"])
    assert all("start" in p["next"] for p in lost)


@pytest.mark.parametrize("group", ["meta", "node1.1"])
@pytest.mark.parametrize("state", ["damaged", "recovering", ""])
@pytest.mark.parametrize("down", [set[str](), {"node1"}])
def test_voters_that_answer_are_not_named_as_down(spec: Path, group: str, state: str, down: set[str]) -> None:
    """Their replicas cannot vote, or are missing. Nodes are started only if a voter is down."""
    sick = ["node2", "node3", "node4"] if group == "meta" else ["node2", "node3"]

    class Sick(FakeCluster):
        def status(self, node: str) -> NodeStatus:
            given = FakeCluster.status(self, node)
            groups = tuple(
                msgspec.structs.replace(g, state=state) if node in sick and g.group == group else g
                for g in given.groups
                if state or node not in sick or g.group != group
            )
            return msgspec.structs.replace(given, groups=groups)

    source = load_cluster(spec / "cluster.yaml")
    found = cluster_status(Sick(down=down), source, now_ms=NOW_MS, sleep=lambda _: None)
    (problem,) = [p for p in found.problems if p.code == "quorum_lost"]
    absent = ["nodes down: node1"] if down else []
    absent += [f"replicas {state or 'missing'}: {', '.join(sick)}"]
    assert problem.group == group and problem.message.endswith(f"has no quorum; {'; '.join(absent)}")
    checks = "on the machine of node2, with the agent stopped: nodeagent log check DIRECTORY"
    helps = checks if state == "damaged" else "iotctl cluster wait --for healthy"
    assert problem.next.startswith("iotctl cluster start node1" if down else helps)
    text = iotctl(spec, "cluster", "status", cluster=Sick(down=down)).out
    assert ("start:" in text) == bool(down)


def test_damaged_replicas_alone_do_not_name_the_voters(spec: Path) -> None:
    """No replica knows the voters of the meta group: all that are damaged are named."""

    class Unreadable(FakeCluster):
        def status(self, node: str) -> NodeStatus:
            given = FakeCluster.status(self, node)
            groups = (msgspec.structs.replace(g, voters=(), state="damaged") for g in given.groups)
            return msgspec.structs.replace(given, groups=tuple(g for g in groups if g.group == "meta"))

        def call(self, node: str, request: Request, timeout_s: float | None = None) -> Reply:
            raise Unavailable("the meta group of this node is damaged")

    found = cluster_status(Unreadable(), load_cluster(spec / "cluster.yaml"), now_ms=NOW_MS)
    (problem,) = [p for p in found.problems if p.code == "quorum_lost"]
    assert problem.message.endswith("replicas damaged: node1, node2, node3, node4, node5")


def test_a_cluster_without_answers_is_exit_4(spec: Path) -> None:
    """Exit 4 with the nodes of cluster.yaml; nothing is invented."""
    code, found = status(spec, FakeCluster(down={f"node{i}" for i in range(1, 6)}))
    assert code == Exit.UNREACHABLE
    assert [n["id"] for n in found["nodes"]] == [f"node{i}" for i in range(1, 6)]
    assert found["source"] == "" and found["table_version"] == 0 and found["groups"] == []
    assert found["start_nodes"] == [f"node{i}" for i in range(1, 6)]


def test_a_group_that_elects_its_first_leader_is_no_problem(spec: Path) -> None:
    """Every added node brings a group; one without a leader for an election timeout is an error."""

    class Electing(FakeCluster):
        led = False

        def status(self, node: str) -> NodeStatus:
            given = FakeCluster.status(self, node)
            groups = tuple(
                msgspec.structs.replace(g, role="candidate", leader=None)
                if g.group == "node1.1" and not self.led
                else g
                for g in given.groups
            )
            return msgspec.structs.replace(given, groups=groups)

    source = load_cluster(spec / "cluster.yaml")
    cluster, slept = Electing(), list[float]()

    def elect(pause_s: float) -> None:
        slept.append(pause_s)
        cluster.led = True

    assert cluster_status(cluster, source, now_ms=NOW_MS, sleep=elect).healthy and len(slept) == 1
    found = cluster_status(Electing(), source, now_ms=NOW_MS, sleep=slept.append)
    assert [p.code for p in found.problems] == ["no_leader"] and not found.healthy


@pytest.mark.parametrize(("age_ms", "heard_ms"), [(60_000, HEARD_MS_MAX), (800, 800)])
def test_a_voter_that_its_leader_does_not_hear_is_an_error_that_may_pass(
    spec: Path, age_ms: int, heard_ms: int
) -> None:
    """The voter answers, but another voter could not be lost: its leader has not heard it for too long, or
    not since the voter started. A new leader gets time to hear it."""

    class Unheard(FakeCluster):
        ms = heard_ms + 1

        def status(self, node: str) -> NodeStatus:
            given = FakeCluster.status(self, node)
            lately = dict(given.heard_ms, node2=self.ms)
            return msgspec.structs.replace(given, heard_ms=lately, started_ms=given.now_ms - age_ms)

    source = load_cluster(spec / "cluster.yaml")
    cluster = Unheard()

    def hear(pause_s: float) -> None:
        cluster.ms = heard_ms

    assert cluster_status(cluster, source, now_ms=NOW_MS, sleep=hear).healthy
    found = cluster_status(Unheard(), source, now_ms=NOW_MS, sleep=lambda s: None)
    assert not found.healthy and found.quorum
    by = [(p.code, p.node, p.group) for p in found.problems]
    assert by == [("unheard", "node2", "meta"), ("unheard", "node2", "node5.1")], (
        "each leader reports the voter once"
    )
    down = cluster_status(Unheard(down={"node2"}), source, now_ms=NOW_MS, sleep=lambda s: None)
    assert {p.code for p in down.problems} == {"node_unreachable"}, "a node that is down is reported as down"

    class Damaged(Unheard):
        def status(self, node: str) -> NodeStatus:
            given = super().status(node)
            groups = tuple(msgspec.structs.replace(g, state="damaged") for g in given.groups)
            return msgspec.structs.replace(given, groups=groups) if node == "node2" else given

    sick = cluster_status(Damaged(), source, now_ms=NOW_MS, sleep=lambda s: None)
    assert {p.code for p in sick.problems} == {"replica_sick"}, "a damaged replica is reported as damaged"


def test_the_next_command_of_a_local_fleet_is_local_up(tmp_path: Path) -> None:
    """The next command matches the kind of fleet."""
    text = SPEC.replace("nodes:\n", "defaults: {transport: local}\nnodes:\n", 1)
    (tmp_path / "cluster.yaml").write_text(text)
    _, found = status(tmp_path, FakeCluster(down={"node2"}))
    assert found["problems"][0]["next"] == f"iotctl local up --dir {tmp_path}"


def test_waits_are_shown_with_the_command_that_ends_them(spec: Path) -> None:
    """A wait is a warning: the cluster is healthy and says what it waits for."""
    waiting = make_operation("op-9", stage=Stage.COPYING)
    waiting.options = Options(no_migrate=True, verify=True)
    code, found = status(spec, FakeCluster(operations=[waiting]))
    assert code == 0 and found["healthy"]
    (problem,) = found["problems"]
    assert (problem["code"], problem["next"]) == ("waiting_migrate", "iotctl migrate --verify --op op-9")
    (operation,) = found["operations"]
    assert operation["state"] == "waiting_migrate" and not operation["cancellable"]


def test_progress_counts_slots_that_every_member_has(spec: Path) -> None:
    """4 of 10 slots are copied to all three members; a copy on one member does not count."""
    moving = make_operation("op-9", stage=Stage.COPYING, copied=4)
    moving.copies = [*moving.copies, type(moving.copies[0])("node6.9", "node6", "i", ((4, 9),), "d", 1, 500)]
    _, found = status(spec, FakeCluster(operations=[moving]))
    (operation,) = found["operations"]
    assert (operation["slots_done"], operation["slots_total"]) == (4, 10)
    assert operation["bytes_done"] == 3500
    assert operation["blocked_on"] == "copies on node1, node2, node6"


def test_a_cluster_that_is_not_formed_is_not_healthy(spec: Path) -> None:
    """A leader exists before the cluster is formed, but nothing can be read or written then."""

    class Unformed(FakeCluster):
        def call(self, node: str, request: Request, timeout_s: float | None = None) -> Reply:
            raise Unavailable("the cluster is not formed yet")

    looks: list[float] = []
    source = load_cluster(spec / "cluster.yaml")
    found = cluster_status(Unformed(), source, now_ms=NOW_MS, sleep=looks.append)
    assert found.quorum and found.meta.leader == "node1" and not found.healthy and len(looks) == 3
    assert [(p.severity, p.code) for p in found.problems] == [("error", "not_formed")]


def test_the_state_comes_from_the_first_node_that_returns_it(spec: Path) -> None:
    """Nodes that refuse at once, however advanced, do not make a formed cluster look unformed."""

    class Refusing(FakeCluster):
        def call(self, node: str, request: Request, timeout_s: float | None = None) -> Reply:
            if node != "node5":
                raise Unavailable("the meta group of this node is damaged")
            return FakeCluster.call(self, node, request, timeout_s)

    found = cluster_status(Refusing(), load_cluster(spec / "cluster.yaml"), now_ms=NOW_MS)
    assert found.healthy and found.groups and not found.problems


@pytest.mark.parametrize("dissolving", [False, True])
def test_a_member_without_a_replica_is_a_problem(spec: Path, dissolving: bool) -> None:
    """A quorum is enough to serve but not to be healthy. A dissolving group does not need its replica."""

    class Missing(FakeCluster):
        def status(self, node: str) -> NodeStatus:
            given = FakeCluster.status(self, node)
            lost = ("node1.1", "node2.1") if node == "node2" else ()
            kept = tuple(g for g in given.groups if g.group not in lost)
            return msgspec.structs.replace(given, groups=kept)

        def call(self, node: str, request: Request, timeout_s: float | None = None) -> Reply:
            view = FakeCluster.call(self, node, request, timeout_s)
            assert isinstance(view, MetaView)
            groups = [
                msgspec.structs.replace(g, dissolving=dissolving and g.group in ("node1.1", "node2.1"))
                for g in view.groups
            ]
            return msgspec.structs.replace(view, groups=tuple(groups))

    source = load_cluster(spec / "cluster.yaml")
    found = cluster_status(Missing(), source, now_ms=NOW_MS, sleep=lambda s: None)
    missing = [(p.severity, p.node, p.group) for p in found.problems if p.code == "replica_missing"]
    assert missing == ([] if dissolving else [("error", "node2", "node1.1")])


def test_a_node_of_the_spec_that_has_not_joined(spec: Path) -> None:
    """The node is listed as not joined, with the command that adds it."""
    (spec / "cluster.yaml").write_text(SPEC + "  - {name: node6, host: h6}\n")
    cluster = FakeCluster()
    done = iotctl(spec, "cluster", "status", "-o", "json", cluster=cluster)
    node = json.loads(done.out)["nodes"][-1]
    assert (node["id"], node["state"], node["reachable"]) == ("node6", "not_joined", False)


def test_status_of_dead_nodes_reads_as_text(spec: Path) -> None:
    """The table names lost groups and what to start."""
    done = iotctl(spec, "cluster", "status", cluster=FakeCluster(down={"node1", "node2", "node3"}))
    assert "QUORUM LOST" in done.out
    assert "start: node1, node2, node3" in done.out


@pytest.mark.parametrize(
    "state,why,helps",
    [
        ("forming", "it waits for node3", "iotctl cluster logs node2"),
        ("joining", "", "iotctl cluster logs node2"),
        (
            "refused",
            "it knows another data directory",
            "iotctl cluster replace-node node2 NEW",
        ),
        ("damaged", "data/groups/meta/checkpoint is missing", "iotctl cluster replace-node node2 NEW"),
    ],
)
def test_a_node_that_takes_no_part_for_long_is_an_error(spec: Path, state: str, why: str, helps: str) -> None:
    """The error has the reason and the next command; a node that has just started may still be starting."""

    class Apart(FakeCluster):
        age_ms = SERVING_MS_MAX + 1

        def status(self, node: str) -> NodeStatus:
            given = FakeCluster.status(self, node)
            started = given.now_ms - self.age_ms
            apart = msgspec.structs.replace(given, state=state, why=why, started_ms=started)
            return apart if node == "node2" else given

    cluster = Apart()
    _, found = status(spec, cluster)
    (problem,) = [p for p in found["problems"] if p["code"] == "node_not_serving"]
    assert (problem["severity"], problem["node"]) == ("error", "node2") and not found["healthy"]
    assert state in problem["message"] and why in problem["message"] and problem["next"].startswith(helps)
    cluster.age_ms = SERVING_MS_MAX - 1
    _, young = status(spec, cluster)
    (problem,) = young["problems"]
    starts = state in ("forming", "joining")
    assert problem["code"] == ("node_starting" if starts else "node_not_serving") and not young["healthy"]
    assert problem["node"] == "node2" and why in problem["message"]
    assert problem["next"].startswith("iotctl cluster wait --for healthy" if starts else helps)
