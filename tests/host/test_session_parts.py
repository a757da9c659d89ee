"""From which members a gaining group's leader takes the sessions of sealed slots."""

from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.data import commands as data
from nodeagent.data.slot_migration import digest
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.session_parts import (
    RETRY_MS,
    SEAL_WAIT_MS,
    SEAL_WAITS_MAX,
    SealWaits,
    SessionParts,
    sealed_part,
)
from nodeagent.model.limits import SESSIONS_PART_BYTES
from nodeagent.model.requests import ErrorReply, GetSealedSessions, SealedSessions
from nodeagent.runtime.notes import RETAINED_EVENTS
from nodeagent.scaling.groups import Part, PrefetchParts, TakeParts

PART = b"sessions"
OPEN = data.Open("op-9", 9, ((0, 2),), ())
ACTION = TakeParts("op-9", (Part("a.1", 0, digest(PART), ("n", "b", "c")),), OPEN)
AHEAD = PrefetchParts("op-9", (Part("a.1", 0, "", ("n", "b", "c")),))


def replica(group: str = "n.9", table: bytes | None = None) -> Any:
    sealed = {} if table is None else {"op-9": SimpleNamespace(sessions=table)}
    slots = SimpleNamespace(sealed=sealed, ended={})
    return SimpleNamespace(group=group, leads=True, state=SimpleNamespace(slots=slots))


class Node:
    """Node n, which leads the gaining group n.9."""

    def __init__(self, **replicas: Any) -> None:
        self.gaining = replica()
        self.replicas = {"n.9": self.gaining, **replicas}
        self.effects = EffectQueue(0, 0)
        self.logged: list[bytes] = []
        self.accepts = True
        self.parts = SessionParts("n", self.effects, self.replicas, self._propose)
        self.parts.begin("op-9")

    def _propose(self, _: Any, batch: list[bytes]) -> bool:
        if self.accepts:
            self.logged += batch
        return self.accepts

    def ahead(self) -> list[str]:
        """The members that it asks before the seal is known."""
        self.effects.calls.clear()
        self.parts.prefetch(self.gaining, AHEAD)
        return [str(to) for _, to, _ in self.effects.calls]

    def take(self) -> list[str]:
        """The members that it asks now."""
        self.effects.calls.clear()
        self.parts.take(self.gaining, ACTION)
        return [str(to) for _, to, _ in self.effects.calls]

    def wait(self) -> None:
        self.effects.now += RETRY_MS
        self.effects.fire()


LOGGED = [data.encode(data.OpenSessions("op-9", "a.1", 0, PART)), data.encode(OPEN)]


def test_an_own_replica_that_applied_the_seal_is_enough() -> None:
    node = Node(**{"a.1": replica("a.1", PART)})
    assert node.take() == [] and node.logged == LOGGED


@pytest.mark.parametrize(
    "bad", [ErrorReply("not_found", "not sealed here"), SealedSessions(b"others"), SealedSessions(b"")]
)
def test_members_are_asked_in_turn_until_one_has_the_recorded_digest(bad: Any) -> None:
    """This holds even if this node's own replica has another part. No two requests for a part are open."""
    node = Node(**{"a.1": replica("a.1", b"others")})
    assert node.take() == ["b"]
    (call,) = node.effects.calls
    assert call[2] == GetSealedSessions("op-9", "a.1", 0)
    assert node.take() == []
    node.effects.on_reply(call[0], bad)
    assert not node.logged and node.take() == []
    node.wait()
    assert node.take() == ["c"]
    node.effects.on_reply(node.effects.calls[0][0], bad)
    node.wait()
    assert node.take() == ["b"]
    assert {event for event, _ in node.effects.notes} == {"sessions_later"} <= RETAINED_EVENTS
    assert not node.parts.have_come()
    node.effects.on_reply(node.effects.calls[0][0], SealedSessions(PART))
    assert node.parts.have_come() and not node.parts.have_come()
    node.accepts = False
    assert node.take() == [] and not node.logged
    node.accepts = True
    assert node.take() == [] and node.logged == LOGGED
    assert node.take() == ["b"]  # a logged part is forgotten


def test_nothing_is_logged_before_all_parts_are_here() -> None:
    node = Node(**{"a.1": replica("a.1", PART)})
    two = (*ACTION.parts, Part("a.2", 0, digest(b"two"), ("b",)))
    for opening in (OPEN, None):
        node.logged.clear()
        node.effects.calls.clear()
        action = TakeParts("op-9", two, opening)
        node.parts.take(node.gaining, action)
        assert not node.logged
        node.effects.on_reply(node.effects.calls[0][0], SealedSessions(b"two"))
        node.parts.take(node.gaining, action)
        second = data.encode(data.OpenSessions("op-9", "a.2", 0, b"two"))
        assert node.logged == [LOGGED[0], second, *([LOGGED[1]] if opening else [])]


