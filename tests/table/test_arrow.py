"""Rows from clients are validated."""

import contextlib
import datetime
import random
import struct

import numpy as np
import pyarrow as pa
import pytest

from nodeagent.model.errors import InvalidInput, SchemaMismatch
from nodeagent.model.schema import Column, TableSchema
from nodeagent.table import arrow
from nodeagent.table import ipc as streams
from nodeagent.table.arrow import arrow_schema, decode, encode, infer_schema, normalise

from .rows import SCHEMA, random_row, table


def one(kind: str) -> TableSchema:
    return TableSchema("sg", "t", 3, (Column("v", kind, False),))


def times(n: int) -> pa.Array:
    return pa.array(range(n), pa.int64())


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("DOUBLE", pa.array([1, 2], pa.int32())),
        ("DOUBLE", pa.array([1.5, None], pa.float32())),
        ("INT32", pa.array([1, -5], pa.int64())),
        ("INT64", pa.array([1, 2], pa.uint8())),
        ("STRING", pa.array(["a", None], pa.large_string())),
        ("TEXT", pa.array(["a", "b"]).dictionary_encode()),
        ("BLOB", pa.array([b"ab", b"cd"], pa.binary(2))),
        ("TIMESTAMP", pa.array([1, 2], pa.timestamp("ms", "Europe/Berlin"))),
        ("DATE", pa.array([datetime.date(2020, 1, 1)] * 2, pa.date64())),
        ("BOOLEAN", pa.nulls(2)),
    ],
)
def test_columns_become_exactly_the_tables_types(kind: str, values: pa.Array) -> None:
    """Every harmless Arrow type is cast to the type that the writer accepts, and no value changes."""
    batch = normalise(pa.table({"time": times(2), "V": values}), one(kind))
    assert batch.schema == arrow_schema(one(kind))
    got, given = batch.column(1).to_pylist(), values.to_pylist()
    if kind == "TIMESTAMP":
        assert batch.column(1).cast(pa.int64()).to_pylist() == [1_000_000, 2_000_000]
    else:
        assert got == given


@pytest.mark.parametrize(
    ("kind", "values", "error"),
    [
        ("INT32", pa.array([2**31], pa.int64()), InvalidInput),
        ("INT64", pa.array([2**63], pa.uint64()), InvalidInput),
        ("DOUBLE", pa.array([2**53 + 1], pa.int64()), InvalidInput),
        ("FLOAT", pa.array([0.1], pa.float64()), SchemaMismatch),
        ("INT64", pa.array([1.0], pa.float64()), SchemaMismatch),
        ("STRING", pa.array([1], pa.int64()), SchemaMismatch),
        ("BOOLEAN", pa.array([1], pa.int8()), SchemaMismatch),
        ("TIMESTAMP", pa.array([2**62], pa.timestamp("s")), InvalidInput),
        ("DATE", pa.array([datetime.date(999, 12, 31)]), InvalidInput),
    ],
)
def test_lossy_casts_are_refused(kind: str, values: pa.Array, error: type[Exception]) -> None:
    """A value that would change, or a type that cannot become the type of the table, is an error that names
    it."""
    with pytest.raises(error, match="'v'"):
        normalise(pa.table({"time": times(1), "v": values}), one(kind))


def test_date_limits_are_the_calendar_ones() -> None:
    """1000-01-01 and 9999-12-31 are accepted."""
    values = pa.array([datetime.date(1000, 1, 1), datetime.date(9999, 12, 31)])
    assert normalise(pa.table({"time": times(2), "v": values}), one("DATE")).column(1).equals(values)


def test_unknown_column_is_named_with_both_types() -> None:
    """An extra column is a SchemaMismatch with its name, its type, and the statement that the table has no
    such column."""
    with pytest.raises(SchemaMismatch, match=r"'extra'.*int64.*none"):
        normalise(pa.table({"time": times(1), "Extra": times(1)}), SCHEMA)


def test_missing_columns_become_null_in_schema_order() -> None:
    """Columns have the order of the schema, whatever the order of the input; missing ones are null."""
    batch = normalise(pa.table({"I": pa.array([7], pa.int32()), "Time": times(1)}), SCHEMA)
    assert batch.schema.names == ["time", "site", "d", "dev", "i", "s"]
    assert batch.to_pylist() == [{"time": 0, "site": None, "d": None, "dev": None, "i": 7, "s": None}]


