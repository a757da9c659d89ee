"""Balancers: few moves, balanced tables, and the same result on every machine."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.partition.balance import (
    balanced,
    lower_bound_slots,
    move_slots_to_new,
    retrieve_slots_round_robin,
    spread,
    targets,
    windows,
)

N = 10_000


def historic(nodes: int) -> list[list[int]]:
    per = N // nodes
    return [list(range(i * per, (i + 1) * per if i < nodes - 1 else N)) for i in range(nodes)]


def test_historic_add() -> None:
    """Old IoTDB grows from 3 to 10 nodes: the moved counts are those of its own tests."""
    groups = historic(3)
    moved = []
    for _ in range(7):
        kept, new = move_slots_to_new(groups)
        groups = [*kept, new]
        moved.append(len(new))
        assert sorted(itertools.chain(*groups)) == list(range(N))
    assert moved == [2500, 2000, 1670, 1432, 1250, 1112, 1000]


def test_historic_add_gives_the_remainder_to_the_new_node() -> None:
    """Six nodes own 1666 x 5 and 1670 slots, a difference of 4."""
    kept, new = move_slots_to_new(historic(5))
    assert [len(k) for k in kept] == [1666] * 5 and len(new) == 1670


def test_historic_remove() -> None:
    """Slots are dealt round robin: 5 -> 4 nodes gives 2500 each."""
    groups = historic(5)
    after = retrieve_slots_round_robin(groups[0], groups[1:])
    assert [len(g) for g in after] == [2500] * 4


def test_historic_shrink_to_three() -> None:
    """Growing 3 -> 8 and back to the first three ends at 3334, 3333, 3333."""
    groups = historic(3)
    for _ in range(5):
        kept, new = move_slots_to_new(groups)
        groups = [*kept, new]
    while len(groups) > 3:
        groups = retrieve_slots_round_robin(groups[-1], groups[:-1])
    assert [len(g) for g in groups] == [3334, 3333, 3333]


def owners_of(counts: list[int]) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), counts)


def test_five_to_six_moves_1666() -> None:
    """This is the minimum; old IoTDB moved 1 670."""
    owners = owners_of([2000] * 5)
    after = balanced(owners, [1.0] * 6)
    assert int((after != owners).sum()) == 1666 == lower_bound_slots([2000] * 5 + [0], [1.0] * 6)
    assert sorted(np.bincount(after).tolist()) == [1666, 1666, 1667, 1667, 1667, 1667]


def test_the_last_slots_move_if_sizes_are_unknown() -> None:
    """As in old IoTDB, a group gives its last slots, so that ranges stay long."""
    after = balanced(owners_of([6, 6]), [1.0] * 3)
    assert np.flatnonzero(after == 2).tolist() == [4, 5, 10, 11]


weights = st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.7, 10.0]), min_size=1, max_size=7)


@given(weights, st.data())
@settings(max_examples=200, deadline=None)
def test_any_table_becomes_balanced_with_the_fewest_moves(w: list[float], data: st.DataObject) -> None:
    """For any initial table, weights and leaving nodes, loads differ by at most 1 and the moves equal the
    bound."""
    counts = data.draw(st.lists(st.integers(0, 60), min_size=len(w), max_size=len(w)))
    counts[0] += 1
    leaving = data.draw(st.sets(st.integers(0, len(w) - 1), max_size=len(w) - 1))
    given_weights = [0.0 if i in leaving else x for i, x in enumerate(w)]
    owners = owners_of(counts)
    sizes = None
    if data.draw(st.booleans()):
        sizes = np.array(
            data.draw(st.lists(st.integers(0, 5), min_size=owners.size, max_size=owners.size)), np.int64
        )
    after = balanced(owners, given_weights, sizes)
    result = np.bincount(after, minlength=len(w)).tolist()
    staying = [i for i in range(len(w)) if i not in leaving]
    assert result == targets(counts, given_weights)
    assert all(result[i] == 0 for i in leaving)
    assert spread([result[i] for i in staying], [w[i] for i in staying]) <= 1
    assert int((after != owners).sum()) == lower_bound_slots(counts, given_weights)
    assert np.array_equal(after, balanced(owners, given_weights, sizes))


@given(st.lists(st.integers(0, 6), min_size=3, max_size=3), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_bound_is_tight_by_brute_force(counts: list[int], leaving: int) -> None:
    """No balanced table of three equal nodes (one or none leaving) is reached with fewer moves."""
    total = sum(counts)
    w = [0.0 if i == leaving and total > 0 else 1.0 for i in range(3)]
    best = total
    for goal in itertools.product(range(total + 1), repeat=3):
        live = [g for g, x in zip(goal, w, strict=True) if x]
        if sum(goal) == total and sum(live) == total and max(live) - min(live) <= 1:
            best = min(best, sum(max(0, c - g) for c, g in zip(counts, goal, strict=True)))
    assert lower_bound_slots(counts, w) == best


def test_windows_of_equal_and_of_decimal_weights() -> None:
    """Equal weights allow floor and floor + 1; with other weights every allowed choice differs by at most 1
    load."""
    assert windows([1.0] * 6, N) == [(1666, 1667)] * 6
    assert windows([2.0, 2.0], 10) == [(5, 6)] * 2
    low, high = windows([1.0, 3.0], 400)
    assert low[0] <= 100 <= low[1] and high[0] <= 300 <= high[1]
    assert windows([1.0] * 5, 3) == [(0, 1)] * 5


def test_bytes_are_balanced_as_well_as_slots() -> None:
    """A new node gets nearly its share of bytes, although most slots are empty and sizes are skewed."""
    rng = np.random.default_rng(3)
    sizes = np.zeros(N, np.int64)
    filled = rng.choice(N, 1500, replace=False)
    sizes[filled] = rng.pareto(1.5, 1500) * 1_000_000 + 1
    owners = owners_of([2000] * 5)
    after = balanced(owners, [1.0] * 6, sizes)
    got, fair = int(sizes[after == 5].sum()), int(sizes.sum()) / 6
    assert 0.9 * fair < got < 1.1 * fair
    assert int((sizes[after != owners] > 0).sum()) >= 200


def test_bytes_of_a_leaving_node_are_distributed_evenly() -> None:
    """The remaining nodes end with nearly equal bytes."""
    rng = np.random.default_rng(4)
    sizes = rng.integers(0, 1000, N)
    owners = owners_of([2000] * 5)
    after = balanced(owners, [1.0, 1.0, 0.0, 1.0, 1.0], sizes)
    held = np.bincount(after, sizes, minlength=5)[[0, 1, 3, 4]]
    assert held.max() - held.min() <= 5000


@pytest.mark.parametrize("old", [5, 100])
def test_many_groups_with_few_slots_still_give_data(old: int) -> None:
    """Rounding is carried from group to group, so the new node's share of non-empty slots does not round to
    0."""
    owners = owners_of([10] * old)
    sizes = np.zeros(10 * old, np.int64)
    sizes[::10] = 7
    moved = balanced(owners, [1.0] * (old + 1), sizes) != owners
    assert int((sizes[moved] > 0).sum()) >= int(moved.sum()) // 10


def test_historic_seven_minus_three() -> None:
    """Removing three of seven, the last one last, ends at 2501, 2500, 2500, 2499."""
    left = dict(enumerate(historic(7)))
    for node in (0, 1, 6):
        removed = left.pop(node)
        left = dict(zip(left, retrieve_slots_round_robin(removed, list(left.values())), strict=True))
    assert [len(g) for g in left.values()] == [2501, 2500, 2500, 2499]
