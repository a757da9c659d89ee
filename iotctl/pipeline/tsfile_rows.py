"""Reads TsFiles (table model) into Arrow in a Spark Python worker. The caller has checked the
hash of bytes that come from a cluster.

The TsFile library is imported inside the functions: it starts threads that do not survive a fork, so it must
not be loaded in the process from which Spark forks its workers.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from nodeagent.model.errors import FileCorrupt

TIME = "time"
BATCH_ROWS = 65_536
"""Rows per batch; the library's own batches end with each device."""

ARROW_MAGIC = b"ARROW1"

TIME_MIN, TIME_MAX = -(1 << 63), (1 << 63) - 1


class FileColumn(msgspec.Struct, frozen=True):
    """`type` is the name of the TsFile type (`DOUBLE`); column names are lower case."""

    name: str
    type: str
    tag: bool


class Wanted(msgspec.Struct, frozen=True):
    """Selects rows in [time_from, time_to] whose tags equal `tags`; `columns` None means all."""

    columns: tuple[str, ...] | None = None
    time_from: int = TIME_MIN
    time_to: int = TIME_MAX
    tags: tuple[tuple[str, str | None], ...] = ()


def tables_in(content: bytes, file: str) -> dict[str, tuple[FileColumn, ...]]:
    """The columns of every table in the file, without the time column.

    Raises:
        FileCorrupt: the library cannot read the file.
    """
    with ExitStack() as stack:
        return _tables(_open(stack, content, file), file)


def read_batches(
    content: bytes, table: str, wanted: Wanted | None = None, file: str = ""
) -> Iterator[pa.RecordBatch]:
    """Rows of one table, `BATCH_ROWS` at a time, device by device and in time order.

    Columns: `time` int64, then those of `wanted.columns` that the file has (older files lack newer columns).
    A missing table yields nothing.

    Raises:
        FileCorrupt: the library cannot read the file.
    """
    wanted = wanted or Wanted()
    if content.startswith(ARROW_MAGIC):
        yield from _parked(content, wanted, file)
        return
    with ExitStack() as stack:
        reader = _open(stack, content, file)
        columns = _tables(reader, file).get(table.lower())
        if columns is None:
            return
        names = {c.name for c in columns}
        if any(tag not in names and value is not None for tag, value in wanted.tags):
            return
        asked = [c.name for c in columns] if wanted.columns is None else wanted.columns
        yield from _coalesced(_native(reader, table, [n for n in asked if n in names], wanted, names, file))


def _parked(content: bytes, wanted: Wanted, file: str) -> Iterator[pa.RecordBatch]:
    """Rows of an Arrow file, which stores the rows of one table that could not become a TsFile."""
    try:
        with pa.ipc.open_file(pa.py_buffer(content)) as reader:
            rows = reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise FileCorrupt(f"cannot read Arrow file {file}: {error}", file=file) from error
    keep = pc.and_(
        pc.greater_equal(rows.column(TIME), wanted.time_from),
        pc.less_equal(rows.column(TIME), wanted.time_to),
    )
    for tag, value in wanted.tags:
        if tag in rows.column_names:
            column = rows.column(tag)
            same = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
            keep = pc.and_(keep, same)
        elif value is not None:
            return
    asked = rows.column_names[1:] if wanted.columns is None else wanted.columns
    found = rows.filter(keep).select([TIME, *(n for n in asked if n in rows.column_names)])
    if found.num_rows:
        yield from found.to_batches(max_chunksize=BATCH_ROWS)


def read_table(content: bytes, table: str, wanted: Wanted | None = None, file: str = "") -> pa.Table | None:
    """All rows of one table in the file; None if the file has no row of it."""
    batches = list(read_batches(content, table, wanted, file))
    return pa.Table.from_batches(batches) if batches else None


def _open(stack: ExitStack, content: bytes, file: str) -> Any:
    from tsfile import TsFileReader

    try:
        return stack.enter_context(closing(TsFileReader(io.BytesIO(content))))
    except Exception as error:  # on damaged bytes the library raises many other classes than its own
        raise FileCorrupt(f"cannot open TsFile {file}: {error}", file=file) from error


def _tables(reader: Any, file: str) -> dict[str, tuple[FileColumn, ...]]:
    try:
        schemas = reader.get_all_table_schemas()
    except Exception as error:  # as above
        raise FileCorrupt(f"cannot read the schema of TsFile {file}: {error}", file=file) from error
    return {
        name.lower(): tuple(
            FileColumn(c.get_column_name().lower(), c.get_data_type().name, c.get_category().name == "TAG")
            for c in schema.get_columns()
            if c.get_category().name in ("TAG", "FIELD")
        )
        for name, schema in schemas.items()
    }


def _native(
    reader: Any, table: str, columns: Sequence[str], wanted: Wanted, known: set[str], file: str
) -> Iterator[pa.RecordBatch]:
    tags = [(tag, value) for tag, value in wanted.tags if tag in known]
    try:
        result = reader.query_table(
            table.lower(),
            list(columns),
            start_time=wanted.time_from,
            end_time=wanted.time_to,
            tag_filter=_tag_filter(tags),
            batch_size=BATCH_ROWS,
        )
        with closing(result):
            while (batch := result.read_arrow_record_batch()) is not None:
                yield batch
    except Exception as error:  # as above
        raise FileCorrupt(f"cannot read TsFile {file}: {error}", file=file) from error


def _tag_filter(tags: Sequence[tuple[str, str | None]]) -> Any:
    from tsfile import tag_eq, tag_is_null
    from tsfile.tag_filter import AndTagFilter

    combined: Any = None
    for tag, value in tags:
        one = tag_is_null(tag) if value is None else tag_eq(tag, value)
        combined = one if combined is None else AndTagFilter(combined, one)
    return combined


def _coalesced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine small batches: the library ends a batch with each device."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= BATCH_ROWS:
            yield from _joined(held)
            held, rows = [], 0
    yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) > 1:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
    else:
        yield from batches
