"""Whole clusters whose wall clocks are wrong. A failure prints the command that replays it."""

from nodeagent.model.ids import META
from nodeagent.model.operation import Options
from nodeagent.testing.clocks import DAY_MS, run
from nodeagent.testing.parallel import whys
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import WALL_START_MS, SimNode, WallClock
from nodeagent.testing.workload import TTL_MS
from tests.sim.test_cases import finish_all, formed
from tests.sim.test_steering import leaders

SEEDS = (1, 3, 7, 9, 11, 12)


def test_clocks_that_jump_lose_no_row_and_stop_no_operation() -> None:
    """No row under a TTL goes before its true time, every operation ends while clocks go on jumping, and what
    was put off comes to pass when they are right again."""
    failed = [why for why in whys(run, [(seed,) for seed in SEEDS], 2) if why]
    assert not failed, "\n\n".join(failed)


def alive(scenario: Scenario) -> list[SimNode]:
    return [n for n in scenario.sim.nodes.values() if n.alive]


def test_one_clock_ahead_is_named_and_expires_nothing() -> None:
    """A leader sixty days ahead deletes no row that is younger than its TTL, and the status says why."""
    scenario = formed(5)
    groups = leaders(scenario)
    wrong = scenario.sim.nodes[next(n for g, n in groups.items() if g != META)]
    wrong.clock = WallClock(60 * DAY_MS)
    for _ in range(20):
        scenario.sim.pause(TTL_MS // 10)
        oldest = WALL_START_MS + scenario.sim.now - TTL_MS
        replicas = [r for n in alive(scenario) for r in n.host.data.values()]
        cuts = [t for r in replicas for t in r.state.tombstones if t.expiry]
        assert all(t.time_to < oldest for t in cuts), cuts
    said = [n.host.node_status(scenario.sim.now, n.wall).clock_skew_ms for n in alive(scenario)]
    assert any(abs(s.get(wrong.node, 0) - 60 * DAY_MS) < TTL_MS for s in said), said
    wrong.clock = WallClock()
    scenario.sim.pause(TTL_MS)
    assert not any(n.host.skewed for n in alive(scenario))
    finish_all(scenario)


def test_one_clock_ends_no_hold() -> None:
    """The previous copies stay as long as the operator asked, whatever the meta leader's clock says."""
    hold_ms = 20_000
    scenario = formed(6)
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    name = scenario.change("add-node", newcomer, Options(hold_release_ms=hold_ms))

    def is_held() -> bool:
        record = scenario.record(name)
        return record is not None and record.held_since_ms > 0

    scenario.until(is_held, "it is held")
    since = scenario.sim.now
    wrong = scenario.sim.nodes[leaders(scenario)[META]]
    wrong.clock = WallClock(60 * DAY_MS)
    scenario.sim.pause(2 * hold_ms)
    assert scenario.stage(name) == "MOVING", "it waits for the clocks too"
    wrong.clock = WallClock(-60 * DAY_MS)
    scenario.sim.pause(1_000)
    assert scenario.stage(name) == "MOVING"
    wrong.clock = WallClock()
    scenario.finish(name)
    assert scenario.sim.now - since < 2 * hold_ms + 5_000
    finish_all(scenario)
