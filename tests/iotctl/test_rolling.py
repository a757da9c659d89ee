"""Rolling restarts: no group loses its quorum, and a restart stops no further node if a check fails."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from iotctl.errors import BusyProblem, Partly, RefusedProblem, Unreachable
from iotctl.lifecycle.rolling import (
    RESTART_SUFFIX,
    RestartReport,
    RollRequest,
    left_draining,
    plan_waves,
    rolling,
)
from iotctl.observe.timing import Timing
from nodeagent.model.errors import Refused
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.ids import META
from nodeagent.model.requests import Drain, NodeStatus, Reply, Request
from tests.iotctl.fakes import FakeCluster


@dataclass
class FakeAgents:
    """Processes are up or down with the fake cluster's nodes; `stuck` ones do not come back."""

    cluster: FakeCluster
    stuck: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    most_down: int = 0
    outside: set[str] = field(default_factory=set)
    """Nodes outside the cluster, which lead nothing and are not drained first."""

    def down(self, names: Sequence[str]) -> list[str]:
        return [n for n in names if n in self.cluster.down]

    def start(self, names: Sequence[str]) -> list[str]:
        self.log += [f"start {n}" for n in names]
        self.cluster.down -= set(names) - self.stuck
        return list(names)

    def stop(self, names: Sequence[str]) -> list[str]:
        assert set(names) <= self.cluster.drained | self.outside, "leaderships are transferred first"
        self.log += [f"stop {n}" for n in names]
        self.cluster.down |= set(names)
        self.most_down = max(self.most_down, len(self.cluster.down))
        return list(names)

    def log_tail(self, name: str, lines: int) -> str:
        return ""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def roll(agents: FakeAgents, names: Sequence[str], at_once: int = 1, alone: bool = True) -> RestartReport:
    clock = Clock()

    def between(node: str) -> None:
        assert node in agents.cluster.down
        agents.log.append(f"change {node}")

    return rolling(
        agents.cluster,
        agents,
        names,
        RollRequest("me", "iotctl cluster restart", at_once, alone),
        between=between,
        on_step=lambda what, over, total, node: None,
        timing=Timing(clock, clock.sleep),
    )


def test_nodes_restart_one_after_the_other_and_change_while_down() -> None:
    agents = FakeAgents(FakeCluster())
    done = roll(agents, ["node1", "node2", "node3"])
    assert done.restarted == ["node1", "node2", "node3"] and agents.most_down == 1
    assert agents.log[:3] == ["stop node1", "change node1", "start node1"]
    assert agents.cluster.drained == set(), "the nodes are undrained"


def test_no_group_loses_its_quorum_however_many_are_allowed() -> None:
    """Five nodes, three copies: any two of them share a group."""
    agents = FakeAgents(FakeCluster())
    done = roll(agents, agents.cluster.names, at_once=5)
    assert agents.most_down == 1 and len(done.order) == 5


def test_nodes_that_may_stop_together_do() -> None:
    agents = FakeAgents(FakeCluster(names=[f"node{i}" for i in range(1, 10)]))
    done = roll(agents, agents.cluster.names, at_once=5)
    assert agents.most_down > 1 and sorted(done.restarted) == agents.cluster.names


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_the_shown_waves_are_executed(at_once: int) -> None:
    agents = FakeAgents(FakeCluster(names=[f"node{i}" for i in range(1, 10)]), outside={"spare"})
    names = ["node3", "spare", *(n for n in agents.cluster.names if n != "node3")]
    shown = plan_waves(agents.cluster, names, at_once)
    assert agents.log == [] and not shown.blocked
    assert roll(agents, names, at_once).order == shown.waves


def test_blocked_nodes_are_shown_with_the_reason() -> None:
    """node5 is down: nodes that share a group with it are blocked; the others may restart."""
    cluster = FakeCluster(down={"node5"})
    shown = plan_waves(cluster, cluster.names, 1)
    assert "node1" in shown.blocked and "node5 does not answer" in shown.why


def test_a_cluster_without_answers_has_no_waves() -> None:
    cluster = FakeCluster(down={f"node{i}" for i in range(1, 6)})
    with pytest.raises(Unreachable):
        plan_waves(cluster, cluster.names, 1)


def test_while_another_node_is_down_nothing_is_stopped() -> None:
    agents = FakeAgents(FakeCluster(down={"node5"}))
    with pytest.raises(RefusedProblem, match="nothing was stopped"):
        roll(agents, ["node1"])
    assert agents.log == [] and agents.cluster.drained == set()


