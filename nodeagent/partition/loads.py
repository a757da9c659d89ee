"""Which slots move so that the loads of groups (bytes, or bytes written per second) become even.

The level of a group is the load of its slots divided by its weight. Loads are even if no level is above
`EVEN` times the mean, as far as whole slots allow. Of the groups that have a step, the one with the highest
level takes its step next:

- a *move*: the largest slot that exceeds neither the giver's excess nor the emptiest taker's room; if only
  small slots fit, the slot whose move leaves the higher of the two groups' levels lowest;
- a *swap* of two slots, only above `EVEN` and only if no move helps.

A *giant* is a slot that is too large for the taker even alone. It moves only if the higher level of the pair
is afterwards lower than the level that the giver would have with its giants alone: two giants are separated,
but a single giant stays and the small slots leave.

Every step lowers the higher level of its pair, so the search ends. It ends when no group above `AIM` has a
move and no group above `EVEN` has a swap. That depends only on owners and loads, so that a plan made after a
plan was executed is empty.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nodeagent.model.limits import SWAP_TAKERS_MAX
from nodeagent.partition.balance import OwnerIndex

LoadArray = npt.NDArray[np.int64]
"""Load per slot, not negative, in any unit; whole numbers, so that sums do not depend on their order."""

EVEN = 1.1
"""The ratio of the highest level to the mean up to which nothing must move."""

AIM = 1.05
"""The ratio to reach once slots move, so that slight growth does not require another plan."""


@dataclass(frozen=True, slots=True)
class _Step:
    """`slot` moves from `giver` to `taker`; in a swap `back` moves from `taker` to `giver`."""

    giver: int
    taker: int
    slot: int
    back: int | None = None


def max_over_mean(owners: OwnerIndex, weights: Sequence[float], loads: LoadArray) -> float:
    """The ratio of the highest level to the mean level; 1.0 if there is no load."""
    total = int(loads.sum())
    if not total:
        return 1.0
    return float((_held(owners, len(weights), loads) / np.array(weights)).max()) * sum(weights) / total


def fewest_moves(owners: OwnerIndex, weights: Sequence[float], loads: LoadArray, ratio: float = EVEN) -> int:
    """A lower bound of the slots that must move for a `max_over_mean` of at most `ratio`.

    Each group above the ratio must give slots; it gives the fewest if it gives its largest. Whether other
    groups can take them is not checked.
    """
    held = _held(owners, len(weights), loads)
    limit = ratio * float(loads.sum()) / sum(weights) * np.array(weights)
    count = 0
    # Tolerate half a unit: `ratio` may be the rounded result of the same sums.
    for i in np.flatnonzero(held > limit + 0.5).tolist():
        given = np.cumsum(np.sort(loads[owners == i])[::-1])
        count += int(np.searchsorted(given, held[i] - limit[i] - 0.5)) + 1
    return count


def evened(
    owners: OwnerIndex, weights: Sequence[float], loads: LoadArray, slots_max: int | None = None
) -> OwnerIndex:
    """The owners after few moves that make loads even.

    Args:
        owners: per slot an index into `weights`.
        weights: all above 0.
        slots_max: number of slots that may change their owner; the most useful steps come first.
    """
    if max_over_mean(owners, weights, loads) <= EVEN:
        return owners.copy()
    search = _Search(owners, weights, loads)
    stuck: set[int] = set()
    beyond: set[int] = set()
    """Groups whose next step would change more owners than `slots_max`."""
    while True:
        step = search.next_step(stuck)
        if step is None and stuck > beyond:  # later steps may have made one possible
            stuck = set(beyond)
            step = search.next_step(stuck)
        if step is None:
            return search.owners
        if slots_max is not None and search.moved_after(step) > slots_max:
            beyond.add(step.giver)
            stuck.add(step.giver)
        else:
            search.take(step)


def _held(owners: OwnerIndex, groups: int, loads: LoadArray) -> LoadArray:
    held = np.zeros(groups, np.int64)
    np.add.at(held, owners, loads)
    return held


class _Search:
    """Invariants: `held[i]` is the sum of `filled[i]`, group i's loaded slots as (load, slot) ascending."""

    def __init__(self, owners: OwnerIndex, weights: Sequence[float], loads: LoadArray) -> None:
        self.first = owners
        self.owners = owners.copy()
        self.loads = loads
        self.weights = np.array(weights, np.float64)
        self.held = _held(owners, len(weights), loads)
        self.mean = float(loads.sum()) / float(self.weights.sum())
        self.fair = EVEN * self.mean * self.weights
        self.moved: set[int] = set()
        self.filled: list[list[tuple[int, int]]] = [[] for _ in weights]
        for slot in np.flatnonzero(loads > 0).tolist():
            self.filled[int(owners[slot])].append((int(loads[slot]), slot))
        for held in self.filled:
            held.sort()

    def next_step(self, stuck: set[int]) -> _Step | None:
        """The first step found, trying the groups from the highest level down; adds groups without a step
        to `stuck`."""
        for giver in self._givers():
            if giver not in stuck:
                step = self._move(giver) or self._swap(giver)
                if step is not None:
                    return step
                stuck.add(giver)
        return None

    def take(self, step: _Step) -> None:
        self._move_slot(step.slot, step.giver, step.taker)
        if step.back is not None:
            self._move_slot(step.back, step.taker, step.giver)

    def moved_after(self, step: _Step) -> int:
        """Number of slots whose owner differs from the first owner once `step` is taken."""
        moved = set(self.moved)
        for slot, to in ((step.slot, step.taker), (step.back, step.giver)):
            if slot is not None:
                (moved.discard if self.first[slot] == to else moved.add)(slot)
        return len(moved)

    def _move_slot(self, slot: int, giver: int, taker: int) -> None:
        load = int(self.loads[slot])
        del self.filled[giver][bisect_left(self.filled[giver], (load, slot))]
        insort(self.filled[taker], (load, slot))
        self.held[giver] -= load
        self.held[taker] += load
        self.owners[slot] = taker
        (self.moved.discard if self.first[slot] == taker else self.moved.add)(slot)

    def _givers(self) -> Iterator[int]:
        """Groups above `AIM`, highest level first."""
        level = self.held / self.weights
        above = np.flatnonzero(level > AIM * self.mean)
        yield from above[np.argsort(-level[above], kind="stable")].tolist()

    def _move(self, giver: int) -> _Step | None:
        room = self.mean * self.weights - self.held
        taker = int(room.argmax())
        slots = self.filled[giver]
        fits = min(float(-room[giver]), float(room[taker]))
        at = bisect_right(slots, (int(fits), self.loads.size)) - 1 if fits > 0 else -1
        if at >= 0 and 2 * slots[at][0] >= fits:
            return _Step(giver, taker, slots[at][1])
        level = self.held[giver] / self.weights[giver]
        best: tuple[float, int, int, int] | None = None
        # If a move to any taker lowers the pair's higher level, so does a move to the taker whose level is
        # lowest with the giver's smallest slot added: try this taker too.
        after = (self.held + slots[0][0]) / self.weights
        after[giver] = np.inf
        for i in {taker, int(after.argmin())} - {giver}:
            for load, slot in {*self._around(giver, self._half(giver, i)), slots[max(at, 0)]}:
                worst = max(
                    (self.held[giver] - load) / self.weights[giver], (self.held[i] + load) / self.weights[i]
                )
                bar = level if load <= self.fair[i] else self._giants(giver, i)
                if worst < bar and (best is None or (worst, load, slot, i) < best):
                    best = (float(worst), load, slot, i)
        return None if best is None else _Step(giver, best[3], best[2])

    def _giants(self, giver: int, taker: int) -> float:
        """The level of the giver if it retained only slots that are too large for the taker."""
        slots = self.filled[giver]
        at = bisect_right(slots, (int(self.fair[taker]), self.loads.size))
        return float(sum(load for load, _ in slots[at:]) / self.weights[giver])

    def _half(self, giver: int, taker: int) -> float:
        """The load that the giver must give for both groups to have the same level."""
        w, v = self.weights[giver], self.weights[taker]
        return float((self.held[giver] * v - self.held[taker] * w) / (w + v))

    def _around(self, group: int, load: float) -> list[tuple[int, int]]:
        """The group's slots nearest to `load` in size, below and above."""
        slots = self.filled[group]
        at = bisect_left(slots, (load, -1))
        return slots[max(0, at - 1) : at + 1]

    def _swap(self, giver: int) -> _Step | None:
        """The best swap with one of the emptiest takers: the pair's higher level is lowest after it."""
        level = self.held[giver] / self.weights[giver]
        if level <= EVEN * self.mean:
            return None
        levels = self.held / self.weights
        best: tuple[float, int, int, int] | None = None
        given = np.array(self.filled[giver], np.int64)
        for taker in np.argsort(levels, kind="stable")[:SWAP_TAKERS_MAX].tolist():
            back = np.array(self.filled[taker], np.int64)
            if taker == giver or not back.size:
                continue
            bar = np.where(given[:, 0] <= self.fair[taker], level, self._giants(giver, taker))
            wanted = given[:, 0] - self._half(giver, taker)
            at = np.searchsorted(back[:, 0], wanted)
            for near in (np.clip(at - 1, 0, None), np.clip(at, None, len(back) - 1)):
                net = given[:, 0] - back[near, 0]
                worst = np.maximum(
                    (self.held[giver] - net) / self.weights[giver],
                    (self.held[taker] + net) / self.weights[taker],
                )
                worst[worst >= bar] = np.inf
                i = int(worst.argmin())
                found = (float(worst[i]), taker, int(given[i, 1]), int(back[near[i], 1]))
                if found[0] < np.inf and (best is None or found < best):
                    best = found
        return None if best is None else _Step(giver, *best[1:])
