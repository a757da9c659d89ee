"""Reads Parquet and Arrow files block by block: a value is cast without loss, or its row is reported."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iotctl.errors import InputProblem
from iotctl.rows.blocks import Block, Columns
from iotctl.rows.csv_rows import check_columns
from iotctl.rows.masks import Mask, mask, nulls
from iotctl.rows.times import TimeRule
from nodeagent.table.arrow import ARROW_TYPES

BLOCK_ROWS = 200_000
NO_NUMBERS = ("BOOLEAN", "TIMESTAMP", "DATE")
"""Types to which Arrow would cast any number."""


class BinaryFile:
    """`names` and `kinds` (Arrow types) of the file's columns, and its number of `rows`.

    Raises:
        InputProblem: the file cannot be read.
    """

    def __init__(self, path: Path, *, parquet: bool) -> None:
        self._path = path
        self._parquet = parquet
        with _reading(self._path):
            schema, self.rows = self._parquet_schema() if parquet else self._arrow_schema()
        self.names: list[str] = schema.names
        self.kinds: Mapping[str, pa.DataType] = dict(zip(schema.names, schema.types, strict=True))

    def blocks(self, types: Mapping[str, str], time: str, rule: TimeRule) -> Iterator[Block]:
        """The rows with `time` and the columns of `types`; `lines` are row numbers of the file from 1.

        Raises:
            InputProblem: a part of the file cannot be read, or the time column cannot hold times.
        """
        done = 0
        with _reading(self._path):
            for batch in self._batches():
                yield self._convert(batch, done, types, time, rule)
                done += batch.num_rows

    def check(self, time: str, wanted: tuple[str, ...]) -> None:
        check_columns(self.names, time, wanted, where=str(self._path))

    def _convert(
        self, batch: pa.RecordBatch, done: int, types: Mapping[str, str], time: str, rule: TimeRule
    ) -> Block:
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = Columns(batch.num_rows)
        try:
            seen = columns.add_times(time, given[time], rule)
        except InputProblem as error:
            raise InputProblem(f"{time}: {error.what}", next=error.next, where=str(self._path)) from None
        for name, kind in types.items():
            plain = _plain(given[name])
            try:
                is_number = pa.types.is_integer(plain.type) or pa.types.is_floating(plain.type)
                if is_number and kind in NO_NUMBERS:
                    raise pa.ArrowNotImplementedError(f"numbers are not converted to {kind}")
                columns.convert(name, plain, kind, ARROW_TYPES[kind], plain)
                if pa.types.is_timestamp(plain.type) and kind == "DATE":
                    columns.also(_with_clock(plain), f"{name}: a DATE has no time of day", plain)
            except pa.ArrowNotImplementedError as error:
                raise InputProblem(
                    f"{name}: {plain.type} cannot be read as {kind}",
                    why=str(error).splitlines()[0],
                    next="nothing was written; give another --type, or remove the column",
                    where=str(self._path),
                ) from None
        lines = np.arange(done + 1, done + 1 + batch.num_rows, dtype=np.int64)
        empty = np.logical_and.reduce([nulls(c) for c in given.values()])
        return columns.block(lines, empty, done + batch.num_rows, seen)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if self._parquet:
            import pyarrow.parquet as pq

            with pq.ParquetFile(self._path) as file:
                yield from file.iter_batches(BLOCK_ROWS)
            return
        with pa.OSFile(str(self._path)) as file, pa.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                for start in range(0, batch.num_rows, BLOCK_ROWS):
                    yield batch.slice(start, BLOCK_ROWS)

    def _parquet_schema(self) -> tuple[pa.Schema, int]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(self._path) as file:
            return file.schema_arrow, file.metadata.num_rows

    def _arrow_schema(self) -> tuple[pa.Schema, int]:
        with pa.OSFile(str(self._path)) as file, pa.ipc.open_file(file) as reader:
            counts = (reader.get_batch(n).num_rows for n in range(reader.num_record_batches))
            return reader.schema, sum(counts)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raises Arrow's errors as `InputProblem` with the file's path."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputProblem(
            "the file cannot be read",
            why=(str(error) or type(error).__name__).splitlines()[0],
            next="check that the file is complete, and that its format matches its extension",
            where=str(path),
        ) from None


def _with_clock(stamps: pa.Array) -> Mask:
    return mask(pc.not_equal(pc.floor_temporal(stamps, unit="day"), stamps))


def _plain(column: pa.Array) -> pa.Array:
    """The column without dictionary encoding; timestamps without their zone (in UTC), float16 as float32."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.cast(pa.timestamp(column.type.unit))
    return column
