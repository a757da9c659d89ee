"""Races that random seeds meet too rarely, each set up on purpose."""

from nodeagent.model import requests as q
from nodeagent.model.ids import META
from nodeagent.model.requests import OperationReply
from nodeagent.testing.disk import Fault
from nodeagent.testing.scenario import Scenario


def formed(seed: int) -> Scenario:
    scenario = Scenario(seed)
    scenario.form()
    scenario.schemas()
    for writer in scenario.writers:
        writer.start()
    scenario.sim.pause(1_500)
    return scenario


def test_an_old_meta_checkpoint_removes_no_group_at_a_start() -> None:
    """Groups made since the checkpoint hold acknowledged rows; the state of the checkpoint knows of none."""
    scenario = formed(1)
    newcomer = scenario.newcomers[0]
    for node in scenario.sim.nodes.values():
        if node.node != newcomer:  # it begins with a checkpoint of the meta group
            node.disk.faults += [Fault("rename", path=f"groups/{META}/", times=1 << 30)]
    scenario.sim.nodes[newcomer].start()
    operation = scenario.change("add-node", newcomer)
    scenario.finish(operation)
    for node in [n for n in scenario.sim.nodes.values() if n.alive]:
        before = set(node.host.data)
        node.stop(power=False)
        node.start()
        assert set(node.host.data) == before, node.node
    scenario.sim.pause(5_000)
    for node in scenario.sim.nodes.values():
        node.disk.faults.clear()
    scenario.quiet()
    scenario.read_everything()


def test_a_newcomer_that_missed_the_cancel_starts_afresh() -> None:
    """What a cancelled operation gave it lacks the files of sealed slots, which are open again."""
    scenario = formed(2)
    newcomer = scenario.newcomers[0]
    node = scenario.sim.nodes[newcomer]
    node.start()
    operation = scenario.change("add-node", newcomer)
    scenario.until(lambda: any(not r.state.slots.open for r in node.host.data.values()), "it has joined")
    others = [n for n in scenario.sim.nodes if n != newcomer]
    scenario.sim.faults.cut |= {(n, newcomer) for n in others}
    scenario.request(q.Steer(operation, "cancel", "sim"), OperationReply)
    scenario.until(lambda: scenario.stage(operation) in ("CANCELLED", "DONE"), "the cancel is over")
    scenario.sim.faults.heal()
    if scenario.stage(operation) == "CANCELLED":
        scenario.finish(scenario.change("add-node", newcomer))
    scenario.quiet()
    scenario.read_everything()
