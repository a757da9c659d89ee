"""Connection limits: unknown peers lock nobody out, and a greedy reader affects only readers."""

import pytest

from nodeagent.model.errors import NodeAgentError, Overloaded
from nodeagent.transport.connection_limits import (
    PARTIAL_BYTES_MAX,
    PLACES,
    READER_MAX,
    UNKNOWN_MAX,
    ConnectionLimits,
)


class Link:
    def __init__(self, places: ConnectionLimits) -> None:
        self.places = places
        self.aborted = False
        places.enter(self)

    def abort(self, error: NodeAgentError) -> None:
        self.aborted = True
        self.places.leave(self)

    def close(self) -> None:
        self.places.leave(self)


def test_half_open_connections_are_aborted_oldest_first_and_silent_first() -> None:
    places = ConnectionLimits()
    operator = Link(places)
    places.speaks(operator)
    silent = [Link(places) for _ in range(10 * UNKNOWN_MAX)]
    assert len(places) == UNKNOWN_MAX
    assert not operator.aborted, "its handshake has begun and must succeed"
    assert [s.aborted for s in silent].index(False) == len(silent) - UNKNOWN_MAX + 1
    places.greeted(operator, "admin", "alice")
    for link in [Link(places) for _ in range(2 * UNKNOWN_MAX)]:
        places.speaks(link)
    assert not operator.aborted and len(places) == UNKNOWN_MAX + 1


def test_readers_take_no_places_of_other_roles_and_one_reader_not_all() -> None:
    places = ConnectionLimits()
    for _ in range(READER_MAX):
        places.greeted(Link(places), "reader", "bob")
    with pytest.raises(Overloaded, match="bob"):
        places.greeted(Link(places), "reader", "bob")
    names = [f"r{i // READER_MAX}" for i in range(PLACES["reader"] - READER_MAX)]
    last = [Link(places) for _ in names]
    for link, name in zip(last, names, strict=True):
        places.greeted(link, "reader", name)
    with pytest.raises(Overloaded, match="role reader"):
        places.greeted(Link(places), "reader", "eve")
    places.greeted(Link(places), "admin", "alice")
    places.greeted(Link(places), "node", "node2")
    places.leave(last[0])
    places.greeted(Link(places), "reader", "eve")


def test_unfinished_frames_of_a_role_are_bounded_together() -> None:
    places = ConnectionLimits()
    most = PARTIAL_BYTES_MAX["reader"]
    places.hold("reader", most)
    with pytest.raises(Overloaded):
        places.hold("reader", 1)
    places.hold("node", 1)
    places.hold("reader", -2)
    places.hold("reader", 1)
