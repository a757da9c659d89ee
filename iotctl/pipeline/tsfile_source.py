"""A Spark data source for TsFiles of the table model, on PySpark's Python Data Source API.

    spark.dataSource.register(TsFileDataSource)
    spark.read.format("tsfile").option("table", "machines").load("/data/*.tsfile")
    spark.read.format("tsfile").options(cluster=cluster_option(spec), storage_group="root.a",
                                        table="machines").load()

From paths, each file is one partition and its rows are returned as stored. From a cluster, each partition is
a range of slots of one group: one holder provides a hard-link snapshot of its files, the XXH3-128 of each
file is checked before it is opened, and rows are merged (newest value per cell, deletes applied).

Options: `path` (file, directory or pattern), `table` (may be omitted with `path` if each file has only one),
`cluster`, `storage_group`, `slots` ("0-99,200"), `node` (read from this holder only), `pushdown` ("true"
applies ranges of `time` and equalities of tags when reading the files).

`pushdown` is off by default for two reasons: Spark refuses a reader that accepts filters while
`spark.sql.python.filterPushdown.enabled` is off, and Spark 4.3 keeps the pushed filters of one query for the
next query on the same DataFrame, which then misses rows. So use it with one query per `load()`.

Columns: `time` long (milliseconds), tags, fields. Spark's planner does not prune the columns of Python
sources; name the columns in `.schema("time long, device string, s0 double")` and only those are read.
TIMESTAMP fields have microseconds in Spark; a value with nanoseconds is an error and is not rounded.
"""

import base64
import glob
import pickle
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    IsNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from iotctl.pipeline.cluster_rows import ClusterPart, cluster_parts, part_rows
from iotctl.pipeline.link import Spec, connect_cached
from iotctl.pipeline.tsfile_rows import (
    BATCH_ROWS,
    TIME,
    TIME_MAX,
    TIME_MIN,
    FileColumn,
    Wanted,
    read_batches,
    tables_in,
)
from nodeagent.model.errors import InvalidInput, NotFound
from nodeagent.model.operation import Ranges
from nodeagent.model.schema import TableSchema
from nodeagent.partition import ranges

SPARK_TYPES: dict[str, DataType] = {
    "BOOLEAN": BooleanType(),
    "INT32": IntegerType(),
    "INT64": LongType(),
    "FLOAT": FloatType(),
    "DOUBLE": DoubleType(),
    "TEXT": StringType(),
    "STRING": StringType(),
    "TIMESTAMP": TimestampNTZType(),
    "DATE": DateType(),
    "BLOB": BinaryType(),
}


def cluster_option(spec: Spec) -> str:
    """The `cluster` option for a spec. It may contain a private key, so it is never logged here."""
    return base64.b64encode(pickle.dumps(spec)).decode()


@dataclass
class FilePartition(InputPartition):
    """One file of a path."""

    path: str


@dataclass
class SlotsPartition(InputPartition):
    """Slots of one group of a cluster."""

    part: ClusterPart


@dataclass(frozen=True)
class Source:
    """The parsed options."""

    paths: tuple[str, ...]
    spec: Spec | None
    storage_group: str
    table: str
    slots: Ranges
    node: str
    pushdown: bool

    @classmethod
    def parse(cls, options: MutableMapping[str, str]) -> "Source":
        cluster = options.get("cluster")
        pattern = options.get("path")
        if (cluster is None) == (pattern is None):
            raise InvalidInput("give either a path to load or the option `cluster`")
        if cluster is not None and not (options.get("storage_group") and options.get("table")):
            raise InvalidInput("the option `cluster` needs `storage_group` and `table` too")
        return cls(
            paths=_expand(pattern) if pattern is not None else (),
            spec=_spec(cluster) if cluster is not None else None,
            storage_group=options.get("storage_group", ""),
            table=options.get("table", "").lower(),
            slots=parse_slots(options.get("slots", "")),
            node=options.get("node", ""),
            pushdown=options.get("pushdown", "false").lower() == "true",
        )


def _spec(option: str) -> Spec:
    """Unpickling is safe: the program that runs the job sets the options, and Spark runs its code anyway."""
    spec: Spec = pickle.loads(base64.b64decode(option))
    return spec


def _expand(pattern: str) -> tuple[str, ...]:
    path = pattern.removeprefix("file://")
    if Path(path).is_dir():
        return tuple(sorted(str(p) for p in Path(path).rglob("*.tsfile")))
    found = tuple(sorted(glob.glob(path, recursive=True)))
    if not found:
        raise NotFound(f"no TsFile at {pattern}")
    return found


def parse_slots(text: str) -> Ranges:
    """Parse slots such as `3,10-19` into ranges; "" gives no ranges, which means all."""
    found: list[tuple[int, int]] = []
    for piece in filter(None, (p.strip() for p in text.split(","))):
        first, dash, last = piece.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise InvalidInput(f"slots {piece!r} is neither a number nor first-last")
        found.append((int(first), int(last if dash else first) + 1))
    return ranges.union(tuple(found))


class TsFileDataSource(DataSource):
    """Registered under the name `tsfile`."""

    @classmethod
    def name(cls) -> str:
        return "tsfile"

    def schema(self) -> StructType:
        """The schema of the table in the cluster, or the union of the files' columns."""
        source = Source.parse(self.options)
        return spark_schema(_columns(source))

    def reader(self, schema: StructType) -> DataSourceReader:
        source = Source.parse(self.options)
        return PushdownReader(source, schema) if source.pushdown else TsFileReader(source, schema)


