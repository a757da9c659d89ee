"""Reads: every slot that was asked for is answered by the group that serves it, or the read fails.

A read goes to the groups in *legs*: one group, the slots it serves by our routes. A leg counts only if
the node answered by a table in which the group has exactly these slots; else, and after any error, its
slots are routed anew and asked again, until the deadline passes without progress. So a slot that moves
during a read is read again, never missed and never read twice.

Rows come in pages, each bounded in bytes, and a page ends at a key of the rows: it is final as soon as it is
checked. A leg that fails after some pages is routed anew and goes on behind the last of them, at another
member or another group, so that what was given already is never given again.

While a slot's files are still with its previous holders, the group's answer names them. Their rows are
older than anything the group has itself: they are merged below it, after its range deletes, page by page.
Both are then asked for the rows up to the same key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nodeagent.client.calls import Calls, Deadline, pause
from nodeagent.client.report import TIME_MAX, TIME_MIN
from nodeagent.client.retry import Backoff
from nodeagent.client.routes import Leg, in_transition, mask_of, mask_of_ranges
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import (
    Damaged,
    Forbidden,
    InvalidInput,
    NodeAgentError,
    Unavailable,
)
from nodeagent.model.files import Cursor, ScanSpec, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.requests import (
    Handover,
    ListPartitions,
    PartitionInfo,
    PartitionsListed,
    RowsScanned,
    ScanRows,
)
from nodeagent.model.schema import TableSchema
from nodeagent.partition import ranges
from nodeagent.partition.hash import shard_of, slot_of, time_partition
from nodeagent.partition.rows import split_rows
from nodeagent.table.arrow import TIME, decode, one_batch
from nodeagent.table.merge import merge
from nodeagent.table.paging import key_of
from nodeagent.table.scan import check_scan

if TYPE_CHECKING:
    from nodeagent.client.routes import Mask

LEGS_MAX = 8
"""Groups asked at once."""

PAGES_WAITING_MAX = 2
"""Pages that wait for their reader; nodes are asked for no more meanwhile."""

FIRST_ROWS_KEPT = 100_000
"""Rows beyond the wanted first ones that are held before they are dropped."""

SLOTS_LISTED_MAX = 4096
"""A time range of up to this many (time partition, shard) is narrowed to its slots."""

_NEWEST = (1 << 62,)
"""Order of what the group merged already: no delete of its own applies to it again."""

_FINAL = (InvalidInput, Forbidden)
"""Asking again would be answered the same."""

_T = TypeVar("_T")
Ask = Callable[[Leg, Deadline], Awaitable[tuple[int, _T]]]
"""The table version a leg was answered by, and the answer; the deadline begins anew with any progress."""

Tags = tuple[tuple[str, str | None], ...]

OnAge = Callable[[int], None]
"""Told the age (ms) of each answer to a mid or weak read, -1 where no leader confirmed it (`RowsScanned`).
What was acknowledged as long before the read as the oldest of them is in it."""


@dataclass(frozen=True, slots=True)
class Query:
    """Rows of one table; times inclusive, tags equalities."""

    storage_group: str
    spec: ScanSpec
    read: str
    on_age: OnAge | None = None


@dataclass(frozen=True, slots=True)
class _Fatal:
    """Asking again is of no use."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _Answer(Generic[_T]):
    value: _T


@dataclass(frozen=True, slots=True)
class _PageRead:
    """Rows of a leg from `start` on; where the next page begins, None behind the last."""

    rows: pa.Table
    start: Cursor
    end: Cursor | None
    node: str


@dataclass(slots=True)
class _Asked:
    """A leg with the place from which on its slots are still to be read."""

    leg: Leg
    start: Cursor


@dataclass(slots=True)
class TableCount:
    """Rows of one table, with the first and last time (None where there are no rows)."""

    rows: int = 0
    time_min: int | None = None
    time_max: int | None = None

    def add(self, rows: int, time_min: int | None, time_max: int | None) -> None:
        self.rows += rows
        if rows and time_min is not None and time_max is not None:
            self.time_min = time_min if self.time_min is None else min(self.time_min, time_min)
            self.time_max = time_max if self.time_max is None else max(self.time_max, time_max)


