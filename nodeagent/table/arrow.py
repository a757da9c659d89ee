"""The Arrow form of a table's rows, and the validation of every batch from outside.

Arrow form: `time` int64 (milliseconds), then the schema's columns in order, with exactly the types
below. The TsFile writer refuses or silently drops anything else: an upper-case name becomes an all-null
column, int32 in an INT64 column is an error that still leaves a valid, empty file.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nodeagent.model.errors import InvalidInput, SchemaMismatch
from nodeagent.model.names import check_schema
from nodeagent.model.schema import Column, TableSchema
from nodeagent.table.ipc import check_plain
from nodeagent.table.values import Span, check_values

TIME = "time"

ARROW_TYPES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "STRING": pa.string(),
    "TIMESTAMP": pa.timestamp("ns"),
    "DATE": pa.date32(),
    "BLOB": pa.binary(),
}

_DATE_MIN, _DATE_MAX = -354_285, 2_932_896
"""Days since the epoch of 1000-01-01 and 9999-12-31: TsFile stores dates as the number yyyymmdd."""

_STRINGS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BLOBS = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_FLOAT32 = (pa.types.is_float16, pa.types.is_float32, pa.types.is_integer)

_SOURCES = {
    "BOOLEAN": (pa.types.is_boolean,),
    "INT32": (pa.types.is_integer,),
    "INT64": (pa.types.is_integer,),
    "FLOAT": _FLOAT32,
    "DOUBLE": (*_FLOAT32, pa.types.is_float64),
    "TEXT": _STRINGS,
    "STRING": _STRINGS,
    "TIMESTAMP": (pa.types.is_timestamp,),
    "DATE": (pa.types.is_date,),
    "BLOB": _BLOBS,
}
"""Arrow types that may be cast to a column type. Arrow's safe cast then checks every value; it does not
check float64 to float32, so that pair is absent."""

Rows: TypeAlias = pa.RecordBatch | pa.Table


def arrow_type(column: Column) -> pa.DataType:
    return ARROW_TYPES[column.type]


@lru_cache(maxsize=1024)
def arrow_schema(schema: TableSchema) -> pa.Schema:
    """`time`, then the columns in the schema's order."""
    fields = [pa.field(TIME, pa.int64(), nullable=False)]
    return pa.schema(fields + [pa.field(c.name, arrow_type(c)) for c in schema.columns])


def normalise(rows: Rows, schema: TableSchema, bytes_max: int | None = None) -> pa.RecordBatch:
    """Convert rows from outside into the table's Arrow form, without changing a value.

    Names are lower-cased, absent columns become null. Rows that need a conversion are refused before it if
    even a lower bound on their size (`form_bytes`) exceeds `bytes_max`; the result may still be larger.

    Raises:
        SchemaMismatch: a column is not in the table, or its type cannot be cast to the table's type.
        InvalidInput: `time` is missing or has a null, a name is repeated, the rows are too large, or a value
            does not fit its type or could not be read back from a file (`table.values`).
    """
    return normalise_timed(rows, schema, bytes_max)[0]


def normalise_timed(
    rows: Rows, schema: TableSchema, bytes_max: int | None = None
) -> tuple[pa.RecordBatch, Span | None]:
    """`normalise`, and the span of the rows' times, which the check computes; None without rows."""
    batch = _in_form(rows, schema, bytes_max)
    return batch, check_values(batch, schema)


def _in_form(rows: Rows, schema: TableSchema, bytes_max: int | None) -> pa.RecordBatch:
    if has_form(rows.schema, schema) and not rows.column(0).null_count:
        return pa.RecordBatch.from_arrays([one_chunk(c) for c in rows.columns], schema=arrow_schema(schema))
    if bytes_max is not None and (least := form_bytes(rows, schema)) > bytes_max:
        raise InvalidInput(
            f"the rows take at least {least} bytes in the table's column types; the limit is {bytes_max}"
        )
    columns = _by_lower_name(rows)
    known = {c.name: c for c in schema.columns}
    for name, array in columns.items():
        if name != TIME and name not in known:
            raise SchemaMismatch(
                f"table {schema.table} version {schema.version} has no column {name!r}"
                f" (sent as {array.type}, table type: none)",
                next_step="add the column to the table, or leave it out",
                column=name,
            )
    if TIME not in columns:
        raise InvalidInput(f"rows for table {schema.table} have no `time` column")
    arrays = [_exact_time(columns[TIME])]
    for column in schema.columns:
        array = columns.get(column.name)
        arrays.append(pa.nulls(rows.num_rows, arrow_type(column)) if array is None else _exact(array, column))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))


