"""Reads: every requested slot is answered by the group that serves it, or the read fails.

A slot that moves during a read is requested again (`cover`), never missed and never returned twice (`pages`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa

from nodeagent.client.calls import Calls
from nodeagent.client.cover import Cover
from nodeagent.client.lists import Lists
from nodeagent.client.pages import Pages
from nodeagent.client.query import OnAge, Query, sent_level
from nodeagent.client.report import TIME_MAX, TIME_MIN
from nodeagent.model.files import ScanSpec
from nodeagent.table.aggregate import aggregate, combine
from nodeagent.table.merge import merge
from nodeagent.table.scan import check_scan

FIRST_ROWS_KEPT = 100_000
"""Rows held beyond `limit` before they are merged and cut."""


class Reads:
    """Scans, aggregates, counts and partition lists (see the module)."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        cover = Cover(calls)
        self.pages = Pages(calls, cover)
        self.lists = Lists(calls, cover, self.pages)

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
        """The query for `scan` and `pages`, checked before any rows are requested.

        Raises:
            NotFound: there is no such table.
            InvalidInput: the table has no such tag or field, or there is no such read level.
        """
        schema = await self._calls.views.schema(storage_group.lower(), table.lower(), strong=read == "strong")
        names = {n.lower() for n in (*(fields or ()), *tags)}
        if not names <= {c.name for c in schema.columns}:
            # Columns are only ever added: a missing column may be new.
            await self._calls.views.meta(strong=read == "strong")
            schema = await self._calls.views.schema(schema.storage_group, schema.table)
        spec = ScanSpec(
            schema=schema,
            fields=None if fields is None else tuple(f.lower() for f in fields),
            time_from=TIME_MIN if time_from is None else time_from,
            time_to=TIME_MAX if time_to is None else time_to,
            tags=tuple((name.lower(), value) for name, value in tags.items()),
        )
        check_scan(spec)
        return Query(schema.storage_group, spec, sent_level(read), on_age)

    async def scan(self, query: Query, limit: int | None = None) -> pa.Table:
        """All rows, or the first `limit` rows, sorted by (tags, time), nulls first."""
        parts: list[pa.Table] = []
        rows = 0
        async for part in self.pages.read(query, limit=limit or 0):
            parts.append(part)
            rows += part.num_rows
            if limit is not None and rows > limit + FIRST_ROWS_KEPT:
                parts = [_merged(parts, query).slice(0, limit)]
                rows = parts[0].num_rows
        table = _merged(parts, query)
        return table if limit is None else table.slice(0, limit)

    async def aggregate(self, query: Query, field: str) -> pa.Table:
        """One row with the aggregates of one of the query's fields (`table.aggregate`)."""
        spec = msgspec.structs.replace(query.spec, aggregate=True)
        found = aggregate(_merged((), query), query.spec.schema)
        async for part in self.pages.read(replace(query, spec=spec)):
            found = combine([found, part])
        return pa.Table.from_struct_array(found.column(field))


def _merged(parts: Sequence[pa.Table], query: Query) -> pa.Table:
    """The rows of many pages, sorted; no key is in two pages."""
    return merge([((), part) for part in parts], (), query.spec.schema, query.spec)
