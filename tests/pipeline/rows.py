"""Small tables for these tests."""

import numpy as np
import pyarrow as pa

from nodeagent.model.schema import Column, TableSchema

DAY_MS = 86_400_000

MACHINES = TableSchema(
    "root.a",
    "machines",
    1,
    (
        Column("device", "STRING", True),
        Column("heat", "DOUBLE", False),
        Column("count", "INT64", False),
        Column("state", "STRING", False),
    ),
)


def machines(devices: int = 3, per_device: int = 50, start_ms: int = 0, seed: int = 1) -> pa.Table:
    """Hourly rows of some devices; the last has a null name, some cells are null."""
    random = np.random.default_rng(seed)
    rows = devices * per_device
    names = [f"d{d}" if d < devices - 1 else None for d in range(devices)]
    heat = np.round(random.normal(20, 5, rows), 2)
    mask = random.random(rows) < 0.1
    mask[[0, 1, 2]] = False
    return pa.table(
        {
            "time": pa.array(np.tile(start_ms + np.arange(per_device) * 3_600_000, devices)),
            "device": pa.array(names, pa.string()).take(pa.array(np.repeat(np.arange(devices), per_device))),
            "heat": pa.array(heat, mask=mask),
            "count": pa.array(np.arange(rows)),
            "state": pa.array(["on", "off", "é"], pa.string()).take(pa.array(np.arange(rows) % 3)),
        }
    )


def with_cell(table: pa.Table, row: int, column: str, value: object) -> pa.Table:
    """The table with one value changed."""
    values = table.column(column).to_pylist()
    values[row] = value
    place = table.schema.get_field_index(column)
    return table.set_column(place, column, pa.array(values, table.schema.field(column).type))
