"""Reads: every requested slot is answered by the group that serves it, or the read fails.

A read goes to the groups in *legs*: one group and the slots it serves by our routes. A leg counts only if the
node answered by a table version in which the group serves all of these slots. Otherwise, and after any error,
its slots are routed and requested again until the deadline passes without progress. So a slot that moves
during a read is requested again, never missed and never returned twice.

Rows come in pages of bounded size. A page ends at a row key and is final once its table version is checked. A
leg that fails after some pages is routed again and resumes behind its last page, at another member or another
group, so that no row is returned twice.

While the files of a slot are still with its previous holders, the group's answer names these holders. Their
rows are older than all rows of the group: they are merged below them, after the group's range deletes, page
by page. Both sides are then asked for the rows up to the same key.
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
"""Groups asked concurrently."""

PAGES_WAITING_MAX = 2
"""Pages that wait for the caller; no further page is requested until it takes one."""

FIRST_ROWS_KEPT = 100_000
"""Rows held beyond `limit` before they are merged and cut."""

SLOTS_LISTED_MAX = 4096
"""A time range of at most this many (time partition, shard) pairs is narrowed to its slots."""

_NEWEST = (1 << 62,)
"""Merge order of rows that the group has merged already: its deletes are not applied to them again."""

_FINAL = (InvalidInput, Forbidden)
"""Errors that a retry would only repeat."""

_T = TypeVar("_T")
Ask = Callable[[Leg, Deadline], Awaitable[tuple[int, _T]]]
"""Asks one leg: (table version of the answering node, answer). Progress extends the deadline."""

Tags = tuple[tuple[str, str | None], ...]

OnAge = Callable[[int], None]
"""Called with the age (ms) of each answer to a bounded or weak read, -1 if no leader confirmed it
(`RowsScanned`). The read contains every row acknowledged longer ago than the highest age."""


@dataclass(frozen=True, slots=True)
class Query:
    """A read of one table. The times are inclusive; each tag must be equal."""

    storage_group: str
    spec: ScanSpec
    read: str
    on_age: OnAge | None = None


@dataclass(frozen=True, slots=True)
class _Fatal:
    """An error that ends the read: a retry would not help."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _Answer(Generic[_T]):
    value: _T


@dataclass(frozen=True, slots=True)
class _PageRead:
    """Rows of a leg from `start` on; `end` is the start of the next page, None after the last page."""

    rows: pa.Table
    start: Cursor
    end: Cursor | None
    node: str


@dataclass(slots=True)
class _Asked:
    """A leg and the cursor from which its slots are still to be read."""

    leg: Leg
    start: Cursor


@dataclass(slots=True)
class TableCount:
    """The number of rows of one table, with the first and last time (None if there are no rows)."""

    rows: int = 0
    time_min: int | None = None
    time_max: int | None = None

    def add(self, rows: int, time_min: int | None, time_max: int | None) -> None:
        self.rows += rows
        if rows and time_min is not None and time_max is not None:
            self.time_min = time_min if self.time_min is None else min(self.time_min, time_min)
            self.time_max = time_max if self.time_max is None else max(self.time_max, time_max)