def form_bytes(rows: Rows, schema: TableSchema) -> int:
    """A lower bound on the size of the normalised rows, in bytes, computed before they are converted.

    Small input can grow: a value of a dictionary or view is repeated for every row that refers to it, and
    absent columns are filled with nulls.
    """
    texts = sum(_text_bytes(one_chunk(c)) for c in rows.columns if _is_shared(c.type))
    return int(rows.num_rows * _row_bytes(schema) + texts)


@lru_cache(maxsize=1024)
def _row_bytes(schema: TableSchema) -> int:
    """Bytes of one row without its texts; a column of bits counts as 0."""
    fixed = [kind.bit_width // 8 for kind in map(arrow_type, schema.columns) if not _has_offsets(kind)]
    return int(8 + sum(fixed) + 4 * (len(schema.columns) - len(fixed)))


def _has_offsets(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_shared(kind: pa.DataType) -> bool:
    """Whether many rows may share one stored value."""
    views = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return bool(views or pa.types.is_dictionary(kind))


def _text_bytes(array: pa.Array) -> int:
    """Bytes of the texts of all rows."""
    if not pa.types.is_dictionary(array.type):
        lengths = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)[:, 0]
        return int(lengths[array.offset : array.offset + len(array)].sum(dtype=np.int64))
    values = array.dictionary
    if _is_shared(values.type):
        raise SchemaMismatch(f"a dictionary of {values.type} cannot be a column of a table")
    if not any(is_kind(values.type) for is_kind in (*_STRINGS, *_BLOBS)):
        return 0
    lengths = pc.binary_length(values).take(array.indices)
    return int(pc.sum(lengths).as_py() or 0)


def has_form(given: pa.Schema, schema: TableSchema) -> bool:
    """Whether rows of that schema need no conversion: same names, order and types, and no DATE column, whose
    values must be checked. This is so for most small writes, for which the conversion would cost more than
    the rest of the leader's work."""
    wanted = arrow_schema(schema)
    return are_alike(given, wanted) and all(c.type != "DATE" for c in schema.columns)


def are_alike(given: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether names, order and types are the same. The schema of our own client is equal as a whole, which
    takes a tenth of the time to check."""
    return bool(given.equals(wanted)) or (given.names == wanted.names and given.types == wanted.types)


def _by_lower_name(rows: Rows) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        name = field.name.lower()
        if name in columns:
            raise InvalidInput(f"column {name!r} is repeated (names are compared in lower case)")
        columns[name] = one_chunk(column)
    return columns


def one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one contiguous array; a chunked one is copied only if it has several chunks."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        joined = column.combine_chunks()
        assert isinstance(joined, pa.Array), "a partition's column fits one Arrow array (2 GiB of text)"
        return joined
    return column


def _exact_time(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        array = _cast(array, pa.timestamp("ms", array.type.tz), TIME)
    elif not pa.types.is_integer(array.type):
        raise SchemaMismatch(f"`time` is {array.type}, not an integer or a timestamp", column=TIME)
    if array.null_count:
        row = pc.index(pc.is_null(array), True).as_py()
        raise InvalidInput(f"`time` is null in row {row}", row=row)
    return _cast(array, pa.int64(), TIME)


def _exact(array: pa.Array, column: Column) -> pa.Array:
    wanted = arrow_type(column)
    if array.type == wanted:
        exact = array
    else:
        kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        if not (pa.types.is_null(kind) or any(is_kind(kind) for is_kind in _SOURCES[column.type])):
            raise SchemaMismatch(
                f"column {column.name!r} is {array.type}, the table has {column.type} ({wanted})",
                column=column.name,
            )
        plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            plain = plain.cast(pa.timestamp(kind.unit))
        exact = _cast(plain, wanted, column.name)
    if column.type == "DATE":
        _check_dates(exact, column.name)
    return exact


def _check_dates(array: pa.Array, name: str) -> None:
    days = array.cast(pa.int32())
    span = pc.min_max(days).as_py()
    if span["min"] is not None and (span["min"] < _DATE_MIN or span["max"] > _DATE_MAX):
        row = pc.index(pc.or_(pc.less(days, _DATE_MIN), pc.greater(days, _DATE_MAX)), True).as_py()
        what = f"column {name!r}: the DATE in row {row} is not between 1000-01-01 and 9999-12-31"
        raise InvalidInput(what, column=name, row=row)


def _cast(array: pa.Array, wanted: pa.DataType, name: str) -> pa.Array:
    if array.type == wanted:
        return array
    try:
        return array.cast(wanted, safe=True)
    except pa.ArrowException as error:
        raise InvalidInput(
            f"column {name!r}: {array.type} cannot be cast to {wanted} without loss: {error}", column=name
        ) from error


def encode(rows: Rows) -> bytes:
    """The rows as an Arrow IPC stream of one record batch, uncompressed. Equal rows may give different
    bytes: those below nulls are written as they are."""
    sink = pa.BufferOutputStream()
    plain = rows.schema.remove_metadata()
    with pa.ipc.new_stream(sink, plain) as writer:
        writer.write_batch(one_batch(rows).replace_schema_metadata(None))
    return bytes(sink.getvalue())


def one_batch(rows: Rows) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        return rows
    return pa.RecordBatch.from_arrays([one_chunk(c) for c in rows.columns], schema=rows.schema)


def decode(ipc: bytes | memoryview, *, trusted: bool = False) -> pa.Table:
    """Rows of an Arrow IPC stream.

    `trusted` bytes come from this node's log or memtable; all other bytes are validated in full (offsets,
    UTF-8), because Arrow's kernels do not check them.

    Raises:
        InvalidInput: the bytes are not an Arrow stream, or are not trusted and are compressed or shared by
            columns.
    """
    ipc = bytes(ipc)  # a slice of a longer buffer may not be aligned for Arrow's kernels
    if not trusted:
        check_plain(ipc)
    try:
        with pa.ipc.open_stream(pa.py_buffer(ipc)) as reader:
            table = reader.read_all()
        if not trusted:
            table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError) as error:
        raise InvalidInput(f"not a valid Arrow stream: {error}") from error
    return table


def infer_schema(
    source: pa.Schema,
    *,
    storage_group: str,
    table: str,
    tags: Iterable[str],
    time: str = TIME,
    known: TableSchema | None = None,
) -> TableSchema:
    """A table schema for data described by an Arrow schema; `time` and `tags` name its columns.

    `known` is the existing table, whose names are not checked.

    Raises:
        InvalidInput: a named column is absent, or no table type matches a column's type.
        InvalidName: a name is not allowed for a storage group, table or column.
    """
    wanted_tags = [t.lower() for t in tags]
    names = [f.name.lower() for f in source]
    for name in (*wanted_tags, time.lower()):
        if name not in names:
            raise InvalidInput(f"no column {name!r}; there are: {', '.join(names)}", column=name)
    columns = [
        Column(name, "STRING" if name in wanted_tags else _table_type(field), name in wanted_tags)
        for name, field in zip(names, source, strict=True)
        if name != time.lower()
    ]
    columns.sort(key=lambda c: (not c.tag, wanted_tags.index(c.name) if c.tag else 0))
    schema = TableSchema(storage_group.lower(), table.lower(), 1, tuple(columns))
    check_schema(schema, known)
    return schema


def _table_type(field: pa.Field) -> str:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_integer(kind):
        narrow = kind.bit_width < 32 or kind == pa.int32()
        return "INT32" if narrow else "INT64"
    for name in ("BOOLEAN", "FLOAT", "DOUBLE", "STRING", "TIMESTAMP", "DATE", "BLOB"):
        if any(is_kind(kind) for is_kind in _SOURCES[name]):
            return name
    what = f"column {field.name!r}: no table type for {field.type}"
    raise InvalidInput(what, column=field.name, type=str(field.type))
