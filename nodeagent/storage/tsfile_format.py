"""Apache TsFile's table model through the official `tsfile` package.

Only worker processes import this module: the native writer holds the interpreter lock for the whole
call, the native reader can crash or hang on damaged bytes, and the package's threads do not survive a fork.

Requirements of the package, all measured on 2.5.0:
- settings are process-wide, and lost unless a writer was opened before;
- names must be lower case (others become null columns), types exact, times sorted and unique per device;
- after an error the writer still closes into a valid file without the rows: the file is deleted, and
  row and value counts are read back and compared after every write;
- encodings: floating point PLAIN (GORILLA doubles the size after compression; SPRINTZ, TS_2DIFF and
  CAMEL change values); integers and time TS_2DIFF, text PLAIN;
- index degree 16 (256 makes reading many devices three times slower).
"""

import contextlib
import io
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow as pa

from nodeagent.model.errors import FileCorrupt, Refused, Unavailable
from nodeagent.model.files import CloseSpec, ScanSpec
from nodeagent.model.names import check_fileable
from nodeagent.model.schema import Column, TableSchema
from nodeagent.storage.tsfile_package import tsfile
from nodeagent.table.arrow import TIME, arrow_schema

_READ_ROWS = 1 << 13
COMPRESSIONS = ("ZSTD", "LZ4", "GZIP", "SNAPPY", "UNCOMPRESSED")

_COUNTER = itertools.count()


class TsFileFormat:
    """Files in the directory `scratch` exist only during a call; their names begin with `label`, which must
    be unique to this process."""

    def __init__(self, scratch: str, label: str = "") -> None:
        self._scratch = scratch
        self._label = label or str(os.getpid())
        self._compression = ""
        os.makedirs(scratch, exist_ok=True)

    def encode(self, table: pa.Table, spec: CloseSpec, properties: Mapping[str, bytes]) -> bytes:
        """See `FileFormat.encode`.

        Raises:
            Refused: the compression is unknown.
            InvalidName: the table has no column, or has a name that could be written but not read back.
            Unavailable: the writer failed; the rows are unchanged, so retry.
            FileCorrupt: the new file cannot be read, or the numbers of its rows or values differ.
        """
        assert table.num_rows > 0, "a file has rows"
        check_fileable(spec.schema)
        self._configure(spec.compression)
        path = self._scratch_path()
        try:
            _write(path, table, spec, properties)
            with open(path, "rb") as file:
                content = file.read()
        except Exception as error:  # the package raises its own errors, ValueError, TypeError...
            raise Unavailable(
                f"{spec.name} was not written: TsFile library: {type(error).__name__}: {error}"
            ) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        _check_counts(content, table, spec)
        return content

    def decode(self, content: bytes, spec: ScanSpec) -> pa.Table:
        """See `FileFormat.decode`. Raises `FileCorrupt` when the package cannot read the bytes."""
        try:
            with contextlib.closing(tsfile.TsFileReader(io.BytesIO(content))) as reader:
                return _read(reader, spec)
        except FileCorrupt:
            raise
        except Exception as error:
            raise FileCorrupt(f"TsFile reader: {type(error).__name__}: {error}") from error

    def properties(self, content: bytes) -> dict[str, bytes]:
        with contextlib.closing(tsfile.TsFileReader(io.BytesIO(content))) as reader:
            found: dict[str, bytes | None] = reader.get_tsfile_properties()
        return {name: value for name, value in found.items() if value is not None}

    def _scratch_path(self) -> str:
        return os.path.join(self._scratch, f"{self._label}-{next(_COUNTER)}.scratch")

    def _configure(self, compression: str) -> None:
        if compression == self._compression:
            return
        if compression not in COMPRESSIONS:
            raise Refused(f"compression {compression!r} is not one of {', '.join(COMPRESSIONS)}")
        if not self._compression:
            path = self._scratch_path()
            tsfile.TsFileWriter(path).close()  # the package loses settings made before the first writer
            os.unlink(path)
        tsfile.set_tsfile_config(
            {
                "default_compression_type_": getattr(tsfile.Compressor, compression),
                "boolean_encoding_type_": tsfile.TSEncoding.PLAIN,
                "int32_encoding_type_": tsfile.TSEncoding.TS_2DIFF,
                "int64_encoding_type_": tsfile.TSEncoding.TS_2DIFF,
                "float_encoding_type_": tsfile.TSEncoding.PLAIN,
                "double_encoding_type_": tsfile.TSEncoding.PLAIN,
                "string_encoding_type_": tsfile.TSEncoding.PLAIN,
                "max_degree_of_index_node_": 16,
            }
        )
        self._compression = compression


