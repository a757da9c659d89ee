"""Go through every state that a world can come to."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self, TypeVar

T = TypeVar("T")


class World(Protocol):
    """A state, and what may happen next. Every event uses up something of which a world has so much, so that
    nothing comes back to an earlier state."""

    def events(self) -> Sequence[str]:
        """What may happen next; of events that differ in names alone, one."""

    def after(self, event: str) -> Self:
        """The state after it, this very one if nothing comes of it; this one stays as it is.

        Raises:
            AssertionError: an invariant is broken.
        """

    def rest(self) -> None:
        """Nothing happens any more.

        Raises:
            AssertionError: something should.
        """

    def name(self) -> bytes:
        """The same for two states from which the same can follow."""


@dataclass(slots=True)
class Explored:
    states: int = 0
    """Different ones."""

    steps: int = 0
    """Events that changed something, each tried once in each state."""

    orders: int = 0
    """Ways from the start to a state after which nothing happens."""

    longest: int = 0
    """Events of the longest."""

    seconds: float = 0.0
    complete: bool = True
    """Whether that is all there is, and not what `steps_max` left of it."""


class Broken(AssertionError):
    """`events` lead there from the start."""

    def __init__(self, what: str, events: Sequence[str]) -> None:
        super().__init__(what, events)  # as they are given, so that another process can be told
        self.what = what
        self.events = tuple(events)

    def __str__(self) -> str:
        return f"{self.what}\nafter: {'; '.join(self.events)}"


@dataclass(slots=True)
class _Place:
    """A state on the way that is being tried."""

    world: World
    name: bytes
    ahead: Iterator[str]
    orders: int = 0
    event: str = ""
    """The one being tried; "" when all were."""


def explore(start: World, steps_max: int | None = None) -> Explored:
    """Depth first, each state once; memory grows with the number of states by their names alone.

    Raises:
        Broken: an invariant is, with the events that lead there. There may be a shorter way.
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
