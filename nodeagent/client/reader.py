"""Reads: every slot that was asked for is answered by the group that serves it, or the read fails.

A read goes to the groups in *legs*: one group, the slots it serves by our routes. A leg counts only if
the node answered by a table in which the group has exactly these slots; else, and after any error, its
slots are routed anew and asked again, until the deadline passes without progress. So a slot that moves
during a read is read again, never missed and never read twice.

While a slot's files are still with its previous holders, the group's answer names them. Their rows are
older than anything the group has itself: they are merged below it, after its range deletes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from nodeagent.model.files import ScanSpec, Tombstone
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
from nodeagent.table.scan import check_scan

if TYPE_CHECKING:
    from nodeagent.client.routes import Mask

LEGS_MAX = 8
"""Groups asked at once."""

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


@dataclass(frozen=True, slots=True)
class Query:
    """Rows of one table; times inclusive, tags equalities."""

    storage_group: str
    spec: ScanSpec
    read: str


@dataclass(frozen=True, slots=True)
class _Answer(Generic[_T]):
    value: _T


@dataclass(slots=True)
class _Pages:
    """What one group said of one leg."""

    rows: list[pa.Table] = field(default_factory=list)
    handovers: dict[tuple[str, str], Handover] = field(default_factory=dict)
    tombstones: list[Tombstone] = field(default_factory=list)
    versions: set[int] = field(default_factory=set)

    def add(self, page: RowsScanned) -> None:
        if page.ipc:
            self.rows.append(decode(page.ipc))
        for handover in page.handover:
            key = (handover.operation, handover.source)
            known = self.handovers.get(key)
            slots = ranges.union(handover.slots, known.slots if known else ())
            self.handovers[key] = Handover(handover.operation, slots, handover.source, handover.members)
        self.tombstones += [t for t in page.tombstones if t not in self.tombstones]
        self.versions.add(page.table_version)


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
        return Query(schema.storage_group, spec, read)

    async def scan(self, query: Query, limit: int | None = None) -> pa.Table:
        """All rows, sorted by (tags, time), nulls first; the first `limit` of them."""
        parts = [part async for part in self.scan_parts(query)]
        table = merge([((), part) for part in parts], (), query.spec.schema, query.spec)
        return table if limit is None else table.slice(0, limit)

    async def scan_parts(self, query: Query, slots: Mask | None = None) -> AsyncIterator[pa.Table]:
        """The rows leg by leg; each key is in one part only."""
        settings = (await self._calls.current()).view.settings
        wanted = slots_of(query.storage_group, query.spec, settings) if slots is None else slots

        async def ask(leg: Leg, deadline: Deadline) -> tuple[int, pa.Table]:
            return await self._scan_leg(leg, query, Deadline(self._calls.timeout_s, within=deadline))

        async for _, part in self._cover(wanted, ask):
            if part.num_rows:
                yield part

    async def _scan_leg(self, leg: Leg, query: Query, deadline: Deadline) -> tuple[int, pa.Table]:
        request = ScanRows(leg.group.group, query.storage_group, query.spec, query.read, slots=leg.slots)
        node, first = await self._calls.ask_group(
            leg.group.group, request, read=query.read, deadline=deadline
        )
        pages = _Pages()
        await self._read_on(node, request, first, pages, deadline)
        if len(pages.versions) != 1:
            raise Unavailable(f"the table changed while {leg.group.group} was read")
        # Pages are counted in partitions: one that appears meanwhile makes the next page repeat some.
        rows = merge([((), page) for page in pages.rows], (), query.spec.schema, query.spec)
        old = [
            await self._old_rows(handover, ranges.intersect(handover.slots, leg.slots), query, deadline)
            for handover in pages.handovers.values()
        ]
        if old:
            settings = (await self._calls.current()).view.settings
            rows = merge_below(rows, old, pages.tombstones, query, settings)
        return pages.versions.pop(), rows

    async def _read_on(
        self, node: str, request: ScanRows, reply: object, pages: _Pages, deadline: Deadline
    ) -> None:
        """All pages from one node: a cursor means something only to the node that gave it."""
        while True:
            assert isinstance(reply, RowsScanned), reply
            pages.add(reply)
            if not reply.cursor:
                return
            assert reply.cursor != request.cursor, "a scan makes progress"
            request = msgspec.structs.replace(request, cursor=reply.cursor)
            reply = await self._calls.call_at_work(node, request, deadline)

    async def _old_rows(
        self, handover: Handover, slots: ranges.SlotRanges, query: Query, deadline: Deadline
    ) -> pa.Table:
        """Rows of sealed slots from the first previous holder that gives all of them."""
        last: NodeAgentError = Unavailable(f"{handover.source} has no members")
        request = ScanRows(
            handover.source,
            query.storage_group,
            query.spec,
            query.read,
            slots=slots,
            operation=handover.operation,
        )
        members = list(handover.members)
        self._calls.rng.shuffle(members)
        for member in members:
            pages = _Pages()
            try:
                first = await self._calls.call_at_work(member, request, deadline)
                await self._read_on(member, request, first, pages, deadline)
            except NodeAgentError as error:
                last = error
            else:
                return merge([((), page) for page in pages.rows], (), query.spec.schema, query.spec)
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
        they are between two groups (a list does not say what it leaves out)."""
        before = (await self._calls.current()).view
        size = before.settings.slots
        elsewhere = mask_of_ranges(in_transition(before), size)
        found: list[PartitionInfo] = []

        async def ask(leg: Leg, deadline: Deadline) -> tuple[int, PartitionsListed]:
            request = ListPartitions(leg.group.group, storage_group, table, read)
            _, reply = await self._calls.ask_group(leg.group.group, request, read=read)
            assert isinstance(reply, PartitionsListed), reply
            return reply.table_version, reply

        async for leg, listed in self._cover(np.ones(size, np.bool_), ask):
            mine = mask_of_ranges(leg.slots, size)
            found += [p for p in listed.partitions if mine[p.slot]]
            for handover in listed.handover:
                elsewhere |= mask_of_ranges(handover.slots, size) & mine
        elsewhere |= mask_of_ranges(in_transition((await self._calls.current()).view), size)
        return found, elsewhere

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
            query = Query(schema.storage_group, ScanSpec(schema), read)
            async for part in self.scan_parts(query, reread):
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
            async for part in self.scan_parts(query, elsewhere):
                for at, _ in split_rows(one_batch(part), schema.tags, settings):
                    slot = slot_of(query.storage_group, *at, settings)
                    found.add((slot, PartitionKey(query.storage_group, *at)))
        return sorted(found)


def slots_of(storage_group: str, spec: ScanSpec, settings: ClusterSettings) -> Mask:
    """The slots that can hold the wanted rows: few for a bounded time range, else all."""
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
