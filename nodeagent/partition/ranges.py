"""Sets of slots as sorted, disjoint, non-adjacent ranges (start, end exclusive).

The form is canonical: equal sets are equal tuples. Only functions that list single slots import numpy,
because the import takes longer than most commands of an operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from nodeagent.model.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SlotRanges = tuple[tuple[int, int], ...]


def from_slots(slots: Iterable[int] | npt.NDArray[np.int64]) -> SlotRanges:
    """Ranges of a set of slots given in any order, repeats allowed."""
    import numpy as np

    array = np.sort(slots if isinstance(slots, np.ndarray) else np.fromiter(slots, np.int64))
    if not array.size:
        return ()
    cut = np.flatnonzero(np.diff(array) > 1)
    starts = array[np.concatenate(([0], cut + 1))].tolist()
    ends = (array[np.concatenate((cut, [array.size - 1]))] + 1).tolist()
    return tuple(zip(starts, ends, strict=True))


def to_array(ranges: SlotRanges) -> npt.NDArray[np.int64]:
    """The slots, in the order of the ranges."""
    import numpy as np

    bounds = to_bounds(ranges)
    starts, lengths = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
    before = np.cumsum(lengths) - lengths
    found: npt.NDArray[np.int64] = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return found


def to_bounds(ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """The ranges as an array of shape (n, 2)."""
    import numpy as np

    return np.fromiter(chain.from_iterable(ranges), np.int64, 2 * len(ranges)).reshape(-1, 2)


def to_slots(ranges: SlotRanges) -> list[int]:
    """The slots, ascending."""
    slots: list[int] = to_array(ranges).tolist()
    return slots


def count(ranges: SlotRanges) -> int:
    return sum(b - a for a, b in ranges)


def contains(ranges: SlotRanges, slot: int) -> bool:
    return any(a <= slot < b for a, b in ranges)


def union(*many: SlotRanges) -> SlotRanges:
    """The union, in canonical form; the arguments may overlap and be unsorted."""
    merged: list[tuple[int, int]] = []
    for a, b in sorted(r for ranges in many for r in ranges if r[0] < r[1]):
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(b, merged[-1][1]))
        else:
            merged.append((a, b))
    return tuple(merged)


def intersect(left: SlotRanges, right: SlotRanges) -> SlotRanges:
    out: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        a, b = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if a < b:
            out.append((a, b))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def subtract(left: SlotRanges, right: SlotRanges) -> SlotRanges:
    """Slots of `left` that are not in `right`."""
    out: list[tuple[int, int]] = []
    j = 0
    for a, b in left:
        while j < len(right) and right[j][1] <= a:
            j += 1
        i = j
        while i < len(right) and right[i][0] < b:
            if a < right[i][0]:
                out.append((a, right[i][0]))
            a = max(a, right[i][1])
            i += 1
        if a < b:
            out.append((a, b))
    return tuple(out)


def to_bitmap(ranges: SlotRanges, slots: int) -> bytes:
    """ceil(slots / 8) bytes, in which bit `s` (little-endian bit order) is set for each slot `s`."""
    import numpy as np

    bits = np.zeros(slots, np.uint8)
    bits[to_array(ranges)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def from_bitmap(bitmap: bytes, slots: int) -> SlotRanges:
    """The inverse of `to_bitmap`; `InvalidInput` for a wrong length or a bit past `slots`."""
    import numpy as np

    if len(bitmap) != (slots + 7) // 8:
        raise InvalidInput(f"a bitmap of {slots} slots has {(slots + 7) // 8} bytes, not {len(bitmap)}")
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    if bits[slots:].any():
        raise InvalidInput(f"a bitmap of {slots} slots has a bit set past its end")
    return from_slots(np.flatnonzero(bits))


def check_ranges(ranges: SlotRanges, slots: int) -> SlotRanges:
    """Return `ranges` if they are canonical and inside [0, slots), else raise `InvalidInput`."""
    end = -1
    for a, b in ranges:
        if not end < a < b <= slots:
            raise InvalidInput(
                f"slot ranges are not sorted, merged and inside [0, {slots})",
                next_step="sort and merge the ranges",
            )
        end = b
    return ranges
