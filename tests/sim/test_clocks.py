"""Whole clusters whose wall clocks are wrong. A failure prints the command that replays it."""

import pytest

from nodeagent.model.files import ScanSpec
from nodeagent.model.ids import META
from nodeagent.model.operation import Options
from nodeagent.model.requests import ErrorReply, Reply, RowsScanned, ScanRows
from nodeagent.testing.clocks import DAY_MS, STALENESS_MS, ClockScenario, run
from nodeagent.testing.node import SimNode
from nodeagent.testing.parallel import whys
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import CLIENT, WALL_START_MS, WallClock
from nodeagent.testing.workload import TTL_MS, schema_of
from tests.sim.spread import spread
from tests.sim.test_cases import finish_all, formed
from tests.sim.test_operations import leaders


@pytest.mark.long
@pytest.mark.parametrize("seeds", spread([[1, 7], [3, 9, 11, 12]]))
def test_clocks_that_jump_lose_no_row_and_stop_no_operation(seeds: list[int]) -> None:
    """No row with a TTL expires before its true time, every operation ends while clocks jump, and delayed
    work is done once the clocks are correct."""
    failed = [why for why in whys(run, [(seed,) for seed in seeds], 2) if why]
    assert not failed, "\n\n".join(failed)


def test_a_cut_off_replica_refuses_bounded_reads_and_reports_its_age() -> None:
    """The replica still holds rows that were deleted in the meantime, and may return them until the bound.
    Then a bounded read is refused with the age, and a weak answer states it, whatever the wall clock
    shows."""
    scenario = ClockScenario(4)
    scenario.begin(reads=False)
    scenario.sim.pause(3_000)
    groups = leaders(scenario)
    group, leader = next((g, n) for g, n in sorted(groups.items()) if g != META)
    cut_off = next(n for n in alive(scenario) if group in n.host.replicas.data and n.node != leader)
    others = set(scenario.sim.nodes) - {cut_off.node}
    scenario.sim.faults.cut |= {(n, cut_off.node) for n in others} | {(cut_off.node, n) for n in others}
    cut_off.clock = WallClock(-60 * DAY_MS)
    cut_at = scenario.sim.now
    ages = {"mid": [], "weak": []}  # type: dict[str, list[int]]
    slots = sorted(cut_off.host.replicas.data[group].state.slots.open)

    def look(level: str) -> Reply:
        got: list[Reply] = []
        request = ScanRows(
            group, "root.g0", ScanSpec(schema_of("root.g0")), level, slots=((slots[0], slots[0] + 1),)
        )
        cut_off.serve(CLIENT, request, got.append)
        scenario.until(lambda: bool(got), "an answer")
        return got[0]

    for _ in range(12):
        for level in ages:
            reply = look(level)
            held_ms = scenario.sim.now - cut_at
            if isinstance(reply, ErrorReply):
                assert level == "mid" and reply.code == "unavailable" and held_ms >= STALENESS_MS // 2
                age = reply.details["age_ms"]
                assert isinstance(age, int) and age > STALENESS_MS and str(age) in reply.what
            else:
                assert isinstance(reply, RowsScanned)
                age = reply.age_ms
                assert level == "weak" or age <= STALENESS_MS
            assert age >= held_ms - 600
            ages[level].append(age)
        scenario.sim.pause(300)
    assert max(ages["weak"]) > 2 * STALENESS_MS and max(ages["mid"]) > STALENESS_MS
    cut_off.clock = WallClock()
    scenario.sim.faults.heal()

    def is_fresh() -> bool:
        reply = look("mid")
        return isinstance(reply, RowsScanned) and 0 <= reply.age_ms <= STALENESS_MS

    scenario.until(is_fresh, "it serves bounded reads again", 5_000)
    finish_all(scenario)


def alive(scenario: Scenario) -> list[SimNode]:
    return [n for n in scenario.sim.nodes.values() if n.alive]


def test_one_fast_clock_is_reported_and_expires_nothing() -> None:
    """A leader sixty days ahead deletes no row that is younger than its TTL, and the status says why."""
    scenario = formed(5)
    groups = leaders(scenario)
    wrong = scenario.sim.nodes[next(n for g, n in groups.items() if g != META)]
    wrong.clock = WallClock(60 * DAY_MS)
    for _ in range(20):
        scenario.sim.pause(TTL_MS // 10)
        oldest = WALL_START_MS + scenario.sim.now - TTL_MS
        replicas = [r for n in alive(scenario) for r in n.host.replicas.data.values()]
        cuts = [t for r in replicas for t in r.state.files.tombstones if t.expiry]
        assert all(t.time_to < oldest for t in cuts), cuts
    said = [n.host.status.of_node(scenario.sim.now, n.wall).clock_skew_ms for n in alive(scenario)]
    assert any(abs(s.get(wrong.node, 0) - 60 * DAY_MS) < TTL_MS for s in said), said
    wrong.clock = WallClock()
    scenario.sim.pause(TTL_MS)
    assert not any(n.host.peers.skewed for n in alive(scenario))
    finish_all(scenario)


@pytest.mark.long
def test_one_clock_ends_no_hold() -> None:
    """The previous copies are held as long as the operator requested, whatever the meta leader's clock
    shows."""
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
    assert scenario.stage(name) == "COPYING", "the hold does not follow one wrong clock"
    wrong.clock = WallClock(-60 * DAY_MS)
    scenario.sim.pause(1_000)
    assert scenario.stage(name) == "COPYING"
    wrong.clock = WallClock()
    scenario.finish(name)
    assert scenario.sim.now - since < 2 * hold_ms + 5_000
    finish_all(scenario)
