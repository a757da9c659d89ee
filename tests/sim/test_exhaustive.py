"""Small scopes are explored completely, and the exploration visits every state."""

import pickle
from dataclasses import dataclass
from typing import Self

import pytest

from nodeagent.data.state import DataState
from nodeagent.model.entries import Config
from nodeagent.raft import candidate, quorum
from nodeagent.scaling import groups
from nodeagent.testing.exhaustive.explore import Broken, explore
from nodeagent.testing.exhaustive.fork import digest, fork
from nodeagent.testing.exhaustive.raft_group import RaftBounds
from nodeagent.testing.exhaustive.raft_member import BOUNDS
from nodeagent.testing.exhaustive.raft_world import RaftWorld
from nodeagent.testing.exhaustive.scopes import RAFT, Scope, chosen, through
from tests.sim.spread import SPREAD

QUICK = 12_000
"""Maximum number of steps of a scope that every test run explores."""


@pytest.mark.parametrize(
    "scope",
    [pytest.param(s, id=s.name, marks=[SPREAD] if s.steps > QUICK else []) for s in chosen(())],
)
def test_nothing_is_broken_in_any_order(scope: Scope) -> None:
    found = through(scope)
    assert found.complete and found.steps >= scope.steps // 2, "the scope has become much smaller"


@dataclass(frozen=True)
class Steps:
    """A walk through a grid to a corner. All paths to a place lead to the same state."""

    right: int
    up: int
    hole: tuple[int, int] | None = None

    def events(self) -> list[str]:
        return [e for e, left in (("right", self.right), ("up", self.up)) if left]

    def after(self, event: str) -> Self:
        step = type(self)(self.right - (event == "right"), self.up - (event == "up"), self.hole)
        assert (step.right, step.up) != self.hole, "fell"
        return step

    def rest(self) -> None:
        assert not (self.right or self.up), "stuck"

    def name(self) -> bytes:
        return b"%d %d" % (self.right, self.up)


def test_every_state_is_visited_once_and_every_order_counted() -> None:
    found = explore(Steps(3, 3))
    assert (found.states, found.steps, found.orders, found.longest) == (16, 24, 20, 6) and found.complete


def test_a_broken_invariant_is_reported_with_its_events() -> None:
    with pytest.raises(Broken, match="fell") as caught:
        explore(Steps(2, 2, hole=(0, 1)))
    assert sorted(caught.value.events) == ["right", "right", "up"]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value), "workers send it pickled"


def test_an_operation_that_does_not_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_release", lambda op, look: [])
    with pytest.raises(Broken, match="L2: op-1 stays in CLEANUP"):
        through(next(s for s in chosen(["slots, under a writer"])))


def test_an_incomplete_exploration_is_reported() -> None:
    found = explore(Steps(3, 3), steps_max=5)
    assert not found.complete and found.steps == 5


@pytest.mark.parametrize(
    "where, name, what, broken",
    [
        (candidate, "is_up_to_date", lambda state, request: True, "S3"),
        (quorum, "majority_value", max, "S6"),
    ],
)
def test_a_bug_in_consensus_is_found(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, what: object, broken: str
) -> None:
    monkeypatch.setattr(where, name, what)
    monkeypatch.setattr("nodeagent.raft.leader.majority_value", quorum.majority_value)
    with pytest.raises(Broken, match=broken):
        through(RAFT[0])


@SPREAD
def test_a_bug_in_slot_migration_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members serve as sources before they have applied the seal: a copy may lack entries just before it.
    Then either the copies disagree and no member adopts them, or all copies lack the same rows."""
    monkeypatch.setattr(DataState, "is_source_ready", lambda state, operation: True)
    with pytest.raises(Broken, match="S10: rows of slot 0|L2: op-1 stays in COPYING"):
        through(next(s for s in chosen(["members lag under a writer"])))


def test_a_copy_of_a_replica_is_independent() -> None:
    world = RaftWorld(Config(("a", "b", "c")), RaftBounds()).begun("elect a b; settle a b c")
    raft = world.nodes["a"].raft
    before = digest(raft, raft.clock, BOUNDS)
    copied = fork(raft)
    assert digest(copied, copied.clock, BOUNDS) == before
    copied.propose([b"x"], copied.clock)
    copied.take()
    assert digest(raft, raft.clock, BOUNDS) == before != digest(copied, copied.clock, BOUNDS)
    assert copied._lead.state is copied, "a part of the copy refers to the original"
