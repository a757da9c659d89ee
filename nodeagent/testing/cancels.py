"""Cancel every kind of change at every failpoint, in the simulator.

`python -m nodeagent.testing.cancels [SEEDS [FIRST [COUNT]]]` prints the table of cases with their results,
and exits with 1 if a case failed. Up to SEALED a cancel must restore exactly the old state; later it is
refused and the change must reach exactly the new state. In both cases L4 holds on every disk, and a cancel
after the end changes nothing.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from nodeagent.model import requests as q
from nodeagent.model.ids import owner_of
from nodeagent.model.operation import Operation
from nodeagent.model.requests import ErrorReply, OperationReply, Reply
from nodeagent.partition.ranges import to_slots
from nodeagent.scaling.failpoints import POINTS
from nodeagent.testing.checks import check_clean, check_converged
from nodeagent.testing.machine import CLEAN_MS
from nodeagent.testing.matrix import OLD, main, stage_at
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import CLIENT, LATE_MS

KINDS = ("add-node", "remove-node", "replace-node", "rebalance")
WAYS = ("plain", "paused", "at once by three", "newcomer killed")
HELD_MS, BACK_MS = 1_000, 4_000
CANCELLABLE = ("PLANNED", "SEALED")


@dataclass(frozen=True, slots=True)
class Cancel:
    kind: str
    point: str
    way: str

    def __str__(self) -> str:
        return f"{self.kind:13} {self.point:15} {self.way:17}"

    @property
    def skipped(self) -> str:
        """Why the case cannot run; "" if it can."""
        if self.way == "newcomer killed" and self.kind in ("remove-node", "rebalance"):
            return "no node joins"
        if self.point in ("after:PLANNED", "before:SEALED") and self.kind in ("remove-node", "rebalance"):
            return "the change enters SEALED with its first entry"
        if self.point in ("after:RECONFIGURING", "before:COPYING") and self.kind == "rebalance":
            return "no group changes members: the change goes from OPEN directly to COPYING"
        return ""


def cases() -> Iterator[Cancel]:
    for kind in KINDS:
        for point in POINTS:
            for way in WAYS:
                yield Cancel(kind, point, way)


def run_case(case: Cancel, seed: int) -> None:
    """Raises `AssertionError` if the final state is neither the old nor the new one, or files are left."""
    scenario = Scenario(seed)
    scenario.begin()
    scenario.sim.pause(1_500)
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    if case.kind == "remove-node":
        scenario.finish(scenario.change("add-node", newcomer))
    scenario.sim.faults.duplicate = 0.2
    before = state_of(scenario)
    scenario.hold(case.point)
    with scenario.locked():
        operation = _begin(scenario, case.kind)
    stage = stage_at(case.point)
    scenario.until(lambda: scenario.stage(operation) == stage, f"{case.point} is reached")
    scenario.sim.pause(HELD_MS)
    record = scenario.record(operation)
    assert record is not None and record.stage.name == stage, f"{case.point} is not held: {record}"
    reply = _cancel(scenario, case, operation)
    if stage in CANCELLABLE:
        assert isinstance(reply, OperationReply), f"the cancel is refused in {stage}: {reply}"
    else:
        assert isinstance(reply, ErrorReply) and "slots may be open in their new groups" in reply.what, reply
    scenario.hold()
    done = scenario.finish(operation, cancelled=True)
    assert done != (stage in CANCELLABLE), f"cancelled in {stage}, it ended in {scenario.stage(operation)}"
    late = scenario.request(q.ControlOperation(operation, "cancel", "sim"), OperationReply)
    if done:
        assert isinstance(late, ErrorReply) and "has ended" in late.what, late
    else:  # like a retry after a lost reply
        assert isinstance(late, OperationReply), late
        ended = scenario.record(operation)
        assert ended is not None and [s.name for s in ended.stages].count("CANCELLING") == 1, ended
    if done and record.leaving is not None:
        scenario.sim.nodes[record.leaving].stop(power=False)
    scenario.quiet()
    scenario.sim.pause(CLEAN_MS)
    check_converged(scenario.sim)
    check_clean(scenario.sim)
    if done:
        _check_new(scenario, record)
    else:
        after = state_of(scenario)
        assert after == before, f"the cancel did not restore the old state: {before} {after}"
    scenario.read_everything()


def state_of(scenario: Scenario) -> str:
    """What a cancelled change must restore: tables, groups, nodes, and retired incarnations."""
    image = scenario.newest().image
    return msgspec.json.encode(
        (image.table, image.next_table, image.groups, image.nodes, image.retired)
    ).decode()


def _check_new(scenario: Scenario, record: Operation) -> None:
    table = scenario.newest().placement.table
    assert table is not None
    owners = {(slot, owner_of(m.target)) for m in record.moves for slot in to_slots(m.slots)}
    wrong = [(slot, owner) for slot, owner in owners if table.route(slot) != owner]
    assert not wrong and table.version >= record.table_version, wrong
    names = set(table.ring.names)
    assert record.leaving not in names and (record.joining is None or record.joining in names)


def _begin(scenario: Scenario, kind: str) -> str:
    newcomer = scenario.newcomers[0]
    match kind:
        case "remove-node":
            return scenario.change(kind, OLD)
        case "replace-node":
            return scenario.change(kind, newcomer, replaces=OLD)
        case "rebalance":
            return scenario.move_slots()
        case _:
            return scenario.change(kind, newcomer)


def _cancel(scenario: Scenario, case: Cancel, operation: str) -> Reply:
    """Cancel as the case says; returns the reply to the first cancel that was decided."""
    cancel = q.ControlOperation(operation, "cancel", "sim")
    match case.way:
        case "paused":
            scenario.request(q.ControlOperation(operation, "pause", "sim"), OperationReply)
            reply = scenario.request(cancel, OperationReply)
            scenario.sim.pause(2 * LATE_MS)  # else a duplicate of the pause may arrive after the resume
            scenario.request(q.ControlOperation(operation, "resume", "sim"), OperationReply)
            return reply
        case "at once by three":
            nodes = [n.node for n in scenario.sim.nodes.values() if n.alive]
            got: list[Reply] = []
            for _ in range(3):
                for node in nodes:
                    scenario.sim.call(CLIENT, node, cancel, got.append)
            scenario.until(lambda: len(got) == 3 * len(nodes), "every cancel is answered")
            decided = [r for r in got if getattr(r, "code", "") not in ("not_leader", "unavailable")]
            assert len({type(r) for r in decided}) == 1, f"different replies to one decision: {decided}"
            return decided[0]
        case "newcomer killed":
            scenario.kill(scenario.newcomers[0], BACK_MS, power=True)
            return scenario.request(cancel, OperationReply)
        case _:
            return scenario.request(cancel, OperationReply)


if __name__ == "__main__":
    sys.exit(main(cases(), run_case))
