"""The attempts of one write until its outcome is decided (the rules are in `writer`)."""

from collections.abc import Callable

from nodeagent.client.calls import Calls
from nodeagent.client.deadline import Deadline, pause
from nodeagent.client.retry import BACKOFF_MIN_S, HOPS_MAX, NO_ROOM_PAUSE_MAX_S, Backoff, MemberSearch
from nodeagent.client.sessions import Sessions, Ticket
from nodeagent.model.errors import (
    Definite,
    Moved,
    NodeAgentError,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    Refused,
    SchemaMismatch,
    SessionExpired,
    Unavailable,
)
from nodeagent.model.ids import GroupId
from nodeagent.model.requests import GroupRecord, Reply, Request, Written

Build = Callable[[GroupId, Ticket], Request]


class Attempt:
    """The state of one write: where to send it next, and whether it may have taken effect already."""

    def __init__(self, calls: Calls, sessions: Sessions, slot: int) -> None:
        self._calls = calls
        self._views = calls.views
        self._sessions = sessions
        self._slot = slot
        self._deadline = Deadline(calls.timeout_s)
        self._backoff = Backoff(calls.rng)
        self._ticket: Ticket | None = None
        self._lost: NodeAgentError | None = None
        self._search: MemberSearch | None = None
        self._group: GroupId | None = None
        self._hops = 0
        self._refusals = 0
        self._overloaded: Overloaded | None = None
        """The last `Overloaded` answer: of a leader without room for the write, or of any other node."""

        self._hint: GroupRecord | None = None
        """The group that the last `Moved` named, if the routes then still named the group that sent it. None
        once another member must be tried."""

    def finish(self) -> None:
        if self._ticket is not None:
            self._ticket.finish()
            self._ticket = None

    async def once(self, build: Build) -> Written | None:
        """Make one attempt; return None if another attempt must follow.

        Raises:
            OutcomeUnknown: the write may have taken effect. After any other error it did not.
        """
        try:
            reply = await self._send(build)
        except OutcomeUnknown as error:
            self._lost = error
            await self._try_next_member(error)
        except NotLeader as error:
            assert self._search is not None and self._group is not None
            at_once = self._calls.follow(self._group, self._search, error)
            await self._pause(error, self._backoff.delay_s() if not at_once else 0.0)
        except Moved as error:
            await self._reroute(error)
        except SessionExpired as error:
            await self._reopen(error)
        except Overloaded as error:
            self._overloaded = error
            if error.details.get("at_work"):
                await self._wait_for_room(error)
            else:
                await self._try_next_member(error)
        except (Unavailable, Refused, NotFound, SchemaMismatch) as error:
            # A schema mismatch means here that the group lacks the newest schema: the rows were
            # normalised by the meta group's schema before.
            await self._try_next_member(error)
        except NodeAgentError as error:
            if not isinstance(error, Definite):
                self._lost = error  # this node failed, or the error code is not known to us
                await self._try_next_member(error)
                return None
            self._refusals += 1
            if error.connected or self._refusals >= len(self._views.targets()):
                raise self._ended(error) from error
            await self._try_next_member(error)
        else:
            assert isinstance(reply, Written), reply
            assert self._search is not None and self._group is not None
            self._views.leaders[self._group] = self._search.target
            return reply
        return None

    async def _send(self, build: Build) -> Reply:
        group = self._hint or (await self._views.current()).group_of(self._slot)
        if group.group != self._group or self._search is None:
            self._group = group.group
            self._search = MemberSearch(group.members, self._views.leaders.get(group.group))
        if self._ticket is None:
            self._ticket = await self._sessions.take(group.group, self._slot, self._deadline)
        timeout_s = min(self._views.attempt_s, max(self._deadline.left_s, 0.001))
        return await self._calls.call(self._search.target, build(group.group, self._ticket), timeout_s)

    async def _try_next_member(self, error: NodeAgentError) -> None:
        """Try another member, with fresh routes: this node cannot accept the write now."""
        if self._search is not None and self._group is not None:
            self._calls.skip(self._group, self._search)
        self._hint = None
        await self._pause(error, self._backoff.delay_s())
        if not isinstance(error, Overloaded):
            await self._refresh()

    async def _wait_for_room(self, error: Overloaded) -> None:
        """The leader is writing earlier rows to files: retry there after a pause. Raise before an attempt
        that has too little time left for an answer, because its outcome would be unknown."""
        self._deadline.extend_while_busy()
        delay_s = self._backoff.delay_s(min(NO_ROOM_PAUSE_MAX_S, self._views.attempt_s / 4))
        if self._deadline.left_s - delay_s < self._views.attempt_s / 2:
            raise self._ended(error) from error
        await self._pause(error, delay_s)

    async def _reroute(self, error: Moved) -> None:
        """Send the write to the group that now owns the slot, or wait while no group serves the slot."""
        asked, self._hint = self._group, None
        if error.details.get("wait"):
            await self._pause(error, BACKOFF_MIN_S)
            await self._refresh()
            coming = self._views.routes.next_group_of(self._slot) if self._views.routes is not None else None
            if coming is not None:
                self._sessions.prepare(coming)
            return
        await self._refresh()
        owner = error.details.get("header")
        if self._routed() == asked and isinstance(owner, str) and self._views.routes is not None:
            named = self._views.routes.of_owner(owner)
            self._hint = named if named is not None and named.group != asked else None
        self._hops += 1
        elsewhere = self._hint is not None or self._routed() != asked
        await self._pause(error, 0.0 if elsewhere and self._hops <= HOPS_MAX else BACKOFF_MIN_S)

    def _routed(self) -> GroupId | None:
        """The slot's group by the current routes, without a refresh."""
        if self._views.routes is None:
            return None
        try:
            return self._views.routes.group_of(self._slot).group
        except Unavailable:
            return None

    async def _reopen(self, error: SessionExpired) -> None:
        """Use a new session if no attempt can have taken effect; else the outcome is unknown, because the
        record of the old session is lost.

        The group may never have had the session: a session that the slot's old group opened after the seal
        does not move with the slot.
        """
        assert self._ticket is not None
        if self._ticket.session.group == self._group:
            self._sessions.drop(self._ticket.session)
        if self._lost is not None:
            raise self._ended(error) from error
        self.finish()
        await self._pause(error, 0.0)

    async def _refresh(self) -> None:
        try:
            await self._views.refresh()
        except NodeAgentError as error:
            await self._pause(error, self._backoff.delay_s())

    async def _pause(self, error: NodeAgentError, delay_s: float) -> None:
        if self._deadline.left_s <= delay_s:
            raise self._ended(error) from error
        if delay_s:
            await pause(delay_s, self._deadline)
            if self._search is not None:
                self._search.paused()

    def _ended(self, error: NodeAgentError) -> NodeAgentError:
        """The error to raise, with `error` as the last answer."""
        if self._lost is not None:
            return OutcomeUnknown(
                f"a write to slot {self._slot} was sent and may have taken effect: {self._lost.what};"
                f" last answer: {error.what}",
                next_step="read the rows back, or write them again (equal rows overwrite each other)",
                slot=self._slot,
            )
        if isinstance(error, NotLeader) and self._overloaded is not None:
            return self._overloaded  # more useful than the error of a member that is not the leader
        if isinstance(error, NotLeader | Moved | SessionExpired):
            return Unavailable(
                f"slot {self._slot} accepted no write within {self._deadline.timeout_s:g} s: {error.what}",
                next_step="see `iotctl cluster status`",
                slot=self._slot,
            )
        return error
