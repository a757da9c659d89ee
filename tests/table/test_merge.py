"""A merge keeps the newest value per cell, applies deletes and sorts."""

import random

import pyarrow as pa
import pytest

from nodeagent.model.errors import InvalidInput, SchemaMismatch
from nodeagent.model.files import Order, ScanSpec, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.schema import Column, TableSchema
from nodeagent.table import series
from nodeagent.table.merge import merge

from .rows import SCHEMA, Row, random_row, simple_merge, table

KEY = PartitionKey("sg", 0, 0)


def random_tomb(rng: random.Random) -> Tombstone:
    tags = rng.choice([(), (("dev", "x"),), (("dev", None),), (("site", "a"), ("dev", "y"))])
    low = rng.randrange(-6, 6)
    return Tombstone((rng.randrange(12),), KEY, "t", tags, low, low + rng.randrange(6))


@pytest.mark.parametrize("name", ["nosuch", "i"])
def test_a_delete_by_a_column_that_is_no_tag_deletes_nothing(name: str) -> None:
    """Such a delete stays in the log permanently, so every merge of the rows must tolerate it."""
    parts: list[tuple[Order, pa.Table]] = [((1,), table([{"time": 0, "dev": "x"}, {"time": 0, "dev": "y"}]))]
    for tags in (((name, "x"),), ((name, None),), (("dev", "x"), (name, None))):
        assert merge(parts, [Tombstone((5,), KEY, "t", tags, -10, 10)], SCHEMA).num_rows == 2, tags


def random_case(seed: int) -> tuple[list[tuple[Order, list[Row]]], list[Tombstone], ScanSpec]:
    rng = random.Random(seed)
    parts: list[tuple[Order, list[Row]]] = []
    for _ in range(rng.randrange(1, 6)):
        order = (rng.randrange(10),) if rng.random() < 0.7 else (rng.randrange(10), rng.randrange(5))
        parts.append((order, [random_row(rng) for _ in range(rng.randrange(12))]))
    tombs = [random_tomb(rng) for _ in range(rng.randrange(3))]
    spec = ScanSpec(
        SCHEMA,
        rng.choice([None, ("d",), ("s", "i"), ()]),
        rng.choice([-(1 << 63), -3]),
        rng.choice([(1 << 63) - 1, 3]),
        rng.choice([(), (("dev", "x"),), (("site", None),)]),
    )
    return parts, tombs, spec


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_merge_equals_a_simple_model(start: int) -> None:
    """On random parts, deletes and scans, the result equals that of the cell-by-cell model, row for row."""
    for seed in range(start, start + 100):
        parts, tombs, spec = random_case(seed)
        tables = [(order, table(rows)) for order, rows in parts]
        assert merge(tables, tombs, SCHEMA).to_pylist() == simple_merge(parts, tombs), seed
        wanted = simple_merge(parts, tombs, SCHEMA, spec)
        assert merge(tables, tombs, SCHEMA, spec).to_pylist() == wanted, seed


def test_many_tags_and_extreme_times_take_the_slow_paths_to_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys that do not fit into 63 bits are sorted by two columns; tag tuples are renumbered if there are too
    many."""
    monkeypatch.setattr(series, "_CODES_MAX", 4)
    for seed in range(50):
        parts, tombs, _ = random_case(seed)
        parts.append(((3,), [{"time": t, "dev": "x", "i": 1, "site": "a"} for t in (-(1 << 63), 2**63 - 1)]))
        tables = [(order, table(rows)) for order, rows in parts]
        for _, rows in parts:
            for row in rows:
                for name in ("site", "dev", "d", "i", "s"):
                    row.setdefault(name, None)
        assert merge(tables, tombs, SCHEMA).to_pylist() == simple_merge(parts, tombs), seed


def test_a_newer_null_does_not_hide_an_older_value() -> None:
    """Two writers of different fields of one (tags, time): both values are visible."""
    old = table([{"time": 1, "dev": "x", "d": 1.0, "i": 1}])
    new = table([{"time": 1, "dev": "x", "i": 2}])
    assert merge([((2,), new), ((1,), old)], (), SCHEMA).select(["d", "i"]).to_pylist() == [
        {"d": 1.0, "i": 2}
    ]


def test_a_delete_masks_older_rows_only() -> None:
    """Rows of the delete's own order and newer rows survive; a delete of another table has no effect."""
    part = table([{"time": 1, "dev": "x", "d": 1.0}])
    for order, left in (((4,), 0), ((5,), 1), ((5, 9), 1), ((6,), 1)):
        tomb = Tombstone((5,), KEY, "t", (("dev", "x"),), 0, 1)
        assert merge([(order, part)], [tomb], SCHEMA).num_rows == left
        other = Tombstone((5,), KEY, "other", (), 0, 1)
        assert merge([(order, part)], [other], SCHEMA).num_rows == 1


def test_parts_of_an_older_schema_get_nulls() -> None:
    """If a part lacks a later column, tag or field, its rows merge as null in this column."""
    old = pa.table({"time": [1], "dev": ["x"], "d": [1.0]})
    new = table([{"time": 1, "dev": "x", "i": 4}])
    assert merge([((1,), old), ((2,), new)], (), SCHEMA).to_pylist() == [
        {"time": 1, "site": None, "d": 1.0, "dev": "x", "i": 4, "s": None}
    ]


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_several_schemas_in_any_order(seed: int) -> None:
    """Old parts are between new ones: this is the memory of a group while a column is added."""
    rng = random.Random(seed)
    older = TableSchema(SCHEMA.storage_group, SCHEMA.table, 1, SCHEMA.columns[:3])
    turned = TableSchema(SCHEMA.storage_group, SCHEMA.table, 1, SCHEMA.columns[::-1])
    parts: list[tuple[Order, pa.Table]] = []
    same: list[tuple[Order, pa.Table]] = []
    for at in range(12):
        kind = rng.choice([SCHEMA, older, turned])
        names = {"time", *(column.name for column in kind.columns)}
        rows = [random_row(rng) for _ in range(rng.randrange(4))]
        parts.append(((at,), table(rows, kind)))
        same.append(((at,), table([{k: v for k, v in row.items() if k in names} for row in rows])))
    assert merge(parts, (), SCHEMA).equals(merge(same, (), SCHEMA))


def test_a_column_of_another_type_is_refused() -> None:
    """A stored column is never cast silently."""
    with pytest.raises(SchemaMismatch, match="'d'"):
        merge([((1,), pa.table({"time": [1], "d": pa.array([1], pa.int64())}))], (), SCHEMA)


def test_unknown_names_in_a_scan_are_refused() -> None:
    """Fields and tags that a table does not have are an error of the caller, not an empty result."""
    part = [((1,), table([{"time": 1}]))]
    for spec in (ScanSpec(SCHEMA, ("zz",)), ScanSpec(SCHEMA, tags=(("zz", "1"),))):
        with pytest.raises(InvalidInput, match="'zz'"):
            merge(part, (), SCHEMA, spec)


def test_no_parts_and_no_tags() -> None:
    """A merge of no parts is empty and has the right columns; a table without tags is sorted by time."""
    assert merge([], (), SCHEMA).schema.names == ["time", "site", "d", "dev", "i", "s"]
    bare = TableSchema("sg", "t", 1, (Column("d", "DOUBLE", False),))
    rows = table([{"time": 2, "d": 1.0}, {"time": 1, "d": 2.0}, {"time": 2, "d": 3.0}], bare)
    assert merge([((1,), rows)], (), bare).to_pylist() == [{"time": 1, "d": 2.0}, {"time": 2, "d": 3.0}]
