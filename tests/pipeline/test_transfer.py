"""Imports and exports on Spark."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from iotctl.pipeline import transfer
from nodeagent.model.errors import InvalidInput
from tests.pipeline.fake import DirectorySpec, Maker, create
from tests.pipeline.rows import MACHINES, machines

pytestmark = pytest.mark.spark

GROUPS = {"n1.1": ("n1",)}
WEATHER = Path(__file__).resolve().parents[2] / "iotctl" / "data" / "weather.parquet"


def test_an_import_writes_every_row_through_the_client(spark: SparkSession, tmp_path: Path) -> None:
    """Its time column is renamed, and its tags are those that were named."""
    create(tmp_path, GROUPS, ())
    frame = transfer.read_files(spark, str(WEATHER), "parquet")
    spec = DirectorySpec(str(tmp_path))
    assert transfer.import_rows(frame, spec, "root.w", "weather", ["origin"], "time_hour") == 26_115
    written = pq.read_table(tmp_path / "written" / "root.w" / "weather" / "origin")
    assert written.num_rows == 26_115 and "time" in written.column_names


def test_export_holds_the_rows_of_the_files(spark: SparkSession, maker: Maker, tmp_path: Path) -> None:
    """Closed rows are exported."""
    cluster = create(tmp_path / "c", GROUPS, (MACHINES,))
    cluster.put("n1", "n1.1", maker.file(MACHINES, machines(), 7, (5,)))
    spec = DirectorySpec(str(tmp_path / "c"))
    target = str(tmp_path / "out")
    assert transfer.export_table(spark, spec, "root.a", "machines", target, "parquet") == 150
    assert sorted(pq.read_table(target)["count"].to_pylist()) == list(range(150))


def test_unknown_format(spark: SparkSession, tmp_path: Path) -> None:
    """The error lists the known formats."""
    with pytest.raises(InvalidInput, match="parquet"):
        transfer.read_files(spark, str(tmp_path), "xlsx")