class Reads:
    """See the module."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    # --- rows ------------------------------------------------------------------------------------

    async def query(
        self,
        storage_group: str,
        table: str,
        *,
        fields: Sequence[str] | None,
        tags: Mapping[str, str | None],
        time_from: int | None,
        time_to: int | None,
        read: str,
        on_age: OnAge | None = None,
    ) -> Query:
        """What is to be read, checked before a node is asked.

        Raises:
            NotFound: no such table.
            InvalidInput: no such tag or field in it.
        """
        schema = await self._calls.schema(storage_group.lower(), table.lower(), strong=read == "strong")
        names = {n.lower() for n in (*(fields or ()), *tags)}
        if not names <= {c.name for c in schema.columns}:
            # Columns are only ever added: what is missing may be new.
            await self._calls.meta(strong=read == "strong")
            schema = await self._calls.schema(schema.storage_group, schema.table)
        spec = ScanSpec(
            schema=schema,
            fields=None if fields is None else tuple(f.lower() for f in fields),
            time_from=TIME_MIN if time_from is None else time_from,
            time_to=TIME_MAX if time_to is None else time_to,
            tags=tuple((name.lower(), value) for name, value in tags.items()),
        )
        check_scan(spec)
        return Query(schema.storage_group, spec, read, on_age)

    async def scan(self, query: Query, limit: int | None = None) -> pa.Table:
        """All rows, sorted by (tags, time), nulls first; the first `limit` of them."""
        parts: list[pa.Table] = []
        rows = 0
        async for part in self.pages(query, limit=limit or 0):
            parts.append(part)
            rows += part.num_rows
            if limit is not None and rows > limit + FIRST_ROWS_KEPT:
                parts = [_merged(parts, query).slice(0, limit)]
                rows = parts[0].num_rows
        table = _merged(parts, query)
        return table if limit is None else table.slice(0, limit)

    async def pages(self, query: Query, slots: Mask | None = None, limit: int = 0) -> AsyncIterator[pa.Table]:
        """The rows page by page, as they come; each key is in one page only.

        Args:
            limit: 0, or no more than the first so many rows (in order) are wanted; others may come too.

        Raises:
            Unavailable: some slots were not answered, with the last reason; pages given before stay right.
        """
        settings = (await self._calls.current()).view.settings
        wanted = slots_of(query.storage_group, query.spec, settings) if slots is None else slots
        pending = {Cursor(): wanted.copy()} if wanted.any() else {}
        deadline, backoff = Deadline(self._calls.timeout_s), Backoff(self._calls.rng)
        while pending:
            last: NodeAgentError | None = None
            routes = await self._calls.current()
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
                raise self._missing(np.logical_or.reduce(list(pending.values())), last) from last
            await pause(backoff.delay_s(), deadline)
            await self._calls.refresh()

    async def _read_legs(
        self, asked: Sequence[_Asked], query: Query, limit: int, deadline: Deadline
    ) -> AsyncIterator[tuple[_Asked, _PageRead | NodeAgentError]]:
        """The pages of the legs as they come; of each leg up to its end, or to its first error."""
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
                except _FINAL as error:
                    await found.put((one, _Fatal(error)))
                except NodeAgentError as error:
                    await found.put((one, error))
                except Exception as error:  # the reader must see it: it waits for this leg's end
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
        """From one node as long as it answers."""
        at: Cursor | None = asked.start
        node = ""
        here = 0
        while at is not None:
            version, page = await self._page(asked.leg, at, query, limit, node, deadline)
            await self._check_version(asked.leg, version)
            assert page.end is None or _place(page.end) > _place(at), "a scan makes progress"
            is_inside = page.end is not None and page.end.key is not None
            # A page that ends inside a partition has rows of no other one.
            here = page.rows.num_rows + (here if at.key is not None else 0)
            if page.end is not None and is_inside and limit and here >= limit:
                page = replace(page, end=Cursor(page.end.position + 1))
            yield page
            at, node = page.end, page.node

    async def _page(
        self, leg: Leg, start: Cursor, query: Query, limit: int, node: str, deadline: Deadline
    ) -> tuple[int, _PageRead]:
        """One page, with what previous holders have of the same keys."""
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
            rows = _rows(reply, query)
            handovers = _merge_handovers(reply.handover)
            if not handovers:
                return reply.table_version, _PageRead(rows, start, end, node)
            if limit:
                limit = 0  # deletes may hide the first of the older rows, and others then come first
                continue
            old, old_end = await self._old_rows(handovers, leg, start, end, query, deadline)
            if old_end == end:
                settings = (await self._calls.current()).view.settings
                rows = merge_below(rows, old, reply.tombstones, query, settings)
                return reply.table_version, _PageRead(rows, start, end, node)
            until = old_end

    async def _ask(self, node: str, request: ScanRows, deadline: Deadline) -> tuple[str, RowsScanned]:
        if node:
            reply = await self._calls.call_at_work(node, request, deadline)
        else:
            node, reply = await self._calls.ask_group(
                request.group, request, read=request.read, deadline=deadline
            )
        assert isinstance(reply, RowsScanned), reply
        return node, reply

    async def _old_rows(
        self,
        handovers: Sequence[Handover],
        leg: Leg,
        start: Cursor,
        end: Cursor | None,
        query: Query,
        deadline: Deadline,
    ) -> tuple[list[pa.Table], Cursor | None]:
        """Rows of previous holders between two places, and up to where all of them gave theirs."""
        old: list[pa.Table] = []
        for handover in handovers:
            slots = ranges.intersect(handover.slots, leg.slots)
            rows, own = await self._old_page(handover, slots, start, end, query, deadline)
            old.append(rows)
            end = own
        return old, end

    async def _old_page(
        self,
        handover: Handover,
        slots: ranges.SlotRanges,
        start: Cursor,
        end: Cursor | None,
        query: Query,
        deadline: Deadline,
    ) -> tuple[pa.Table, Cursor | None]:
        """Rows of sealed slots from the first previous holder that gives them."""
        last: NodeAgentError = Unavailable(f"{handover.source} has no members")
        request = ScanRows(
            handover.source,
            query.storage_group,
            query.spec,
            query.read,
            start.position if start.key is None and start.position else 0,
            slots,
            handover.operation,
            after=start,
            until=end,
        )
        members = list(handover.members)
        self._calls.rng.shuffle(members)
        for member in members:
            try:
                reply = await self._calls.call_at_work(member, request, deadline)
            except NodeAgentError as error:
                last = error
            else:
                assert isinstance(reply, RowsScanned), reply
                return _rows(reply, query), _end(reply, end)
        raise Unavailable(
            f"none of {', '.join(members)} gives the rows of {handover.operation}: {last.what}"
        ) from last

    # --- every slot once -------------------------------------------------------------------------

    async def _cover(self, wanted: Mask, ask: Ask[_T]) -> AsyncIterator[tuple[Leg, _T]]:
        """Ask for each slot of `wanted` until it is answered once (see the module).

        Raises:
            Unavailable: some slots were not answered, with the last reason.
        """
        pending = wanted.copy()
        deadline = Deadline(self._calls.timeout_s)
        backoff = Backoff(self._calls.rng)
        while pending.any():
            last: NodeAgentError | None = None
            room = asyncio.Semaphore(LEGS_MAX)
            legs = (await self._calls.current()).legs(pending)
            tasks = [asyncio.create_task(self._try_leg(leg, ask, deadline, room)) for leg in legs]
            try:
                for next_done in asyncio.as_completed(tasks):
                    leg, answer = await next_done
                    if isinstance(answer, NodeAgentError):
                        last = answer
                        continue
                    pending &= ~mask_of_ranges(leg.slots, pending.size)
                    deadline.extend()
                    backoff = Backoff(self._calls.rng)
                    yield leg, answer.value
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            if not pending.any():
                return
            assert last is not None
            if deadline.passed:
                raise self._missing(pending, last) from last
            await pause(backoff.delay_s(), deadline)
            await self._calls.refresh()

    async def _try_leg(
        self, leg: Leg, ask: Ask[_T], deadline: Deadline, room: asyncio.Semaphore
    ) -> tuple[Leg, _Answer[_T] | NodeAgentError]:
        async with room:
            try:
                version, value = await ask(leg, deadline)
                await self._check_version(leg, version)
            except _FINAL:
                raise
            except NodeAgentError as error:
                return leg, error
        return leg, _Answer(value)

    async def _check_version(self, leg: Leg, version: int) -> None:
        """Raise `Unavailable` unless the group has the leg's slots by the table its node had."""
        if version == leg.version:
            return
        routes = self._calls.at_version(version)
        if routes is None and version > leg.version:
            await self._calls.refresh()
            routes = self._calls.at_version(version)
        if routes is None or not routes.owns(leg.group.group, leg.slots):
            raise Unavailable(
                f"{leg.group.group} answered by table version {version}, it was asked by {leg.version}"
            )

    def _missing(self, pending: Mask, last: NodeAgentError) -> NodeAgentError:
        if isinstance(last, Damaged):
            return last
        slots = np.flatnonzero(pending)
        return Unavailable(
            f"{slots.size} slots were not answered (the first is {int(slots[0])}): {last.what}",
            next_step="look at `iotctl cluster status`",
            slots=int(slots.size),
        )

    # --- partitions and counts -------------------------------------------------------------------

    async def partitions(
        self, storage_group: str = "", table: str = "", read: str = "strong"
    ) -> tuple[list[PartitionInfo], Mask]:
        """What the groups list, and the slots whose list is not all: their older rows are elsewhere, or
        they are between two groups (nodes of an earlier version list what is open and say no word of the
        rest)."""
        before = (await self._calls.current()).view
        size = before.settings.slots
        elsewhere = mask_of_ranges(in_transition(before), size)
        found: list[PartitionInfo] = []

        async def ask(leg: Leg, deadline: Deadline) -> tuple[int, list[PartitionsListed]]:
            pages = await self._list(
                ListPartitions(leg.group.group, storage_group, table, read, paged=True, slots=leg.slots),
                deadline,
            )
            if len({page.table_version for page in pages}) > 1:
                raise Unavailable(f"the table changed while the partitions of {leg.group.group} were listed")
            return pages[0].table_version, pages

        async for leg, pages in self._cover(np.ones(size, np.bool_), ask):
            mine = mask_of_ranges(leg.slots, size)
            for page in pages:
                found += [p for p in page.partitions if mine[p.slot]]
                for handover in page.handover:
                    elsewhere |= mask_of_ranges(handover.slots, size) & mine
        elsewhere |= mask_of_ranges(in_transition((await self._calls.current()).view), size)
        return found, elsewhere

    async def _list(self, request: ListPartitions, deadline: Deadline) -> list[PartitionsListed]:
        """All pages of the list."""
        pages: list[PartitionsListed] = []
        own = Deadline(self._calls.timeout_s, within=deadline)
        while True:
            _, reply = await self._calls.ask_group(request.group, request, read=request.read, deadline=own)
            assert isinstance(reply, PartitionsListed), reply
            pages.append(reply)
            if reply.next is None:
                return pages
            assert request.after is None or reply.next > request.after, "a list makes progress"
            request = msgspec.structs.replace(request, after=reply.next)
            own.extend()

    async def count(
        self, storage_group: str | None = None, table: str | None = None, read: str = "strong"
    ) -> list[dict[str, object]]:
        """Rows per table: listed where a group knows them exactly, else read and counted."""
        view = await self._calls.meta(strong=read == "strong")
        wanted_group, wanted_table = (storage_group or "").lower(), (table or "").lower()
        schemas = [
            s
            for s in self._calls.known_schemas()
            if wanted_group in ("", s.storage_group) and wanted_table in ("", s.table)
        ]
        listed, elsewhere = await self.partitions(wanted_group, wanted_table, read)
        by_table: dict[tuple[str, str], list[PartitionInfo]] = {}
        for info in listed:
            by_table.setdefault((info.partition.storage_group, info.table), []).append(info)
        result: list[dict[str, object]] = []
        for schema in schemas:
            infos = by_table.get((schema.storage_group, schema.table), [])
            counted = await self._count(schema, infos, elsewhere, read, view.settings)
            result.append(
                {
                    "storage_group": schema.storage_group,
                    "table": schema.table,
                    "rows": counted.rows,
                    "time_min_ms": counted.time_min,
                    "time_max_ms": counted.time_max,
                }
            )
        return result

    async def _count(
        self,
        schema: TableSchema,
        infos: list[PartitionInfo],
        elsewhere: Mask,
        read: str,
        settings: ClusterSettings,
    ) -> TableCount:
        reread = mask_of((i.slot for i in infos if not i.exact), settings.slots) | elsewhere
        count: TableCount = TableCount()
        for info in infos:
            if not reread[info.slot]:
                count.add(info.rows, info.time_min, info.time_max)
        if reread.any():
            query = Query(schema.storage_group, ScanSpec(schema, fields=()), read)
            async for part in self.pages(query, reread):
                span = pc.min_max(part.column(TIME)).as_py()
                count.add(part.num_rows, span["min"], span["max"])
        return count

    async def partitions_in(self, query: Query) -> list[tuple[int, PartitionKey]]:
        """(slot, partition) of every partition that may hold rows the query asks for."""
        schema, settings = query.spec.schema, (await self._calls.current()).view.settings
        infos, elsewhere = await self.partitions(query.storage_group, schema.table)
        found = {
            (i.slot, i.partition)
            for i in infos
            if i.rows and i.time_min <= query.spec.time_to and i.time_max >= query.spec.time_from
        }
        if elsewhere.any():
            async for part in self.pages(query, elsewhere):
                for at, _ in split_rows(one_batch(part), schema.tags, settings):
                    slot = slot_of(query.storage_group, *at, settings)
                    found.add((slot, PartitionKey(query.storage_group, *at)))
        return sorted(found)


