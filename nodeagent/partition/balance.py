"""Which slots move: minimal, deterministic, weighted.

A load is slots / weight, with weights scaled so that the smallest is 1. A table is balanced if the largest
and the smallest load differ by at most 1; `windows` gives each node the range of counts that guarantees this,
and `targets` the counts inside these ranges that need the fewest moves. The recorded bytes of slots decide
only *which* slots move, never how many.

`move_slots_to_new` and `retrieve_slots_round_robin` are the balancers of old IoTDB, for comparison and for
imports; this module's balancer never leaves a difference above 1 (IoTDB's
balancers reach 4 at 6 and 7 nodes).
"""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

OwnerIndex = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.int64]
SlotArray = npt.NDArray[np.int64]


def scaled_weights(weights: Sequence[float]) -> list[Fraction]:
    """Weights divided by their minimum, exactly as written in decimal."""
    exact = [Fraction(repr(float(w))) for w in weights]
    low = min(exact)
    return [w / low for w in exact]


def windows(weights: Sequence[float], slots: int) -> list[tuple[int, int]]:
    """The least and the most slots that each node may own (inclusive).

    With L the largest level such that sum(ceil(w L)) <= slots, node i gets [ceil(w L), floor(w (L + 1))]:
    every choice inside is balanced, and some choice has the sum `slots`. With equal weights that is
    floor and floor + 1 of the mean.
    """
    w = scaled_weights(weights)
    level = max(Fraction(0), Fraction(slots - len(w)) / sum(w))
    low = [-(-x * level // 1) for x in w]
    spare = slots - sum(low)
    assert spare >= 0
    # Raising the level past low/w raises that node's ceiling by one; `spare` + 1 such steps are too many.
    steps = [(Fraction(n) / x, i) for i, (n, x) in enumerate(zip(low, w, strict=True))]
    heapq.heapify(steps)
    for _ in range(spare):
        _, i = steps[0]
        low[i] += 1
        heapq.heapreplace(steps, (Fraction(low[i]) / w[i], i))
    level = steps[0][0]
    return [(int(-(-x * level // 1)), int(x * (level + 1) // 1)) for x in w]


def targets(counts: Sequence[int], weights: Sequence[float]) -> list[int]:
    """The number of slots that each node should own; a node of weight 0 leaves and gets none.

    Of all counts inside `windows`, these are the nearest to `counts` (fewest slots move); slots that are then
    left over go to the least loaded nodes, or missing slots come from the most loaded nodes, the first in
    order on a tie.
    """
    staying = [i for i, w in enumerate(weights) if w > 0]
    bounds = dict(zip(staying, windows([weights[i] for i in staying], sum(counts)), strict=True))
    goal = [0] * len(counts)
    for i, (low, high) in bounds.items():
        goal[i] = min(max(counts[i], low), high)
    missing = sum(counts) - sum(goal)
    sign = 1 if missing > 0 else -1
    room = [(sign * (goal[i] + sign) / weights[i], i) for i in staying if _has_room(goal[i], bounds[i], sign)]
    heapq.heapify(room)
    for _ in range(abs(missing)):
        _, i = heapq.heappop(room)
        goal[i] += sign
        if _has_room(goal[i], bounds[i], sign):
            heapq.heappush(room, (sign * (goal[i] + sign) / weights[i], i))
    assert sum(goal) == sum(counts)
    return goal


def _has_room(goal: int, bounds: tuple[int, int], sign: int) -> bool:
    return bounds[0] <= goal + sign <= bounds[1]


def lower_bound_slots(counts: Sequence[int], weights: Sequence[float]) -> int:
    """The fewest slots that must move to make the table balanced.

    It is the larger of what nodes must give (slots above their window, or all slots of a node that leaves)
    and what nodes must get (slots below their window).
    """
    staying = [i for i, w in enumerate(weights) if w > 0]
    bounds = dict(zip(staying, windows([weights[i] for i in staying], sum(counts)), strict=True))
    give = sum(max(0, c - bounds.get(i, (0, 0))[1]) for i, c in enumerate(counts))
    get = sum(max(0, bounds.get(i, (0, 0))[0] - c) for i, c in enumerate(counts))
    return max(give, get)


def spread(counts: Sequence[int], weights: Sequence[float]) -> float:
    """Largest minus smallest load; at most 1 in a balanced table."""
    loads = [c / float(w) for c, w in zip(counts, scaled_weights(weights), strict=True)]
    return round(max(loads) - min(loads), 6)


def balanced(owners: OwnerIndex, weights: Sequence[float], slot_bytes: ByteArray | None = None) -> OwnerIndex:
    """The owners after the fewest moves to a balanced table.

    Args:
        owners: per slot an index into `weights`.
        weights: 0 for a node that leaves.
        slot_bytes: one replica's bytes of each slot. If given, givers give a fair share of their bytes and
            takers are filled evenly; else each giver gives its last slots, in runs.
    """
    counts = np.bincount(owners, minlength=len(weights))
    goal = np.array(targets(counts.tolist(), weights))
    given = _pick(owners, counts, goal, slot_bytes)
    result = owners.copy()
    takers = {int(i): int(goal[i] - counts[i]) for i in np.flatnonzero(goal > counts)}
    if slot_bytes is not None and len(takers) > 1:
        kept = slot_bytes.astype(np.float64)
        kept[given] = 0
        load = np.zeros(len(weights))
        np.add.at(load, owners, kept)
        heavy = given[slot_bytes[given] > 0]
        heavy = heavy[np.lexsort((heavy, -slot_bytes[heavy]))]
        _deal(result, heavy, takers, load, weights, slot_bytes)
        given = given[slot_bytes[given] == 0]
    result[given] = np.repeat(
        np.fromiter(takers, np.int64, len(takers)), np.fromiter(takers.values(), np.int64, len(takers))
    )
    return result


def _pick(owners: OwnerIndex, counts: SlotArray, goal: SlotArray, slot_bytes: ByteArray | None) -> SlotArray:
    """The slots that leave their owner: giver by giver in order, each giver's slots ascending."""
    held = np.split(np.argsort(owners, kind="stable"), np.cumsum(counts)[:-1])
    parts: list[SlotArray] = []
    share = _Share()
    for i in np.flatnonzero(counts > goal).tolist():
        give = int(counts[i] - goal[i])
        if slot_bytes is None or give == counts[i]:
            parts.append(held[i][-give:])
        else:
            parts.append(share.pick(held[i], give, slot_bytes))
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


class _Share:
    """Picks from each giver its fair share of non-empty slots and bytes.

    The rounding error is carried to the next giver, so that a thousand givers of one slot each still give the
    newcomer its share.
    """

    def __init__(self) -> None:
        self.slots_due = 0.0
        self.bytes_due = 0.0

    def pick(self, held: SlotArray, give: int, slot_bytes: ByteArray) -> SlotArray:
        sizes = slot_bytes[held]
        full, empty = held[sizes > 0], held[sizes == 0]
        self.slots_due += give * full.size / held.size
        self.bytes_due += give * float(sizes.sum()) / held.size
        take = min(max(round(self.slots_due), give - empty.size, 0), full.size, give)
        chosen = self._nearest(full, take, slot_bytes)
        self.slots_due -= take
        self.bytes_due -= float(slot_bytes[chosen].sum())
        rest = empty[empty.size - (give - take) :]
        return np.sort(np.concatenate((chosen, rest)))

    def _nearest(self, full: SlotArray, take: int, slot_bytes: ByteArray) -> SlotArray:
        """`take` slots, each the nearest in size to the bytes still due per slot."""
        by_size = full[np.lexsort((full, slot_bytes[full]))].tolist()
        sizes = slot_bytes[by_size].tolist() if by_size else []
        due, chosen = self.bytes_due, []
        for left in range(take, 0, -1):
            want = due / left
            at = bisect_left(sizes, want)
            if at == len(sizes) or (at and want - sizes[at - 1] <= sizes[at] - want):
                at -= 1
            due -= sizes.pop(at)
            chosen.append(by_size.pop(at))
        return np.array(chosen, np.int64)


def _deal(
    result: OwnerIndex,
    slots: SlotArray,
    takers: dict[int, int],
    load: npt.NDArray[np.float64],
    weights: Sequence[float],
    slot_bytes: ByteArray,
) -> None:
    """Give each slot, largest first, to the taker with the fewest bytes per weight; counts `takers` down."""
    heap = [(load[i] / weights[i], i) for i in takers]
    heapq.heapify(heap)
    for slot in slots.tolist():
        level, i = heapq.heappop(heap)
        result[slot] = i
        takers[i] -= 1
        if takers[i]:
            heapq.heappush(heap, (level + int(slot_bytes[slot]) / weights[i], i))


def move_slots_to_new(groups: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """Old IoTDB's balancer for an added node: (slots left to each old group, slots of the new group).

    The mean is slots // nodes; each group above it gives its last slots, and the new group takes them all,
    including every remainder (5 -> 6 nodes at 10 000 slots: 1 670 move, 1 666 would be enough).
    """
    mean = sum(map(len, groups)) // (len(groups) + 1)
    kept = [list(g[:mean]) if len(g) > mean else list(g) for g in groups]
    return kept, [slot for g in groups for slot in g[mean:]]


def retrieve_slots_round_robin(removed: Sequence[int], groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Old IoTDB's balancer for a removed node: its i-th slot goes to ring node i mod n, whatever the load."""
    n = len(groups)
    return [[*g, *removed[i::n]] for i, g in enumerate(groups)]
