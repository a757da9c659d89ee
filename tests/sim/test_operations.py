"""An operator controls nodes and operations, on whole simulated clusters."""

import pytest

from nodeagent.host.leadership import PREFER_OWNER_MS
from nodeagent.model import requests as q
from nodeagent.model.ids import META, owner_of
from nodeagent.model.operation import Operation, Options
from nodeagent.model.requests import Accepted, OperationReply
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import WALL_START_MS
from tests.sim.spread import spread

HAND_OVER_POLL_MS = 20
SETTLE_MS = 7_000
"""Two rounds in which leaderships are transferred to the group owners."""


def formed(seed: int) -> Scenario:
    scenario = Scenario(seed)
    scenario.begin(reads=False)
    scenario.sim.pause(SETTLE_MS)
    return scenario


def leaders(scenario: Scenario) -> dict[str, str]:
    """group -> the living node that leads it by the highest term."""
    found: dict[str, tuple[int, str]] = {}
    for node in scenario.sim.nodes.values():
        for replica in node.host.replicas if node.alive else ():
            if replica.leads:
                found[replica.group] = max(found.get(replica.group, (0, "")), (replica.raft.term, node.node))
    return {g: n for g, (_, n) in found.items()}


def led_by(scenario: Scenario, node: str) -> set[str]:
    return {g for g, n in leaders(scenario).items() if n == node}


def operation(scenario: Scenario, name: str) -> Operation:
    states = [n.host.cluster.meta for n in scenario.sim.nodes.values() if n.alive]
    found = max(states, key=lambda m: m.applied).operations.find(name)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", spread([1, 2, 3]))
