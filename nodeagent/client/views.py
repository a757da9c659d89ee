"""The newest view of the meta state: routes, leaders and schemas, and how they are refreshed.

The routes are those of the newest meta view received (by its applied index). Older table versions are
retained for a while, because an answer is checked against the table version of the node that gave it.
"""

import asyncio
import random
from collections import OrderedDict

from msgspec.structs import replace

from nodeagent.client.deadline import Deadline
from nodeagent.client.link import Link
from nodeagent.client.routes import Routes
from nodeagent.client.tasks import begun, wait_first
from nodeagent.model.errors import (
    Forbidden,
    NodeAgentError,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from nodeagent.model.ids import META, GroupId
from nodeagent.model.requests import GetMeta, MetaView, Reply, Request
from nodeagent.model.schema import TableSchema
from nodeagent.partition.recovery import TERMS_BEYOND

STAGGER_S = 0.15
"""A request that any node can answer is also sent to the next node after this delay."""

REPEAT_PAUSE_MAX_S = 0.5
"""The longest pause before a node that cannot answer such a request now is asked again."""

ASKED_MAX = 5
"""Nodes that are asked the same thing concurrently."""

TABLES_KEPT = 4
ATTEMPT_MIN_S = 2.0

META_TRANSIENT = (Overloaded, Unavailable)


class Views:
    """One client's view of the cluster (see the module)."""

    def __init__(self, link: Link, timeout_s: float, rng: random.Random) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._rng = rng
        self.routes: Routes | None = None
        self.leaders: dict[GroupId, str] = {}
        """The member to ask first: the last that answered, at any read level; for META also the leader that
        a view names."""

        self._schemas: dict[tuple[str, str], TableSchema] = {}
        self._tables: OrderedDict[int, Routes] = OrderedDict()
        self._refreshing: asyncio.Task[Routes] | None = None

    @property
    def attempt_s(self) -> float:
        """Seconds one attempt may take: a node that hangs must not use up the whole timeout."""
        return min(self._timeout_s, max(ATTEMPT_MIN_S, self._timeout_s / 4))

    def targets(self) -> list[str]:
        """Every node that can be asked: the nodes of the view, then the endpoints that are not among them."""
        known = [n.node for n in self.routes.view.nodes] if self.routes else []
        addresses = {self._link.where(node) for node in known}
        others = [t for t in self._link.known() if t not in known]
        return known + [t for t in others if self._link.where(t) not in addresses]

    async def current(self) -> Routes:
        return self.routes or await self.refresh()

    def at_version(self, version: int) -> Routes | None:
        """The routes of a table version, or None if they were not received or are no longer retained."""
        return self._tables.get(version)

    async def refresh(self, stale: Routes | None = None) -> Routes:
        """The newest routes known after a request to the nodes, or at once if `stale` is not in use any more.
        They may be unchanged: no node answered, or the answer was no newer. Concurrent calls share one
        request.

        Raises:
            Unavailable: no node answered, and there are no routes yet.
        """
        if stale is not None and self.routes is not None and self.routes is not stale:
            return self.routes
        if self._refreshing is None:
            self._refreshing = begun(self._refresh())
        return await asyncio.shield(self._refreshing)

    async def _refresh(self) -> Routes:
        try:
            await self.meta(any_age=True)
        except (Unavailable, OutcomeUnknown):
            if self.routes is None:
                raise
        finally:
            self._refreshing = None
        assert self.routes is not None
        return self.routes

    async def meta(
        self, strong: bool = False, timeout_s: float = 0, *, wait: bool = True, any_age: bool = False
    ) -> MetaView:
        """The view of the first node that answers; the leader is asked first. If the view in use has a higher
        applied index, return that view instead.

        Args:
            timeout_s: 0 means the whole timeout for a strong read, else the time of one attempt.
            wait: ask all nodes again while a node answers that it has no view now (no leader confirms its
                state, or the cluster is not formed yet).
            any_age: as in `GetMeta`.

        Raises:
            Unavailable: no node answered, or none had a view in time (strong: no quorum).
            Forbidden: the last answer was this refusal, or the node belongs to another cluster.
        """
        targets = self.targets()
        self._rng.shuffle(targets)
        targets.sort(key=lambda t: t != self.leaders.get(META))
        deadline = Deadline(timeout_s or (self._timeout_s if strong else self.attempt_s))
        held = self.routes.view if self.routes else None
        request = GetMeta(strong, any_age, held.schemas_digest if held else "")
        reply = await self._first(targets, request, deadline, wait)
        assert isinstance(reply, MetaView), reply
        view = _completed(reply, held)
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
        if old is not None and _is_newer(old.view, view):
            return
        if old is not None and _is_recovered(old.view, view):
            self._tables.clear()  # versions of the lost journal may be used again
        self.routes = routes = Routes(view)
        for record in view.nodes:
            self._link.learn(record.node, record.host, record.port)
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
                    running[asyncio.create_task(self._link.call(target, request, timeout_s))] = target
                if waiting and len(running) < ASKED_MAX:
                    wait_s = STAGGER_S
                else:
                    wait_s = pause_s if may_soon else deadline.left_s
                done = await wait_first(running, min(wait_s, deadline.left_s))
                failed = {task: running.pop(task) for task in done}
                errors = {
                    task: task.exception() for task in done
                }  # retrieve every exception: asyncio warns about one that is not retrieved
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
                    pause_s = min(2 * pause_s, REPEAT_PAUSE_MAX_S)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if isinstance(last, Forbidden):
            raise last
        within = f" within {deadline.timeout_s:g} s" if deadline.passed else ""
        raise Unavailable(
            f"no result from {len(targets)} nodes{within}: {last.what}",
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

        If not `strong`, any node may confirm that the table exists, but only a strong read shows that it does
        not. Raises `NotFound`.
        """
        known = self.known_schema(storage_group, table)
        for level in (True,) if strong else (False, True):
            if known is None:
                await self.meta(level)
                known = self.known_schema(storage_group, table)
        if known is None:
            raise NotFound(
                f"there is no table {table!r} in storage group {storage_group!r}",
                next_step="see `iotctl data schema`, or create the table: name its tag columns in the import",
            )
        return known


def _completed(view: MetaView, held: MetaView | None) -> MetaView:
    """`view` with the schemas of all tables, if it has only what changed since the view `held`."""
    if not view.schemas_base:
        return view
    assert held is not None and view.schemas_base == held.schemas_digest, view.schemas_base
    whole = {(s.storage_group, s.table): s for s in (*held.schemas, *view.schemas)}
    for key in view.dropped:
        whole.pop(key, None)
    return replace(view, schemas=tuple(whole.values()), schemas_base="", dropped=())


def _is_recovered(old: MetaView, new: MetaView) -> bool:
    """Whether a force recovery of the meta group is between the views: journal entries may have been lost."""
    return new.term >= old.term + TERMS_BEYOND


def _is_newer(a: MetaView, b: MetaView) -> bool:
    if _is_recovered(a, b) or _is_recovered(b, a):
        return a.term > b.term
    return a.applied > b.applied
