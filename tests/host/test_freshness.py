"""The age of a replica's state, by the monotonic time of the question alone."""

from collections.abc import Callable

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.freshness import ASK_AGAIN_MS, Freshness


class Replica:
    """A replica whose leader answers when a test says so."""

    def __init__(self) -> None:
        self.effects = EffectQueue(1_000, 0)
        self.seen = 10
        self.asked: list[tuple[Callable[[], None], Callable[[str], None]]] = []
        self.freshness = Freshness(self.effects, lambda *calls: self.asked.append(calls), lambda: self.seen)
        self.said: list[object] = []

    def within(self, bound_ms: int) -> None:
        self.freshness.within(bound_ms, lambda: self.said.append("ok"), self.said.append)


def test_the_age_counts_from_the_question() -> None:
    """A slow answer proves nothing about the time after the question."""
    r = Replica()
    assert r.freshness.age_ms == -1
    r.freshness.refresh(100)
    r.effects.now += 70
    r.asked.pop()[0]()
    assert r.freshness.age_ms == 70
    r.effects.now += 30
    assert r.freshness.age_ms == 100


def test_one_question_is_open_at_a_time_and_is_not_repeated_at_once() -> None:
    r = Replica()
    for _ in range(3):
        r.freshness.refresh(100)
        r.within(50)
    assert len(r.asked) == 1
    r.asked.pop()[1]("no leader")
    assert r.said == [-1, -1, -1]
    r.freshness.refresh(100)
    assert not r.asked
    r.effects.now += ASK_AGAIN_MS
    r.freshness.refresh(100)
    assert len(r.asked) == 1


def test_waiting_requests_are_judged_by_the_age_after_the_answer() -> None:
    """A state within the bound is used at once, another after a question; a later answer is too old."""
    r = Replica()
    r.within(50)
    r.effects.now += 50
    r.asked.pop()[0]()
    r.within(50)
    assert r.said == ["ok", "ok"] and not r.asked
    r.effects.now += 1
    r.within(50)
    r.effects.now += 51
    r.asked.pop()[0]()
    assert r.said == ["ok", "ok", 51]


def test_an_older_installed_state_has_no_confirmed_age() -> None:
    """A snapshot may be older than the replaced state: until the log is applied again the age is unknown."""
    r = Replica()
    r.freshness.refresh(100)
    r.asked.pop()[0]()
    r.seen = 9
    assert r.freshness.age_ms == -1
    r.seen = 10
    assert r.freshness.age_ms == 0
