"""Ring, groups and partition table."""

import random

import msgspec
import numpy as np
import pytest

from nodeagent.model.errors import InvalidInput, NotFound, Refused
from nodeagent.partition.planner import plan_rebalance
from nodeagent.partition.ranges import from_slots, to_slots
from nodeagent.partition.ring import SPAN, Ring, RingNode, initial_ring, place_between
from nodeagent.partition.table import PartitionTable, TableWire, initial_table

FIVE = ["n1", "n2", "n3", "n4", "n5"]


def test_groups_wrap_around() -> None:
    """A group consists of its owner and the next R - 1 nodes clockwise."""
    ring = initial_ring(FIVE)
    assert ring.members("n2", 3) == ("n2", "n3", "n4")
    assert ring.members("n5", 3) == ("n5", "n1", "n2")
    assert ring.owners_with("n1", 3) == ("n1", "n5", "n4")


def test_more_replicas_than_nodes_is_a_smaller_group() -> None:
    """With R = 3 and two nodes, a group has both nodes and there is no error (old IoTDB failed here)."""
    ring = initial_ring(["n1", "n2"])
    assert ring.members("n2", 3) == ("n2", "n1") and ring.owners_with("n2", 3) == ("n2", "n1")


def test_a_new_place_is_in_the_middle_of_its_gap() -> None:
    """The new position is in the middle of the gap clockwise of `after`."""
    ring = initial_ring(["n1", "n2", "n3", "n4"])
    assert place_between(ring, "n1") == SPAN // 8
    assert place_between(ring, "n4") == SPAN * 7 // 8
    assert place_between(initial_ring(["n1"]), "n1") == SPAN // 2
    late = Ring((RingNode("a", 0), RingNode("b", SPAN - 1)))
    with pytest.raises(Refused):
        place_between(late, "b")


@pytest.mark.parametrize(
    "nodes",
    [
        (RingNode("a", 5), RingNode("b", 5)),
        (RingNode("b", 5), RingNode("a", 3)),
        (RingNode("a", 1), RingNode("a", 3)),
        (RingNode("a", SPAN),),
        (RingNode("a", 1, 0.0),),
        (RingNode("A b", 1),),
    ],
)
def test_broken_ring_is_refused(nodes: tuple[RingNode, ...]) -> None:
    """Equal positions, a wrong order, a repeated name and out-of-range values are refused."""
    with pytest.raises(InvalidInput):
        Ring(nodes)


def test_an_initial_table_by_weight_is_balanced() -> None:
    """Weights are shares from the first table on, so a rebalance has nothing to do."""
    ring = initial_ring(["a", "b", "c"], [1.0, 2.0, 1.0])
    table = initial_table(ring, 1_002)
    counts = table.counts()
    assert counts["b"] == 501 and counts["a"] + counts["c"] == 501
    assert plan_rebalance(table, 3) is None
    assert len(from_slots(np.flatnonzero(table.owners == 1))) == 1


def test_initial_table_gives_the_remainder_to_the_last() -> None:
    """3 nodes: 3333, 3333, 3334; 5 nodes: 2000 each; runs in ring order."""
    three = initial_table(initial_ring(FIVE[:3]), 10_000)
    assert list(three.counts().values()) == [3333, 3333, 3334]
    assert three.slots_of("n3") == ((6666, 10_000),)
    assert list(initial_table(initial_ring(FIVE), 10_000).counts().values()) == [2000] * 5


def test_fewer_slots_than_nodes() -> None:
    """Each slot has an owner; the other nodes own nothing."""
    assert list(initial_table(initial_ring(FIVE), 3).counts().values()) == [1, 1, 1, 0, 0]


def test_route_and_holds() -> None:
    """A slot is held by the members of its owner's group."""
    table = initial_table(initial_ring(FIVE), 10)
    assert [table.route(s) for s in (0, 1, 9)] == ["n1", "n1", "n5"]
    assert table.holds("n3", 0, 3) and not table.holds("n4", 0, 3)
    with pytest.raises(NotFound):
        table.route(10)
    with pytest.raises(NotFound):
        table.slots_of("n9")


def test_wire_round_trip() -> None:
    """A table survives msgpack and JSON and keeps version, ring and owners."""
    table = PartitionTable(7, initial_ring(FIVE), np.array([4, 0, 0, 1, 2, 2, 3, 0], np.uint16))
    for codec in (msgspec.msgpack, msgspec.json):
        wire = codec.decode(codec.encode(table.to_wire()), type=TableWire)
        assert PartitionTable.from_wire(wire) == table
    assert table.stamped(8) != table and table.stamped(8).same_layout(table)


def test_wire_with_a_slot_twice_or_missing_is_refused() -> None:
    """Every slot has exactly one owner (S14)."""
    nodes = initial_ring(["a", "b"]).nodes
    with pytest.raises(InvalidInput, match="two owners"):
        PartitionTable.from_wire(TableWire(1, 4, nodes, (((0, 3),), ((2, 4),))))
    with pytest.raises(InvalidInput, match="slot 2 has no owner"):
        PartitionTable.from_wire(TableWire(1, 4, nodes, (((0, 2),), ((3, 4),))))
    with pytest.raises(InvalidInput):
        PartitionTable.from_wire(TableWire(1, 4, nodes, (((0, 4),),)))


def test_any_owners_survive_and_any_other_ranges_are_refused() -> None:
    """Scattered slots, as after many changes: the ranges of all owners together cover each slot once."""
    rng, nodes = random.Random(1), initial_ring(FIVE).nodes
    for _ in range(300):
        slots = rng.choice([1, 2, 9, 40])
        owners = np.array([rng.randrange(5) for _ in range(slots)], np.uint16)
        table = PartitionTable(3, initial_ring(FIVE), owners)
        wire = table.to_wire()
        assert PartitionTable.from_wire(wire) == table
        other = list(wire.owned)
        changed = rng.randrange(5)
        other[changed] = from_slots(s for s in range(slots) if rng.random() < 0.5)
        named = sorted(s for ranges in other for s in to_slots(ranges))
        if named == list(range(slots)):
            continue
        first = next(s for s in range(slots + 1) if named.count(s) != 1)
        what = f"slot {first} has no owner" if first < slots and named.count(first) == 0 else "two owners"
        with pytest.raises(InvalidInput, match=what):
            PartitionTable.from_wire(TableWire(3, slots, nodes, tuple(other)))


def test_owners_cannot_be_changed() -> None:
    """A table is a value: planning a removal never changes the current table."""
    table = initial_table(initial_ring(FIVE), 10)
    with pytest.raises(ValueError, match="read-only"):
        table.owners[0] = 1