def test_a_node_that_does_not_come_back_ends_the_restart() -> None:
    """The other nodes are left alone, and the next command names them."""
    agents = FakeAgents(FakeCluster(), stuck={"node2"})
    with pytest.raises(Partly) as caught:
        roll(agents, ["node1", "node2", "node3"])
    assert "node1 restarted" in caught.value.what and "node2, node3 not" in caught.value.what
    assert caught.value.next.endswith("iotctl cluster restart node2 node3")
    assert "stop node3" not in agents.log
    assert agents.cluster.drained == set(), "the node is undrained, so a later restart finds its former state"


class Unstartable(FakeAgents):
    """The disk of node2's machine is full, as `LocalFleet.start` reports it."""

    def start(self, names: Sequence[str]) -> list[str]:
        if "node2" in names:
            raise RefusedProblem("node2 was not started", why="No space left on device", next="repeat")
        return super().start(names)


@pytest.mark.parametrize("outside", [set(), {"node2"}])
def test_an_agent_that_cannot_be_started_again_is_not_hidden(outside: set[str]) -> None:
    """Whether the node is in the cluster or not, it was stopped: the error does not say otherwise."""
    cluster = FakeCluster(names=[n for n in ("node1", "node2", "node3", "node4") if n not in outside])
    agents = Unstartable(cluster, outside=outside)
    with pytest.raises(Partly) as caught:
        roll(agents, ["node2", "node3"])
    told = "node2 was not started; nothing restarted, node2, node3 not; node2 may be down"
    assert caught.value.what == told and caught.value.why == "No space left on device"
    assert caught.value.next == "iotctl cluster status, then iotctl cluster restart node2 node3"
    assert agents.log == ["stop node2", "change node2"] and cluster.drained == set()


def test_a_restart_that_stopped_nothing_names_the_node_that_it_left_draining() -> None:
    """No leader hears its followers, and the end of the drain is refused too."""

    class Stuck(FakeCluster):
        def status(self, node: str) -> NodeStatus:
            found = super().status(node)
            return msgspec.structs.replace(found, heard_ms={}) if self.drained else found

        def call_meta(self, request: Request) -> Reply:
            if isinstance(request, Drain) and not request.draining:
                raise Refused("lock 7 is no longer held")
            return super().call_meta(request)

    agents = FakeAgents(Stuck())
    with pytest.raises(Partly, match=r"; nothing restarted, node1 not; node1 still draining$") as caught:
        roll(agents, ["node1"])
    assert "iotctl cluster undrain node1, then iotctl cluster restart node1" in caught.value.next
    assert agents.log == []


def test_a_node_that_was_not_running_is_not_called_restarted() -> None:
    """node6 is outside the cluster and its agent does not run."""

    class Idle(FakeAgents):
        def stop(self, names: Sequence[str]) -> list[str]:
            return [] if names == ["node6"] else super().stop(names)

    agents = Idle(FakeCluster(down={"node5"}), outside={"node6"})
    with pytest.raises(RefusedProblem, match="nothing was stopped"):
        roll(agents, ["node6", "node1"])


class Late(FakeCluster):
    """node1 serves after its restart, and applies entries of the meta group only after some statuses."""

    after = 20

    def status(self, node: str) -> NodeStatus:
        found = super().status(node)
        if node != "node1" or "undrain node1" not in [what for _, _, what in self.audit]:
            return found
        self.after -= 1
        if self.after < 0:
            return found
        groups = [msgspec.structs.replace(g, applied=50) if g.group == META else g for g in found.groups]
        return msgspec.structs.replace(found, groups=tuple(groups))


def test_the_next_node_stops_once_the_previous_one_applied_its_undrain() -> None:
    """The check /ready of the previous node fails until then."""

    class Watched(FakeAgents):
        def stop(self, names: Sequence[str]) -> list[str]:
            assert names == ["node1"] or self.cluster.after <= 0  # type: ignore[attr-defined]
            return super().stop(names)

    agents = Watched(Late())
    assert roll(agents, ["node1", "node2"]).restarted == ["node1", "node2"]
    assert agents.log[-1] == "start node2"


@pytest.mark.parametrize("names", [["node1", "node2"], ["node1"]])
def test_a_node_that_never_applies_its_undrain_ends_the_restart(names: list[str]) -> None:
    """The node was restarted, and the next command restarts neither this node nor all nodes again."""
    agents = FakeAgents(Late())
    agents.cluster.after = 10_000  # type: ignore[attr-defined]
    with pytest.raises(Partly) as caught:
        roll(agents, names)
    heard = "node1 is back but did not apply the end of its drain within 120 s; node1 restarted"
    assert caught.value.what == heard + (", node2 not" if "node2" in names else "")
    again = ", then iotctl cluster restart node2" if "node2" in names else ""
    assert caught.value.next == f"iotctl cluster status{again}"
    assert "stop node2" not in agents.log and agents.cluster.drained == set()


