"""The time that the voters' clocks agree on, and what waits while they disagree."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodeagent.host.clocks import Clocks
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.failpoints import Failpoints
from nodeagent.host.meta_steps import MetaSteps
from nodeagent.model.limits import CLOCK_SKEW_MAX_MS
from tests.host.test_host import leads_alone

VOTERS = ("a", "b", "c")
HEARD_MS = 5_000
DAYS = 60 * 86_400_000


def clocks(wall: int = 1_000_000) -> Clocks:
    """The clocks as node a records them; its own shows `wall`."""
    return Clocks("a", EffectQueue(0, wall), HEARD_MS)


def test_no_time_has_passed_before_a_majority_was_heard() -> None:
    """One clock alone expires no row."""
    c = clocks()
    assert c.passed(VOTERS) is None and c.skewed(VOTERS) == {}
    c.heard("b", 1_000_000)
    assert c.passed(VOTERS) == 1_000_000
    assert clocks().passed(("a",)) == 1_000_000, "a group of one has one clock"
    assert clocks().passed(("a", "b")) is None, "half is no majority"


def test_the_slowest_clock_heard_decides_which_time_has_passed() -> None:
    """Rows expire only if they are old by every clock that was heard."""
    c = clocks(1_004_000)
    c.heard("b", 1_003_000)
    c.heard("c", 1_000_000)
    assert c.passed(VOTERS) == 1_000_000


def test_a_single_wrong_clock_expires_nothing_and_is_named() -> None:
    """The clock may be ahead or behind, and may be the leader's own; records use the other clocks."""
    for wrong in (DAYS, -DAYS, CLOCK_SKEW_MAX_MS + 1):
        for node in VOTERS:
            c = clocks(1_000_000 + wrong * (node == "a"))
            c.heard("b", 1_000_000 + wrong * (node == "b"))
            c.heard("c", 1_000_000 + wrong * (node == "c"))
            assert c.passed(VOTERS) is None
            assert c.skewed(VOTERS) == {node: wrong}
            assert c.record(VOTERS) == 1_000_000
    c = clocks(1_000_000 + CLOCK_SKEW_MAX_MS)
    c.heard("b", 1_000_000)
    assert c.passed(VOTERS) == 1_000_000, "within the bound"


def test_a_clock_that_is_not_heard_lately_does_not_count() -> None:
    """A clock reading is advanced by the monotonic time since then. A peer that no longer sends is not
    counted."""
    c = clocks()
    c.heard("b", 1_000_000)
    c._effects.now, c._effects.wall = HEARD_MS, 1_000_000 + HEARD_MS
    assert c.passed(VOTERS) == 1_000_000 + HEARD_MS
    c._effects.now += 1
    assert c.passed(VOTERS) is None and c.record(VOTERS) == c._effects.wall


def test_a_leader_s_own_clock_neither_dates_records_nor_ends_a_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader uses the time on which the voters' clocks agree, and waits while there is none."""
    host = leads_alone()
    host.effects.wall = 1_000 + DAYS
    monkeypatch.setattr(host.context.clocks, "record", lambda voters: 1_000)
    assert host.cluster.record_now == 1_000
    over: list[object] = []
    reports = cast(Any, SimpleNamespace(report=over.append))
    steps = MetaSteps(host.context, host.cluster, host.leadership, reports, Failpoints())
    leads = host.cluster.meta_replica
    assert leads is not None
    held = SimpleNamespace(
        id="op-1", is_held=True, held_since_ms=1_000, options=SimpleNamespace(hold_release_ms=10)
    )
    for passed in (None, 1_009):
        monkeypatch.setattr(host.context.clocks, "passed", lambda voters, passed=passed: passed)
        steps._watch_hold(leads, cast(Any, held))
        assert not over
    monkeypatch.setattr(host.context.clocks, "passed", lambda voters: 1_010)
    steps._watch_hold(leads, cast(Any, held))
    assert len(over) == 1
