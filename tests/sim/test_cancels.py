"""Cancels at failpoints in the simulator; `make matrix` runs every case."""

import pytest

from nodeagent.model import requests as q
from nodeagent.model.requests import ErrorReply, OperationReply, Reply
from nodeagent.scaling.failpoints import POINTS
from nodeagent.testing.cancels import KINDS, WAYS, cases, run_case, state_of
from nodeagent.testing.parallel import whys
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import CLIENT
from tests.sim.spread import spread


@pytest.mark.long
@pytest.mark.parametrize("every", spread([35, 11]))
def test_a_spread_of_cancels_ends_in_the_old_or_the_new_state(every: int) -> None:
    chosen = [case for case in cases() if not case.skipped][::every]
    assert {c.kind for c in chosen} == set(KINDS) and {c.way for c in chosen} == set(WAYS)
    results = whys(run_case, [(case, 1) for case in chosen], 2)
    failed = [f"{case}: {why}" for case, why in zip(chosen, results, strict=True) if why]
    assert not failed, "\n".join(failed)


def test_a_duplicate_request_after_the_cancel_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seed 17 a duplicate of the first request, without a lock, arrived 1.2 s later and began a second
    change."""
    scenario = Scenario(17)
    scenario.begin(reads=False)
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    scenario.sim.pause(1_500)
    before = state_of(scenario)
    asked: list[q.Request] = []
    request = scenario.request

    def noted(what: q.Request, accept: type[Reply]) -> Reply:
        asked.append(what)
        return request(what, accept)

    monkeypatch.setattr(scenario, "request", noted)
    scenario.hold("after:SEALED")
    with scenario.locked():
        operation = scenario.change("add-node", newcomer)
    scenario.request(q.ControlOperation(operation, "cancel", "sim"), OperationReply)
    scenario.hold()
    assert not scenario.finish(operation, cancelled=True)
    (again,) = (r for r in asked if isinstance(r, q.BeginChange))
    got: list[Reply] = []
    nodes = [n.node for n in scenario.sim.nodes.values() if n.alive]
    for node in nodes:
        scenario.sim.call(CLIENT, node, again, got.append)
    scenario.until(lambda: len(got) == len(nodes), "every request is answered")
    assert any(isinstance(r, ErrorReply) and "is no longer held" in r.what for r in got), got
    assert [op.id for op in scenario.newest().image.operations] == [operation] and state_of(
        scenario
    ) == before


def test_an_operation_is_cancelled_at_every_failpoint_in_every_way() -> None:
    assert {(c.point, c.way) for c in cases() if not c.skipped} == {(p, w) for p in POINTS for w in WAYS}
