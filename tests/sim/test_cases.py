"""Races that random seeds meet too rarely, each set up on purpose."""

from nodeagent.model import requests as q
from nodeagent.model.ids import META
from nodeagent.model.requests import OperationReply
from nodeagent.testing.checks import check_converged
from nodeagent.testing.disk import Fault
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import CLIENT


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


def test_a_rebalance_that_moves_nothing_or_names_a_node_is_refused() -> None:
    """The meta leader checks what it is asked for; the cluster then goes on to carry out a good one."""
    scenario = formed(3)
    leader = next(n for n in scenario.sim.nodes.values() if n.alive and n.host.meta_replica.leads)  # type: ignore[union-attr]
    table = leader.host.meta.table
    assert table is not None
    first, second = table.ring.names[:2]
    own = table.slots_of(first)
    some = ((own[0][0], own[0][0] + 3),)
    version = table.version
    bad = {
        q.BeginChange("rebalance", "", "sim"): "invalid_input",
        q.BeginChange("rebalance", "", "sim", gains=((first, own),)): "invalid_input",
        q.BeginChange("rebalance", second, "sim", gains=((second, some),)): "invalid_input",
        q.BeginChange("rebalance", "", "sim", gains=(("nobody", some),)): "not_found",
        q.BeginChange("rebalance", "", "sim", gains=((second, ((0, 999),)),)): "invalid_input",
        q.BeginChange("rebalance", "", "sim", table_version=version + 1, gains=((second, some),)): "refused",
    }
    for request, code in bad.items():
        got: list[q.Reply] = []
        scenario.sim.call(CLIENT, leader.node, "admin", request, got.append)
        scenario.until(lambda got=got: bool(got), "an answer")  # type: ignore[misc]
        assert isinstance(got[0], q.ErrorReply) and got[0].code == code, (request, got)
    good = q.BeginChange("rebalance", "", "sim", table_version=version, gains=((second, some),))
    reply = scenario.request(good, OperationReply)
    assert isinstance(reply, OperationReply) and reply.operation.moves[0].slots == some
    scenario.finish(reply.operation.id)
    scenario.quiet()
    check_converged(scenario.sim)
    scenario.read_everything()
    newest = max((n.host.meta for n in scenario.sim.nodes.values() if n.alive), key=lambda m: m.applied)
    assert newest.table is not None and newest.table.route(some[0][0]) == second
