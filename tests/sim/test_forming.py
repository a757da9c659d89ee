"""The seeds of a new cluster restart with an edited node.yaml while the cluster forms."""

import msgspec
import pytest

from nodeagent.host.admission import first_config
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario
from tests.sim.spread import spread

SEEDS = [f"node{i}" for i in range(1, 7)]


def turn(node: SimNode) -> None:
    """Edit the seeds: the same ones in another order, of which other voters come first."""
    seeds = node.config.seeds
    node.config = msgspec.structs.replace(node.config, seeds=seeds[3:] + seeds[:3])


def clusters(scenario: Scenario) -> set[str]:
    return {n.host.cluster.id for n in scenario.sim.nodes.values() if n.alive} - {""}


def restart_and_edit(scenario: Scenario) -> set[str]:
    """Give all or a few seeds one order and restart them; returns the clusters that exist in between. An
    election takes 500 ms, so that many restarts find replicas of a cluster that does not exist yet."""
    rng, sim = scenario.sim.rng, scenario.sim
    first = rng.choice(["node1", "node4"])
    for name in SEEDS if rng.random() < 0.6 else rng.sample(SEEDS, rng.randint(1, 5)):
        node = sim.nodes[name]
        node.stop(power=True)
        if node.config.seeds[0].node != first:
            turn(node)
        sim.at(rng.randint(1, 400), node.start)
    if rng.random() < 0.3:
        scenario.cut(SEEDS)
    sim.pause(400)
    found: set[str] = set()
    for _ in range(rng.randint(1, 12)):
        sim.pause(100)
        found |= clusters(scenario)
    return found


@pytest.mark.parametrize("seed", spread(range(1, 41), 10))
def test_seeds_form_one_cluster_at_most(seed: int) -> None:
    """Each half of the seeds could vote for a cluster of its own: in one order the first three vote, in the
    other the last three. Once all files have the order with which seeds began, the cluster forms."""
    scenario = Scenario(seed, nodes=6, meta_voters=3)
    sim, found = scenario.sim, set[str]()
    for name in SEEDS:
        if sim.rng.random() < 0.3:
            turn(sim.nodes[name])
        sim.nodes[name].start()
    sim.pause(sim.rng.randint(1, 700))
    for _ in range(6):
        found |= restart_and_edit(scenario)
        assert len(found) <= 1, found
    scenario.heal()
    sim.pause(5_000)
    found |= clusters(scenario)
    assert len(found) <= 1, found
    replicas = [r for n in SEEDS if (r := sim.nodes[n].host.cluster.meta_replica) is not None]
    orders = {r.raft.log.base.config.voters for r in replicas}
    assert len(orders) <= 1, orders
    for name in SEEDS:
        node = sim.nodes[name]
        if first_config(node.config).voters not in (orders or {("node1", "node2", "node3")}):
            turn(node)
        node.stop(power=True)
        node.start()
    scenario.until(lambda: all(sim.nodes[n].host.cluster.id for n in SEEDS), "the cluster forms")
    assert len(found | clusters(scenario)) == 1


def test_a_seed_that_restarts_with_other_voters_waits_for_its_old_file() -> None:
    """Its replica begins with the voters of the old file; the new file names others."""
    scenario = Scenario(1, nodes=6, meta_voters=3)
    sim, edited = scenario.sim, scenario.sim.nodes["node1"]
    for name in SEEDS:
        sim.nodes[name].start()
    scenario.until(lambda: edited.host.cluster.meta_replica is not None, "node1 creates its replica")
    for name in SEEDS:
        sim.nodes[name].stop(power=True)
    turn(edited)
    for name in SEEDS:
        sim.nodes[name].start()
    sim.pause(3_000)
    assert "this directory began a cluster" in edited.host.admission.refused
    assert not clusters(scenario)
    edited.stop(power=True)
    turn(edited)
    edited.start()
    scenario.until(lambda: all(sim.nodes[n].host.cluster.id for n in SEEDS), "the cluster forms")


def test_the_first_configuration_is_not_the_present_one() -> None:
    """A seed that creates its replica after a change of the voters must begin like the others: with members
    that its log does not name yet, it could take part in two majorities."""
    scenario = Scenario(1, nodes=6, meta_voters=3)
    sim = scenario.sim
    scenario.form()
    host = sim.nodes["node2"].host
    begun = host.cluster.first_config
    assert begun is not None and begun.voters == ("node1", "node2", "node3")
    replica = host.cluster.meta_replica
    assert replica is not None
    scenario.change("remove-node", "node1")
    scenario.until(lambda: "node1" not in replica.raft.log.config.voters, "another node gets the vote")
    assert host.cluster.first_config == begun
