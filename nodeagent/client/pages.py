"""Scans rows page by page.

Pages are of bounded size. A page ends at a row key or between partitions, and is final once its table version
is checked. A leg that fails after some pages is routed again and resumes after its last page, with another
member or another group, so that no row is returned twice.

While the files of a slot are still with its previous holders, the group's answer names these holders. The
holders' rows are older than all rows of the group: page by page, the group's range deletes are applied to
them before they are merged below the group's rows. Group and holders are asked for rows up to the same key.

If a query requests aggregates, a group that has all rows of a page returns their aggregates. Otherwise, and
from a node of an earlier release, the rows arrive and are aggregated here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nodeagent.client.calls import Calls
from nodeagent.client.cover import FINAL, LEGS_MAX, Cover
from nodeagent.client.deadline import Deadline, pause
from nodeagent.client.query import Query, slots_of
from nodeagent.client.retry import Backoff
from nodeagent.client.routes import Leg, mask_of_ranges
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import NodeAgentError, Unavailable
from nodeagent.model.files import Cursor, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.requests import PendingSlots, RowsScanned, ScanRows
from nodeagent.partition import ranges
from nodeagent.partition.rows import split_rows
from nodeagent.table.aggregate import aggregate
from nodeagent.table.arrow import decode, one_batch
from nodeagent.table.merge import merge
from nodeagent.table.paging import key_of

if TYPE_CHECKING:
    from nodeagent.client.routes import Mask

PAGES_WAITING_MAX = 2
"""Pages that wait for the caller; while this many wait, each leg requests at most one more."""

_NEWEST = (1 << 62,)
"""Merge order of rows that the group has merged already: its deletes are not applied to them again."""


@dataclass(frozen=True, slots=True)
class _Fatal:
    """An error that ends the read: a retry would not help."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _PageRead:
    """Rows of a leg from `start` on, or their aggregates; `end` is the start of the next page, None after the
    last page."""

    rows: pa.Table
    start: Cursor
    end: Cursor | None
    node: str


@dataclass(slots=True)
class _Asked:
    """A leg and the cursor from which its slots are still to be read."""

    leg: Leg
    start: Cursor


