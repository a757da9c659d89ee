"""Rows that the client, the leader and `PutSchema` accept can be stored, read, merged, copied and verified.

These tests use the real TsFile library: the limits in `model.names` and `table.values` are those at which it
was measured to return all rows, and every new version of it has to pass these tests.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from iotctl.pipeline.digest import buckets, read_rows
from nodeagent.model.errors import InvalidInput, InvalidName
from nodeagent.model.files import PageSpec, ScanSpec
from nodeagent.model.jobs import CompactUnit
from nodeagent.model.limits import NAME_BYTES_MAX, TAG_BYTES_MAX, TIME_MS_MAX, TIME_MS_MIN
from nodeagent.model.names import check_column, check_fileable, check_schema, check_table
from nodeagent.model.schema import TYPES, Column, TableSchema
from nodeagent.storage.files import check_content
from nodeagent.storage.format import ClosedUnit, close_unit, compact_unit, scan_rows
from nodeagent.storage.sources import ContentSources
from nodeagent.storage.tsfile_format import TsFileFormat
from nodeagent.table.arrow import ARROW_TYPES, decode, normalise
from nodeagent.table.checksum import checksum, total
from nodeagent.table.merge import merge

from .units import unit

ROWS_MAX = 8
DAY_MAX, DAY_MIN = 2_932_896, -354_285
I64 = (-(1 << 63), (1 << 63) - 1)

Given = tuple[TableSchema, list[list[Any]]]
"""A table, and its columns' values with `time` first."""


@pytest.fixture(scope="module")
def tsfile(tmp_path_factory: pytest.TempPathFactory) -> TsFileFormat:
    return TsFileFormat(str(tmp_path_factory.mktemp("scratch")))


def allowed(check: Callable[[str], str]) -> Callable[[str], bool]:
    def is_allowed(name: str) -> bool:
        try:
            check(name)
        except InvalidName:
            return False
        return True

    return is_allowed


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["", "\0", "null", "a\0b"]
)
tag = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
tag |= st.sampled_from(["", "null", "a.b", "\U0010fffd", "\ufeff", "e\u0301", "\u00e9"])
names = {
    check: (st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(odd))
    .map(str.lower)
    .filter(allowed(check))
    for check, odd in (
        (check_column, ["a.b", "time_min", "time_count", "50%", "a`b", 'a"b', "x" * NAME_BYTES_MAX, "rn"]),
        (check_table, ["t.u", "таблица", "x" * NAME_BYTES_MAX]),
    )
}
values: dict[str, st.SearchStrategy[Any]] = {
    "BOOLEAN": st.booleans(),
    "INT32": st.integers(-(1 << 31), (1 << 31) - 1) | st.sampled_from([-(1 << 31), (1 << 31) - 1]),
    "INT64": st.integers(*I64) | st.sampled_from(I64),
    "FLOAT": st.floats(width=32) | st.sampled_from([0.0, -0.0]),
    "DOUBLE": st.floats() | st.sampled_from([0.0, -0.0]),
    "TEXT": text,
    "STRING": text,
    "TIMESTAMP": st.integers(*I64) | st.sampled_from(I64),
    "DATE": st.integers(DAY_MIN, DAY_MAX) | st.sampled_from([DAY_MIN, DAY_MAX]),
    "BLOB": st.binary(max_size=6),
}
times = st.integers(TIME_MS_MIN, TIME_MS_MAX) | st.sampled_from([TIME_MS_MIN, -1, 0, TIME_MS_MAX])


@st.composite
def tables(draw: st.DrawFn) -> Given:
    columns = [Column(n, "STRING", True) for n in draw(st.lists(names[check_column], max_size=3))]
    columns += [
        Column(n, draw(st.sampled_from(TYPES)), False)
        for n in draw(st.lists(names[check_column], min_size=not columns, max_size=5))
    ]
    schema = TableSchema("sg", draw(names[check_table]), 1, tuple(columns))
    try:
        check_schema(schema)
    except InvalidInput:  # a column twice, or two that differ in case alone
        assume(False)
    n = draw(st.integers(1, ROWS_MAX))

    def of(values: st.SearchStrategy[Any]) -> list[Any]:
        every = draw(st.sampled_from([True, False]))
        return draw(st.lists(st.none() if every else st.none() | values, min_size=n, max_size=n))

    filled = [of(tag if c.tag else values[c.type]) for c in columns]
    return schema, [draw(st.lists(times, min_size=n, max_size=n)), *filled]


def rows_of(schema: TableSchema, columns: Sequence[list[Any]]) -> pa.RecordBatch:
    """The rows as a client would send them, after validation."""
    kinds = [pa.int64(), *(ARROW_TYPES[c.type] for c in schema.columns)]
    plain = {pa.timestamp("ns"): pa.int64(), pa.date32(): pa.int32()}
    arrays = [pa.array(v, plain.get(kind, kind)).cast(kind) for v, kind in zip(columns, kinds, strict=True)]
    return normalise(pa.record_batch(arrays, ["time", *(c.name for c in schema.columns)]), schema)


