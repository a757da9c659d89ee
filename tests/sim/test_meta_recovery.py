"""The meta group lost its majority permanently: it continues from the newest journal of a living node."""

from functools import partial

import pytest

from nodeagent.model import requests as q
from nodeagent.model.operation import Options, Stage
from nodeagent.testing.scenario import Scenario
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


def come_back_fenced(scenario: Scenario) -> None:
    """The dead nodes start again: no living node follows them, and they serve nothing."""
    for node in scenario.dead:
        node.start()
    scenario.sim.pause(6_000)
    for node in scenario.dead:
        assert node.host.own_membership.fenced_reason and node.host.status.state() == "removed"
        node.stop(power=False)


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
    if scenario.newest().groups.lost(scenario.newest().nodes.living):
        scenario.recover(*dead)
        scenario.until(scenario.recovered, "recovery completed in every group")
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
