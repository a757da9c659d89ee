"""Exports rows to a file as a stream: memory holds about `EXPORT_BYTES` at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from iotctl.errors import InputProblem
from iotctl.files import whole_file
from iotctl.rows.selection import in_order
from iotctl.rows.tables import CSV, PARQUET
from nodeagent.model.limits import MIB
from nodeagent.model.schema import TableSchema
from nodeagent.table.arrow import arrow_schema

EXPORT_BYTES = 64 * MIB
"""Approximate size in memory of one row group of an exported file."""


def size_of(path: Path) -> int:
    """Bytes of the existing file; 0 if there is none."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except (OSError, ValueError):
        return 0


def export_table(
    batches: Iterable[pa.RecordBatch],
    schema: TableSchema,
    shape: pa.Schema,
    path: Path,
    kind: str,
    on_rows: Callable[[int], None],
) -> int:
    """Write rows to a file (`iotctl.files.whole_file`); see `write_rows`.

    Returns: the number of rows.

    Raises:
        InputProblem: the file cannot be written.
        NodeAgentError: some rows could not be read; no regular file was written.
    """
    with whole_file(path) as file:
        return write_rows(batches, schema, shape, file, kind, on_rows)


def write_rows(
    batches: Iterable[pa.RecordBatch],
    schema: TableSchema,
    shape: pa.Schema,
    file: BinaryIO,
    kind: str,
    on_rows: Callable[[int], None],
) -> int:
    """Stream rows to the file with about `EXPORT_BYTES` in memory at a time, sorted if all rows fit.

    Args:
        shape: the columns, even if there are no rows.
        on_rows: called with the number of rows written so far.

    Raises:
        InputProblem: the format cannot hold a column.
    """
    bytes_in = [f.name for f in shape if pa.types.is_binary(f.type)]
    if kind == CSV and bytes_in:
        raise InputProblem(
            f"a CSV file cannot hold the bytes of column {bytes_in[0]}",
            next="export to .parquet or .arrow, or name the other columns with --fields",
        )
    rows = 0
    groups = _row_groups(batches)
    first = next(groups, shape.empty_table())
    if first.nbytes < EXPORT_BYTES:
        first = in_order(first, schema)
    with _writer(file, first.schema, kind) as write:
        for some in chain([first], groups):
            write(some)
            rows += some.num_rows
            on_rows(rows)
    return rows


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Pages combined into row groups of at least `EXPORT_BYTES`, except the last."""
    held: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in batches:
        held.append(batch)
        nbytes += batch.nbytes
        if nbytes >= EXPORT_BYTES:
            yield pa.Table.from_batches(held)
            held, nbytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


@contextmanager
def _writer(file: BinaryIO, shape: pa.Schema, kind: str) -> Iterator[Callable[[pa.Table], None]]:
    if kind == CSV:
        import pyarrow.csv as pacsv

        with pacsv.CSVWriter(file, shape) as csv:
            yield csv.write_table
    elif kind == PARQUET:
        import pyarrow.parquet as pq

        with pq.ParquetWriter(file, shape, compression="zstd") as parquet:
            yield parquet.write_table
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(file, shape, options=options) as arrow:
            yield arrow.write_table


def shape_of(schema: TableSchema, fields: Sequence[str] | None) -> pa.Schema:
    """The Arrow columns of a read of these fields (None: all fields)."""
    wanted = {"time", *schema.tags, *(schema.fields if fields is None else fields)}
    return pa.schema([f for f in arrow_schema(schema) if f.name in wanted])