def read(made: ClosedUnit, schema: TableSchema, tsfile: TsFileFormat) -> pa.Table:
    """Read with a scan, which checks the bytes first."""
    return scanned(made, ScanSpec(schema), tsfile)


def scanned(made: ClosedUnit, spec: ScanSpec, tsfile: TsFileFormat) -> pa.Table:
    source = ContentSources(lambda _: made.content, tsfile).of("f", made.meta, spec)
    return decode(scan_rows(spec, PageSpec(), [source], (), ()).ipc)


def alike(one: pa.Table, other: pa.Table, schema: TableSchema) -> bool:
    """Compare every bit except the payload of a NaN."""
    return repr(one.to_pylist()) == repr(other.to_pylist()) and checksum(one, schema) == checksum(
        other, schema
    )


def check_round_trip(schema: TableSchema, batch: pa.RecordBatch, tsfile: TsFileFormat) -> None:
    """Close into two files, read, merge, and check the copy as `verify` does."""
    check_fileable(schema)
    whole = pa.Table.from_batches([batch])
    want = merge([((1,), whole)], (), schema)
    made = close_unit(unit("a", (1, whole), schema=schema), tsfile)
    again = close_unit(unit("b", (1, whole.slice(whole.num_rows // 2)), schema=schema), tsfile)
    assert made is not None and again is not None
    assert alike(read(made, schema, tsfile), want, schema)
    for row in range(want.num_rows):  # every device is found by its tags
        at = tuple((name, want.column(name)[row].as_py()) for name in schema.tags)
        wanted = ScanSpec(schema, tags=at)
        found = scanned(made, wanted, tsfile)
        assert found.num_rows == merge([((1,), want)], (), schema, wanted).num_rows > 0
    inputs = {"a": made, "b": again}
    job = CompactUnit(unit("c", schema=schema).spec, (3,), (made.meta, again.meta))
    merged = compact_unit(job, list(inputs), lambda path: inputs[path].content, tsfile)
    assert merged is not None and merged.meta.logical == made.meta.logical == total(checksum(want, schema))
    for file in (made, merged):
        copy = check_content(bytes(file.content), file.meta, "copy")
        verified = read_rows(copy, schema, "copy")
        assert verified.sums == file.meta.logical
        assert buckets(verified.rows, schema) == buckets(want, schema)


TAG, FIELD = Column("dev", "STRING", True), Column("v", "DOUBLE", False)
PLANES = [chr(0x10000 * plane + 0xFFFD) for plane in range(17)] + ["", "\x01", "\ufffe", "\ud7ff", "\ue000"]


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(tables())
@example((TableSchema("sg", "t", 1, (TAG, FIELD)), [[0] * len(PLANES), PLANES, [0.5] * len(PLANES)]))
@example((TableSchema("sg", "t", 1, (TAG, FIELD)), [[0, 0], ["a\0b", "a\0c"], [0.5, 0.5]]))
@example((TableSchema("sg", "t", 1, (TAG,)), [[TIME_MS_MIN, 0, TIME_MS_MAX], [None, None, None]]))
@example(
    (
        TableSchema("sg", "t", 1, (TAG, Column("site", "STRING", True), FIELD, Column("s", "TEXT", False))),
        [
            [1] * 5,
            ["x" * TAG_BYTES_MAX, "x" * (TAG_BYTES_MAX - 1), "é" * (TAG_BYTES_MAX // 2), None, ""],
            ["", None, "y" * TAG_BYTES_MAX, "null", "NULL"],
            [None] * 5,
            ["z" * (1 << 16), "", None, "\0", "\U0010ffff"],
        ],
    )
)
@example(
    (
        TableSchema(
            "sg", "t", 1, tuple(Column(n, "STRING", n != "v") for n in ("time_min", "time_count", "v"))
        ),
        [[5, 5], ["a", "b"], ["c", None], ["x", "y"]],
    )
)
@example(
    (
        TableSchema(
            "sg", "t", 1, tuple(Column(n, "INT64", False) for n in ("stra\u00dfe", "\u0131", "\u03c2"))
        ),
        [[5], [1], [2], [3]],
    )
)
def test_accepted_rows_pass_unchanged_through_every_step(tsfile: TsFileFormat, given: Given) -> None:
    """Accepted names, types and values are unchanged in every file, copy and check."""
    schema, columns = given
    try:
        batch = rows_of(schema, columns)
    except InvalidInput:
        assume(False)
    check_round_trip(schema, batch, tsfile)


def test_many_long_names_and_a_large_text_pass_unchanged_through_every_step(tsfile: TsFileFormat) -> None:
    """There are dozens of names of maximal length, and a text near the limit of a write."""
    fields = [Column(f"{i:03d}".ljust(NAME_BYTES_MAX, "c"), "DOUBLE", False) for i in range(40)]
    schema = TableSchema("sg", "t", 1, (TAG, Column("x", "TEXT", False), *fields))
    columns: list[list[Any]] = [[1, 2], ["a", "a"], ["z" * (7 << 20), None], *([[1.0, None]] * 40)]
    check_round_trip(schema, rows_of(schema, columns), tsfile)
