"""Which nodes may stop together: by quorums of five nodes on a ring, R = 3, all five vote in meta."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from iotctl.errors import Exit
from iotctl.observe.collect import HEARD_MS_MAX
from iotctl.observe.stopping import LAG_ENTRIES_MAX
from nodeagent.model.requests import NodeStatus
from tests.iotctl.fakes import SPEC, FakeCluster, iotctl


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def asked(spec: Path, cluster: FakeCluster, *nodes: str) -> tuple[int, dict[str, Any]]:
    done = iotctl(spec, "cluster", "ok-to-stop", *nodes, "-o", "json", cluster=cluster)
    return done.code, json.loads(done.out)


class Lagging(FakeCluster):
    """node3 is far behind the leader of node1's group."""

    def status(self, node: str) -> NodeStatus:
        found = super().status(node)
        groups = tuple(
            msgspec.structs.replace(g, lag={"node3": LAG_ENTRIES_MAX + 1})
            if g.group == "node1.1" and g.role == "leader"
            else g
            for g in found.groups
        )
        return msgspec.structs.replace(found, groups=groups)


class Recovering(FakeCluster):
    """node3 still reads its log of node1's group."""

    def status(self, node: str) -> NodeStatus:
        found = super().status(node)
        groups = tuple(
            msgspec.structs.replace(g, state="recovering") if g.group == "node1.1" and node == "node3" else g
            for g in found.groups
        )
        return msgspec.structs.replace(found, groups=groups)


class Unheard(FakeCluster):
    """node3 has just restarted: the leader of node1's group has not heard it yet, and its log is short."""

    def status(self, node: str) -> NodeStatus:
        found = super().status(node)
        heard = dict(found.heard_ms, node3=HEARD_MS_MAX + 1)
        return msgspec.structs.replace(found, heard_ms=heard) if node == "node1" else found


class NeverHeard(Unheard):
    """The leader has not heard node3 since the leader started."""

    def status(self, node: str) -> NodeStatus:
        found = super().status(node)
        heard = {n: ms for n, ms in found.heard_ms.items() if n != "node3"}
        return msgspec.structs.replace(found, heard_ms=heard) if node == "node1" else found


def test_every_single_node_of_a_whole_cluster_may_stop(spec: Path) -> None:
    """Exit 0, nothing lost."""
    for node in FakeCluster().names:
        code, found = asked(spec, FakeCluster(), node)
        assert (code, found["ok"], found["lost"], found["may_stop"]) == (0, True, [], [node])


def test_neighbours_may_not_stop_together(spec: Path) -> None:
    """Any two of five share at least one group of three: exit 5 with exactly those groups."""
    code, found = asked(spec, FakeCluster(), "node1", "node2")
    assert code == Exit.REFUSED and not found["ok"]
    # {1,2,3} and {5,1,2} hold both.
    assert {g["group"] for g in found["lost"]} == {"node1.1", "node5.1"}
    first = next(g for g in found["lost"] if g["group"] == "node1.1")
    assert (first["stopping"], first["left"], first["needed"]) == (["node1", "node2"], ["node3"], 2)
    assert len(found["may_stop"]) == 1
    for pair in combinations(FakeCluster().names, 2):
        assert asked(spec, FakeCluster(), *pair)[0] == Exit.REFUSED


def test_the_largest_subset_is_found_and_not_the_first(spec: Path) -> None:
    """Of nine nodes 1, 4 and 7 share no group of three; node2, named first, excludes node1 and node4."""
    names = [f"node{i}" for i in range(1, 10)]
    code, found = asked(spec, FakeCluster(names=names), "node2", "node3", "node1", "node4", "node7")
    assert code == Exit.REFUSED
    # The meta group (voters 1-5) loses only two of its five voters.
    assert set(found["may_stop"]) == {"node1", "node4", "node7"}


def test_a_node_that_is_down_counts_against_its_groups(spec: Path) -> None:
    """node3 is dead: node1's group has no spare; node3 itself may always be stopped."""
    cluster = FakeCluster(down={"node3"})
    code, found = asked(spec, cluster, "node1")
    assert code == Exit.REFUSED and found["unreachable"] == ["node3"]
    assert {g["group"] for g in found["lost"]} == {"node1.1"}
    assert "node3 does not answer" in found["lost"][0]["why"]
    assert found["may_stop"] == []
    assert asked(spec, cluster, "node3")[0] == 0


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        (Lagging(), "entries behind"),
        (Recovering(), "recovering"),
        (Unheard(), "not been heard by node1"),
        (NeverHeard(), "not been heard by node1"),
    ],
)
def test_a_voter_that_has_not_caught_up_does_not_count(spec: Path, cluster: FakeCluster, why: str) -> None:
    """All five answer, but node1's group depends on two of its three members."""
    code, found = asked(spec, cluster, "node2")
    assert code == Exit.REFUSED
    (lost,) = found["lost"]
    assert lost["group"] == "node1.1" and why in lost["why"]
    assert asked(spec, cluster, "node4")[0] == 0


def test_a_group_that_is_lost_already_is_named(spec: Path) -> None:
    """Stopping any other node does not change that; the table names the node to check."""
    cluster = FakeCluster(down={"node1", "node2"})
    done = iotctl(spec, "cluster", "ok-to-stop", "node4", cluster=cluster)
    assert done.code == Exit.REFUSED
    assert "node1.1" in done.out and "node4" in done.out


def test_unknown_nodes_and_a_silent_cluster(spec: Path) -> None:
    """Exit 5 for an unknown node, 4 if no agent returns the groups."""
    assert iotctl(spec, "cluster", "ok-to-stop", "node9", cluster=FakeCluster()).code == Exit.REFUSED
    silent = FakeCluster(down=set(FakeCluster().names))
    assert iotctl(spec, "cluster", "ok-to-stop", "node1", cluster=silent).code == Exit.UNREACHABLE