def test_a_concurrent_drain_by_another_operator_stays() -> None:
    """Ann drains node1 as soon as it is undrained: the restart stops no further node and leaves it
    draining."""

    class Drained(Late):
        def status(self, node: str) -> NodeStatus:
            if self.after == 15:
                self.drained = self.drained | {"node1"}
            return super().status(node)

    agents = FakeAgents(Drained())
    with pytest.raises(Partly, match=r"another command began to drain node1; node1 restarted, node2 not$"):
        roll(agents, ["node1", "node2"])
    assert agents.cluster.drained == {"node1"} and "stop node2" not in agents.log


def test_a_node_that_was_draining_before_keeps_draining() -> None:
    agents = FakeAgents(FakeCluster(drained={"node4"}))
    roll(agents, ["node4"])
    assert agents.cluster.drained == {"node4"}


@pytest.mark.parametrize("level", [FIRST, Feature.REASONS])
def test_nodes_that_a_killed_restart_left_draining_are_undrained(level: int) -> None:
    """The restart was killed while node2 was down. node4 was drained by a restart, later by an operator."""
    cluster, roller = FakeCluster(level=level), f"me{RESTART_SUFFIX}"
    for by, draining in ((roller, True), ("me", False), ("ann", True)):
        cluster.call_meta(Drain("node4", draining, by, for_restart=by == roller))
    cluster.call_meta(Drain("node2", True, roller, for_restart=True))
    assert left_draining(cluster) == ["node2"]
    beside = roll(FakeAgents(cluster), ["node1"], alone=False)  # another restart may be running
    assert not beside.undrained and cluster.drained == {"node2", "node4"}
    done = roll(FakeAgents(cluster), ["node1", "node4"])
    assert done.undrained == ["node2"] and done.draining == ["node4"]
    assert cluster.drained == {"node4"} and left_draining(cluster) == []


def test_a_group_that_has_no_leader_stops_everything() -> None:
    """The group may be electing a leader after a node failed; `may_stop` alone would count it as lost."""
    cluster = FakeCluster(down={"node5"}, leaderless={"node3.1", "node4.1", "node5.1"})
    agents = FakeAgents(cluster)
    with pytest.raises(RefusedProblem, match="nothing was stopped"):
        roll(agents, ["node1", "node2"])
    assert agents.log == [] and cluster.drained == set()


def test_a_second_restart_stops_no_node_while_the_first_drains() -> None:
    """Each restart records its drain before it looks for other drains."""

    class Shared(FakeCluster):
        def call_meta(self, request: Request) -> Reply:
            self.drained.add("node2")  # the other restart drains a node after this one has begun
            return super().call_meta(request)

    cluster = Shared()
    agents = FakeAgents(cluster)
    with pytest.raises(BusyProblem, match="another command began to drain node2"):
        roll(agents, ["node1"])
    assert agents.log == [] and cluster.drained == {"node2"}


def test_a_new_leader_gets_time_to_hear_its_followers() -> None:
    """Leadership was transferred; the new leader has not heard its followers yet."""

    class Fresh(FakeCluster):
        fresh = 0

        def call_meta(self, request: Request) -> Reply:
            self.fresh = 12  # statuses until the leader has heard its followers
            return super().call_meta(request)

        def status(self, node: str) -> NodeStatus:
            self.fresh = max(0, self.fresh - 1)
            found = super().status(node)
            return msgspec.structs.replace(found, heard_ms={}) if self.fresh else found

    agents = FakeAgents(Fresh())
    assert roll(agents, ["node1", "node2"]).restarted == ["node1", "node2"]


def test_nothing_stops_if_no_leader_hears_its_followers() -> None:
    class Deaf(FakeCluster):
        def status(self, node: str) -> NodeStatus:
            found = super().status(node)
            return msgspec.structs.replace(found, heard_ms={}) if self.drained else found

    agents = FakeAgents(Deaf())
    with pytest.raises(RefusedProblem, match="nothing was stopped"):
        roll(agents, ["node1"])
    assert agents.log == [] and agents.cluster.drained == set()


def test_a_node_that_has_not_joined_does_not_block_the_restart() -> None:
    agents = FakeAgents(FakeCluster())
    agents.outside = {"node6", "node7"}
    assert roll(agents, ["node1", "node6", "node7"]).restarted == ["node6", "node7", "node1"]


def test_an_interrupted_restart_leaves_no_node_draining() -> None:
    class Interrupted(FakeAgents):
        def stop(self, names: Sequence[str]) -> list[str]:
            raise KeyboardInterrupt

    agents = Interrupted(FakeCluster())
    with pytest.raises(KeyboardInterrupt):
        roll(agents, ["node1"])
    assert agents.cluster.drained == set()
