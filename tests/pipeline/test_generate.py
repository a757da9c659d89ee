"""The vendored sample and the generated fleet match their documentation."""

from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet

from iotctl.demo.generate import WEEK_MS, Fleet, generate
from iotctl.rows.examples import named_file

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"


def test_weather_is_complete() -> None:
    """26 115 rows of three stations and nine sensors, unique per station and hour, alike in both files."""
    table = pyarrow.parquet.read_table(named_file("example:weather", DATA))
    assert table.num_rows == 26_115 and table.num_columns == 11
    assert sorted(table["origin"].unique().to_pylist()) == ["EWR", "JFK", "LGA"]
    assert (
        table.select(["time_hour", "origin"]).group_by(["time_hour", "origin"]).aggregate([]).num_rows
        == 26_115
    )
    assert sum(table.num_rows - c.null_count for c in table.columns[2:]) == 211_061
    text = pyarrow.csv.read_csv(DATA / "weather.csv.gz")
    assert text.column_names == table.column_names
    assert text.cast(table.schema).equals(table)


def test_fleet_is_deterministic_and_as_large_as_it_says() -> None:
    """Equal arguments give equal rows; another seed gives others; sizes follow from the arguments."""
    fleet = Fleet(storage_groups=3, weeks=2, devices_per_group=2)
    first, second = list(generate(fleet)), list(generate(fleet))
    assert all(a[:2] == b[:2] and a[2].equals(b[2]) for a, b in zip(first, second, strict=True))
    assert sum(t.num_rows for _, _, t in first) == fleet.rows == 3 * 2 * 336
    other = next(generate(Fleet(storage_groups=1, weeks=2, devices_per_group=2, seed=1)))[2]
    assert not other.equals(first[0][2])


def test_fleet_fills_whole_weeks() -> None:
    """The default fleet has 2 080 (storage group, week) pairs and 1.7 M points, rounded to hundredths."""
    fleet = Fleet()
    assert (fleet.rows, fleet.points) == (349_440, 1_747_200)
    name, table, rows = next(generate(fleet))
    weeks = np.unique(rows["time"].to_numpy() // WEEK_MS)
    assert (name, table, len(weeks) * fleet.storage_groups) == ("root.site000", "machines", 2_080)
    values = rows["pressure"].to_numpy()
    assert np.array_equal(np.round(values, 2), values) and np.abs(np.diff(values)).max() <= 0.2501
