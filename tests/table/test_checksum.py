"""The logical checksum depends on all of the content and on nothing else."""

import math
import random
import struct

import numpy as np
import pyarrow as pa
import pytest

from nodeagent.model.schema import Column, TableSchema
from nodeagent.table.arrow import arrow_schema
from nodeagent.table.checksum import COUNT, DAY, DAY_MS, H1, H2, add, by_day, checksum, combine, total
from nodeagent.table.merge import merge

from .rows import SCHEMA, Row, random_row, table


def rows_of(seed: int, n: int = 60) -> list[Row]:
    rng = random.Random(seed)
    rows = [random_row(rng) | {"time": rng.randrange(-3, 3) * DAY_MS + rng.randrange(50)} for _ in range(n)]
    merged: list[Row] = merge([((1,), table(rows))], (), SCHEMA).to_pylist()
    return merged


def sum_of(rows: list[Row], schema: TableSchema = SCHEMA) -> tuple[int, int, int]:
    return total(checksum(table(rows, schema), schema))


def test_sums_do_not_depend_on_order_and_batching() -> None:
    """Any permutation and any division gives the same buckets; the sums of parts add up."""
    rows = rows_of(1)
    whole = checksum(table(rows), SCHEMA)
    shuffled = list(rows)
    random.Random(2).shuffle(shuffled)
    assert checksum(table(shuffled), SCHEMA).equals(whole)
    halves = [checksum(table(part), SCHEMA) for part in (shuffled[:23], shuffled[23:])]
    assert combine(halves, SCHEMA).equals(whole)
    assert add(*(total(h) for h in halves)) == total(whole)


def test_buckets_are_series_and_day() -> None:
    """There is one bucket per (tags, UTC day) with values; days before 1970 are rounded down."""
    rows = rows_of(3)
    sums = checksum(table(rows), SCHEMA)
    seen = {
        (r["site"], r["dev"], r["time"] // DAY_MS) for r in rows if r["d"] or r["i"] or r["s"] is not None
    }
    keys = [(r["site"], r["dev"], r[DAY]) for r in sums.to_pylist()]
    assert len(keys) == len(set(keys))
    assert seen <= set(keys)
    values = sum(r[f] is not None for r in rows for f in ("d", "i", "s"))
    assert total(sums)[0] == values == sum(day[1] for day in by_day(sums))
    assert [d[0] for d in by_day(sums)] == sorted({k[2] for k in keys})


@pytest.mark.parametrize("field", ["time", "site", "dev", "d", "i", "s"])
def test_any_changed_cell_changes_the_sums(field: str) -> None:
    """A changed cell, or a cell made null, changes both sums."""
    rows = rows_of(4)
    base = sum_of(rows)
    at = next(k for k, r in enumerate(rows) if r[field] is not None and r["i"] is not None)
    old = rows[at][field]
    changed = {"time": old + 1 if field == "time" else 0, "d": 0.25, "i": 77}.get(field, "changed")
    for value in (changed, *([] if field == "time" else [None])):
        other = sum_of([*rows[:at], rows[at] | {field: value}, *rows[at + 1 :]])
        assert other[1] != base[1] and other[2] != base[2]


def test_swaps_and_shifts_change_the_sums() -> None:
    """Values swapped between rows or fields change the sums, and so does an even number of equal shifts."""
    schema = TableSchema("sg", "t", 1, tuple(Column(n, "DOUBLE", False) for n in ("a", "b")))
    rows: list[Row] = [{"time": t, "a": float(t), "b": float(t * 7)} for t in range(4)]
    variants = [
        rows,
        [rows[0] | {"a": 1.0}, rows[1] | {"a": 0.0}, *rows[2:]],
        [{"time": r["time"], "a": r["b"], "b": r["a"]} for r in rows],
        [r | {"time": r["time"] ^ 0x6000} for r in rows],
        [r | {"time": r["time"] + 1} for r in rows],
        rows + rows,
        rows + rows[:1] + rows[:1],
    ]
    assert len({sum_of(v, schema)[1:] for v in variants}) == len(variants)


def test_signed_zero_differs_and_all_nans_are_one() -> None:
    """-0.0 and 0.0 are different values; NaNs with different payloads are the same value."""
    schema = TableSchema("sg", "t", 1, (Column("v", "DOUBLE", False),))

    def of(value: float) -> tuple[int, int, int]:
        return total(checksum(pa.table({"time": [1], "v": np.array([value])}), schema))

    odd = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000123))[0]
    assert of(0.0) != of(-0.0)
    assert of(math.nan) == of(odd) != of(math.inf)


def test_sums_depend_on_types_names_and_null() -> None:
    """Equal bits with another type, column name or table name give other sums; "" is a value and null is
    none."""

    def of(kind: str, value: object, name: str = "v", table_name: str = "t") -> tuple[int, int, int]:
        schema = TableSchema("sg", table_name, 1, (Column(name, kind, False),))
        column = pa.array([value], arrow_schema(schema).field(1).type)
        return total(checksum(pa.table({"time": [1], name: column}), schema))

    sums = [
        of("INT32", 1),
        of("INT64", 1),
        of("BOOLEAN", True),
        of("INT64", 1, name="w"),
        of("INT64", 1, table_name="u"),
        of("STRING", "1"),
        of("TEXT", "1"),
        of("STRING", ""),
        of("STRING", None),
        of("BLOB", b"1"),
        of("TIMESTAMP", 1),
        of("DATE", 1),
        of("FLOAT", 1.0),
        of("DOUBLE", 1.0),
    ]
    assert len(set(sums)) == len(sums)
    assert of("STRING", None) == (0, 0, 0)


def test_columns_that_are_null_everywhere_do_not_count() -> None:
    """A schema with an additional tag and field, and columns in another order, give the same sums."""
    rows = [{"time": 1, "dev": "x", "d": 1.0}, {"time": 2, "dev": "y", "d": None}]
    old = TableSchema("sg", "t", 1, (Column("dev", "STRING", True), Column("d", "DOUBLE", False)))
    new = TableSchema("sg", "t", 2, (Column("n", "INT64", False), Column("d", "DOUBLE", False)))
    new = TableSchema("sg", "t", 2, (*new.columns, Column("a", "STRING", True), *old.columns[:1]))
    assert sum_of(rows, old) == sum_of(rows, new)


def test_tags_are_not_concatenated() -> None:
    """("a.b", "c"), ("a", "b.c"), (null, x) and (x, null) are four series."""
    pairs = [("a.b", "c"), ("a", "b.c"), (None, "x"), ("x", None), ("", "x")]
    assert len({sum_of([{"time": 1, "site": a, "dev": b, "i": 1}]) for a, b in pairs}) == len(pairs)


def test_known_value_is_stable() -> None:
    """The sums are part of the file format: if they change, the format needs a new version."""
    rows = [{"time": 1_700_000_000_000, "site": "s", "dev": None, "d": -0.0, "i": -1, "s": "\u00e9"}]
    assert sum_of(rows) == (3, 17124421302971961179, 5843929370875703936)
    assert checksum(table([]), SCHEMA).column_names == ["site", "dev", DAY, COUNT, H1, H2]