def test_a_prefetched_part_is_used() -> None:
    """A part that turns out to be different is not used. A part is requested once, and not at all if it is
    sent without a request."""
    node = Node()
    assert node.ahead() == ["b"]
    ((call, _, request),) = node.effects.calls
    assert request == GetSealedSessions("op-9", "a.1", 0, wait=True)
    assert node.ahead() == []
    node.effects.on_reply(call, SealedSessions(PART))
    assert node.parts.have_come() and not node.logged
    assert node.take() == [] and node.logged == LOGGED

    bad = Node()
    bad.ahead()
    bad.effects.on_reply(bad.effects.calls[0][0], SealedSessions(b"others"))
    assert bad.take() == ["c"] and not bad.logged
    bad.effects.on_reply(bad.effects.calls[0][0], SealedSessions(PART))
    assert bad.take() == [] and bad.logged == LOGGED

    silent = Node()
    assert silent.ahead() == ["b"] and silent.take() == ["c"]

    assert Node(**{"a.1": replica("a.1")}).ahead() == []  # it leads the sealed group too


@pytest.mark.parametrize("reply", [ErrorReply("not_found", "no sessions"), SealedSessions(PART)])
def test_a_part_for_an_ended_operation_is_dropped(reply: Any) -> None:
    node = Node()
    node.ahead()
    ((call, _, _),) = node.effects.calls
    node.parts.begin("")
    node.effects.on_reply(call, reply)
    node.parts.begin("op-9")
    assert node.take() == ["b"]


def test_a_request_of_an_ended_operation_does_not_delay_the_next() -> None:
    """The member that was asked does not answer; later the same groups seal and gain again."""
    node = Node()
    assert node.take() == ["b"]
    ((call, _, _),) = node.effects.calls
    assert node.take() == []
    node.parts.begin("op-10")
    again = TakeParts("op-10", ACTION.parts, None)
    node.effects.calls.clear()
    node.parts.take(node.gaining, again)
    ((_, to, request),) = node.effects.calls
    assert isinstance(request, GetSealedSessions) and (to, request.operation) == ("b", "op-10")
    node.effects.on_reply(call, ErrorReply("timeout", "no answer"))
    node.effects.on_reply(node.effects.calls[0][0], SealedSessions(PART))
    node.parts.take(node.gaining, again)
    assert node.logged == [data.encode(data.OpenSessions("op-10", "a.1", 0, PART))]


def test_a_request_waits_for_a_part_of_a_later_seal() -> None:
    effects, holder, late, answered = EffectQueue(0, 0), replica("a.1"), replica("a.2"), list[str]()
    waits = SealWaits(effects)
    waits.add(holder, "op-9", lambda: answered.append("sealed"))
    waits.add(late, "op-9", lambda: answered.append("late"))
    waits.check()
    assert not answered
    holder.state.slots.sealed["op-9"] = SimpleNamespace(sessions=PART)
    waits.check()
    assert answered == ["sealed"]
    waits.add(holder, "op-9", lambda: answered.append("at once"))
    effects.now = SEAL_WAIT_MS - 1
    effects.fire()
    assert answered == ["sealed", "at once"]
    effects.now = SEAL_WAIT_MS
    effects.fire()
    assert answered == ["sealed", "at once", "late"]
    late.state.slots.ended["op-9"] = "cancelled"
    waits.add(late, "op-9", lambda: answered.append("over"))
    assert answered[3:] == ["over"]


def test_the_number_of_requests_that_wait_for_seals_is_bounded() -> None:
    waits, holder, answered = SealWaits(EffectQueue(0, 0)), replica("a.1"), list[int]()
    for number in range(SEAL_WAITS_MAX + 1):
        waits.add(holder, "op-9", lambda n=number: answered.append(n))  # type: ignore[misc]
    assert answered == [SEAL_WAITS_MAX]


def test_an_answer_that_comes_after_leadership_was_lost_is_not_logged() -> None:
    node = Node()
    node.take()
    node.gaining.leads = False
    node.effects.on_reply(node.effects.calls[0][0], SealedSessions(PART))
    assert not node.logged


def test_a_member_sends_only_the_parts_it_has() -> None:
    table = bytes(SESSIONS_PART_BYTES) + PART
    holder = replica("a.1", table)
    assert (
        sealed_part(holder, "op-9", 1) == PART and len(sealed_part(holder, "op-9", 0)) == SESSIONS_PART_BYTES
    )
    assert not any(sealed_part(holder, "op-9", n) for n in (-1, 2, 1 << 60))
    assert not sealed_part(holder, "op-8", 0)
