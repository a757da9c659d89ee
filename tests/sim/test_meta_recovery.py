"""The meta group lost its majority permanently: it continues from the newest journal of a living node."""

from collections.abc import Collection
from functools import partial

import pytest

from nodeagent.model import requests as q
from nodeagent.model.ids import META
from nodeagent.model.operation import Options, Stage
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import CLIENT
from tests.sim.spread import spread
from tests.sim.test_cases import finish_all

VOTERS = 3


def formed(seed: int, nodes: int, replicas: int) -> Scenario:
    scenario = Scenario(seed, nodes=nodes, replicas=replicas, meta_voters=VOTERS)
    scenario.begin(reads=False)
    scenario.sim.pause(1_500)
    return scenario


def voters(scenario: Scenario) -> list[str]:
    replicas = [n.host.cluster.meta_replica for n in scenario.sim.nodes.values() if n.alive]
    logs = [replica.raft.log for replica in replicas if replica is not None]
    return list(max(logs, key=lambda log: log.last_index).config.voters)


def come_back_fenced(scenario: Scenario, names: Collection[str] | None = None) -> None:
    """The dead nodes, or those of these `names`, start again: no living node follows them, and they serve
    nothing."""
    back = [n for n in scenario.dead if names is None or n.node in names]
    for node in back:
        node.start()
    scenario.sim.pause(6_000)
    for node in back:
        assert node.host.own_membership.fenced_reason and node.host.status.state() == "removed"
        node.stop(power=False)


def recover_data(scenario: Scenario, dead: tuple[str, ...]) -> None:
    """Recover the data groups that lost their majority with the same nodes."""
    if scenario.newest().recovery.lost(()):
        scenario.recover(*dead)
        scenario.until(scenario.recovered, "recovery completed in every group")


@pytest.mark.parametrize("seed", spread([1, 2, 3, 4, 5, 6]))
def test_the_meta_group_continues_without_its_lost_majority(seed: int) -> None:
    """Before they die, two of three voters reach only each other and an operator, whose request they accept:
    it is lost. In every other seed the survivors lose power at about the time of the recovery."""
    scenario = formed(seed, 6, 3)
    sim, rng = scenario.sim, scenario.sim.rng
    dead = tuple(rng.sample(voters(scenario), 2))
    left = [n for n in sim.nodes if n not in dead]
    sim.faults.cut |= {pair for n in dead for other in left for pair in ((n, other), (other, n))}
    got: list[q.Reply] = []
    for node in dead:
        sim.call("client", node, q.Drain(left[0], True, "sim"), got.append)
    sim.pause(4_000)
    scenario.die(*dead)
    sim.faults.heal()
    lost = scenario.recover_meta(*dead)
    assert lost >= sum(isinstance(reply, q.Accepted) for reply in got)

    def cut_short(name: str) -> None:
        scenario.kill(name, rng.randint(50, 2_000), power=True)

    if seed % 2:
        for name in [n.node for n in sim.nodes.values() if n.alive]:
            sim.at(rng.randint(0, 60), partial(cut_short, name))
    scenario.request(q.Drain(left[0], False, "sim"), q.Accepted)
    recover_data(scenario, dead)
    writes = scenario.history.writes
    scenario.until(lambda: scenario.history.writes > writes + 50, "writers continue")
    for name in dead:
        scenario.finish(scenario.change("remove-node", name, Options(dead=True)))
    come_back_fenced(scenario)
    finish_all(scenario)


@pytest.mark.parametrize("seed", spread([1, 2, 3, 4, 5, 6, 7, 8]))
def test_a_change_that_is_open_ends_after_the_recovery(seed: int) -> None:
    """Every data group retains a majority: with R = 5, each has at most the two dead nodes."""
    scenario = formed(seed, 7, 5)
    sim, rng = scenario.sim, scenario.sim.rng
    newcomer = scenario.newcomers[0]
    sim.nodes[newcomer].start()
    operation = scenario.change("add-node", newcomer)
    stages = list(Stage)[rng.randrange(6) :]
    sim.run(lambda: (op := scenario.record(operation)) is not None and op.stage in stages, 20_000)
    sim.pause(rng.randint(0, 300))
    dead = tuple(rng.sample(voters(scenario), 2))
    scenario.die(*dead)
    scenario.recover_meta(*dead)
    scenario.until(
        lambda: (op := scenario.record(operation)) is None or op.ended, "the change ends after the recovery"
    )
    for name in dead:
        scenario.finish(scenario.change("remove-node", name, Options(dead=True)))
    come_back_fenced(scenario)
    finish_all(scenario)


@pytest.mark.parametrize("change", spread([2, 3, 1, 4, 5, 6], 2))
def test_a_power_cut_during_the_recovery_leaves_all_of_it_or_nothing(change: int) -> None:
    """During disk change number `change` after the request. If nothing was changed, the operator repeats the
    command; if all was, the group has a leader without it, and the lost nodes are retired."""
    scenario = formed(2, 6, 3)
    sim = scenario.sim
    dead = tuple(sorted(voters(scenario))[:2])
    scenario.die(*dead)
    head, request = scenario.meta_recovery(*dead)
    replica = head.host.cluster.meta_replica
    assert replica is not None
    scenario.safety.forget(META, replica.raft.log, list(dead))
    head.disk.cut_power_at = head.disk.operations + change
    got: list[q.Reply] = []
    sim.call(CLIENT, head.node, request, got.append)
    sim.run(lambda: not head.alive, 10_000)
    scenario.until(lambda: head.alive, "the node is up again")
    sim.pause(8_000)
    meta = head.host.cluster.meta_replica
    assert meta is not None
    if meta.raft.term < request.term:
        assert not got or isinstance(got[0], q.ErrorReply), "it was acknowledged, and is gone"
        assert set(dead) <= {n for n in meta.raft.log.config.voters} and meta.raft.leader is None
        assert not meta.state.image.retired
        scenario.recover_meta(*dead)
    retired = {meta.state.image.nodes[n].incarnation for n in dead}
    scenario.until(
        lambda: all(retired <= set(n.host.cluster.meta.image.retired) for n in sim.nodes.values() if n.alive),
        "the lost nodes are retired",
    )
    recover_data(scenario, dead)
    for name in dead:
        scenario.finish(scenario.change("remove-node", name, Options(dead=True)))
    come_back_fenced(scenario)
    finish_all(scenario)
