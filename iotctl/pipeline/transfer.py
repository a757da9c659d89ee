"""Transfers rows between files and clusters on Spark.

An import writes through the client like every other write, so no row is acknowledged before it is durable.
Repeating an import is safe: the same cells get the same values.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from iotctl.pipeline.link import Cluster, Spec, connect_cached
from iotctl.pipeline.tsfile_rows import TIME
from iotctl.pipeline.tsfile_source import TsFileDataSource, cluster_option
from nodeagent.model.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_FORMATS = ("csv", "parquet", "tsfile")
WRITE_FORMATS = ("csv", "parquet")


@runtime_checkable
class Writes(Protocol):
    """The method that an import needs besides `link.Cluster`."""

    def write(
        self, storage_group: str, table: str, data: pa.Table, *, tags: Sequence[str] | None = None
    ) -> object: ...


def read_files(session: "SparkSession", path: str, file_format: str) -> "DataFrame":
    """The rows of files. CSV files have a header; their types are inferred.

    Raises:
        InvalidInput: the format is unknown.
    """
    if file_format not in READ_FORMATS:
        raise InvalidInput(f"format {file_format!r} is not one of {', '.join(READ_FORMATS)}")
    if file_format == "tsfile":
        session.dataSource.register(TsFileDataSource)
    reader = session.read.format(file_format)
    if file_format == "csv":
        reader = reader.options(header=True, inferSchema=True)
    return reader.load(path)


def import_rows(
    frame: "DataFrame", spec: Spec, storage_group: str, table: str, tags: Sequence[str], time: str = TIME
) -> int:
    """Write all rows of the frame to a table, which is created if missing; returns the number of rows."""
    named = frame.withColumnRenamed(time, TIME)
    kept = tuple(tags)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = _writer(connect_cached(spec))
        rows = 0
        for batch in batches:
            if batch.num_rows:
                writer.write(storage_group, table, pa.Table.from_batches([batch]), tags=kept)
                rows += batch.num_rows
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

    counts = named.mapInArrow(write, "rows long").collect()
    return sum(int(row["rows"]) for row in counts)


def export_table(
    session: "SparkSession", spec: Spec, storage_group: str, table: str, path: str, file_format: str
) -> int:
    """Write a table's closed rows as files under `path`, which must not exist; returns the number of rows."""
    if file_format not in WRITE_FORMATS:
        raise InvalidInput(f"format {file_format!r} is not one of {', '.join(WRITE_FORMATS)}")
    session.dataSource.register(TsFileDataSource)
    options = {"cluster": cluster_option(spec), "storage_group": storage_group, "table": table}
    frame = session.read.format("tsfile").options(**options).load()
    writer = frame.write.format(file_format)
    if file_format == "csv":
        writer = writer.option("header", True)
    writer.save(path)
    return read_files(session, path, file_format).count()


def _writer(cluster: Cluster) -> Writes:
    assert isinstance(cluster, Writes), "the client writes rows"
    return cluster
