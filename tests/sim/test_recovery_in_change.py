"""Data groups lose their majority permanently while a change is open: the change ends, and no slot is lost.

Six nodes, R = 3. Two members of a group that the change affects die. Before that, the third one is often cut
off, so that its log lacks the newest steps of the change.
"""

import pytest

from nodeagent.model import requests as q
from nodeagent.model.operation import Operation, Options, Stage
from nodeagent.testing.scenario import Scenario
from tests.sim.spread import spread
from tests.sim.test_cases import finish_all
from tests.sim.test_meta_recovery import come_back_fenced

STAGES = tuple(s for s in Stage if s is not Stage.CANCELLED)
KINDS = ("add-node", "remove-node", "rebalance", "replace-node")


def begin(scenario: Scenario, kind: str) -> str:
    sim = scenario.sim
    old = sim.rng.choice(sorted(set(sim.nodes) - set(scenario.newcomers)))
    if kind == "rebalance":
        return scenario.move_slots(0)
    if kind == "remove-node":
        return scenario.change(kind, old)
    newcomer = scenario.newcomers[0]
    sim.nodes[newcomer].start()
    sim.pause(300)
    return scenario.change(kind, newcomer, replaces=old if kind == "replace-node" else "")


def affected(scenario: Scenario, op: Operation) -> list[str]:
    """Groups in which the change does something, and which have three members."""
    members = scenario.newest().groups.members()
    names = {*op.losing, *op.gaining, *(c.group for c in op.changes)}
    return sorted(g for g in names if len(members.get(g, ())) == 3)


def meta_has_majority(scenario: Scenario) -> bool:
    """A voter that leaves while its successor is cut off leaves an even number of them."""
    alive = {n.node: n.host.cluster.meta_replica for n in scenario.sim.nodes.values() if n.alive}
    newest = max((r for r in alive.values() if r is not None), key=lambda r: r.raft.log.last_index)
    config = newest.raft.log.config
    return len(set(config.voters) & set(alive)) >= config.quorum


@pytest.mark.parametrize("seed", spread(range(64), 2))
def test_a_change_ends_after_groups_lost_their_majority(seed: int) -> None:
    scenario = Scenario(seed, nodes=6, replicas=3)
    scenario.begin(reads=False)
    sim, rng = scenario.sim, scenario.sim.rng
    sim.pause(1_500)
    operation = begin(scenario, KINDS[seed // len(STAGES) % len(KINDS)])
    stage = STAGES[seed % len(STAGES)]
    op = scenario.record(operation)
    assert op is not None
    group = rng.choice(affected(scenario, op))
    members = list(scenario.newest().groups.members()[group])
    survivor = rng.choice(members)
    cut_off = rng.random() < 0.7

    def is_at(wanted: Stage) -> bool:
        found = scenario.record(operation)
        return found is None or found.stage in (wanted, Stage.DONE, Stage.CANCELLED)

    if cut_off:
        before = STAGES[rng.randrange(STAGES.index(stage) % STAGES.index(Stage.CANCELLING) + 1)]
        sim.run(lambda: is_at(before), 20_000)
        sim.pause(rng.choice((0, rng.randint(0, 400))))
        sim.faults.cut |= {pair for n in sim.nodes for pair in ((survivor, n), (n, survivor))}
    if stage is Stage.CANCELLING:
        scenario.request(q.ControlOperation(operation, "cancel", "sim"), q.OperationReply)
    sim.run(lambda: is_at(stage), 6_000)  # the change may wait for the member that is cut off
    sim.pause(rng.choice((0, rng.randint(0, 500))))
    dead = tuple(n for n in members if n != survivor)
    scenario.die(*dead)
    sim.faults.heal()
    known = [n for n in dead if n in scenario.newest().image.nodes]
    # Other members voted, or `test_meta_recovery` tests the case: in both, the nodes return.
    if not scenario.recovery_leaders(*known) or not meta_has_majority(scenario):
        known = []
        scenario.dead.clear()
        for name in dead:
            sim.nodes[name].start()
    else:
        sim.note(f"{scenario.recover(*known)} acknowledged writes are lost")
    scenario.until(scenario.recovered, "recovery completed in every group")
    scenario.until(
        lambda: (now := scenario.record(operation)) is None or now.ended, "the change ends after the recovery"
    )
    if (now := scenario.record(operation)) is not None and now.stage is Stage.CANCELLED:
        scenario.history.forget_moves(operation)
    writes = scenario.history.writes
    scenario.until(lambda: scenario.history.writes > writes + 50, "writers continue")
    for name in known:
        if name in scenario.newest().image.nodes:
            scenario.finish(scenario.change("remove-node", name, Options(dead=True)))
    come_back_fenced(scenario, known)  # a node that had left before is told nothing, and serves nothing
    finish_all(scenario)
