"""Send requests to nodes, groups and the meta leader, and keep the routes fresh.

The routes are the newest meta view received (by its applied index). Older table versions are retained for a
while, because an answer is checked against the table version of the node that gave it.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TypeVar

from nodeagent.client.link import Link
from nodeagent.client.retry import Backoff, Chase
from nodeagent.client.routes import Routes
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
from nodeagent.model.requests import (
    GetMeta,
    MetaView,
    ProbeGroup,
    Reply,
    Request,
    ScanRows,
)
from nodeagent.model.requests.base import Repeat
from nodeagent.model.schema import TableSchema

_T = TypeVar("_T")

STAGGER_S = 0.15
"""A request that any node can answer is also sent to the next node after this delay."""

AGAIN_MAX_S = 0.5
"""The longest pause before a node that cannot answer such a request now is asked again."""

ASKED_MAX = 5
"""Nodes that are asked the same thing concurrently."""

TABLES_KEPT = 4
ATTEMPT_MIN_S = 2.0

PATIENCE = 6
"""Timeouts without progress after which a busy node is no longer waited for: a node that still computes a
read, or that flushes earlier rows to files before it accepts a write."""

SILENT_MAX = 2
"""Consecutive probes without an answer after which a node no longer counts as busy."""

GROUP_TRANSIENT = (Overloaded, Refused, NotFound, Damaged, Unavailable)
META_TRANSIENT = (Overloaded, Unavailable)


class Deadline:
    """When a call ends without an answer.

    `extend` restarts the deadline after progress. `at_work` restarts it too, but never beyond `PATIENCE`
    timeouts after the last progress. Both count as `at_work` for the enclosing deadline `within`; until its
    first progress, a deadline has only the patience that the enclosing deadline has left.
    """

    def __init__(self, timeout_s: float, within: "Deadline | None" = None) -> None:
        self.timeout_s = timeout_s
        self._within = within
        self._at = _now() + timeout_s
        self._last_at: float = within._last_at if within is not None else _now() + PATIENCE * timeout_s

    def extend(self) -> None:
        self._last_at = _now() + PATIENCE * self.timeout_s
        self.at_work()

    def at_work(self) -> None:
        self._at = max(self._at, min(_now() + self.timeout_s, self._last_at))
        if self._within is not None:
            self._within.at_work()

    @property
    def patience_s(self) -> float:
        """Seconds by which `at_work` can still postpone the end."""
        return max(self.left_s, self._last_at - _now())

    @property
    def left_s(self) -> float:
        """Seconds until the end, never below zero."""
        return max(0.0, self._at - _now())

    @property
    def passed(self) -> bool:
        return _now() >= self._at


class Calls:
    """The requests and the routes of one client (see the module)."""

    def __init__(self, link: Link, timeout_s: float, rng: random.Random) -> None:
        self.link = link
        self.timeout_s = timeout_s
        self.rng = rng
        self.routes: Routes | None = None
        self.leaders: dict[GroupId, str] = {}
        """The member that last answered as leader."""

        self._schemas: dict[tuple[str, str], TableSchema] = {}
        self._tables: OrderedDict[int, Routes] = OrderedDict()
        self._refreshing: asyncio.Task[Routes] | None = None

    @property
    def attempt_s(self) -> float:
        """Seconds one attempt may take: a node that hangs must not use up the whole timeout."""
        return min(self.timeout_s, max(ATTEMPT_MIN_S, self.timeout_s / 4))

    # --- one node --------------------------------------------------------------------------------

    async def call(self, target: str, request: Request, timeout_s: float | None = None) -> Reply:
        """As `Link.call`."""
        return await self.link.call(target, request, self.timeout_s if timeout_s is None else timeout_s)

    async def call_at_work(self, target: str, request: ScanRows, deadline: Deadline) -> Reply:
        """As `call`, for a scan that may take the node long. The node is probed while it scans: as long as
        it answers the probes it is busy, not dead, and is waited for. Retrying would not help, because a
        second request queues behind the first. After half of the patience the next node is tried."""
        work = _asked(self.call(target, request, min(PATIENCE / 2 * self.timeout_s, deadline.patience_s)))
        strong = request.read == "strong" and not request.operation
        question = ProbeGroup(request.group) if strong else GetMeta()
        silent = 0
        try:
            while not (await asyncio.wait({work}, timeout=self.attempt_s))[0]:
                probe = _asked(self.call(target, question, min(ATTEMPT_MIN_S, self.timeout_s)))
                try:
                    await asyncio.wait({work, probe}, return_when=asyncio.FIRST_COMPLETED)
                    if work.done():
                        break
                    probe.result()
                    silent = 0
                    deadline.at_work()
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
        """(node, its answer), from the leader if `read` is `strong`, else from any member.

        Raises:
            NotFound: the newest table has no such group.
            OutcomeUnknown: a change was sent, but not answered.
        """
        try:
            chase = await self.chase(group, read)
        except NotFound:
            await self.refresh()
            chase = await self.chase(group, read)

        async def stale() -> None:
            (await self.refresh()).group(group)

        return await self._pursue(
            group, chase, request, deadline or Deadline(self.timeout_s), GROUP_TRANSIENT, stale
        )

    async def ask_meta(self, request: Request, deadline: Deadline | None = None) -> Reply:
        """The meta leader's answer."""
        members = list(self.routes.view.voters) if self.routes else []
        members += [t for t in self.targets() if t not in members]
        chase = Chase(members, self.leaders.get(META))

        async def stale() -> None:
            await self.refresh()

        _, reply = await self._pursue(
            META, chase, request, deadline or Deadline(self.timeout_s), META_TRANSIENT, stale
        )
        return reply

    async def chase(self, group: GroupId, read: str = "strong") -> Chase:
        """The members of `group` in the order to ask them. Raises `NotFound`."""
        members = (await self.current()).group(group).members
        if read == "strong":
            return Chase(members, self.leaders.get(group))
        return Chase(members, self.rng.choice(members))

    async def _pursue(
        self,
        group: GroupId,
        chase: Chase,
        request: Request,
        deadline: Deadline,
        transient: tuple[type[NodeAgentError], ...],
        stale: Callable[[], Awaitable[None]],
    ) -> tuple[str, Reply]:
        """Ask the members in the order of `chase` until one answers or the deadline passes."""
        backoff = Backoff(self.rng)
        attempt_s = self.timeout_s if request.traits.is_long else self.attempt_s
        lost: OutcomeUnknown | None = None
        refusals = 0
        while True:
            target, at_once = chase.target, False
            try:
                if isinstance(request, ScanRows):
                    reply = await self.call_at_work(target, request, deadline)
                else:
                    reply = await self.call(target, request, min(attempt_s, deadline.left_s))
            except NotLeader as error:
                last: NodeAgentError = error
                at_once = self.follow(group, chase, error)
            except Forbidden as error:
                refusals += 1
                if error.connected or refusals >= len(self.targets()):
                    raise
                last = error
                chase.advance()
            except OutcomeUnknown as error:
                last = error
                if request.traits.repeat is not Repeat.FREELY:
                    lost = error
                if request.traits.repeat is Repeat.NEVER:
                    raise
                self.give_up(group, chase)
            except transient as error:
                last = error
                self.give_up(group, chase)
            except Definite as error:
                if lost is not None and not isinstance(error, InvalidInput):
                    raise _unknown(request, lost) from error
                raise
            except NodeAgentError as error:
                # Neither definite nor unknown: this node failed, or the error code is not known to us.
                if request.traits.repeat is not Repeat.FREELY:
                    raise _unknown(request, error) from error
                last = error
                self.give_up(group, chase)
            else:
                self.leaders[group] = target
                return target, reply
            delay_s = backoff.delay_s() if not at_once else 0.0
            if deadline.left_s <= delay_s:  # no time left to answer: a refusal would turn unknown
                raise self._ended(request, lost, last) from last
            if not at_once:
                await pause(delay_s, deadline)
                chase.rested()
                if isinstance(last, NotFound | Unavailable | OutcomeUnknown):
                    await stale()

    def follow(self, group: GroupId, chase: Chase, error: NotLeader) -> bool:
        """The target is not the leader. Return whether to ask the leader it names without a pause."""
        leader = error.details.get("leader")
        hint = leader if isinstance(leader, str) and self.link.where(leader) else None
        if self.leaders.get(group) == chase.target:
            del self.leaders[group]
        return chase.follow(hint)

    def give_up(self, group: GroupId, chase: Chase) -> None:
        """The target did not give a usable answer: try the next member."""
        if self.leaders.get(group) == chase.target:
            del self.leaders[group]
        chase.advance()

    def _ended(self, request: Request, lost: OutcomeUnknown | None, last: NodeAgentError) -> NodeAgentError:
        name = type(request).__name__
        if lost is not None:
            return _unknown(request, lost)
        if isinstance(last, NotLeader | OutcomeUnknown):
            return Unavailable(
                f"no node answered {name} within {self.timeout_s:g} s: {last.what}",
                next_step="look at `iotctl cluster status`",
            )
        return last

    # --- routes ----------------------------------------------------------------------------------

    def targets(self) -> list[str]:
        """Every node that can be asked: the nodes of the view, then the endpoints that are not among them."""
        known = [n.node for n in self.routes.view.nodes] if self.routes else []
        addresses = {self.link.where(node) for node in known}
        others = [t for t in self.link.known() if t not in known]
        return known + [t for t in others if self.link.where(t) not in addresses]

    async def current(self) -> Routes:
        return self.routes or await self.refresh()

    def at_version(self, version: int) -> Routes | None:
        """The routes of an older table version, or None if they are no longer retained."""
        return self._tables.get(version)

    async def refresh(self, seen: Routes | None = None) -> Routes:
        """Routes newer than `seen`, or the current routes if no node answers. Concurrent calls share one
        request.

        Raises:
            Unavailable: no node answered, and there are no routes yet.
        """
        if seen is not None and self.routes is not None and self.routes is not seen:
            return self.routes
        if self._refreshing is None:
            self._refreshing = _asked(self._refresh())
        return await asyncio.shield(self._refreshing)

    async def _refresh(self) -> Routes:
        try:
            await self.meta()
        except (Unavailable, OutcomeUnknown):
            if self.routes is None:
                raise
        finally:
            self._refreshing = None
        assert self.routes is not None
        return self.routes

    async def meta(self, strong: bool = False, timeout_s: float = 0, *, wait: bool = True) -> MetaView:
        """The view of the first node that answers; the leader is asked first. If an earlier view was newer,
        return that one.

        Args:
            timeout_s: 0 means the whole timeout for a strong read, else the time of one attempt.
            wait: ask all nodes again while a node answers that it has no view now (no leader confirms its
                state, or the cluster is not formed yet).

        Raises:
            Unavailable: no node answered, or none had a view in time (strong: no quorum).
        """
        targets = self.targets()
        self.rng.shuffle(targets)
        targets.sort(key=lambda t: t != self.leaders.get(META))
        deadline = Deadline(timeout_s or (self.timeout_s if strong else self.attempt_s))
        view = await self._first(targets, GetMeta(strong), deadline, wait)
        assert isinstance(view, MetaView), view
        if view.leader != view.node and self.leaders.get(META) == view.node:
            del self.leaders[META]  # a former leader: cut off or removed, its view lags behind
        self.adopt(view)
        assert self.routes is not None
        return self.routes.view

    def adopt(self, view: MetaView) -> None:
        """Use `view` if it is the newest. Raises `Forbidden` if it belongs to another cluster."""
        old = self.routes
        if old is not None and old.view.cluster_id and old.view.cluster_id != view.cluster_id:
            if not view.cluster_id:
                return
            raise Forbidden(f"{view.node} belongs to cluster {view.cluster_id}, not {old.view.cluster_id}")
        if old is not None and old.view.applied > view.applied:
            return
        self.routes = routes = Routes(view)
        for record in view.nodes:
            self.link.learn(record.node, record.host, record.port)
        for schema in view.schemas:
            self.learn_schema(schema)
        if view.leader:
            self.leaders[META] = view.leader
        self._tables[routes.version] = routes
        while len(self._tables) > TABLES_KEPT:
            self._tables.popitem(last=False)

    async def _first(self, targets: list[str], request: Request, deadline: Deadline, wait: bool) -> Reply:
        """The first answer. At most `ASKED_MAX` nodes are asked concurrently, one more every `STAGGER_S`.
        With `wait`, all are asked again after growing pauses while any node says it cannot answer yet."""
        waiting, again = list(targets), list[str]()
        running: dict[asyncio.Task[Reply], str] = {}
        pause_s = STAGGER_S
        may_soon = False  # a node said that it cannot answer yet, and `wait` is set
        last: NodeAgentError = Unavailable(
            "no node's address is known", next_step="give the addresses of the nodes"
        )
        try:
            while (waiting or running or may_soon) and not deadline.passed:
                if waiting and len(running) < ASKED_MAX:
                    timeout_s = min(self.attempt_s, deadline.left_s)
                    target = waiting.pop(0)
                    running[asyncio.create_task(self.call(target, request, timeout_s))] = target
                if waiting and len(running) < ASKED_MAX:
                    wait_s = STAGGER_S
                else:
                    wait_s = pause_s if may_soon else deadline.left_s
                done = await _wait_first(running, min(wait_s, deadline.left_s))
                failed = {task: running.pop(task) for task in done}
                errors = {
                    task: task.exception() for task in done
                }  # all: asyncio warns about one not retrieved
                for task, error in errors.items():
                    if error is None:
                        return task.result()
                    if not isinstance(error, NodeAgentError):
                        raise error
                    last = error
                    again.append(failed[task])
                    may_soon |= wait and isinstance(error, META_TRANSIENT) and error.connected
                if not done and not waiting and may_soon:
                    waiting, again, may_soon = again, [], False
                    pause_s = min(2 * pause_s, AGAIN_MAX_S)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if isinstance(last, Forbidden):
            raise last
        within = f" within {deadline.timeout_s:g} s" if deadline.passed else ""
        raise Unavailable(
            f"none of {len(targets)} nodes answered{within}: {last.what}",
            next_step=last.next_step or "start the nodes, or check addresses and certificates",
        ) from last

    # --- schemas ---------------------------------------------------------------------------------

    def learn_schema(self, schema: TableSchema) -> None:
        key = (schema.storage_group, schema.table)
        known = self._schemas.get(key)
        # A schema of the same version may have another TTL.
        if known is None or schema.version >= known.version:
            self._schemas[key] = schema

    def forget_schema(self, storage_group: str, table: str) -> None:
        """A node says that the table was dropped: fetch its schema at the next use."""
        self._schemas.pop((storage_group, table), None)

    def known_schema(self, storage_group: str, table: str) -> TableSchema | None:
        return self._schemas.get((storage_group, table))

    def known_schemas(self) -> list[TableSchema]:
        return [self._schemas[key] for key in sorted(self._schemas)]

    async def schema(self, storage_group: str, table: str, *, strong: bool = True) -> TableSchema:
        """The schema of a table.

        If not `strong`, any node may confirm that the table exists; that it does not exist always takes a
        strong read. Raises `NotFound`.
        """
        known = self.known_schema(storage_group, table)
        for level in (True,) if strong else (False, True):
            if known is None:
                await self.meta(level)
                known = self.known_schema(storage_group, table)
        if known is None:
            raise NotFound(
                f"there is no table {table!r} in storage group {storage_group!r}",
                next_step="see `iotctl data schema`; a first import names its tag columns",
            )
        return known


