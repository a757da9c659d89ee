"""The voters of the meta group are spread over the zones, on whole simulated clusters."""

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from nodeagent.model import requests as q
from nodeagent.model.entries import Config
from nodeagent.model.ids import META
from nodeagent.model.requests import Accepted
from nodeagent.testing.builds import PREVIOUS
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario
from tests.sim.spread import spread

ZONES = {"node1": "a", "node2": "a", "node3": "a", "node4": "b", "node5": "c", "node6": "c"}
EVEN = {"a": 1, "b": 1, "c": 1}


def newest(scenario: Scenario) -> Config:
    """The configuration of the newest leader of the meta group; empty while nobody leads."""
    led = [r for n in scenario.sim.nodes.values() if n.alive for r in n.host.replicas if r.leads]
    metas = [r for r in led if r.group == META]
    return max(metas, key=lambda r: r.raft.term).raft.log.config if metas else Config()


def votes(scenario: Scenario) -> Counter[str]:
    """Zone -> voters."""
    return Counter(ZONES[v] for v in newest(scenario).voters)


def zoned_seeds(scenario: Scenario) -> None:
    for node in scenario.sim.nodes.values():
        seeds = tuple(msgspec.structs.replace(s, zone=ZONES[s.node]) for s in node.config.seeds)
        node.config = msgspec.structs.replace(node.config, seeds=seeds)


def zones(scenario: Scenario, node: str) -> dict[str, str]:
    return {n: r.zone for n, r in scenario.sim.nodes[node].host.cluster.meta.image.nodes.items()}


@pytest.mark.parametrize("seed", spread([1, 2, 3]))
def test_voters_move_to_other_zones_while_voters_crash(seed: int) -> None:
    """Writes continue, all nodes know the zones, and the votes are even after a restart of all nodes too."""
    scenario = Scenario(seed, nodes=6, meta_voters=3)
    scenario.begin(reads=False)
    assert votes(scenario) == {"a": 3}
    scenario.request(q.SetZones(ZONES, "sim"), Accepted)
    for name in scenario.sim.rng.sample(sorted(ZONES), 3):
        scenario.sim.pause(scenario.sim.rng.randint(1, 400))
        scenario.kill(name, 300, power=True)
    scenario.until(lambda: votes(scenario) == EVEN, "one vote per zone")
    scenario.until(lambda: all(zones(scenario, n) == ZONES for n in ZONES), "all nodes know the zones")
    for name in sorted(ZONES):
        scenario.kill(name, 100, power=True)
    scenario.until(lambda: votes(scenario) == EVEN, "one vote per zone after a restart")
    scenario.sim.pause(3_000)
    assert votes(scenario) == EVEN
    scenario.quiet()


@pytest.mark.parametrize("far_ms", [5, 20])
def test_votes_stay_in_a_zone_that_is_further_away(far_ms: int) -> None:
    """Its voter always acknowledges last. Once it lost its vote for that, the next one got it, and so on."""
    scenario = Scenario(1, nodes=6, meta_voters=3)
    sim = scenario.sim
    carry = sim.carry

    def slower(source: str, target: str, deliver: Callable[[SimNode], None]) -> None:
        is_far = (ZONES.get(source) == "c") != (ZONES.get(target) == "c")
        sim.at(far_ms if is_far else 0, lambda: carry(source, target, deliver))

    sim.carry = slower  # type: ignore[method-assign]  # one room is far away
    scenario.begin(reads=False)
    scenario.request(q.SetZones(ZONES, "sim"), Accepted)
    scenario.until(lambda: votes(scenario) == EVEN, "one vote per zone", 3_000)
    config = newest(scenario)
    sim.pause(3_000)
    assert newest(scenario) == config, "votes have moved since"


def test_a_cluster_of_the_first_level_begins_without_zones() -> None:
    """A node of the previous release would not store them."""
    scenario = Scenario(2, nodes=6, meta_voters=3)
    zoned_seeds(scenario)
    scenario.sim.nodes["node6"].build = PREVIOUS
    scenario.begin(reads=False)
    assert not any(zones(scenario, "node1").values())


def test_a_newcomer_in_a_zone_without_voters_gets_a_vote() -> None:
    scenario = Scenario(1, nodes=5, meta_voters=3)
    scenario.begin(reads=False)
    scenario.request(
        q.SetZones({n: z for n, z in ZONES.items() if n <= "node4"} | {"node5": "a"}, "sim"), Accepted
    )
    newcomer = scenario.newcomers[0]
    assert newcomer == "node6"
    scenario.sim.nodes[newcomer].start()
    incarnation = scenario.sim.nodes[newcomer].host.context.incarnation
    change = q.BeginChange(
        "add-node", newcomer, "sim", host=newcomer, port=1, http_port=2, incarnation=incarnation, zone="c"
    )
    scenario.request(change, q.OperationReply)
    scenario.until(lambda: votes(scenario) == EVEN, "one vote per zone")
    assert zones(scenario, "node1")[newcomer] == "c"


def test_a_new_cluster_begins_with_voters_in_all_zones() -> None:
    scenario = Scenario(2, nodes=6, meta_voters=3)
    zoned_seeds(scenario)
    scenario.begin(reads=False)
    assert votes(scenario) == EVEN and zones(scenario, "node6") == ZONES
