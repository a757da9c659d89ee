"""Changes: member lists, the four rules, and planning for a target table."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.model.errors import InvalidInput, NotFound, Refused
from nodeagent.partition import change as ch
from nodeagent.partition.balance import lower_bound_slots, spread
from nodeagent.partition.cost import bytes_array, copy_cost, node_bytes, placement_bytes
from nodeagent.partition.planner import plan_add, plan_adds, plan_rebalance, plan_remove, plan_removes
from nodeagent.partition.ranges import count
from nodeagent.partition.ring import Ring, RingNode, initial_ring, place_between
from nodeagent.partition.table import PartitionTable, initial_table

FIVE = ["n1", "n2", "n3", "n4", "n5"]


def table_of(n: int, slots: int = 100) -> PartitionTable:
    return initial_table(initial_ring([f"n{i + 1}" for i in range(n)]), slots)


def lists(groups: list[ch.MemberChange]) -> dict[str, tuple[str, str]]:
    return {g.group: ("".join(n[1] for n in g.before), "".join(n[1] for n in g.after)) for g in groups}


def test_add_6_after_2() -> None:
    """{1,2,3} -> {1,2,6}; {2,3,4} -> {2,6,3}; new {6,3,4}; others unchanged."""
    ring = initial_ring(FIVE)
    new = ring.adding(RingNode("n6", place_between(ring, "n2")))
    groups = ch.group_changes(ring, new, 3)
    assert lists(groups) == {"n1": ("123", "126"), "n2": ("234", "263"), "n6": ("", "634")}
    assert [(g.joins, g.leaves) for g in groups[:2]] == [(("n6",), ("n3",)), (("n6",), ("n4",))]


def test_remove_3() -> None:
    """{3,4,5} is dissolved; {1,2,3} -> {1,2,4}; {2,3,4} -> {2,4,5}; others unchanged."""
    ring = initial_ring(FIVE)
    groups = ch.group_changes(ring, ring.removing("n3"), 3)
    assert lists(groups) == {"n1": ("123", "124"), "n2": ("234", "245"), "n3": ("345", "")}
    assert groups[-1].is_dissolved


def test_groups_grow_while_there_are_fewer_nodes_than_replicas() -> None:
    """With R = 3 the third node joins both groups and no node leaves."""
    ring = initial_ring(["n1", "n2"])
    new = ring.adding(RingNode("n3", place_between(ring, "n1")))
    assert lists(ch.group_changes(ring, new, 3)) == {
        "n1": ("12", "132"),
        "n2": ("21", "213"),
        "n3": ("", "321"),
    }


def test_pre_and_formal_add_by_example() -> None:
    """Pre adds (R + 1 members for a while), formal drops the last, a group outside the span is left alone."""
    ring = initial_ring(FIVE)
    new = ring.adding(RingNode("n6", place_between(ring, "n2")))
    assert ch.pre_add(("n1", "n2", "n3"), "n6", new, 3) == ("n1", "n2", "n6", "n3")
    assert ch.formal_add(("n1", "n2", "n3"), "n6", new, 3) == ("n1", "n2", "n6")
    assert ch.pre_add(("n3", "n4", "n5"), "n6", new, 3) == ("n3", "n4", "n5")


def test_pre_and_formal_remove_by_example() -> None:
    """Pre appends the replacement, formal removes the leaving node; the group that it owns does not
    change."""
    new = initial_ring(FIVE).removing("n3")
    assert ch.pre_remove(("n2", "n3", "n4"), "n3", new, 3) == ("n2", "n3", "n4", "n5")
    assert ch.formal_remove(("n2", "n3", "n4"), "n3", new, 3) == ("n2", "n4", "n5")
    assert ch.formal_remove(("n3", "n4", "n5"), "n3", new, 3) == ("n3", "n4", "n5")


@given(
    st.integers(1, 8),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 7),
    st.lists(st.booleans(), max_size=6),
)
@settings(max_examples=200, deadline=None)
def test_repeated_rules_in_any_order_give_the_members_of_the_new_ring(
    n: int, replicas: int, add: bool, at: int, steps: list[bool]
) -> None:
    """Any sequence of pre and formal rules that contains one formal rule gives the members of the new ring,
    and repeats keep them."""
    ring = initial_ring([f"n{i}" for i in range(n)])
    if add:
        kind, node = ch.ChangeKind.ADD, "new"
        new = ring.adding(RingNode(node, place_between(ring, f"n{at % n}")))
    else:
        if n <= replicas:
            return
        kind, node = ch.ChangeKind.REMOVE, f"n{at % n}"
        new = ring.removing(node)
    for owner in ring.names:
        if owner == node:
            continue
        members = ring.members(owner, replicas)
        for formal in [*steps, True, *steps]:
            before = members
            members = (ch.FORMAL if formal else ch.PRE)[kind](members, node, new, replicas)
            assert formal or set(members) >= set(before), "a pre rule only adds members"
            assert len(members) <= replicas + 1
        assert members == new.members(owner, replicas)


def test_change_round_trip_derives_the_same_change() -> None:
    """Only the tables are stored; the derived moves and members are equal."""
    change = plan_add(table_of(5), "n6", "n2", 3)
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(change.to_wire()), type=ch.ChangeWire)
    assert ch.Change.from_wire(wire) == change
    assert change.created is not None and change.created.after == ("n6", "n3", "n4")
    assert change.dissolved is None and [g.group for g in change.members] == ["n1", "n2"]


def test_change_whose_rings_do_not_fit_its_kind_is_refused() -> None:
    """An add that adds another node, or none, never enters the log."""
    change = plan_add(table_of(5), "n6", "n2", 3)
    with pytest.raises(InvalidInput):
        ch.change_between(ch.ChangeKind.ADD, "n7", change.old, change.new, 3)
    with pytest.raises(InvalidInput):
        ch.change_between(ch.ChangeKind.MOVE, "", change.old, change.new, 3)


def test_refusals_of_the_planner() -> None:
    """The planner refuses a new node that is on the ring, an unknown place or leaving node, and a ring
    smaller than R."""
    table = table_of(4)
    with pytest.raises(Refused):
        plan_add(table, "n1", None, 3)
    with pytest.raises(NotFound):
        plan_add(table, "n9", "n8", 3)
    with pytest.raises(NotFound):
        plan_remove(table, "n9", 3)
    with pytest.raises(Refused):
        plan_removes(table, ["n1", "n2"], 3)
    with pytest.raises(Refused):
        plan_remove(table_of(3), "n1", 3)


def brute_placement(old: PartitionTable, new: PartitionTable, replicas: int, sizes: np.ndarray) -> int:
    """Compute the bytes slot by slot, by the definition."""
    return sum(
        int(sizes[s])
        * len(set(new.ring.members(new.route(s), replicas)) - set(old.ring.members(old.route(s), replicas)))
        for s in range(old.slots)
    )


def test_copied_bytes_of_add_6_after_2_by_example() -> None:
    """5 x 20 slots of 1 byte each: slot migration and catch-up add up as the members imply."""
    table = table_of(5)
    change = plan_add(table, "n6", "n2", 3, slot_bytes=dict.fromkeys(range(100), 1))
    gained = {m.source: count(m.slots) for m in change.moves}
    cost = copy_cost(change, np.ones(100, np.int64))
    assert sum(gained.values()) == 16
    # D(6) = {6,3,4}: n6 pulls everything, n3 what came from groups without it (4, 5), n4 from 1 and 5.
    assert cost.hand_over == {
        "n6": 16, "n3": gained["n4"] + gained["n5"], "n4": gained["n1"] + gained["n5"],
    }  # fmt: skip
    assert cost.catch_up == {"n6": 40 - gained["n1"] - gained["n2"]}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_sequence_of_changes(data: st.DataObject) -> None:
    """After every step: one owner per slot, fewest moves, spread <= 1, copied bytes = placement bound."""
    replicas = data.draw(st.integers(1, 4))
    table = table_of(data.draw(st.integers(1, 6)), slots=60)
    sizes = {s: data.draw(st.integers(0, 9)) for s in range(0, 60, data.draw(st.integers(1, 3)))}
    array = bytes_array(sizes, 60)
    for step in range(data.draw(st.integers(1, 5))):
        names = table.ring.names
        if len(names) > replicas and data.draw(st.booleans()):
            leaving = data.draw(st.sampled_from(names))
            change = plan_remove(table, leaving, replicas, sizes)
            weights = [0.0 if n == leaving else 1.0 for n in names]
            bound = lower_bound_slots(list(table.counts().values()), weights)
            assert change.dissolved is not None and change.dissolved.group == leaving
        else:
            change = plan_add(
                table, f"x{step}", data.draw(st.sampled_from([None, names[0]])), replicas, 1.0, sizes
            )
            bound = lower_bound_slots([*table.counts().values(), 0], [1.0] * (len(names) + 1))
            assert change.created is not None and change.created.group == f"x{step}"
        assert sum(count(m.slots) for m in change.moves) == bound
        assert spread(list(change.new.counts().values()), change.new.ring.weights) <= 1
        moved = {s for m in change.moves for a, b in m.slots for s in range(a, b)}
        assert moved == {s for s in range(60) if table.route(s) != change.new.route(s)}
        cost = copy_cost(change, array)
        assert cost.total == brute_placement(table, change.new, replicas, array)
        assert cost.total == placement_bytes(table, change.new, replicas, array)
        assert PartitionTable.from_wire(change.new.to_wire()) == change.new
        table = change.new


@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 2**32), st.booleans())
@settings(max_examples=80, deadline=None)
def test_chosen_place_copies_the_fewest_bytes(n: int, replicas: int, seed: int, lopsided: bool) -> None:
    """No other place on the ring is cheaper, also when old nodes exchange slots in the same change."""
    rng = np.random.default_rng(seed)
    ring = initial_ring([f"n{i}" for i in range(n)])
    owners = rng.integers(0, n, 40) ** 2 // n if lopsided else rng.integers(0, n, 40)
    table = PartitionTable(1, ring, owners.astype(np.uint16))
    sizes = {int(s): int(rng.integers(1, 1000)) for s in rng.choice(40, 20, replace=False)}
    array = bytes_array(sizes, 40)
    costs = {p: copy_cost(plan_add(table, "x", p, replicas, 1.0, sizes), array).total for p in ring.names}
    assert copy_cost(plan_add(table, "x", None, replicas, 1.0, sizes), array).total == min(costs.values())


def test_several_adds_move_no_slot_twice() -> None:
    """5 -> 8 in three changes: each slot moves at most once and the end is balanced."""
    table = table_of(5, 10_000)
    changes = plan_adds(table, [("n6", 1.0), ("n7", 1.0), ("n8", 1.0)], None, 3)
    moved = [s for c in changes for m in c.moves for a, b in m.slots for s in range(a, b)]
    assert len(moved) == len(set(moved)) == 3750
    assert set(changes[-1].new.counts().values()) == {1250}
    assert [c.old for c in changes[1:]] == [c.new for c in changes[:-1]]


def test_several_adds_after_a_node_keep_the_given_order() -> None:
    """--after names the place of the first node; the others follow it."""
    changes = plan_adds(table_of(3), [("a", 1.0), ("b", 1.0)], "n1", 3)
    assert changes[-1].new.ring.names == ("n1", "a", "b", "n2", "n3")


def test_several_removes_move_no_slot_twice() -> None:
    """8 -> 5 nodes in three changes: only the slots of leaving nodes move, each once."""
    table = table_of(8, 10_000)
    changes = plan_removes(table, ["n2", "n3", "n8"], 3)
    moved = [s for c in changes for m in c.moves for a, b in m.slots for s in range(a, b)]
    assert len(moved) == len(set(moved)) == 3750
    assert {m.source for c in changes for m in c.moves} == {"n2", "n3", "n8"}
    assert spread(list(changes[-1].new.counts().values()), [1.0] * 5) <= 1


def test_weight_two_gets_twice_the_slots() -> None:
    """Weights are shares of the slots."""
    change = plan_add(table_of(4, 600), "big", None, 3, weight=2.0)
    assert change.new.counts()["big"] == 200


def test_a_rebalance_balances_the_table_and_a_second_one_is_empty() -> None:
    """The old remainder rule leaves 1428 x 6 + 1432; a few moves balance it."""
    table = table_of(7, 10_000)
    change = plan_rebalance(table, 3)
    assert change is not None and change.kind is ch.ChangeKind.MOVE and not change.members
    assert spread(list(change.new.counts().values()), [1.0] * 7) <= 1
    assert plan_rebalance(change.new, 3) is None
    limited = plan_rebalance(table, 3, moves_max=1)
    assert limited is not None and sum(count(m.slots) for m in limited.moves) == 1


def test_node_bytes_count_every_replica() -> None:
    """R = 3: the sum over nodes is three times the data."""
    table = table_of(5)
    on_node = node_bytes(table, 3, np.ones(100, np.int64))
    assert on_node == dict.fromkeys(table.ring.names, 60)


def test_repeated_adds_spread_over_the_ring_when_nothing_is_stored() -> None:
    """All places cost the same, so the widest gap is used and places do not run out."""
    changes = plan_adds(table_of(2), [(f"x{i}", 1.0) for i in range(62)], None, 3)
    ring: Ring = changes[-1].new.ring
    positions = [n.position for n in ring.nodes]
    gaps = {b - a for a, b in zip(positions, positions[1:], strict=False)}
    assert gaps == {1 << 58}
