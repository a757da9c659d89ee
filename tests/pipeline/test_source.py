"""The `tsfile` data source, as Spark users use it."""

import math
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructType
from tsfile import TsFileWriter

from iotctl.pipeline.tsfile_source import TsFileDataSource, cluster_option, parse_slots, spark_schema
from nodeagent.model.errors import InvalidInput
from nodeagent.model.files import Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.limits import TAG_BYTES_MAX, TIME_MS_MAX, TIME_MS_MIN
from nodeagent.model.schema import Column, TableSchema
from nodeagent.table.arrow import normalise
from nodeagent.table.checksum import checksum, total
from nodeagent.table.merge import merge
from tests.pipeline.fake import DirectorySpec, Maker, create
from tests.pipeline.rows import MACHINES, machines, with_cell

pytestmark = pytest.mark.spark

GROUPS = {"n1.1": ("n1", "n2"), "n2.1": ("n2", "n1")}


@pytest.fixture(scope="module")
def directory(maker: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of one table, 150 rows each."""
    root = tmp_path_factory.mktemp("files")
    for order, seed in ((5, 1), (6, 2)):
        made = maker.file(MACHINES, machines(start_ms=order * 10**9, seed=seed), 7, (order,))
        (root / made.meta.name).write_bytes(made.content)
    return root


@pytest.fixture
def source(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(TsFileDataSource)
    return spark


def test_reads_rows_as_written(source: SparkSession, directory: Path) -> None:
    """All columns with their types, null tags and cells kept."""
    frame = source.read.format("tsfile").load(str(directory))
    assert frame.schema["time"].dataType == LongType()
    assert frame.columns == ["time", "device", "heat", "count", "state"]
    expected = pa.concat_tables([machines(start_ms=n * 10**9, seed=s) for n, s in ((5, 1), (6, 2))])
    key = [("time", "ascending"), ("count", "ascending")]
    assert frame.toArrow().cast(expected.schema).sort_by(key) == expected.sort_by(key).combine_chunks()


def test_only_the_named_columns_are_read(source: SparkSession, directory: Path) -> None:
    """A user schema limits the columns; a column that the files lack is null."""
    frame = source.read.format("tsfile").schema("time long, count long, later double").load(str(directory))
    row = frame.orderBy("time", "count").first()
    assert row is not None and row.asDict() == {"time": 5 * 10**9, "count": 0, "later": None}


def test_filters_that_are_pushed_down_are_correct(source: SparkSession, directory: Path) -> None:
    """Tag and time filters give the same rows pushed down as applied by Spark, in every combination."""
    plain = source.read.format("tsfile").load(str(directory))
    pushing = source.read.format("tsfile").option("pushdown", "true")
    for condition in (
        "device = 'd1'",
        "device is null and time > 6000000000",
        "time between 5003600000 and 5007200000",
        "time < 5003600000 and heat > 15",
        "device = 'nobody'",
        "device <=> null or count = 3",
    ):
        pushed = pushing.load(str(directory)).where(condition)
        assert pushed.count() == plain.where(condition).count(), condition
    plan = pushing.load(str(directory)).where("device = 'd1'")._jdf.queryExecution().toString()
    physical = plan.partition("== Physical Plan ==")[2]
    assert "= d1" in plan and "= d1" not in physical


def test_unusual_but_valid_values_and_names_reach_spark(
    source: SparkSession, maker: Maker, tmp_path: Path
) -> None:
    """Every plane of Unicode, NUL, long text, NaN, zeros, extreme times, names with dots and blanks."""
    fields = (Column("a.b (%)", "DOUBLE", False), Column("time_min", "TEXT", False))
    schema = TableSchema("sg", "\u0442", 1, (Column("dev \u0131", "STRING", True), *fields))
    names = [chr(0x10000 * plane + 0xFFFD) for plane in range(17)] + ["", None, "null", "x" * TAG_BYTES_MAX]
    numbers = [0.0, -0.0, math.nan, math.inf, -math.inf, None, 5e-324]
    text = ["", "\0", "a\0b", None, "y" * (1 << 16)]
    given = pa.table(
        {
            "time": pa.array([(TIME_MS_MIN, 0, TIME_MS_MAX)[i % 3] for i in range(len(names))], pa.int64()),
            "dev \u0131": pa.array(names, pa.string()),
            "a.b (%)": pa.array([numbers[i % 7] for i in range(len(names))], pa.float64()),
            "time_min": pa.array([text[i % 5] for i in range(len(names))], pa.string()),
        }
    )
    made = maker.file(schema, pa.table(normalise(given, schema)), 7, (5,))
    (tmp_path / made.meta.name).write_bytes(made.content)
    frame = source.read.format("tsfile").load(str(tmp_path))
    found = frame.toArrow().select(given.column_names).cast(given.schema)
    assert total(checksum(merge([((1,), found)], (), schema), schema)) == made.meta.logical
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, given.to_pylist()))


def test_empty_directory_is_no_rows(source: SparkSession, tmp_path: Path) -> None:
    """No file means no partition, which Spark would turn into a broken one."""
    schema = spark_schema(()).add("device", StringType())
    assert isinstance(schema, StructType)
    frame = source.read.format("tsfile").schema(schema).load(str(tmp_path))
    assert frame.count() == 0


def test_cluster_rows_are_merged_and_failing_holders_are_replaced(
    source: SparkSession, maker: Maker, tmp_path: Path
) -> None:
    """Newest value per cell, deletes applied; a damaged or silent holder is skipped."""
    cluster = create(tmp_path, GROUPS, (MACHINES,))
    rows = machines()
    old = maker.file(MACHINES, rows, 7, (5,))
    new = maker.file(MACHINES, with_cell(rows, 1, "heat", 77.0).slice(1, 1), 7, (6,))
    far = maker.file(MACHINES, machines(seed=4), 60, (5,))
    for node in ("n1", "n2"):
        for made in (old, new):
            path = cluster.put(node, "n1.1", made)
            if node == "n1" and made is old:
                path.write_bytes(made.content[:-9] + b"x" + made.content[-8:])
        cluster.put(node, "n2.1", far)
        replica = cluster.load(node, "n1.1")
        key = PartitionKey("root.a", 7, 0)
        replica.tombstones = [Tombstone((6,), key, "machines", (("device", "d0"),), 0, 0)]
        cluster.save(node, "n1.1", replica)
    reader = source.read.format("tsfile").options(
        cluster=cluster_option(DirectorySpec(str(tmp_path))), storage_group="root.a", table="machines"
    )
    frame = reader.load().cache()
    assert frame.count() == 149 + 150
    assert frame.where("heat = 77").count() == 1
    only = reader.option("slots", "50-99").option("pushdown", "true").load()
    assert only.where("device = 'd1' and time < 7200000").count() == 2


def test_slots_option() -> None:
    """Numbers and ranges; anything else is refused."""
    assert parse_slots("3, 10-11,4") == ((3, 5), (10, 12))
    assert parse_slots("") == ()
    with pytest.raises(InvalidInput, match="first-last"):
        parse_slots("7-x")


def test_a_file_without_tables_is_named(tmp_path: Path) -> None:
    """There is nothing to choose; with the option `table`, the file only adds no rows."""
    path = str(tmp_path / "empty.tsfile")
    TsFileWriter(path).close()
    with pytest.raises(InvalidInput, match=r"empty\.tsfile has no tables"):
        TsFileDataSource({"path": path}).schema()
    assert TsFileDataSource({"path": path, "table": "machines"}).schema().names == ["time"]