def spark_schema(columns: Sequence[FileColumn]) -> StructType:
    """`time`, then the columns; all nullable, as Spark compares the Arrow schema exactly."""
    fields = [StructField(TIME, LongType(), True)]
    return StructType(fields + [StructField(c.name, SPARK_TYPES[c.type], True) for c in columns])


def _columns(source: Source) -> list[FileColumn]:
    if source.spec is not None:
        schema = table_schema(source.spec, source.storage_group, source.table)
        return [FileColumn(c.name, c.type, c.tag) for c in schema.columns]
    merged: dict[str, FileColumn] = {}
    for path in source.paths:
        for column in _table_of(path, source.table)[1]:
            known = merged.setdefault(column.name, column)
            if known != column:
                raise InvalidInput(
                    f"column {column.name!r} of {path} differs from an earlier file in its type"
                    f" ({column.type}, {known.type} before) or in whether it is a tag"
                )
    return sorted(merged.values(), key=lambda c: not c.tag)


def table_schema(spec: Spec, storage_group: str, table: str) -> TableSchema:
    """The schema in the cluster. Raises `NotFound` if it has no such table."""
    for schema in connect_cached(spec).meta().schemas:
        if (schema.storage_group, schema.table) == (storage_group, table):
            return schema
    raise NotFound(f"storage group {storage_group} has no table {table}")


def _table_of(path: str, table: str) -> tuple[str, tuple[FileColumn, ...]]:
    tables = tables_in(Path(path).read_bytes(), path)
    if table:
        return table, tables.get(table, ())
    if not tables:
        raise InvalidInput(f"{path} has no tables: omit the file, or set the option `table`")
    if len(tables) != 1:
        raise InvalidInput(f"{path} has the tables {', '.join(sorted(tables))}: choose one with `table`")
    return next(iter(tables.items()))


class TsFileReader(DataSourceReader):
    """Reads the columns of the schema, without filters."""

    def __init__(self, source: Source, schema: StructType) -> None:
        self.source = source
        self.target = arrow_target(schema)
        self.wanted = Wanted(tuple(n for n in self.target.names if n != TIME))

    def partitions(self) -> Sequence[InputPartition]:
        """At least one partition: Spark replaces an empty list with a partition of its own."""
        source = self.source
        if source.spec is None:
            found: list[InputPartition] = [FilePartition(path) for path in source.paths]
        else:
            parts = cluster_parts(connect_cached(source.spec), source.slots, source.node)
            found = [SlotsPartition(part) for part in parts]
        return found or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in self._rows(partition):
            yield _shape(batch, self.target)

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, FilePartition):
            content = Path(partition.path).read_bytes()
            table, _ = _table_of(partition.path, self.source.table)
            yield from read_batches(content, table, self.wanted, partition.path)
        elif isinstance(partition, SlotsPartition):
            yield from self._cluster_rows(partition.part)

    def _cluster_rows(self, part: ClusterPart) -> Iterator[pa.RecordBatch]:
        source = self.source
        assert source.spec is not None
        cluster = connect_cached(source.spec)
        schema = table_schema(source.spec, source.storage_group, source.table)
        for rows in part_rows(cluster, part, schema, self.wanted):
            yield from rows.to_batches(max_chunksize=BATCH_ROWS)


class PushdownReader(TsFileReader):
    """Also accepts ranges of `time` and equalities of tags from the planner."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        tags = {c.name for c in _columns(self.source) if c.tag}
        for one in filters:
            narrowed = narrow(self.wanted, one, tags)
            if narrowed is None:
                yield one
            else:
                self.wanted = narrowed


def narrow(wanted: Wanted, one: Filter, tags: set[str]) -> Wanted | None:
    """`wanted` with the filter added; None if Spark must apply the filter itself."""
    name = ".".join(one.attribute) if hasattr(one, "attribute") else ""
    value = getattr(one, "value", None)
    if name in tags and isinstance(one, EqualTo | EqualNullSafe | IsNull):
        if isinstance(one, EqualTo) and value is None or isinstance(value, str) and "\0" in value:
            return None  # NUL would end the value early in the TsFile library
        added = (name, None if isinstance(one, IsNull) else value)
        return Wanted(wanted.columns, wanted.time_from, wanted.time_to, (*wanted.tags, added))
    if name != TIME or not isinstance(value, int):
        return None
    low, high = TIME_MIN, TIME_MAX
    match one:
        case EqualTo():
            low = high = value
        case GreaterThanOrEqual():
            low = value
        case GreaterThan() if value < TIME_MAX:
            low = value + 1
        case LessThanOrEqual():
            high = value
        case LessThan() if value > TIME_MIN:
            high = value - 1
        case _:
            return None
    return Wanted(wanted.columns, max(wanted.time_from, low), min(wanted.time_to, high), wanted.tags)


def arrow_target(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects: it refuses a batch with any other schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _shape(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The batch with the target's columns and types; a column that the file lacks is null."""
    columns: list[pa.Array] = []
    for wanted in target:
        place = batch.schema.get_field_index(wanted.name)
        if place < 0:
            columns.append(pa.nulls(batch.num_rows, wanted.type))
        else:
            columns.append(pc.cast(batch.column(place), wanted.type, safe=True))
    return pa.RecordBatch.from_arrays(columns, schema=target)
