"""Where a gaining group's leader takes the sessions of sealed slots from."""

from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.data import commands as data
from nodeagent.data.handover import digest
from nodeagent.host.desk import Desk
from nodeagent.host.session_parts import RETRY_MS, SessionParts, sealed_part
from nodeagent.model.limits import SESSIONS_PART_BYTES
from nodeagent.model.requests import ErrorReply, GetSealedSessions, SealedSessions
from nodeagent.runtime.notes import NOTABLE
from nodeagent.scaling.groups import TakePart

PART = b"sessions"
ACTION = TakePart("op-9", "a.1", 0, digest(PART), ("n", "b", "c"))


def replica(group: str = "n.9", table: bytes | None = None) -> Any:
    sealed = {} if table is None else {"op-9": SimpleNamespace(sessions=table)}
    return SimpleNamespace(
        group=group, leads=True, state=SimpleNamespace(slots=SimpleNamespace(sealed=sealed))
    )


class Node:
    """Node n, which leads the gaining group n.9."""

    def __init__(self, **replicas: Any) -> None:
        self.gaining = replica()
        self.replicas = {"n.9": self.gaining, **replicas}
        self.desk = Desk(0, 0)
        self.logged: list[bytes] = []
        self.parts = SessionParts("n", self.desk, self.replicas, lambda _, batch: self.logged.extend(batch))

    def take(self) -> list[str]:
        """Whom it asks now."""
        self.desk.calls.clear()
        self.parts.take(self.gaining, ACTION)
        return [str(to) for _, to, _ in self.desk.calls]

    def wait(self) -> None:
        self.desk.now += RETRY_MS
        self.desk.fire()


LOGGED = [data.encode(data.OpenSessions("op-9", "a.1", 0, PART))]


def test_an_own_replica_that_applied_the_seal_is_enough() -> None:
    node = Node(**{"a.1": replica("a.1", PART)})
    assert node.take() == [] and node.logged == LOGGED


@pytest.mark.parametrize(
    "bad", [ErrorReply("not_found", "not sealed here"), SealedSessions(b"others"), SealedSessions(b"")]
)
def test_members_are_asked_in_turn_until_one_has_the_recorded_digest(bad: Any) -> None:
    """Also when the own replica has something else. No part is asked for twice at a time."""
    node = Node(**{"a.1": replica("a.1", b"others")})
    assert node.take() == ["b"]
    (call,) = node.desk.calls
    assert call[2] == GetSealedSessions("op-9", "a.1", 0)
    assert node.take() == []
    node.desk.on_reply(call[0], bad)
    assert not node.logged and node.take() == []
    node.wait()
    assert node.take() == ["c"]
    node.desk.on_reply(node.desk.calls[0][0], bad)
    node.wait()
    assert node.take() == ["b"]
    assert {event for event, _ in node.desk.notes} == {"sessions_later"} <= NOTABLE
    node.desk.on_reply(node.desk.calls[0][0], SealedSessions(PART))
    assert node.logged == LOGGED


def test_an_answer_that_comes_after_leadership_was_lost_is_not_logged() -> None:
    node = Node()
    node.take()
    node.gaining.leads = False
    node.desk.on_reply(node.desk.calls[0][0], SealedSessions(PART))
    assert not node.logged


def test_a_member_gives_the_parts_it_has_and_no_others() -> None:
    table = bytes(SESSIONS_PART_BYTES) + PART
    holder = replica("a.1", table)
    assert (
        sealed_part(holder, "op-9", 1) == PART and len(sealed_part(holder, "op-9", 0)) == SESSIONS_PART_BYTES
    )
    assert not any(sealed_part(holder, "op-9", n) for n in (-1, 2, 1 << 60))
    assert not sealed_part(holder, "op-8", 0)
