"""Rows for tests: table `m` in `root.a`, tag `d`, fields `v` and `w`."""

from collections.abc import Sequence

import pyarrow as pa

from nodeagent.model.schema import Column, TableSchema

SG, TABLE = "root.a", "m"
SCHEMA = TableSchema(
    SG, TABLE, 1, (Column("d", "STRING", True), Column("v", "DOUBLE", False), Column("w", "DOUBLE", False))
)
Row = tuple[int, str | None, float | None, float | None]


def rows(*given: Row) -> pa.Table:
    times, tags, v, w = zip(*given, strict=True) if given else ((), (), (), ())
    return pa.table(
        {
            "time": pa.array(times, pa.int64()),
            "d": pa.array(tags, pa.string()),
            "v": pa.array(v, pa.float64()),
            "w": pa.array(w, pa.float64()),
        }
    )


def listed(table: pa.Table) -> list[Row]:
    columns: Sequence[list[object]] = [table.column(n).to_pylist() for n in ("time", "d", "v", "w")]
    return list(zip(*columns, strict=True))