def test_rows_in_the_form_of_the_table_are_accepted_unchanged() -> None:
    """The short path returns what the long path returns, and refuses the same input."""
    wanted = arrow_schema(SCHEMA)
    row = {"time": 1, "site": "x", "d": 2, "dev": None, "i": 7, "s": "y"}
    rows = pa.Table.from_pylist(
        [row, row | {"d": None}], schema=pa.schema([(f.name, f.type) for f in wanted])
    )
    long_way = normalise(rows.select([*reversed(rows.schema.names)]), SCHEMA)
    assert normalise(rows, SCHEMA).equals(long_way) and long_way.schema == wanted
    with pytest.raises(InvalidInput, match="row 0"):
        normalise(rows.set_column(0, "time", pa.array([None, 1], pa.int64())), SCHEMA)


def test_null_time_names_the_row() -> None:
    """A null time is refused with the number of the first row that has one."""
    with pytest.raises(InvalidInput, match="row 2"):
        normalise(pa.table({"time": pa.array([1, 2, None, None], pa.int64())}), SCHEMA)


def test_time_as_timestamp_is_milliseconds() -> None:
    """Timestamps of any unit become int64 ms; one that is not a whole number of milliseconds is refused."""
    stamps = pa.array([1_500_000_000], pa.timestamp("ns", "UTC"))
    assert normalise(pa.table({"time": stamps}), SCHEMA).column(0).to_pylist() == [1500]
    with pytest.raises(InvalidInput, match="time"):
        normalise(pa.table({"time": pa.array([1], pa.timestamp("us"))}), SCHEMA)


def test_names_that_differ_in_case_only_are_refused() -> None:
    """`A` and `a` are one column."""
    rows = pa.Table.from_arrays([times(1), times(1), times(1)], names=["time", "I", "i"])
    with pytest.raises(InvalidInput, match="is repeated"):
        normalise(rows, SCHEMA)


def test_encode_round_trip_is_deterministic_and_ignores_chunks() -> None:
    """Equal rows give equal bytes, even if they came in several chunks or with metadata."""
    rng = random.Random(1)
    rows = [random_row(rng) for _ in range(50)]
    whole, parts = table(rows), pa.concat_tables([table(rows[:20]), table(rows[20:])])
    assert encode(whole) == encode(parts.replace_schema_metadata({"a": "b"}))
    assert decode(encode(parts)).equals(whole)


def test_broken_bytes_are_refused_as_invalid_input() -> None:
    """Truncated, flipped and random bytes either decode to valid rows or raise InvalidInput."""
    rng = random.Random(7)
    good = encode(table([random_row(rng) for _ in range(30)]))
    refused = 0
    for _ in range(400):
        bad = bytearray(good)
        if rng.random() < 0.3:
            bad = bad[: rng.randrange(len(bad))]
        else:
            for _ in range(rng.randrange(1, 6)):
                bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        try:
            decode(bytes(bad)).validate(full=True)
        except InvalidInput:
            refused += 1
    assert refused > 100
    for junk in (b"", b"\0" * 8, b"ARROW1\0\0", rng.randbytes(100)):
        with pytest.raises(InvalidInput):
            decode(junk)


def test_infer_schema_puts_tags_first_in_the_order_given() -> None:
    """Types map to the narrowest table type that holds them; tags are STRING in the given order."""
    source = pa.schema([("TS", pa.int64()), ("a", pa.int16()), ("B", pa.string()), ("c", pa.float32())])
    source = source.append(pa.field("dev", pa.large_string())).append(pa.field("u", pa.uint32()))
    schema = infer_schema(source, storage_group="SG", table="T", tags=["dev", "b"], time="ts")
    assert (schema.storage_group, schema.table) == ("sg", "t")
    assert [(c.name, c.type, c.tag) for c in schema.columns] == [
        ("dev", "STRING", True),
        ("b", "STRING", True),
        ("a", "INT32", False),
        ("c", "FLOAT", False),
        ("u", "INT64", False),
    ]
    with pytest.raises(InvalidInput, match="'nope'"):
        infer_schema(source, storage_group="sg", table="t", tags=["nope"], time="ts")


