"""Connection limits: unknown peers lock nobody out, and a greedy reader affects only readers."""

import pytest

from nodeagent.model.errors import NodeAgentError, Overloaded
from nodeagent.transport.connection_limits import (
    PARTIAL_BYTES_MAX,
    READER_MAX,
    ROLE_MAX,
    UNKNOWN_MAX,
    ConnectionLimits,
)


class Link:
    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.aborted = False
        limits.add(self)

    def abort(self, error: NodeAgentError) -> None:
        self.aborted = True
        self.limits.remove(self)

    def close(self) -> None:
        self.limits.remove(self)


def test_half_open_connections_are_aborted_oldest_first_and_silent_first() -> None:
    limits = ConnectionLimits()
    operator = Link(limits)
    limits.on_first_bytes(operator)
    silent = [Link(limits) for _ in range(10 * UNKNOWN_MAX)]
    assert len(limits) == UNKNOWN_MAX
    assert not operator.aborted, "its handshake has begun and must succeed"
    assert [s.aborted for s in silent].index(False) == len(silent) - UNKNOWN_MAX + 1
    limits.on_hello(operator, "admin", "alice")
    for link in [Link(limits) for _ in range(2 * UNKNOWN_MAX)]:
        limits.on_first_bytes(link)
    assert not operator.aborted and len(limits) == UNKNOWN_MAX + 1


def test_readers_take_no_places_of_other_roles_and_one_reader_not_all() -> None:
    limits = ConnectionLimits()
    for _ in range(READER_MAX):
        limits.on_hello(Link(limits), "reader", "bob")
    with pytest.raises(Overloaded, match="bob"):
        limits.on_hello(Link(limits), "reader", "bob")
    names = [f"r{i // READER_MAX}" for i in range(ROLE_MAX["reader"] - READER_MAX)]
    last = [Link(limits) for _ in names]
    for link, name in zip(last, names, strict=True):
        limits.on_hello(link, "reader", name)
    with pytest.raises(Overloaded, match="role reader"):
        limits.on_hello(Link(limits), "reader", "eve")
    limits.on_hello(Link(limits), "admin", "alice")
    limits.on_hello(Link(limits), "node", "node2")
    limits.remove(last[0])
    limits.on_hello(Link(limits), "reader", "eve")


def test_unfinished_frames_of_a_role_are_bounded_together() -> None:
    limits = ConnectionLimits()
    most = PARTIAL_BYTES_MAX["reader"]
    limits.hold("reader", most)
    with pytest.raises(Overloaded):
        limits.hold("reader", 1)
    limits.hold("node", 1)
    limits.hold("reader", -2)
    limits.hold("reader", 1)