def _end(reply: RowsScanned, until: Cursor | None) -> Cursor | None:
    """Where the page ends. Nodes of earlier versions say so in their own way, or name a place behind `until`,
    from which on they gave nothing."""
    end = reply.next if reply.next is not None else Cursor(reply.cursor) if reply.cursor else until
    return until if end is not None and until is not None and _place(end) > _place(until) else end


def _rows(reply: RowsScanned, query: Query) -> pa.Table:
    return decode(reply.ipc) if reply.ipc else merge((), (), query.spec.schema, query.spec)


def _merged(parts: Sequence[pa.Table], query: Query) -> pa.Table:
    """Rows of many pages in one order; no key is in two of them."""
    return merge([((), part) for part in parts], (), query.spec.schema, query.spec)


def _place(cursor: Cursor) -> tuple[object, ...]:
    """What orders places."""
    key = cursor.key
    return (cursor.position,) if key is None else (cursor.position, key_of(key.tags), key.time)


def _advance(pending: dict[Cursor, Mask], leg: Leg, page: _PageRead) -> None:
    """The leg's slots are read up to the end of the page."""
    mask = pending[page.start]
    own = mask_of_ranges(leg.slots, mask.size) & mask
    mask &= ~own
    if not mask.any():
        del pending[page.start]
    if page.end is not None:
        pending[page.end] = pending[page.end] | own if page.end in pending else own


