"""The client's side of sessions: which (session, sequence) a write gets, and which writes have ended.

Sequences count from 1 per (session, slot). All sequences up to `acknowledged_through` have ended
for the client, whatever their outcome: the group may forget them. At most half of the sequences that the
group remembers are outstanding, so that it always recognises a late duplicate.
"""

import asyncio

from nodeagent.client.calls import Calls
from nodeagent.client.deadline import Deadline
from nodeagent.model.errors import Unavailable
from nodeagent.model.ids import GroupId
from nodeagent.model.limits import SESSION_WINDOW
from nodeagent.model.requests import OpenSession, SessionOpened

WINDOW = SESSION_WINDOW // 2


class _Slot:
    """Invariants: acknowledged_through < every sequence in `open` < next;
    next <= acknowledged_through + WINDOW + 1."""

    def __init__(self) -> None:
        self.next = 1
        self.acknowledged_through = 0
        self.open: set[int] = set()
        self.moved = asyncio.Event()
        """Set when `acknowledged_through` grows; cleared by the task that waits for it."""

    def finish(self, sequence: int) -> None:
        self.open.discard(sequence)
        through = min(self.open, default=self.next) - 1
        if through != self.acknowledged_through:
            self.acknowledged_through = through
            self.moved.set()


class Session:
    """One session of one group, and its sequences per slot."""

    def __init__(self, name: str, group: GroupId) -> None:
        self.name = name
        self.group = group
        self.slots: dict[int, _Slot] = {}


class Ticket:
    """One write's place in a session. `finish` must be called once its outcome is decided."""

    def __init__(self, session: Session, slot: _Slot, sequence: int) -> None:
        self.session = session
        self.sequence = sequence
        self._slot = slot

    @property
    def acknowledged_through(self) -> int:
        return self._slot.acknowledged_through

    def finish(self) -> None:
        self._slot.finish(self.sequence)


class Sessions:
    """At most one open session per group, opened by one request however many writes wait for it."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._opening: dict[GroupId, asyncio.Task[Session]] = {}

    async def take(self, group: GroupId, slot: int, deadline: Deadline) -> Ticket:
        """The next sequence of `slot` in a session of `group`.

        Raises:
            Unavailable: no session within the client's timeout (it may end after `deadline`), or no room in
                the session's window before the deadline.
            NotFound: no such group.
        """
        session = await self._session(group)
        state = session.slots.setdefault(slot, _Slot())
        while state.next > state.acknowledged_through + WINDOW:
            state.moved.clear()
            try:
                await asyncio.wait_for(state.moved.wait(), deadline.left_s)
            except TimeoutError:
                raise Unavailable(f"{WINDOW} writes to slot {slot} are still unanswered") from None
        sequence = state.next
        state.next += 1
        state.open.add(sequence)
        return Ticket(session, state, sequence)

    def prepare(self, group: GroupId) -> None:
        """Open a session of the group, and thereby a connection to its leader, before writes to it arrive."""
        self._begin(group)

    def drop(self, session: Session) -> None:
        """The group no longer has the session: the next write opens a new session."""
        task = self._opening.get(session.group)
        if task is not None and _has_opened(task) and task.result() is session:
            del self._opening[session.group]

    async def _session(self, group: GroupId) -> Session:
        task = self._begin(group)
        return task.result() if task.done() else await asyncio.shield(task)

    def _begin(self, group: GroupId) -> "asyncio.Task[Session]":
        task = self._opening.get(group)
        if task is None or (task.done() and not _has_opened(task)):
            task = self._opening[group] = asyncio.create_task(self._open(group))
            task.add_done_callback(lambda t: t.cancelled() or t.exception())
        return task

    async def _open(self, group: GroupId) -> Session:
        _, reply = await self._calls.ask_group(group, OpenSession(group))
        assert isinstance(reply, SessionOpened), reply
        return Session(reply.session, group)


def _has_opened(task: "asyncio.Task[Session]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
