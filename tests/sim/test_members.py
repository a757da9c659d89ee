"""Only members are accepted, and a lagging meta state excludes no member."""

from contextlib import suppress

from nodeagent.model import requests as q
from nodeagent.model.errors import Refused
from nodeagent.model.ids import META
from nodeagent.model.raft_messages import Heartbeat, RaftMessage, Routed, VoteRequest
from nodeagent.model.requests import ErrorReply, Reply
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.volume import Fault


def formed(seed: int) -> Scenario:
    scenario = Scenario(seed)
    scenario.begin(reads=False)
    scenario.sim.pause(1_500)
    return scenario


def terms(scenario: Scenario) -> list[int]:
    return sorted(r.raft.term for n in scenario.sim.nodes.values() if n.alive for r in n.host.replicas)


def test_a_non_member_cannot_control_operations_read_or_send_raft_messages() -> None:
    """It has a valid certificate, but no change has admitted it."""
    scenario = formed(1)
    sim, stranger = scenario.sim, scenario.newcomers[0]
    node = sim.nodes["node1"]
    sim.nodes[stranger].start()
    sim.pause(500)
    group = sorted(node.host.replicas.data)[0]
    before = terms(scenario)
    messages: list[RaftMessage] = [Heartbeat(1 << 40, 0), VoteRequest(1 << 40, 1 << 40, 1 << 40, False, True)]
    node.on_raft(stranger, [Routed(g, m) for g in (META, group) for m in messages])
    answers: list[Reply] = []
    for request in (q.GetMeta(), q.ExportFiles(group, ()), q.Drain("node2", True, "x"), q.GetStatus()):
        node.serve(stranger, request, answers.append)
    sim.pause(500)
    assert terms(scenario) == before
    assert len(answers) == 4
    assert all(isinstance(a, ErrorReply) and a.code == "unavailable" for a in answers)
    scenario.finish(scenario.change("add-node", stranger))
    scenario.quiet()


def test_a_node_that_was_down_accepts_a_leader_that_it_does_not_know() -> None:
    """The leader joined in the meantime. Members that the node knows vouch for the leader; otherwise the node
    could not catch up."""
    scenario = formed(2)
    sim, newcomer = scenario.sim, scenario.newcomers[0]
    behind = sim.nodes["node4"]
    behind.stop(power=False)
    sim.nodes[newcomer].start()
    scenario.change("add-node", newcomer)

    def leader() -> str:
        return next((n.node for n in sim.nodes.values() if n.alive and n.host.cluster.meta_replica.leads), "")  # type: ignore[union-attr]

    def led_by_the_newcomer() -> bool:
        node = sim.nodes.get(leader())
        if node is not None and node.node != newcomer:
            raft = node.host.cluster.meta_replica.raft  # type: ignore[union-attr]
            if newcomer in raft.log.config.voters and raft.caught_up(newcomer):
                with suppress(Refused):  # the transfer is in progress
                    raft.transfer(newcomer, sim.now)
                node.wake()
        return leader() == newcomer

    scenario.until(led_by_the_newcomer, "the newcomer leads the meta group")
    behind.start()
    assert newcomer not in behind.host.cluster.meta.image.nodes
    scenario.until(lambda: newcomer in behind.host.cluster.meta.image.nodes, "the node catches up", 5_000)


def test_a_newcomer_s_vote_counts_before_a_state_names_it() -> None:
    """The others start from checkpoints that are older than the change; their logs name it as a voter."""
    scenario = formed(3)
    sim, newcomer = scenario.sim, scenario.newcomers[0]
    for node in [n for n in sim.nodes.values() if n.node != newcomer]:  # the newcomer begins with one
        node.disk.faults += [Fault("rename", path=f"groups/{META}/", times=1 << 30)]
    sim.nodes[newcomer].start()
    scenario.finish(scenario.change("add-node", newcomer))
    sim.pause(3_000)  # replicas that left are removed
    for node in sim.nodes.values():
        if node.alive:
            node.stop(power=False)
    started = [sim.nodes[n] for n in ("node1", "node2", newcomer)]
    for node in started:
        node.start()
        assert newcomer not in node.host.cluster.meta.image.nodes or node.node == newcomer

    def leads() -> bool:
        return any(
            n.host.cluster.meta_replica is not None and n.host.cluster.meta_replica.leads for n in started
        )

    scenario.until(leads, "three of five voters elect a leader", 10_000)
