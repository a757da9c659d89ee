"""The content of one slot on one holder: its merged rows and their sums per (series, day).

Recorded values are not trusted: bytes are hashed before they are opened, and sums are computed from rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iotctl.pipeline.tsfile_rows import TIME, TIME_MAX, TIME_MIN, Wanted, read_table
from nodeagent.model.errors import FileCorrupt
from nodeagent.model.files import Order, Tombstone
from nodeagent.model.schema import TableSchema
from nodeagent.table.checksum import COUNT, DAY, DAY_MS, H1, H2, Sums, checksum, total
from nodeagent.table.merge import merge

AT = "$time"
"""Name of the time column during aggregation: a tag may be named `time_min`, but none begins with `$`."""

Bucket = tuple[str | int | None, ...]
"""(tag values…, UTC day)."""

BucketSums = tuple[int, int, int, int, int, int]
"""(rows, first time, last time, values, sum 1, sum 2)."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of one table in one file, as stored. `sums` are the sums that the manifest should record."""

    rows: pa.Table
    sums: Sums


@dataclass(slots=True)
class RowsByHash:
    """Cache of rows in a time window by the hash of their file's bytes: equal bytes hold equal rows, so equal
    replicas are decoded once."""

    times: tuple[int, int] = (TIME_MIN, TIME_MAX)
    _known: dict[tuple[str, str], FileRows] = field(default_factory=dict)

    @property
    def known(self) -> dict[str, FileRows]:
        """The cached rows by hash."""
        return {digest: rows for (digest, _), rows in self._known.items()}

    def read(self, content: bytes, digest: str, schema: TableSchema, file: str) -> FileRows:
        """Raises `FileCorrupt` if the bytes are not a TsFile."""
        known = self._known.get((digest, schema.table))
        if known is None:
            known = self._known[digest, schema.table] = read_rows(content, schema, file, self.times)
        return known


def read_rows(
    content: bytes, schema: TableSchema, file: str, times: tuple[int, int] = (TIME_MIN, TIME_MAX)
) -> FileRows:
    """Decode the table's rows of one file in a time window and sum them. The hash of the bytes must have been
    checked.

    Raises:
        FileCorrupt: the bytes are not a TsFile, or hold duplicate rows.
    """
    rows = read_table(content, schema.table, Wanted(None, *times), file)
    if rows is None:
        rows = merge([], (), schema)
    as_table = merge([((0,), rows)], (), schema)
    if as_table.num_rows != rows.num_rows:
        raise FileCorrupt(f"{file} holds several rows with the same tags and time", file=file)
    return FileRows(as_table, total(checksum(as_table, schema)))


def merged(
    parts: Sequence[tuple[Order, pa.Table]], tombstones: Iterable[Tombstone], schema: TableSchema
) -> pa.Table:
    """The rows as a reader sees them: newest value per cell, deletes applied; sorted by (tags, time)."""
    return merge(parts, [t for t in tombstones if t.table == schema.table], schema)


def buckets(rows: pa.Table, schema: TableSchema) -> dict[Bucket, BucketSums]:
    """Sums of merged rows per (series, day)."""
    tags = list(schema.tags)
    sums = checksum(rows, schema)
    values = dict(zip(_keys(sums, tags), zip(*_lists(sums, (COUNT, H1, H2)), strict=True), strict=True))
    days = _day_of(rows)
    spans = (
        rows.select(tags)
        .append_column(DAY, days)
        .append_column(AT, rows.column(TIME))
        .group_by([*tags, DAY])
        .aggregate([(AT, "count"), (AT, "min"), (AT, "max")])
    )
    span_lists = _lists(spans, (f"{AT}_count", f"{AT}_min", f"{AT}_max"))
    return {
        key: (*span, *values.get(key, (0, 0, 0)))
        for key, span in zip(_keys(spans, tags), zip(*span_lists, strict=True), strict=True)
    }


def series_of(rows: pa.Table, schema: TableSchema) -> list[Bucket]:
    """Distinct tag tuples."""
    tags = list(schema.tags)
    if not tags:
        return [()] if rows.num_rows else []
    return list(zip(*_lists(rows.group_by(tags).aggregate([]), tags), strict=True))


def of_bucket(rows: pa.Table, bucket: Bucket, schema: TableSchema) -> pa.Table:
    """The rows of one (series, day), in time order."""
    *tags, day = bucket
    assert isinstance(day, int)
    mask = pc.equal(_day_of(rows), day)
    for name, value in zip(schema.tags, tags, strict=True):
        column = rows.column(name)
        mask = pc.and_(
            mask, pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
        )
    return rows.filter(mask)


def _day_of(rows: pa.Table) -> pa.Array:
    times = rows.column(TIME).to_numpy()
    return pa.array(np.floor_divide(times, DAY_MS))


def _lists(table: pa.Table, names: Sequence[str]) -> list[list[int]]:
    return [table.column(name).to_pylist() for name in names]


def _keys(table: pa.Table, tags: Sequence[str]) -> list[Bucket]:
    return list(zip(*(table.column(name).to_pylist() for name in (*tags, DAY)), strict=True))
