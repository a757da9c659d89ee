"""The partitions of tables, and their numbers of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow.compute as pc

from nodeagent.client.calls import Calls
from nodeagent.client.cover import Cover
from nodeagent.client.deadline import Deadline
from nodeagent.client.pages import Pages
from nodeagent.client.query import Query
from nodeagent.client.routes import Leg, in_transition, mask_of, mask_of_ranges
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import Unavailable
from nodeagent.model.files import ScanSpec
from nodeagent.model.ids import PartitionKey
from nodeagent.model.requests import ListPartitions, PartitionInfo, PartitionsListed
from nodeagent.model.requests.rows import STRONG
from nodeagent.model.schema import TableSchema
from nodeagent.partition.hash import slot_of
from nodeagent.partition.rows import split_rows
from nodeagent.table.arrow import TIME, one_batch

if TYPE_CHECKING:
    from nodeagent.client.routes import Mask


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


class Lists:
    """Lists and counts partitions; scans the slots whose list is incomplete or inexact."""

    def __init__(self, calls: Calls, cover: Cover, pages: Pages) -> None:
        self._calls = calls
        self._cover = cover
        self._pages = pages

    async def partitions(self, storage_group: str = "", table: str = "") -> tuple[list[PartitionInfo], Mask]:
        """The partitions that the groups list, and the slots whose list is incomplete: a previous holder
        still has their older rows, or they are in transition between two groups (a node of an earlier version
        then lists only partitions of open slots, and does not show that it leaves out others)."""
        before = (await self._calls.views.current()).view
        size = before.settings.slots
        elsewhere = mask_of_ranges(in_transition(before), size)
        found: list[PartitionInfo] = []

        async def ask(leg: Leg, deadline: Deadline) -> tuple[int, list[PartitionsListed]]:
            pages = await self._list(
                ListPartitions(leg.group.group, storage_group, table, paged=True, slots=leg.slots),
                deadline,
            )
            if len({page.table_version for page in pages}) > 1:
                raise Unavailable(f"the partition table changed while {leg.group.group} listed partitions")
            return pages[0].table_version, pages

        async for leg, pages in self._cover.answers(np.ones(size, np.bool_), ask):
            mine = mask_of_ranges(leg.slots, size)
            for page in pages:
                found += [p for p in page.partitions if mine[p.slot]]
                for moved in page.handover:
                    elsewhere |= mask_of_ranges(moved.slots, size) & mine
        elsewhere |= mask_of_ranges(in_transition((await self._calls.views.current()).view), size)
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
        self, storage_group: str | None = None, table: str | None = None
    ) -> list[dict[str, object]]:
        """Rows per table, from the groups' lists; slots whose list is incomplete or inexact are scanned."""
        view = await self._calls.views.meta(strong=True)
        wanted_group, wanted_table = (storage_group or "").lower(), (table or "").lower()
        schemas = [
            s
            for s in self._calls.views.known_schemas()
            if wanted_group in ("", s.storage_group) and wanted_table in ("", s.table)
        ]
        listed, elsewhere = await self.partitions(wanted_group, wanted_table)
        by_table: dict[tuple[str, str], list[PartitionInfo]] = {}
        for info in listed:
            by_table.setdefault((info.partition.storage_group, info.table), []).append(info)
        result: list[dict[str, object]] = []
        for schema in schemas:
            infos = by_table.get((schema.storage_group, schema.table), [])
            counted = await self._count(schema, infos, elsewhere, view.settings)
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
        settings: ClusterSettings,
    ) -> TableCount:
        reread = mask_of((i.slot for i in infos if not i.exact), settings.slots) | elsewhere
        count: TableCount = TableCount()
        for info in infos:
            if not reread[info.slot]:
                count.add(info.rows, info.time_min, info.time_max)
        if reread.any():
            query = Query(schema.storage_group, ScanSpec(schema, fields=()), STRONG)
            async for part in self._pages.read(query, reread):
                span = pc.min_max(part.column(TIME)).as_py()
                count.add(part.num_rows, span["min"], span["max"])
        return count

    async def partitions_in(self, query: Query) -> list[tuple[int, PartitionKey]]:
        """(slot, partition) of every partition that may contain rows of the query."""
        schema, settings = query.spec.schema, (await self._calls.views.current()).view.settings
        infos, elsewhere = await self.partitions(query.storage_group, schema.table)
        found = {
            (i.slot, i.partition)
            for i in infos
            if i.rows and i.time_min <= query.spec.time_to and i.time_max >= query.spec.time_from
        }
        if elsewhere.any():
            async for part in self._pages.read(query, elsewhere):
                for at, _ in split_rows(one_batch(part), schema.tags, settings):
                    slot = slot_of(query.storage_group, *at, settings)
                    found.add((slot, PartitionKey(query.storage_group, *at)))
        return sorted(found)
