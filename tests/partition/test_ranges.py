"""Slot ranges behave like sets of integers and are canonical."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.errors import InvalidInput
from nodeagent.partition import ranges as r

slots = st.sets(st.integers(0, 39), max_size=40)


@given(slots, slots)
def test_set_operations(a: set[int], b: set[int]) -> None:
    """union, intersect and subtract equal those of Python sets, in canonical form."""
    x, y = r.from_slots(a), r.from_slots(b)
    assert r.union(x, y) == r.from_slots(a | b)
    assert r.intersect(x, y) == r.from_slots(a & b)
    assert r.subtract(x, y) == r.from_slots(a - b)
    assert r.count(x) == len(a) and r.to_slots(x) == sorted(a)
    assert [s for s in range(40) if r.contains(x, s)] == sorted(a)
    assert r.check_ranges(x, 40) == x


@given(st.lists(st.integers(0, 39)))
def test_slots_in_any_order_with_repeats(a: list[int]) -> None:
    """Ranges of numbers or of an array contain each slot once; the input stays unchanged."""
    array = np.array(a, np.int64)
    assert r.from_slots(a) == r.from_slots(array) == r.from_slots(set(a))
    assert array.tolist() == a


@given(slots)
def test_bitmap_round_trip(a: set[int]) -> None:
    """A bitmap holds the same set."""
    x = r.from_slots(a)
    assert r.from_bitmap(r.to_bitmap(x, 40), 40) == x


def test_bitmap_of_another_size_is_refused() -> None:
    """A wrong length and bits past the end are errors and do not give other slots."""
    with pytest.raises(InvalidInput):
        r.from_bitmap(b"\0" * 4, 40)
    with pytest.raises(InvalidInput):
        r.from_bitmap(b"\xff", 7)


@pytest.mark.parametrize(
    "bad",
    [((3, 3),), ((0, 2), (2, 3)), ((5, 6), (1, 2)), ((-1, 2),), ((9, 11),), ((4, 2),), ((0, 5), (3, 5))],
)
def test_ranges_that_are_not_canonical_are_refused(bad: r.SlotRanges) -> None:
    """Empty, touching, unsorted and out-of-range ranges never enter a table."""
    with pytest.raises(InvalidInput):
        r.check_ranges(bad, 10)