class Pages:
    """The pages of scans (see the module)."""

    def __init__(self, calls: Calls, cover: Cover) -> None:
        self._calls = calls
        self._cover = cover

    async def read(self, query: Query, slots: Mask | None = None, limit: int = 0) -> AsyncIterator[pa.Table]:
        """The rows page by page, in no order, or the aggregates of each page; each key is in one page only.

        Args:
            limit: if not 0, only the first `limit` rows (in order) are needed; more rows may be returned.

        Raises:
            Unavailable: some slots were not answered; it names the last error.
            Damaged: the same, if the last error is `Damaged`. In both cases, pages returned before are valid.
        """
        settings = (await self._calls.views.current()).view.settings
        wanted = slots_of(query.storage_group, query.spec, settings) if slots is None else slots
        pending = {Cursor(): wanted.copy()} if wanted.any() else {}
        deadline, backoff = Deadline(self._calls.timeout_s), Backoff(self._calls.rng)
        while pending:
            last: NodeAgentError | None = None
            routes = await self._calls.views.current()
            asked = [_Asked(leg, start) for start, mask in pending.items() for leg in routes.legs(mask)]
            async for at, page in self._read_legs(asked, query, limit, deadline):
                if isinstance(page, NodeAgentError):
                    last = page
                    continue
                _advance(pending, at.leg, page)
                backoff = Backoff(self._calls.rng)
                if page.rows.num_rows:
                    yield page.rows
                deadline.extend()
            if not pending:
                return
            assert last is not None
            if deadline.passed:
                raise self._cover.missing(np.logical_or.reduce(list(pending.values())), last) from last
            await pause(backoff.delay_s(), deadline)
            await self._calls.views.refresh()

    async def _read_legs(
        self, asked: Sequence[_Asked], query: Query, limit: int, deadline: Deadline
    ) -> AsyncIterator[tuple[_Asked, _PageRead | NodeAgentError]]:
        """The pages of all legs as they arrive; each leg ends after its last page or with its first error."""
        found: asyncio.Queue[tuple[_Asked, _PageRead | NodeAgentError | _Fatal | None]]
        found = asyncio.Queue(PAGES_WAITING_MAX)
        room = asyncio.Semaphore(LEGS_MAX)

        async def read(one: _Asked) -> None:
            async with room:
                own = Deadline(self._calls.timeout_s, within=deadline)
                try:
                    async for page in self._leg_pages(one, query, limit, own):
                        await found.put((one, page))
                        own.extend()
                except FINAL as error:
                    await found.put((one, _Fatal(error)))
                except NodeAgentError as error:
                    await found.put((one, error))
                except Exception as error:  # report it: the caller waits for the end of this leg
                    await found.put((one, _Fatal(error)))
                else:
                    await found.put((one, None))

        tasks = [asyncio.create_task(read(one)) for one in asked]
        try:
            running = len(tasks)
            while running:
                one, page = await found.get()
                running -= not isinstance(page, _PageRead)
                if isinstance(page, _Fatal):
                    raise page.error
                if page is not None:
                    yield one, page
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _leg_pages(
        self, asked: _Asked, query: Query, limit: int, deadline: Deadline
    ) -> AsyncIterator[_PageRead]:
        """The pages of one leg, from the same node as long as it answers."""
        at: Cursor | None = asked.start
        node = ""
        here = 0
        while at is not None:
            version, page = await self._page(asked.leg, at, query, limit, node, deadline)
            await self._cover.check_version(asked.leg, version)
            assert page.end is None or place_of(page.end) > place_of(at), "a scan makes progress"
            is_inside = page.end is not None and page.end.key is not None
            # A page that ends inside a partition has rows of this partition only.
            here = page.rows.num_rows + (here if at.key is not None else 0)
            if page.end is not None and is_inside and limit and here >= limit:
                page = replace(page, end=Cursor(page.end.position + 1))
            yield page
            at, node = page.end, page.node

    async def _page(
        self, leg: Leg, start: Cursor, query: Query, limit: int, node: str, deadline: Deadline
    ) -> tuple[int, _PageRead]:
        """One page, merged with the rows that previous holders have for the same keys."""
        until: Cursor | None = None
        while True:
            request = ScanRows(
                leg.group.group,
                query.storage_group,
                query.spec,
                query.read,
                start.position if start.key is None and start.position else 0,
                leg.slots,
                after=start,
                until=until,
                limit=limit,
            )
            node, reply = await self._ask(node, request, deadline)
            if query.on_age is not None and query.read != "strong":
                query.on_age(reply.age_ms)
            end = _end(reply, until)
            rows = rows_of(reply, query)
            unadopted = _by_source(reply.handover)
            if not unadopted:
                found = rows if reply.is_aggregate else _requested(rows, query)
                return reply.table_version, _PageRead(found, start, end, node)
            if limit:
                limit = 0  # the group's deletes may hide older rows: more than `limit` of them may be needed
                continue
            old, old_end = await self._old_rows(unadopted, leg, start, end, query, deadline)
            if old_end == end:
                settings = (await self._calls.views.current()).view.settings
                rows = merge_below(rows, old, reply.tombstones, query, settings)
                return reply.table_version, _PageRead(_requested(rows, query), start, end, node)
            until = old_end

    async def _ask(self, node: str, request: ScanRows, deadline: Deadline) -> tuple[str, RowsScanned]:
        if node:
            reply = await self._calls.call_while_busy(node, request, deadline)
        else:
            node, reply = await self._calls.ask_group(
                request.group, request, read=request.read, deadline=deadline
            )
        assert isinstance(reply, RowsScanned), reply
        return node, reply

    async def _old_rows(
        self,
        unadopted: Sequence[PendingSlots],
        leg: Leg,
        start: Cursor,
        end: Cursor | None,
        query: Query,
        deadline: Deadline,
    ) -> tuple[list[pa.Table], Cursor | None]:
        """The rows of all previous holders between two cursors, and the cursor up to which all answered."""
        old: list[pa.Table] = []
        for moved in unadopted:
            slots = ranges.intersect(moved.slots, leg.slots)
            rows, own = await self._old_page(moved, slots, start, end, query, deadline)
            old.append(rows)
            end = own
        return old, end

    async def _old_page(
        self,
        moved: PendingSlots,
        slots: ranges.SlotRanges,
        start: Cursor,
        end: Cursor | None,
        query: Query,
        deadline: Deadline,
    ) -> tuple[pa.Table, Cursor | None]:
        """The rows of sealed slots from the first previous holder that answers."""
        last: NodeAgentError = Unavailable(f"{moved.source} has no members")
        request = ScanRows(
            moved.source,
            query.storage_group,
            query.spec,
            query.read,
            start.position if start.key is None and start.position else 0,
            slots,
            moved.operation,
            after=start,
            until=end,
        )
        members = list(moved.members)
        self._calls.rng.shuffle(members)
        for member in members:
            try:
                reply = await self._calls.call_while_busy(member, request, deadline)
            except NodeAgentError as error:
                last = error
            else:
                assert isinstance(reply, RowsScanned), reply
                return rows_of(reply, query), _end(reply, end)
        raise Unavailable(
            f"no member of {moved.source} returned the rows sealed for {moved.operation}: {last.what}"
        ) from last


