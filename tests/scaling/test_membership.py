"""Configurations change by one safe step at a time and reach their target from any start."""

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from nodeagent.model.entries import Config
from nodeagent.raft.membership import check_step
from nodeagent.scaling.membership import Change, Transfer, group_step, meta_step, spread


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
            step = meta_step(config, nodes, unfit, {}, voters_max=voters_max, me=me, caught_up=lambda _: True)
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


ZONES = {"a": "x", "b": "x", "c": "x", "d": "y", "e": "y", "f": "z", "g": ""}


def votes_by_zone(voters: Iterable[str]) -> list[int]:
    counts = Counter(ZONES[v] for v in voters)
    return sorted(counts[zone] for zone in set(ZONES.values()))


@pytest.mark.parametrize("voters_max", [1, 3, 5])
def test_votes_move_until_they_are_spread_over_the_zones(voters_max: int) -> None:
    """From any voters, whichever of them leads: one change at a time, and never fewer voters than before."""
    nodes = [n for n, zone in ZONES.items() if zone]
    for voters in itertools.permutations(nodes, voters_max):
        me, learners = voters[-1], tuple(n for n in nodes if n not in voters)
        config = Config(voters, learners)
        for _ in range(2 * len(nodes)):
            step = meta_step(
                config, set(nodes), (), ZONES, voters_max=voters_max, me=me, caught_up=lambda _: True
            )
            if step is None:
                break
            assert isinstance(step, Change)
            check_step(config, step.config)
            assert me in step.config.voters and len(step.config.voters) in (voters_max, voters_max + 1)
            config = step.config
        else:
            raise AssertionError("votes keep moving")
        wanted = spread(nodes, ZONES, voters_max)
        assert votes_by_zone(config.voters) == votes_by_zone(wanted), (voters, config)


def test_a_lost_vote_goes_to_the_zone_with_the_fewest() -> None:
    config = Config(("a", "d", "e"), ("b", "f"))
    step = meta_step(config, set("abdef"), {"e"}, ZONES, voters_max=3, me="a", caught_up=lambda _: True)
    assert step == Change(Config(("a", "d", "e", "f"), ("b",)))
    then = meta_step(step.config, set("abdef"), {"e"}, ZONES, voters_max=3, me="a", caught_up=lambda _: True)
    assert then == Change(Config(("a", "d", "f"), ("b", "e")))
    lost = meta_step(
        Config(("a", "d"), ("b", "e")),
        set("abde"),
        {"d"},
        ZONES,
        voters_max=2,
        me="a",
        caught_up=lambda _: True,
    )
    assert lost == Change(Config(("a", "d", "e"), ("b",))), "the lost vote does not count for its zone"


@pytest.mark.parametrize("late", ["b", "f"])
def test_no_vote_moves_while_a_voter_or_the_learner_lags(late: str) -> None:
    """A majority of four voters, one of which is down, is harder to reach than one of three."""

    def step(config: Config) -> Any:
        return meta_step(config, set("abcf"), (), ZONES, voters_max=3, me="a", caught_up=lambda n: n != late)

    assert step(Config(("a", "b", "c"), ("f",))) is None


def test_the_newest_voter_does_not_lose_its_vote_because_it_lags() -> None:
    """In a hall that is further away, it always acknowledges last; votes moved there and back."""
    far = {"d", "e", "f"}
    config, seen = Config(("a", "b", "c"), ("d", "e", "f")), []
    zones = {n: "far" if n in far else "near" for n in "abcdef"}
    for turn in range(20):
        newest = config.voters[-1]

        def caught_up(n: str, newest: str = newest, is_next: bool = turn % 2 == 0) -> bool:
            return is_next or not (n == newest and n in far)

        step = meta_step(config, set(zones), (), zones, voters_max=3, me="a", caught_up=caught_up)
        if isinstance(step, Change):
            config = step.config
            seen.append(sorted(config.voters))
    assert seen == [["a", "b", "c", "d"], ["a", "c", "d"]]


def test_a_surplus_voter_that_lags_is_demoted_first_and_only_with_a_majority_left() -> None:
    voters = Config(("a", "b", "c", "f"))

    def step(late: str) -> Any:
        return meta_step(
            voters, set("abcf"), (), ZONES, voters_max=3, me="a", caught_up=lambda n: n not in late
        )

    assert step("c") == Change(Config(("a", "b", "f"), ("c",)))
    assert step("f") == step("") == Change(Config(("a", "c", "f"), ("b",)))
    assert step("bf") == Change(Config(("a", "c", "f"), ("b",)))
    assert step("bcf") is None


def test_no_vote_moves_to_a_node_whose_zone_is_unknown() -> None:
    """It may be in the same room. A lost vote goes there only if no known zone has as few votes."""
    zones = {"a": "x", "b": "x", "c": "x", "d": "y", "g": ""}

    def step(config: Config, unfit: str = "") -> Any:
        nodes = set(config.members)
        return meta_step(config, nodes, set(unfit), zones, voters_max=3, me="a", caught_up=lambda _: True)

    assert step(Config(("a", "b", "c"), ("g",))) is None
    assert step(Config(("a", "b", "c"), ("g", "d"))) == Change(Config(("a", "b", "c", "d"), ("g",)))
    assert step(Config(("a", "c"), ("g", "d"))) == Change(Config(("a", "c", "d"), ("g",)))
    assert step(Config(("g", "b", "c"), ("a",))) is None


def test_voters_without_zones_are_the_first_nodes() -> None:
    """Nodes of earlier releases know no zones, and all nodes must begin with the same voters."""
    nodes = [f"n{i}" for i in range(7)]
    assert spread(nodes, {}, 5) == tuple(nodes[:5])
    assert spread(nodes, dict.fromkeys(nodes, "x"), 5) == tuple(nodes[:5])
    assert spread(nodes, {"n0": "x", "n1": "x", "n2": "y"}, 3) == ("n0", "n2", "n3")
    assert spread(nodes[:2], {}, 5) == tuple(nodes[:2])


@pytest.mark.parametrize("zones", [{}, ZONES, dict.fromkeys("adfbc", "x")])
def test_a_settled_group_is_asked_about_no_node(zones: dict[str, str]) -> None:
    """The leader takes this step many times per second, and there may be a thousand learners."""

    def caught_up(node: str) -> bool:
        raise AssertionError(node)

    config = Config(("a", "d", "f"), ("b", "c"))
    assert meta_step(config, set("adfbc"), (), zones, voters_max=3, me="a", caught_up=caught_up) is None
