"""Configurations change by one safe step at a time and reach their target from any start."""

import itertools

import pytest

from nodeagent.model.entries import Config
from nodeagent.raft.membership import check_step
from nodeagent.scaling.membership import Change, Transfer, group_step, meta_step


def walk(config: Config, joins: str | None, leaves: str | None, me: str) -> list[Config]:
    """Take steps until there is none; leadership transfers succeed."""
    seen = [config]
    for _ in range(10):
        step = group_step(
            config, joins, leaves, me=me, operation="op", caught_up=lambda _: True, may_leave=True
        )
        if step is None:
            return seen
        if isinstance(step, Transfer):
            assert step.target in config.voters and step.target != leaves
            me = step.target
            continue
        check_step(config, step.config)
        assert me in step.config.voters, "a leader never removes itself"
        config = step.config
        seen.append(config)
    raise AssertionError("the target is not reached")


MEMBERS = ("a", "b", "c")


@pytest.mark.parametrize("joins,leaves", list(itertools.product([None, "n"], [None, "a", "c"])))
@pytest.mark.parametrize("me", MEMBERS)
def test_a_group_reaches_its_target_by_single_steps_and_never_has_fewer_voters(
    joins: str | None, leaves: str | None, me: str
) -> None:
    seen = walk(Config(MEMBERS), joins, leaves, me)
    wanted = {*MEMBERS, *([joins] if joins else [])} - {leaves}
    assert set(seen[-1].voters) == wanted and not seen[-1].learners
    assert all(len(config.voters) >= min(3, len(wanted)) for config in seen)


def test_no_member_leaves_before_the_newcomer_votes_and_it_may_leave() -> None:
    """Each of the three conditions alone keeps the leaving member in the group."""
    for caught, may in itertools.product([True, False], repeat=2):
        config = Config((*MEMBERS, "n"))

        def caught_up(_: str, answer: bool = caught) -> bool:
            return answer

        step = group_step(config, "n", "c", me="a", operation="op", caught_up=caught_up, may_leave=may)
        assert (isinstance(step, Change) and "c" not in step.config.members) == (caught and may)
    learner = group_step(
        Config(MEMBERS, ("n",)), "n", "c", me="a", operation="op", caught_up=lambda _: False, may_leave=True
    )
    assert learner is None


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("voters_max", [1, 3, 5])
@pytest.mark.parametrize("leader", ["n0", "old"])
def test_the_meta_group_reaches_its_target_from_any_configuration(
    count: int, voters_max: int, leader: str
) -> None:
    """Every node is a member, as many as possible are voters, and the leaving node is not, whichever node
    leads."""
    nodes = {f"n{i}" for i in range(count)}
    for leaving in (None, "n0"):
        config, me = Config(("n0", "old"), ()), leader
        for _ in range(40):
            unfit = [leaving] if leaving else []
            step = meta_step(config, nodes, unfit, voters_max=voters_max, me=me, caught_up=lambda _: True)
            if step is None:
                break
            if isinstance(step, Transfer):
                me = step.target
                continue
            check_step(config, step.config)
            assert me in step.config.voters, "a leader never removes itself"
            config = step.config
        else:
            raise AssertionError("the target is not reached")
        assert set(config.members) == nodes
        if leaving and count > 1:
            assert leaving not in config.voters
        assert len(config.voters) <= max(1, voters_max)