def _ipc(rows: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write(rows)
    return bytes(sink.getvalue())


_SMALL = pa.table({"time": [1, 2], "v": [1.0, 2.0]})
_CODED = pa.table({"time": [1, 2], "d": pa.array(["a", "a"]).dictionary_encode()})
_WIDE = TableSchema("g", "t", 1, tuple(Column(f"c{i}", "DOUBLE", False) for i in range(4_000)))


@pytest.mark.parametrize("rows", [_SMALL, _CODED])
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_stream_is_refused_before_it_is_opened(rows: pa.Table, codec: str) -> None:
    """11 KB can become 840 MiB. Our own log is read without this check: an earlier release accepted such
    streams."""
    ipc = _ipc(rows, compression=codec)
    with pytest.raises(InvalidInput, match="compressed"):
        arrow.decode(ipc)
    assert arrow.decode(ipc, trusted=True).equals(rows)
    assert arrow.decode(_ipc(rows)).equals(rows)
    assert arrow.decode(_ipc(rows, use_legacy_format=True)).equals(rows)


def test_a_stream_of_which_only_the_dictionary_is_compressed_is_refused() -> None:
    """A dictionary is a body of its own, before the body of the rows."""
    packed, plain = (
        [m.serialize().to_pybytes() for m in pa.ipc.MessageReader.open_stream(_ipc(_CODED, **options))]
        for options in ({"compression": "zstd"}, {})
    )
    assert len(packed) == len(plain) == 3
    arrow.decode(b"".join(plain))
    for parts in ([packed[0], packed[1], plain[2]], [plain[0], plain[1], packed[2]]):
        with pytest.raises(InvalidInput, match="compressed"):
            arrow.decode(b"".join(parts))


def _rows_message(ipc: bytes) -> tuple[int, int]:
    """The offset of the second message of a stream, which contains the rows, and the offset of its
    flatbuffer."""
    begin = 8 + int.from_bytes(ipc[4:8], "little")
    return begin, begin + 8 + int.from_bytes(ipc[begin + 8 : begin + 12], "little")


def test_columns_that_share_bytes_are_refused() -> None:
    """One megabyte could become 4 096 columns of a megabyte each, in a file and in a page of a read."""
    columns = 5
    ipc = bytearray(_ipc(pa.table({f"c{i}": np.arange(100) for i in range(columns)})))
    begin, message = _rows_message(bytes(ipc))
    body = begin + 8 + int.from_bytes(ipc[begin + 4 : begin + 8], "little")
    field = streams._field(bytes(ipc), message, streams._HEADER)
    batch = field + int.from_bytes(ipc[field : field + 4], "little")
    field = streams._field(bytes(ipc), batch, streams._BUFFERS)
    buffers = field + int.from_bytes(ipc[field : field + 4], "little") + 4
    for column in range(columns):  # each column has a validity, which is empty, and values
        struct.pack_into("<q", ipc, buffers + 32 * column + 16, 0)
    # The body has the length that it would have if each column had its own values.
    assert arrow.decode(bytes(ipc)).column(4).equals(pa.chunked_array([np.arange(100)]))
    struct.pack_into("<q", ipc, streams._field(bytes(ipc), message, streams._BODY_LENGTH), 800)
    with pytest.raises(InvalidInput, match="share bytes"):
        arrow.decode(bytes(ipc[: body + 800]) + b"\xff\xff\xff\xff\0\0\0\0")


@pytest.mark.timeout(20)
def test_a_negative_length_is_refused() -> None:
    """A negative length of a body or of metadata would make the reader examine the same message
    indefinitely."""
    good = _ipc(_SMALL)
    second, message = _rows_message(good)
    body_at = streams._field(good, message, streams._BODY_LENGTH)
    size = int.from_bytes(good[second + 4 : second + 8], "little")
    for at, width, value in ((body_at, 8, -(size + 8)), (second + 4, 4, -8)):
        bad = good[:at] + value.to_bytes(width, "little", signed=True) + good[at + width :]
        with pytest.raises(InvalidInput, match="negative length"):
            arrow.decode(bad)


def test_damaged_metadata_is_refused_as_invalid_input() -> None:
    rng = random.Random(1)
    good = _ipc(_CODED)
    for _ in range(5_000):
        damaged = bytearray(good)
        for _ in range(rng.choice((1, 2, 4))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with contextlib.suppress(InvalidInput):
            arrow.decode(bytes(damaged))


@pytest.mark.parametrize(
    "rows,schema",
    [
        (pa.table({"time": np.arange(3_000)}), _WIDE),
        (
            pa.table(
                {
                    "time": np.arange(30_000),
                    "s": pa.DictionaryArray.from_arrays(np.zeros(30_000, np.int8), ["x" * 10_000]),
                }
            ),
            TableSchema("g", "t", 1, (Column("s", "STRING", False),)),
        ),
        (
            pa.table({"time": np.arange(3_000), "s": pa.array(["x" * 9_000] * 3_000, pa.string_view())}),
            TableSchema("g", "t", 1, (Column("s", "STRING", False),)),
        ),
        (
            pa.table({"time": np.arange(3_000), "b": pa.array([b"x" * 9_000] * 3_000, pa.binary_view())}),
            TableSchema("g", "t", 1, (Column("b", "BLOB", False),)),
        ),
    ],
)
def test_input_that_would_expand_too_much_is_refused_before_it_is_expanded(
    rows: pa.Table, schema: TableSchema
) -> None:
    """Examples are nulls for missing columns, and a value that is stored once for many rows."""
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidInput, match="in the table's column types"):
        arrow.normalise(rows, schema, 8 << 20)
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert arrow.form_bytes(rows.slice(0, 10), schema) <= arrow.normalise(rows.slice(0, 10), schema).nbytes