def test_a_drained_node_leads_nothing_until_it_is_undrained(seed: int) -> None:
    """This includes the meta group and holds after a restart of all nodes. After the undrain, it leads its
    own group again."""
    scenario = formed(seed)
    node = leaders(scenario)[META]
    own = {g for g in leaders(scenario) if g != META and owner_of(g) == node}
    assert own <= led_by(scenario, node), "group owners lead while the cluster is idle"
    scenario.request(q.Drain(node, True, "sim"), Accepted)
    scenario.until(lambda: not led_by(scenario, node), "it leads nothing", 3_000)
    for name in sorted(scenario.sim.nodes):
        if scenario.sim.nodes[name].alive:
            scenario.kill(name, 100, power=True)
    scenario.until(lambda: len(leaders(scenario)) == 5 and not led_by(scenario, node), "others lead")
    for _ in range(SETTLE_MS // HAND_OVER_POLL_MS):
        scenario.sim.pause(HAND_OVER_POLL_MS)
        assert not led_by(scenario, node)
    assert scenario.sim.nodes[node].host.status.state() == "draining"
    scenario.request(q.Drain(node, False, "sim"), Accepted)
    scenario.until(lambda: own <= led_by(scenario, node), "its group comes back", SETTLE_MS)
    scenario.quiet()
    scenario.read_everything()


def with_a_stalled_successor(seed: int) -> tuple[Scenario, str, str, str]:
    """A cluster without writers: (the scenario, a group owner, its group, the voter that is asked first to
    take over and whose disk is stalled)."""
    scenario = Scenario(seed)
    scenario.form()
    scenario.sim.pause(SETTLE_MS)
    owner, group = next((n, g) for g, n in sorted(leaders(scenario).items()) if g != META)
    voters = scenario.sim.nodes[owner].host.replicas.data[group].raft.log.config.voters
    stalled = min(v for v in voters if v != owner)
    scenario.sim.faults.stalled.add(stalled)
    return scenario, owner, group, stalled


@pytest.mark.parametrize("seed", spread([1, 2, 3]))
def test_a_stalled_successor_does_not_delay_a_drain(seed: int) -> None:
    """It responds and has all entries, so it is asked to take over but cannot: then another node is asked."""
    scenario, owner, group, stalled = with_a_stalled_successor(seed)
    scenario.request(q.Drain(owner, True, "sim"), Accepted)
    scenario.until(lambda: leaders(scenario).get(group) not in (None, owner), "another leads", 2_000)
    assert leaders(scenario)[group] != stalled


@pytest.mark.parametrize("seed", spread([1, 2, 3]))
def test_a_stopping_node_asks_the_next_successor_too(seed: int) -> None:
    scenario, owner, group, stalled = with_a_stalled_successor(seed)
    node = scenario.sim.nodes[owner]
    began = scenario.sim.now
    while node.host.transfer_leadership(scenario.sim.now):
        node.wake()
        scenario.sim.pause(HAND_OVER_POLL_MS)
        assert scenario.sim.now - began < 1_500
    assert leaders(scenario)[group] not in (owner, stalled)


def test_a_node_does_not_stop_while_its_only_successor_takes_over() -> None:
    scenario = formed(1)
    led = leaders(scenario)
    owner, group = next((n, g) for g, n in sorted(led.items()) if g != META and n != led[META])
    host = scenario.sim.nodes[owner].host
    other, *more = (v for v in host.replicas.data[group].raft.log.config.voters if v != owner)
    for third in more:
        scenario.request(q.Drain(third, True, "sim"), Accepted)
    scenario.until(lambda: host.replicas.data[group].raft.can_change(), "its log is committed")
    host.leadership.transfer(host.replicas.data[group], other)
    assert host.transfer_leadership(scenario.sim.now)


def test_a_leadership_transfer_survives_a_lost_first_message() -> None:
    """The link to the successor was cut only for a moment."""
    scenario, owner, group, other = with_a_stalled_successor(2)
    scenario.sim.faults.stalled.clear()
    host = scenario.sim.nodes[owner].host
    scenario.sim.faults.cut.add((owner, other))
    host.leadership.transfer(host.replicas.data[group], other)
    scenario.sim.nodes[owner].wake()
    scenario.sim.pause(30)
    scenario.sim.faults.cut.clear()
    scenario.until(lambda: leaders(scenario).get(group) == other, "it takes over", 200)


@pytest.mark.parametrize("seed", spread([1, 2, 3]))
def test_writes_are_accepted_while_no_node_can_take_over(seed: int) -> None:
    """A leadership transfer refuses writes while it is attempted, so it is not attempted all the time."""
    scenario, owner, group, stalled = with_a_stalled_successor(seed)
    host = scenario.sim.nodes[owner].host
    for third in set(host.replicas.data[group].raft.log.config.voters) - {owner, stalled}:
        scenario.request(q.Drain(third, True, "sim"), Accepted)
    scenario.request(q.Drain(owner, True, "sim"), Accepted)
    taken = 0
    for _ in range(1_000):
        scenario.sim.pause(15)
        taken += host.replicas.data[group].leads and host.replicas.data[group].raft.can_change()
    assert taken > 750
    scenario.sim.faults.heal()
    scenario.kill(stalled, 100, power=True)
    scenario.until(lambda: leaders(scenario).get(group) == stalled, "it leads again", 15_000)


def test_a_node_that_took_over_before_is_asked_first_next_time() -> None:
    scenario = formed(1)
    owner, group = next((n, g) for g, n in sorted(leaders(scenario).items()) if g != META)
    _, *others = sorted(
        scenario.sim.nodes[owner].host.replicas.data[group].raft.log.config.voters, key=lambda v: v != owner
    )
    for other in others[1:]:
        scenario.request(q.Drain(other, True, "sim"), Accepted)
    for _ in range(2):
        scenario.request(q.Drain(owner, True, "sim"), Accepted)
        scenario.until(lambda: leaders(scenario).get(group) == others[0], "the other leads", 1_500)
        scenario.request(q.Drain(owner, False, "sim"), Accepted)
        scenario.until(lambda: leaders(scenario).get(group) == owner, "it comes back", SETTLE_MS)


def test_a_silent_node_is_not_asked_to_take_over() -> None:
    """In a group without writes it still counts as caught up."""
    scenario = Scenario(2)
    scenario.form()
    scenario.sim.pause(SETTLE_MS)
    owner, group = next((n, g) for g, n in sorted(leaders(scenario).items()) if g != META)
    host = scenario.sim.nodes[owner].host
    replica = host.replicas.data[group]
    gone = min(v for v in replica.raft.log.config.voters if v != owner)
    assert host.leadership.may_take_over(replica, gone)
    scenario.sim.nodes[gone].stop(power=False)
    scenario.sim.pause(PREFER_OWNER_MS)
    assert replica.raft.caught_up(gone) and not host.leadership.may_take_over(replica, gone)


def test_requests_to_a_transferring_leader_are_redirected_to_the_next_leader() -> None:
    """A refusal would be final: a client takes it as the cluster's answer to its request."""
    scenario = formed(1)
    node = scenario.sim.nodes[leaders(scenario)[META]]
    replica = node.host.cluster.meta_replica
    assert replica is not None
    heir = next(v for v in replica.raft.log.config.voters if v != node.node)
    node.host.leadership.transfer(replica, heir)
    answers: list[q.Reply] = []
    node.serve("client", q.Drain("node1", True, "sim"), answers.append)
    scenario.until(lambda: bool(answers), "it answers")
    assert isinstance(answers[0], q.ErrorReply) and answers[0].code == "not_leader"
    assert answers[0].details["leader"] == heir


def test_drained_nodes_lead_groups_that_no_other_node_can_lead() -> None:
    """Draining is a preference: with every node drained each group still has a leader."""
    scenario = formed(4)
    for name in ("node1", "node2", "node3", "node4"):
        scenario.request(q.Drain(name, True, "sim"), Accepted)
    scenario.sim.pause(SETTLE_MS)
    assert len(leaders(scenario)) == 5
    scenario.quiet()


@pytest.mark.parametrize("seed", spread(range(1, 7), 2))
def test_a_planned_stop_causes_no_election_timeout(seed: int) -> None:
    """When the leadership transfer reports success, every group has another leader and keeps it: no
    leadership returns to the group owner, although it responded a moment ago."""
    scenario = formed(seed)
    node = leaders(scenario)["meta"]
    led = led_by(scenario, node)
    assert len(led) > 1
    host = scenario.sim.nodes[node].host
    began = scenario.sim.now
    while host.transfer_leadership(scenario.sim.now):
        scenario.sim.nodes[node].wake()
        scenario.sim.pause(HAND_OVER_POLL_MS)
        assert scenario.sim.now - began < 1_000
    taken = leaders(scenario)
    assert set(taken) >= led and not led_by(scenario, node)
    terms = {g: scenario.sim.nodes[n].host.replicas.of(g).raft.term for g, n in taken.items()}  # type: ignore[union-attr]
    scenario.sim.nodes[node].stop(power=False)
    for _ in range(SETTLE_MS // HAND_OVER_POLL_MS):
        scenario.sim.pause(HAND_OVER_POLL_MS)
        now = leaders(scenario)
        assert {g: now.get(g) for g in led} == {g: taken[g] for g in led}
        for group in led:
            replica = scenario.sim.nodes[now[group]].host.replicas.of(group)
            assert replica is not None and replica.raft.term == terms[group]
            assert replica.raft.can_change(), "a transfer to a stopped node would block writes"
    scenario.sim.nodes[node].start()
    scenario.quiet()
    scenario.read_everything()


def test_two_nodes_that_stop_together_do_not_transfer_endlessly() -> None:
    """Each group is transferred once and kept if it comes back; then the node stops, whichever node leads."""
    scenario = formed(3)
    stopping = [scenario.sim.nodes[n] for n in sorted(scenario.sim.nodes) if scenario.sim.nodes[n].alive]
    began = scenario.sim.now
    busy = True
    while busy:
        busy = any([n.host.transfer_leadership(scenario.sim.now) for n in stopping])
        for node in stopping:
            node.wake()
        scenario.sim.pause(HAND_OVER_POLL_MS)
        assert scenario.sim.now - began < 150


@pytest.mark.parametrize("seed", spread([1, 2]))
def test_a_hold_expires_and_survives_the_meta_leader(seed: int) -> None:
    """The hold ends soon after its time, which counts from the moment when the operation waits only for it,
    and not before."""
    hold_ms = 8_000
    scenario = formed(seed)
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    name = scenario.change("add-node", newcomer, Options(hold_release_ms=hold_ms))
    scenario.until(lambda: operation(scenario, name).state() == "waiting_release", "it waits")
    since = operation(scenario, name).held_since_ms - WALL_START_MS
    assert 0 <= scenario.sim.now - since < 200
    scenario.sim.pause(2_000)
    scenario.kill(leaders(scenario)[META], 1_000, power=True)
    scenario.until(lambda: operation(scenario, name).state() != "waiting_release", "the hold ends")
    assert hold_ms <= scenario.sim.now - since < hold_ms + 3_000
    scenario.finish(name)
    scenario.quiet()
    scenario.read_everything()


def test_a_lock_expires_unless_it_is_renewed() -> None:
    """The meta leader's clock decides. The lock also expires if that leader dies, and never too early."""
    ttl_ms = 5_000
    scenario = formed(4)

    def take(owner: str, serial: int = 0) -> q.LockReply:
        reply = scenario.request(q.TakeLock(owner, "a roll", owner, ttl_ms, serial), q.LockReply)
        assert isinstance(reply, q.LockReply)
        return reply

    def is_held() -> bool:
        alive = [n.host.cluster.meta for n in scenario.sim.nodes.values() if n.alive]
        return max(alive, key=lambda m: m.applied).image.lock is not None

    first = take("ann").lock
    for _ in range(4):
        scenario.sim.pause(ttl_ms // 2)
        renewed = scenario.sim.now
        assert take("ann", first.serial).lock.serial == first.serial
    scenario.kill(leaders(scenario)[META], 1_000, power=True)
    scenario.until(lambda: not is_held(), "it lapses", 4 * ttl_ms)
    assert scenario.sim.now - renewed >= ttl_ms
    assert take("bob").lock.serial > first.serial


def test_a_paused_add_copies_nothing_and_continues_when_resumed() -> None:
    """The add is paused from the start: slots open in their new groups, no copy is made, and no file is
    deleted."""
    scenario = formed(5)
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    name = scenario.change("add-node", newcomer)
    scenario.request(q.ControlOperation(name, "pause", "sim"), OperationReply)
    scenario.until(lambda: scenario.stage(name) == "COPYING", "slots are open again")
    scenario.sim.pause(10_000)
    found = operation(scenario, name)
    assert (found.stage.name, found.state(), found.copies) == ("COPYING", "paused", [])
    scenario.request(q.ControlOperation(name, "resume", "sim"), OperationReply)
    scenario.finish(name)
    scenario.quiet()
    scenario.read_everything()