def _merge_handovers(handovers: Iterable[Handover]) -> list[Handover]:
    """One for each operation and source."""
    found: dict[tuple[str, str], Handover] = {}
    for handover in handovers:
        key = (handover.operation, handover.source)
        slots = ranges.union(handover.slots, found[key].slots if key in found else ())
        found[key] = Handover(handover.operation, slots, handover.source, handover.members)
    return list(found.values())


def slots_of(storage_group: str, spec: ScanSpec, settings: ClusterSettings) -> Mask:
    """The slots that can hold the wanted rows: none or few for a bounded time range, else all."""
    if spec.time_from > spec.time_to:
        return np.zeros(settings.slots, np.bool_)
    first, last = (
        time_partition(t, settings.time_partition_interval_ms, settings.hash_mode)
        for t in (spec.time_from, spec.time_to)
    )
    shards = _shards_of(spec, settings)
    if (last - first + 1) * len(shards) > SLOTS_LISTED_MAX:
        return np.ones(settings.slots, np.bool_)
    found = (slot_of(storage_group, p, s, settings) for p in range(first, last + 1) for s in shards)
    return mask_of(found, settings.slots)


def _shards_of(spec: ScanSpec, settings: ClusterSettings) -> Sequence[int]:
    """One shard where every tag is given, else all."""
    given = dict(spec.tags)
    if settings.shards > 1 and given.keys() >= set(spec.schema.tags):
        return (shard_of(tuple(given[name] for name in spec.schema.tags), settings.shards),)
    return range(max(1, settings.shards))


def merge_below(
    rows: pa.Table,
    old: Iterable[pa.Table],
    tombstones: Sequence[Tombstone],
    query: Query,
    settings: ClusterSettings,
) -> pa.Table:
    """`old` rows, less what `tombstones` delete in their partition, under `rows` cell by cell."""
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
