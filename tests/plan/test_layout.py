"""Zones and weights against ring order: what it can do is found, what it cannot is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotctl.plan.layout import crowds, members_allowed, overload, places_apart, spread_order
from iotctl.plan.make import make_add, make_remove, make_replace
from iotctl.plan.model import Plan
from nodeagent.partition.ring import Ring, RingNode, initial_ring, place_between
from nodeagent.partition.table import initial_table

from .cases import facts_of


def by_letter(names: Sequence[str]) -> dict[str, str]:
    """The zone of `a7` is `a`."""
    return {n: n[0] for n in names}


def ring_of(zones: str) -> Ring:
    """`abca` is a ring of a0, b1, c2, a3."""
    return initial_ring([f"{z}{i}" for i, z in enumerate(zones)])


@pytest.mark.parametrize(
    ("zones", "replicas", "crowded"),
    [
        ("abcabc", 3, 0),
        ("abcab", 3, 2),  # b4 a0 b1, a3 b4 a0
        ("aabb", 3, 0),  # two zones cannot do better than two and one
        ("aaab", 3, 1),
        ("aaa", 3, 0),  # one zone for all says nothing
        ("aabbc", 5, 0),  # a quorum of 5 does without two
        ("aaabc", 5, 5),
        ("ab", 2, 0),
        ("aab", 2, 1),
    ],
)
def test_a_group_has_no_more_members_in_a_zone_than_its_quorum_can_miss(
    zones: str, replicas: int, crowded: int
) -> None:
    ring = ring_of(zones)
    found = crowds(ring, by_letter(ring.names), replicas)
    assert len(found) == crowded
    for crowd in found:
        members = ring.members(crowd.header, replicas)
        assert set(crowd.nodes) <= set(members) and {n[0] for n in crowd.nodes} == {crowd.zone}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=7), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_a_new_ring_keeps_zones_apart_as_well_as_any_order(zones: list[str], replicas: int) -> None:
    names = [f"{z}{i}" for i, z in enumerate(zones)]
    found = spread_order(names, by_letter(names), replicas)
    assert sorted(found) == sorted(names)
    best = min(len(crowds(ring_of("".join(p)), _zones_of(p), replicas)) for p in set(permutations(zones)))
    assert len(crowds(initial_ring(found), by_letter(names), replicas)) == best


def _zones_of(order: Sequence[str]) -> dict[str, str]:
    return {f"{z}{i}": z for i, z in enumerate(order)}


def test_an_order_that_is_good_stays() -> None:
    names = ["c1", "a1", "b1", "c2", "a2", "b2"]
    assert spread_order(names, by_letter(names), 3) == names
    assert spread_order(names, {}, 3) == names


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_one_node_of_every_zone_fits_into_a_ring_that_keeps_them_apart(data: st.DataObject) -> None:
    """Whatever place the bytes decide for, as long as it is one of those allowed."""
    zones = "abcd"[: data.draw(st.integers(3, 4))]
    ring = ring_of(zones * data.draw(st.integers(1, 3)))
    newcomers = [f"{z}new" for z in data.draw(st.permutations(zones))]
    everyone = by_letter([*ring.names, *newcomers])
    places = places_apart(everyone, initial_table(ring, 60), newcomers, 3)
    for node in newcomers:
        place = data.draw(st.sampled_from(places(ring, node)))
        ring = ring.adding(RingNode(node, place_between(ring, place)))
    assert crowds(ring, everyone, 3) == []


def plans(zones: Mapping[str, str], n: int) -> Sequence[Plan]:
    """n1 ... of zones a b c a b c ...: (add one, add three, remove one, remove three)"""
    known = {f"n{i + 1}": "abc"[i % 3] for i in range(n)}
    facts = replace(facts_of(n), zones={**known, **zones})
    return (
        make_add(facts, ["x"]),
        make_add(facts, ["z", "x", "y"]),
        make_remove(facts, ["n2"]),
        make_remove(facts, ["n2", "n3", "n4"]),
    )


def test_what_would_put_a_quorum_into_one_zone_is_refused_unless_it_is_made_good_in_the_same_plan() -> None:
    one, three, less, fewer = plans({"x": "a", "y": "b", "z": "c"}, 6)
    assert [r.code for r in one.refusals] == ["zones"] == [r.code for r in less.refusals]
    assert "of 7 groups would have too many members in one zone (0 today)" in one.refusals[0].reason
    assert "--accept-layout" in one.refusals[0].next and not one.steps
    assert not three.refusals and [s.node for s in three.steps] == ["z", "x", "y"]
    assert not fewer.refusals


def test_a_ring_that_is_no_worse_than_today_is_planned() -> None:
    """Five nodes cannot keep three zones apart: the sixth mends it, and until then nothing is worse."""
    facts = replace(facts_of(5), zones={**{f"n{i + 1}": "abcab"[i] for i in range(5)}, "x": "c", "y": "a"})
    mended = make_add(facts, ["x"])
    assert not mended.refusals and mended.steps[0].after == "n5"
    assert not make_replace(facts, "n4", "y").refusals
    worse = make_replace(facts, "n3", "y")
    assert [r.code for r in worse.refusals] == ["zones"]


def test_a_plan_is_made_all_the_same_when_the_layout_is_accepted() -> None:
    facts = replace(facts_of(6), zones={f"n{i + 1}": "abc"[i % 3] for i in range(6)} | {"x": "a"})
    plan = make_add(facts, ["x"], accept_layout=True)
    assert not plan.refusals and plan.steps
    assert make_remove(facts, ["n2"], accept_layout=True).steps


def test_a_weight_that_the_neighbours_undo_is_refused() -> None:
    """Its neighbours keep its slots: next to a node of weight 6 those of weight 1 hold nearly as much."""
    assert overload(initial_ring([f"n{i}" for i in range(5)]), 3)[1] == 1.0
    assert overload(initial_ring(list("abcde"), [1, 1, 1, 1, 2]), 3)[1] == pytest.approx(4 / 3)
    some, much = (make_add(replace(facts_of(5), weights={"n6": w}), ["n6"]) for w in (2.0, 6.0))
    assert not some.refusals and some.steps[0].weight == 2.0
    assert [r.code for r in much.refusals] == ["weights"]
    assert "2.7 times what its weight says" in much.refusals[0].reason


def test_nodes_without_a_zone_are_in_none() -> None:
    ring = ring_of("abcxxx")
    zones = {n: n[0] for n in ring.names if n[0] != "x"}
    assert members_allowed(zones, ring.names, 3) == 1 and crowds(ring, zones, 3) == []