async def pause(delay_s: float, deadline: Deadline) -> None:
    await asyncio.sleep(min(delay_s, deadline.left_s))


async def _wait_first(
    tasks: Iterable[asyncio.Task[_T]], timeout_s: float | None = None
) -> list[asyncio.Task[_T]]:
    """The tasks that are done as soon as any is, in the order given; empty after `timeout_s`."""
    running = list(tasks)
    if not running:
        await asyncio.sleep(timeout_s or 0)
        return []
    done, _ = await asyncio.wait(running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return [task for task in running if task in done]


async def run_bounded(jobs: Iterable[Coroutine[object, object, None]], running_max: int) -> None:
    """Run all jobs, `running_max` at a time; the first failure cancels the others and is raised."""
    running: list[asyncio.Task[None]] = []

    async def wait_for_one() -> None:
        done = await _wait_first(running)
        for task in done:
            running.remove(task)
        errors = [error for task in done if (error := task.exception()) is not None]
        if errors:
            raise errors[0]

    try:
        for job in jobs:
            running.append(asyncio.create_task(job))
            if len(running) >= running_max:
                await wait_for_one()
        while running:
            await wait_for_one()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _asked(call: Coroutine[object, object, _T]) -> asyncio.Task[_T]:
    """A task whose error is ignored if nothing awaits it any more."""
    task = asyncio.create_task(call)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


def _unknown(request: Request, lost: NodeAgentError) -> OutcomeUnknown:
    name = type(request).__name__
    return OutcomeUnknown(
        f"{name} was sent; it is not known whether it took effect: {lost.what}",
        next_step="look at `iotctl ops list` or `iotctl cluster status`",
        **lost.details,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