class Reads:
    """Scans, counts and partition lists (see the module)."""

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
        """The query for `scan` and `pages`, checked before any node is asked.

        Raises:
            NotFound: there is no such table.
            InvalidInput: the table has no such tag or field.
        """
        schema = await self._calls.schema(storage_group.lower(), table.lower(), strong=read == "strong")
        names = {n.lower() for n in (*(fields or ()), *tags)}
        if not names <= {c.name for c in schema.columns}:
            # Columns are only ever added: a missing column may be new.
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
        """All rows, or the first `limit` rows, sorted by (tags, time), nulls first."""
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
        """The rows page by page, in no order; each key is in one page only.

        Args:
            limit: if not 0, only the first `limit` rows (in order) are needed; more rows may be returned.

        Raises:
            Unavailable: some slots were not answered, with the last reason. Pages returned before are valid.
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
                except _FINAL as error:
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
            await self._check_version(asked.leg, version)
            assert page.end is None or _place(page.end) > _place(at), "a scan makes progress"
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
            rows = _rows(reply, query)
            handovers = _merge_handovers(reply.handover)
            if not handovers:
                return reply.table_version, _PageRead(rows, start, end, node)
            if limit:
                limit = 0  # deletes may hide the first of the older rows, so that later rows come first
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
        """The rows of all previous holders between two cursors, and the cursor up to which all answered."""
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
        """The rows of sealed slots from the first previous holder that answers."""
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
            f"none of {', '.join(members)} returned the rows sealed for {handover.operation}: {last.what}"
        ) from last

    # --- every slot once -------------------------------------------------------------------------

    async def _cover(self, wanted: Mask, ask: Ask[_T]) -> AsyncIterator[tuple[Leg, _T]]:
        """Request every slot of `wanted` until it is answered once (see the module).

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
        """Raise `Unavailable` unless the group serves the leg's slots in table version `version`."""
        if version == leg.version:
            return
        routes = self._calls.at_version(version)
        if routes is None and version > leg.version:
            await self._calls.refresh()
            routes = self._calls.at_version(version)
        if routes is None or not routes.owns(leg.group.group, leg.slots):
            raise Unavailable(
                f"{leg.group.group} answered by table version {version}, not by {leg.version} as asked"
            )

    def _missing(self, pending: Mask, last: NodeAgentError) -> NodeAgentError:
        if isinstance(last, Damaged):
            return last
        slots = np.flatnonzero(pending)
        return Unavailable(
            f"{slots.size} slots were not answered (first: slot {int(slots[0])}): {last.what}",
            next_step="look at `iotctl cluster status`",
            slots=int(slots.size),
        )

    # --- partitions and counts -------------------------------------------------------------------

    async def partitions(
        self, storage_group: str = "", table: str = "", read: str = "strong"
    ) -> tuple[list[PartitionInfo], Mask]:
        """The partitions that the groups list, and the slots whose list is incomplete: a previous holder
        still has their older rows, or they are in transition between two groups (a node of an earlier version
        then lists only the open partitions, without a hint that others exist)."""
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
                raise Unavailable(f"the table version changed while {leg.group.group} listed partitions")
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
        """All pages of one group's list."""
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
        """Rows per table, from the list of a group if it has exact counts, else from a scan."""
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
        """(slot, partition) of every partition that may contain rows of the query."""
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
    """Where the page ends. A node of an earlier version sets `cursor` instead of `next`, or names a place
    behind `until` although it returned no rows from `until` on."""
    end = reply.next if reply.next is not None else Cursor(reply.cursor) if reply.cursor else until
    return until if end is not None and until is not None and _place(end) > _place(until) else end


def _rows(reply: RowsScanned, query: Query) -> pa.Table:
    return decode(reply.ipc) if reply.ipc else merge((), (), query.spec.schema, query.spec)


def _merged(parts: Sequence[pa.Table], query: Query) -> pa.Table:
    """The rows of many pages, sorted; no key is in two pages."""
    return merge([((), part) for part in parts], (), query.spec.schema, query.spec)


def _place(cursor: Cursor) -> tuple[object, ...]:
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


def _merge_handovers(handovers: Iterable[Handover]) -> list[Handover]:
    """Join the entries of each (operation, source) into one."""
    found: dict[tuple[str, str], Handover] = {}
    for handover in handovers:
        key = (handover.operation, handover.source)
        slots = ranges.union(handover.slots, found[key].slots if key in found else ())
        found[key] = Handover(handover.operation, slots, handover.source, handover.members)
    return list(found.values())


def slots_of(storage_group: str, spec: ScanSpec, settings: ClusterSettings) -> Mask:
    """The slots that can contain the rows: none or few for a bounded time range, else all."""
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
    """One shard if every tag is given, else all."""
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
