"""Small tables for tests, and a simple model of `merge` that works cell by cell."""

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from nodeagent.model.files import Order, ScanSpec, Tombstone
from nodeagent.model.schema import Column, TableSchema
from nodeagent.table.arrow import arrow_schema

SCHEMA = TableSchema(
    "sg",
    "t",
    1,
    (
        Column("site", "STRING", True),
        Column("d", "DOUBLE", False),
        Column("dev", "STRING", True),
        Column("i", "INT32", False),
        Column("s", "STRING", False),
    ),
)

Row = dict[str, Any]


def table(rows: Sequence[Row], schema: TableSchema = SCHEMA) -> pa.Table:
    shape = arrow_schema(schema)
    return pa.table({f.name: pa.array([r.get(f.name) for r in rows], f.type) for f in shape}, schema=shape)


def random_row(rng: random.Random, times: int = 6) -> Row:
    return {
        "time": rng.randrange(-times, times),
        "site": rng.choice([None, "", "a", "\u00e9", "b\0"]),
        "dev": rng.choice([None, "x", "y"]),
        "d": rng.choice([None, None, 0.5, -0.0, rng.random()]),
        "i": rng.choice([None, 1, 2, 3]),
        "s": rng.choice([None, "", "p", "q"]),
    }


def _key(row: Row, schema: TableSchema) -> tuple[Any, ...]:
    tags = tuple((row[t] is not None, (row[t] or "").encode()) for t in schema.tags)
    return (*tags, row["time"])


def _dead(row: Row, order: Order, tombs: Sequence[Tombstone]) -> bool:
    return any(
        order < t.order
        and t.time_from <= row["time"] <= t.time_to
        and all(row[name] == value for name, value in t.tags)
        for t in tombs
    )


def simple_merge(
    parts: Sequence[tuple[Order, Sequence[Row]]],
    tombs: Sequence[Tombstone],
    schema: TableSchema = SCHEMA,
    spec: ScanSpec | None = None,
) -> list[Row]:
    """The result that `merge` promises, computed one cell after the other."""
    cells: dict[tuple[Any, ...], Row] = {}
    fields = schema.fields if spec is None or spec.fields is None else spec.fields
    for order, rows in sorted(parts, key=lambda part: part[0]):
        for row in rows:
            if _dead(row, order, tombs):
                continue
            if spec is not None and not (
                spec.time_from <= row["time"] <= spec.time_to and all(row[n] == v for n, v in spec.tags)
            ):
                continue
            names = ("time", *schema.tags)
            cell = cells.setdefault(_key(row, schema), {n: row[n] for n in names} | dict.fromkeys(fields))
            cell.update({n: row[n] for n in fields if row.get(n) is not None})
    return [cells[key] for key in sorted(cells)]
