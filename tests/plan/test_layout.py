"""Zones and weights in ring order: a valid order is found, or the plan is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotctl.plan.apply import changes_of
from iotctl.plan.facts import ClusterFacts
from iotctl.plan.layout import (
    OVERLOAD,
    crowds,
    layout_violations,
    members_allowed,
    overload,
    places_apart,
    spread_order,
)
from iotctl.plan.make import make_add, make_remove, make_replace, make_spec
from iotctl.plan.model import Plan
from nodeagent.partition.ring import Ring, RingNode, initial_ring, place_between
from nodeagent.partition.table import PartitionTable, initial_table

from .cases import facts_of


def by_letter(names: Sequence[str]) -> dict[str, str]:
    """The zone of `a7` is `a`."""
    return {n: n[0] for n in names}


def ring_of(zones: str) -> Ring:
    """`abca` is a ring of a0, b1, c2, a3."""
    return initial_ring([f"{z}{i}" for i, z in enumerate(zones)])


@pytest.mark.parametrize(
    ("zones", "replicas", "overlaps"),
    [
        ("abcabc", 3, 0),
        ("abcab", 3, 2),  # b4 a0 b1, a3 b4 a0
        ("aabb", 3, 0),  # with two zones a group has two members in one zone
        ("aaab", 3, 1),
        ("aaa", 3, 0),  # a single zone cannot overlap
        ("aabbc", 5, 0),  # a quorum of 5 can lose two members
        ("aaabc", 5, 5),
        ("ab", 2, 0),
        ("aab", 2, 1),
    ],
)
def test_a_group_has_no_more_members_in_a_zone_than_its_quorum_can_lose(
    zones: str, replicas: int, overlaps: int
) -> None:
    ring = ring_of(zones)
    found = crowds(ring, by_letter(ring.names), replicas)
    assert len(found) == overlaps
    for overlap in found:
        members = ring.members(overlap.owner, replicas)
        assert set(overlap.nodes) <= set(members) and {n[0] for n in overlap.nodes} == {overlap.zone}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=7), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_a_new_ring_separates_zones_as_well_as_any_order(zones: list[str], replicas: int) -> None:
    names = [f"{z}{i}" for i, z in enumerate(zones)]
    found = spread_order(dict.fromkeys(names, 1.0), by_letter(names), replicas)
    assert sorted(found) == sorted(names)
    best = min(len(crowds(ring_of("".join(p)), _zones_of(p), replicas)) for p in set(permutations(zones)))
    assert len(crowds(initial_ring(found), by_letter(names), replicas)) == best


def _zones_of(order: Sequence[str]) -> dict[str, str]:
    return {f"{z}{i}": z for i, z in enumerate(order)}


def test_a_valid_order_stays() -> None:
    names = ["c1", "a1", "b1", "c2", "a2", "b2"]
    even = dict.fromkeys(names, 1.0)
    assert spread_order(even, by_letter(names), 3) == names
    assert spread_order(even, {}, 3) == names


@pytest.mark.parametrize("zones", ["aaaaabbbccddeef", "a" * 20 + "b" * 10 + "c" * 10 + "d" * 10 + "e" * 10])
def test_a_large_zone_is_spread_over_the_whole_ring(zones: str) -> None:
    names = [f"{z}{i}" for i, z in enumerate(zones)]
    found = spread_order(dict.fromkeys(names, 1.0), by_letter(names), 3)
    assert crowds(initial_ring(found), by_letter(names), 3) == []


def test_heavy_nodes_of_a_new_ring_are_not_adjacent() -> None:
    """If heavy nodes were adjacent, they would place too much on a light node."""
    weights = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 2.0, "f": 2.0}
    assert overload(initial_ring(list(weights), list(weights.values())), 3)[1] > OVERLOAD
    order = spread_order(weights, {}, 3)
    assert overload(initial_ring(order, [weights[n] for n in order]), 3)[1] <= OVERLOAD


@pytest.mark.parametrize("heavy", range(6))
def test_a_heavy_new_node_is_placed_apart_from_the_existing_heavy_node(heavy: int) -> None:
    ring = initial_ring([f"n{i}" for i in range(6)], [2.0 if i == heavy else 1.0 for i in range(6)])
    facts = ClusterFacts(initial_table(ring, 600), 3, {}, weights={"x": 2.0})
    plan = make_add(facts, ["x"])
    assert not plan.refusals, plan.refusals


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_one_node_of_each_zone_fits_into_a_ring_that_separates_zones(data: st.DataObject) -> None:
    """This holds for each of the allowed places that the bytes may choose."""
    zones = "abcd"[: data.draw(st.integers(3, 4))]
    ring = ring_of(zones * data.draw(st.integers(1, 3)))
    newcomers = [f"{z}new" for z in data.draw(st.permutations(zones))]
    everyone = by_letter([*ring.names, *newcomers])
    places = places_apart(everyone, dict.fromkeys(newcomers, 1.0), ring, (), 3)
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


def test_a_quorum_in_one_zone_is_refused_unless_the_same_plan_avoids_it() -> None:
    one, three, less, fewer = plans({"x": "a", "y": "b", "z": "c"}, 6)
    assert [r.code for r in one.refusals] == ["zones"] == [r.code for r in less.refusals]
    assert "of 7 groups would have too many members in one zone (0 today)" in one.refusals[0].reason
    assert "--accept-layout" in one.refusals[0].next and not one.steps
    assert not three.refusals and [s.node for s in three.steps] == ["z", "x", "y"]
    assert not fewer.refusals


def test_a_ring_that_is_no_worse_than_today_is_planned() -> None:
    """Five nodes cannot separate three zones: the sixth resolves that, and no earlier step is worse."""
    facts = replace(facts_of(5), zones={**{f"n{i + 1}": "abcab"[i] for i in range(5)}, "x": "c", "y": "a"})
    mended = make_add(facts, ["x"])
    assert not mended.refusals and mended.steps[0].after == "n5"
    assert not make_replace(facts, "n4", "y").refusals
    worse = make_replace(facts, "n3", "y")
    assert [r.code for r in worse.refusals] == ["zones"]


def test_a_refusal_names_an_overlap_that_today_does_not_have() -> None:
    """Today group a0 has a0 and a2 in zone a; d6 adds the overlap of group d4."""
    today, ring = ring_of("abacde"), ring_of("abacded")
    zones = by_letter(ring.names)
    assert [o.owner for o in crowds(ring, zones, 3)] == ["a0", "d4"]
    ((code, subject, why),) = layout_violations(ring, zones, 3, today)
    assert (code, subject) == ("zones", "d4")
    assert why.endswith("(1 today): d4 and d6 of group d4 are in zone d")


def spec_facts(ring: str, listed: Sequence[str]) -> ClusterFacts:
    """Facts as `spec_plan` makes them: a node in the ring that is not listed has no zone."""
    names = [f"{z}{ring[: i + 1].count(z)}" for i, z in enumerate(ring)]
    table = initial_table(initial_ring(names), 600)
    return ClusterFacts(table, 3, dict.fromkeys(range(600), 10), zones=by_letter(listed))


def test_each_replacement_takes_the_place_that_fits_its_zone() -> None:
    facts = spec_facts("abcabc", ["b9", "a9", "c1", "a2", "b2", "c2"])
    plan = make_spec(facts, ["b9", "a9"], ["a1", "b1"])
    assert not plan.refusals
    assert {s.replaces: s.node for s in plan.steps} == {"a1": "a9", "b1": "b9"}


def test_a_place_that_does_not_fit_the_zone_is_not_chosen() -> None:
    """Next to b1, b9 would give a group two members of one zone; elsewhere on the ring it would not."""
    facts = spec_facts("abcdef", ["b1", "c1", "d1", "e1", "f1", "b9"])
    plan = make_spec(facts, ["b9"], ["a1"])
    assert not plan.refusals and [s.kind for s in plan.steps] == ["add", "remove"]


def test_every_node_can_be_replaced_at_once() -> None:
    facts = spec_facts("abc", ["c7", "a7", "b7"])
    plan = make_spec(facts, ["c7", "a7", "b7"], ["a1", "b1", "c1"])
    assert not plan.refusals and [s.kind for s in plan.steps] == ["replace"] * 3
    heavier = replace(facts, weights=dict.fromkeys(["c7", "a7", "b7"], 2.0))
    plan = make_spec(heavier, ["c7", "a7", "b7"], ["a1", "b1", "c1"])
    assert not plan.refusals and [s.kind for s in plan.steps] == ["add"] * 3 + ["remove"] * 3


def test_a_removed_zone_does_not_make_a_zone_overlap_look_old() -> None:
    """c1 and its zone are deleted from the file: the remaining nodes are checked without them."""
    facts = spec_facts("abcabd", ["a1", "b1", "a2", "b2", "d1"])
    assert [r.code for r in make_spec(facts, [], ["c1"]).refusals] == ["zones"]
    assert make_spec(facts, [], ["c1"], accept_layout=True).steps


@pytest.mark.parametrize(
    ("comes", "goes", "weights"),
    [
        (["n5", "n6"], ["n4"], {}),
        (["n5"], ["n4"], {"n5": 2.0}),
        (["n5", "n6"], ["n4"], {"n5": 2.0}),
        (["n5"], ["n3", "n4"], {}),
        (["n5", "n6"], ["n1", "n2"], {"n6": 3.0}),
    ],
)
def test_a_plan_for_the_file_moves_no_slot_twice(
    comes: list[str], goes: list[str], weights: dict[str, float]
) -> None:
    """This includes a table that was balanced by bytes, in which counts differ much."""
    ring = initial_ring(["n1", "n2", "n3", "n4"])
    owners = np.repeat(np.arange(4), [3000, 3000, 3000, 1000]).astype(np.uint16)
    facts = ClusterFacts(PartitionTable(7, ring, owners), 2, {}, weights=weights)
    plan = make_spec(facts, comes, goes, accept_layout=True)
    assert plan.steps and len({m.slot for m in plan.moves}) == len(plan.moves)
    final = changes_of(plan, facts.table)[-1].new
    assert set(final.ring.names) == {"n1", "n2", "n3", "n4"} - {*goes} | {*comes}


def test_a_violating_plan_is_made_if_the_layout_is_accepted() -> None:
    facts = replace(facts_of(6), zones={f"n{i + 1}": "abc"[i % 3] for i in range(6)} | {"x": "a"})
    plan = make_add(facts, ["x"], accept_layout=True)
    assert not plan.refusals and plan.steps
    assert make_remove(facts, ["n2"], accept_layout=True).steps


def test_a_weight_that_the_neighbours_undo_is_refused() -> None:
    """Neighbours replicate the slots of a heavy node: next to a node of weight 6, nodes of weight 1 hold
    nearly as much."""
    assert overload(initial_ring([f"n{i}" for i in range(5)]), 3)[1] == 1.0
    assert overload(initial_ring(list("abcde"), [1, 1, 1, 1, 2]), 3)[1] == pytest.approx(4 / 3)
    some, much = (make_add(replace(facts_of(5), weights={"n6": w}), ["n6"]) for w in (2.0, 6.0))
    assert not some.refusals and some.steps[0].weight == 2.0
    assert [r.code for r in much.refusals] == ["weights"]
    assert "2.7 times its weight" in much.refusals[0].reason


def test_nodes_without_a_zone_cause_no_zone_overlap() -> None:
    ring = ring_of("abcxxx")
    zones = {n: n[0] for n in ring.names if n[0] != "x"}
    assert members_allowed(zones, ring.names, 3) == 1 and crowds(ring, zones, 3) == []
