"""Explore every state that a world can reach."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self, TypeVar

T = TypeVar("T")


class World(Protocol):
    """A state and the events that may happen next. Every event uses up a limited resource, so that no state
    is reached twice on the same path."""

    def events(self) -> Sequence[str]:
        """Events that may happen next; one of each set of events that differ only in names."""

    def after(self, event: str) -> Self:
        """The state after `event`, or this object if the event changes nothing. This state stays unchanged.

        Raises:
            AssertionError: an invariant is broken.
        """

    def rest(self) -> None:
        """Check a state in which no event changes anything.

        Raises:
            AssertionError: something should still happen.
        """

    def name(self) -> bytes:
        """A digest that is equal for two states with the same possible futures."""


@dataclass(slots=True)
class Explored:
    states: int = 0
    """Number of different states."""

    steps: int = 0
    """Number of events that changed something, each tried once in each state."""

    orders: int = 0
    """Number of paths from the start to a state in which nothing more happens."""

    longest: int = 0
    """Number of events of the longest path that led to a new state; a known state is not followed again."""

    seconds: float = 0.0
    complete: bool = True
    """Whether all states were explored, without a stop at `steps_max`."""


class Broken(AssertionError):
    """An invariant is broken; `events` lead there from the start."""

    def __init__(self, what: str, events: Sequence[str]) -> None:
        super().__init__(what, events)  # the same arguments, so that the exception can be pickled
        self.what = what
        self.events = tuple(events)

    def __str__(self) -> str:
        return f"{self.what}\nafter: {'; '.join(self.events)}"


@dataclass(slots=True)
class _Place:
    """A state on the current path."""

    world: World
    name: bytes
    ahead: Iterator[str]
    orders: int = 0
    event: str = ""
    """The event being tried; "" if all were."""


def explore(start: World, steps_max: int | None = None) -> Explored:
    """Explore depth first, visiting each state once; only the digests of visited states are kept in memory.

    Raises:
        Broken: an invariant is broken. There may be a shorter path to the same failure.
    """
    began = time.monotonic()
    found = Explored(states=1)
    orders: dict[bytes, int] = {}
    way = [_Place(start, start.name(), iter(start.events()))]
    while way:
        place = way[-1]
        event = next(place.ahead, None)
        if event is None:
            if not place.orders:
                place.event = ""
                _hold(place.world.rest, way)
            orders[place.name] = place.orders or 1
            way.pop()
            if way:
                way[-1].orders += orders[place.name]
            continue
        if steps_max is not None and found.steps >= steps_max:
            found.complete = False
            break
        place.event = event
        world = _hold(partial(place.world.after, event), way)
        if world is place.world:
            continue
        found.steps += 1
        name = world.name()
        known = orders.get(name)
        if known is not None:
            place.orders += known
            continue
        found.states += 1
        found.longest = max(found.longest, len(way))
        way.append(_Place(world, name, iter(world.events())))
    found.orders = orders.get(way[0].name if way else start.name(), 0)
    found.seconds = time.monotonic() - began
    return found


def _hold(do: Callable[[], T], way: Sequence[_Place]) -> T:
    try:
        return do()
    except AssertionError as error:
        raise Broken(str(error), [p.event for p in way if p.event]) from error