def _write(path: str, table: pa.Table, spec: CloseSpec, properties: Mapping[str, bytes]) -> None:
    columns = [_column(c) for c in spec.schema.columns]
    writer = tsfile.TsFileTableWriter(
        path, tsfile.TableSchema(spec.schema.table, columns), spec.memory_threshold
    )
    try:
        writer.write_arrow_batch(table.combine_chunks())
        for name, value in properties.items():
            writer.add_tsfile_property(name, value)
    finally:
        writer.close()


def _column(column: Column) -> "tsfile.ColumnSchema":
    category = tsfile.ColumnCategory.TAG if column.tag else tsfile.ColumnCategory.FIELD
    return tsfile.ColumnSchema(column.name, getattr(tsfile.TSDataType, column.type), category)


def _check_counts(content: bytes, table: pa.Table, spec: CloseSpec) -> None:
    """Compare rows and values per field with the file's own statistics."""
    wanted = {name: table.num_rows - table.column(name).null_count for name in spec.schema.fields}
    try:
        with contextlib.closing(tsfile.TsFileReader(io.BytesIO(content))) as reader:
            rows, found = _counts(reader, spec.schema)
    except Exception as error:
        raise FileCorrupt(f"{spec.name}: the new file cannot be read: {error}") from error
    if rows != table.num_rows or found != wanted:
        raise FileCorrupt(
            f"{spec.name}: wrote {table.num_rows} rows and values {wanted}, the file has {rows} and {found}",
            file=spec.name,
        )


def _counts(reader: "tsfile.TsFileReader", schema: TableSchema) -> tuple[int, dict[str, int]]:
    if not schema.fields:
        scan = ScanSpec(schema)
        return _read(reader, scan).num_rows, {}
    rows, values = 0, dict.fromkeys(schema.fields, 0)
    for device in reader.get_timeseries_metadata(None).values():
        rows += device.timeseries[0].timeline_statistic.row_count if device.timeseries else 0
        for series in device.timeseries:
            values[series.measurement_name] += series.statistic.row_count
    return rows, values


def _read(reader: "tsfile.TsFileReader", spec: ScanSpec) -> pa.Table:
    schema = spec.schema
    stored = reader.get_all_table_schemas().get(schema.table)
    if stored is None:
        raise FileCorrupt(f"the file has no table {schema.table}")
    held = frozenset(stored.get_column_names())
    chosen = tag_filter(spec.tags, held)
    batches = list(read_batches(reader, spec, held, spec.time_from, spec.time_to, chosen, _READ_ROWS))
    return pa.Table.from_batches(batches, _shape(spec, held))


def _shape(spec: ScanSpec, held: Collection[str]) -> pa.Schema:
    """Time and the wanted columns that the file has."""
    schema = spec.schema
    wanted = {*schema.tags, *(schema.fields if spec.fields is None else spec.fields)}
    fields = [f for f in arrow_schema(schema) if f.name in held and f.name in wanted]
    return pa.schema([pa.field(TIME, pa.int64()), *fields])


def read_batches(
    reader: "tsfile.TsFileReader",
    spec: ScanSpec,
    held: Collection[str],
    time_from: int,
    time_to: int,
    chosen: "tsfile.TagFilter | None",
    rows_max: int,
) -> Iterator[pa.RecordBatch]:
    """Rows of the chosen devices between two times, inclusive, in batches of up to `rows_max` rows.

    `held` are the columns of the table that the file has.
    """
    shape = _shape(spec, held)
    result = reader.query_table(
        spec.schema.table,
        shape.names[1:],
        start_time=time_from,
        end_time=time_to,
        tag_filter=chosen,
        batch_size=rows_max,
    )
    with contextlib.closing(result):
        while (batch := result.read_arrow_record_batch()) is not None:
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays([batch.column(n) for n in shape.names], schema=shape)


def tag_filter(tags: Iterable[tuple[str, str | None]], held: Collection[str]) -> "tsfile.TagFilter | None":
    """A filter that keeps at least the wanted devices; None keeps all. A value with NUL is not filtered by,
    because NUL would end a native string early."""
    chosen = None
    for name, value in tags:
        if name not in held or (value is not None and "\0" in value):
            continue
        one = tsfile.tag_is_null(name) if value is None else tsfile.tag_eq(name, value)
        chosen = one if chosen is None else chosen & one
    return chosen