def _end(reply: RowsScanned, until: Cursor | None) -> Cursor | None:
    """Where the page ends. A node of an earlier version sets `cursor` instead of `next`, or names a place
    after `until` although it returned no rows from `until` on."""
    end = reply.next if reply.next is not None else Cursor(reply.cursor) if reply.cursor else until
    return until if end is not None and until is not None and place_of(end) > place_of(until) else end


def _requested(rows: pa.Table, query: Query) -> pa.Table:
    """The rows of a page or, if the query requests them, their aggregates."""
    return aggregate(rows, query.spec.schema) if query.spec.aggregate else rows


def rows_of(reply: RowsScanned, query: Query) -> pa.Table:
    return decode(reply.ipc) if reply.ipc else merge((), (), query.spec.schema, query.spec)


def place_of(cursor: Cursor) -> tuple[object, ...]:
    """The sort key of a cursor."""
    key = cursor.key
    return (cursor.position,) if key is None else (cursor.position, key_of(key.tags), key.time)


def _advance(pending: dict[Cursor, Mask], leg: Leg, page: _PageRead) -> None:
    """Record that the leg's slots are read up to the end of the page."""
    mask = pending[page.start]
    own = mask_of_ranges(leg.slots, mask.size) & mask
    mask &= ~own
    if not mask.any():
        del pending[page.start]
    if page.end is not None:
        pending[page.end] = pending[page.end] | own if page.end in pending else own


def _by_source(unadopted: Iterable[PendingSlots]) -> list[PendingSlots]:
    """Join the entries of each (operation, source) into one."""
    found: dict[tuple[str, str], PendingSlots] = {}
    for moved in unadopted:
        key = (moved.operation, moved.source)
        slots = ranges.union(moved.slots, found[key].slots if key in found else ())
        found[key] = PendingSlots(moved.operation, slots, moved.source, moved.members)
    return list(found.values())


def merge_below(
    rows: pa.Table,
    old: Iterable[pa.Table],
    tombstones: Sequence[Tombstone],
    query: Query,
    settings: ClusterSettings,
) -> pa.Table:
    """Merge `old`, less the rows that `tombstones` of their partition delete, below `rows`, cell by cell."""
    schema = query.spec.schema
    parts: list[tuple[tuple[int, ...], pa.Table | pa.RecordBatch]] = [(_NEWEST, rows)]
    for table in old:
        if not tombstones:
            parts.append(((), table))
            continue
        for at, piece in split_rows(one_batch(table), schema.tags, settings):
            here = PartitionKey(query.storage_group, *at)
            deletes = [t for t in tombstones if t.partition == here]
            kept = merge([((), piece)], deletes, schema, query.spec) if deletes else piece
            parts.append(((), kept))
    return merge(parts, (), schema, query.spec)
