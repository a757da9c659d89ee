"""Send requests to nodes, groups and the meta leader, with retries."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from nodeagent.client.deadline import BUSY_TIMEOUTS_MAX, Deadline, pause
from nodeagent.client.link import Link
from nodeagent.client.retry import Backoff, MemberSearch
from nodeagent.client.tasks import begun
from nodeagent.client.views import ATTEMPT_MIN_S, META_TRANSIENT, Views
from nodeagent.model.errors import (
    Damaged,
    Definite,
    Forbidden,
    InvalidInput,
    NodeAgentError,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    Refused,
    Unavailable,
)
from nodeagent.model.ids import META, GroupId
from nodeagent.model.requests import GetMeta, ProbeGroup, Reply, Request, ScanRows
from nodeagent.model.requests.base import Repeat

SILENT_MAX = 2
"""Consecutive probes that fail (no answer, or an error) after which a node no longer counts as busy."""

GROUP_TRANSIENT = (Overloaded, Refused, NotFound, Damaged, Unavailable)


class Calls:
    """The requests of one client. `views` is its view of the cluster."""

    def __init__(self, link: Link, timeout_s: float, rng: random.Random) -> None:
        self.link = link
        self.timeout_s = timeout_s
        self.rng = rng
        self.views = Views(link, timeout_s, rng)

    # --- one node --------------------------------------------------------------------------------

    async def call(self, target: str, request: Request, timeout_s: float | None = None) -> Reply:
        """As `Link.call`."""
        return await self.link.call(target, request, self.timeout_s if timeout_s is None else timeout_s)

    async def call_while_busy(self, target: str, request: ScanRows, deadline: Deadline) -> Reply:
        """As `call`, for a scan that may take a long time. The node is probed while it scans: as long as it
        answers the probes without an error, it is busy, not dead, and the client waits for it. A retry would
        not help, because a second request queues behind the first. The call ends after half of
        `BUSY_TIMEOUTS_MAX` timeouts at the latest, so that the caller can try another node."""
        work = begun(
            self.call(target, request, min(BUSY_TIMEOUTS_MAX / 2 * self.timeout_s, deadline.patience_s))
        )
        strong = request.read == "strong" and not request.operation
        question = ProbeGroup(request.group) if strong else GetMeta(any_age=True)
        silent = 0
        try:
            while not (await asyncio.wait({work}, timeout=self.views.attempt_s))[0]:
                probe = begun(self.call(target, question, min(ATTEMPT_MIN_S, self.timeout_s)))
                try:
                    await asyncio.wait({work, probe}, return_when=asyncio.FIRST_COMPLETED)
                    if work.done():
                        break
                    probe.result()
                    silent = 0
                    deadline.extend_while_busy()
                except NodeAgentError:
                    silent += 1
                    if silent == SILENT_MAX:
                        raise
                finally:
                    probe.cancel()
            reply = work.result()
            deadline.extend()
            return reply
        finally:
            work.cancel()

    # --- groups ----------------------------------------------------------------------------------

    async def ask_group(
        self,
        group: GroupId,
        request: Request,
        *,
        read: str = "strong",
        deadline: Deadline | None = None,
    ) -> tuple[str, Reply]:
        """(node, its answer). The likely leader is asked first if `read` is `strong`, else a random member.

        Raises:
            NotFound: the newest table has no such group.
            OutcomeUnknown: a change was sent, but not answered.
        """
        try:
            search = await self.search(group, read)
        except NotFound:
            await self.views.refresh()
            search = await self.search(group, read)

        async def stale() -> None:
            (await self.views.refresh()).group(group)

        return await self._ask_members(
            group, search, request, deadline or Deadline(self.timeout_s), GROUP_TRANSIENT, stale
        )

    async def ask_meta(self, request: Request, deadline: Deadline | None = None) -> Reply:
        """The answer of the meta leader, or of any node if the request needs no leader."""
        members = list(self.views.routes.view.voters) if self.views.routes else []
        members += [t for t in self.views.targets() if t not in members]
        search = MemberSearch(members, self.views.leaders.get(META))

        async def stale() -> None:
            await self.views.refresh()

        _, reply = await self._ask_members(
            META, search, request, deadline or Deadline(self.timeout_s), META_TRANSIENT, stale
        )
        return reply

    async def search(self, group: GroupId, read: str = "strong") -> MemberSearch:
        """The members of `group` in the order to ask them. Raises `NotFound`."""
        members = (await self.views.current()).group(group).members
        if read == "strong":
            return MemberSearch(members, self.views.leaders.get(group))
        return MemberSearch(members, self.rng.choice(members))

    async def _ask_members(
        self,
        group: GroupId,
        search: MemberSearch,
        request: Request,
        deadline: Deadline,
        transient: tuple[type[NodeAgentError], ...],
        stale: Callable[[], Awaitable[None]],
    ) -> tuple[str, Reply]:
        """Ask the members in the order of `search` until one answers or the deadline passes."""
        backoff = Backoff(self.rng)
        lost: OutcomeUnknown | None = None
        refusals = 0
        while True:
            target, at_once = search.target, False
            try:
                reply = await self._attempt(target, request, deadline)
            except NotLeader as error:
                last: NodeAgentError = error
                at_once = self.follow(group, search, error)
            except Forbidden as error:
                refusals += 1
                if error.connected or refusals >= len(self.views.targets()):
                    raise
                last = error
                search.advance()
            except OutcomeUnknown as error:
                last = error
                if request.traits.repeat is not Repeat.FREELY:
                    lost = error
                if request.traits.repeat is Repeat.NEVER:
                    raise
                self.skip(group, search)
            except transient as error:
                last = error
                self.skip(group, search)
            except Definite as error:
                if lost is not None and not isinstance(error, InvalidInput):
                    raise _unknown(request, lost) from error
                raise
            except NodeAgentError as error:
                # Neither definite nor unknown: this node failed, or the error code is not known to us.
                if request.traits.repeat is not Repeat.FREELY:
                    raise _unknown(request, error) from error
                last = error
                self.skip(group, search)
            else:
                self.views.leaders[group] = target
                return target, reply
            delay_s = backoff.delay_s() if not at_once else 0.0
            if deadline.left_s <= delay_s:  # too little time: another attempt would end in an unknown outcome
                raise self._ended(request, lost, last) from last
            if not at_once:
                await pause(delay_s, deadline)
                search.paused()
                if isinstance(last, NotFound | Unavailable | OutcomeUnknown):
                    await stale()

    async def _attempt(self, target: str, request: Request, deadline: Deadline) -> Reply:
        if isinstance(request, ScanRows):
            return await self.call_while_busy(target, request, deadline)
        attempt_s = self.timeout_s if request.traits.is_long else self.views.attempt_s
        return await self.call(target, request, min(attempt_s, deadline.left_s))

    def follow(self, group: GroupId, search: MemberSearch, error: NotLeader) -> bool:
        """The target is not the leader. Return whether to ask the leader it names without a pause."""
        leader = error.details.get("leader")
        hint = leader if isinstance(leader, str) and self.link.where(leader) else None
        if self.views.leaders.get(group) == search.target:
            del self.views.leaders[group]
        return search.follow(hint)

    def skip(self, group: GroupId, search: MemberSearch) -> None:
        """The target did not give a usable answer: try the next member."""
        if self.views.leaders.get(group) == search.target:
            del self.views.leaders[group]
        search.advance()

    def _ended(self, request: Request, lost: OutcomeUnknown | None, last: NodeAgentError) -> NodeAgentError:
        name = type(request).__name__
        if lost is not None:
            return _unknown(request, lost)
        if isinstance(last, NotLeader | OutcomeUnknown):
            return Unavailable(
                f"no node could answer {name} within {self.timeout_s:g} s: {last.what}",
                next_step="see `iotctl cluster status`",
            )
        return last


def _unknown(request: Request, lost: NodeAgentError) -> OutcomeUnknown:
    name = type(request).__name__
    return OutcomeUnknown(
        f"{name} was sent; it is not known whether it took effect: {lost.what}",
        next_step="see `iotctl ops list` or `iotctl cluster status`",
        **lost.details,
    )
