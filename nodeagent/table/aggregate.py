"""Aggregates of the fields of some rows: `count`, `min`, `max` and `sum` of the values that are not null.

They are a table of one row, with a struct for each field, so that the aggregates of parts of the rows combine
into those of all. `min` and `max` ignore NaN unless there is no other value. The sum of integers is exact (a
decimal); the last digits of a sum of floating-point numbers depend on the order of the parts; the `sum` of
other types is null. Texts and blobs are only counted, so that an answer is small.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from nodeagent.model.schema import TableSchema
from nodeagent.table.arrow import TIME, one_chunk

COUNT, MIN, MAX, SUM = "count", "min", "max", "sum"

_EXACT = pa.decimal128(38, 0)
"""Type of a sum of integers: 10^19 values of 64 bits fit."""


def aggregate(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """The aggregates of every field that the rows have. Each cell must be in them once (`table.merge`)."""
    keys = {TIME, *schema.tags}
    return pa.table({name: _of(rows.column(name)) for name in rows.column_names if name not in keys})


def combine(parts: Sequence[pa.Table]) -> pa.Table:
    """The aggregates of all rows from those of their parts (at least one); no row is in two parts."""
    every = pa.concat_tables(parts)
    return pa.table({name: _of_parts(one_chunk(every.column(name))) for name in every.column_names})


def _of(values: pa.ChunkedArray) -> pa.StructArray:
    count = pa.scalar(len(values) - values.null_count, pa.int64())
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        values = pa.nulls(0, kind)
    if pa.types.is_floating(kind):
        total = pc.sum(values)
    elif pa.types.is_integer(kind):
        total = pc.sum(values.cast(_EXACT))
    else:
        total = pa.scalar(None, pa.float64())
    return _struct(count, pc.min(values), pc.max(values), total)


def _of_parts(parts: pa.StructArray) -> pa.StructArray:
    count, least, greatest, total = (parts.field(name) for name in (COUNT, MIN, MAX, SUM))
    return _struct(pc.sum(count), pc.min(least), pc.max(greatest), pc.sum(total))


def _struct(*values: pa.Scalar) -> pa.StructArray:
    return pa.StructArray.from_arrays([pa.repeat(v, 1) for v in values], [COUNT, MIN, MAX, SUM])
