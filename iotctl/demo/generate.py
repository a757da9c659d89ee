"""Generates the rows of a fleet: the same rows for the same arguments, on every machine.

Each storage group is a site with one table of devices that report once per step. Every field is a random walk
rounded to two decimals, like real sensors. The default arguments give 40 sites over 52 weeks: 349 440 rows,
1 747 200 points and 2 080 distinct (storage group, week) pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Float64s = npt.NDArray[np.float64]

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS

EPOCH_MS = 2769 * WEEK_MS
"""First timestamp: a whole number of weeks, 2023-01-26T00:00:00Z, so that `weeks` partitions of seven days
are completely filled."""

FIELD_NAMES = ("temperature", "pressure", "humidity", "vibration", "current", "voltage", "flow", "level")
TABLE = "machines"
TAG = "device"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Size and shape of the generated data. `step_ms` is the time between two rows of a device."""

    storage_groups: int = 40
    weeks: int = 52
    devices_per_group: int = 1
    step_ms: int = HOUR_MS
    fields: int = 5
    seed: int = 20_240_101
    start_ms: int = EPOCH_MS

    @property
    def rows_per_device(self) -> int:
        return self.weeks * WEEK_MS // self.step_ms

    @property
    def rows(self) -> int:
        return self.storage_groups * self.devices_per_group * self.rows_per_device

    @property
    def points(self) -> int:
        return self.rows * self.fields

    @property
    def field_names(self) -> tuple[str, ...]:
        return tuple(FIELD_NAMES[i] if i < len(FIELD_NAMES) else f"s{i:03d}" for i in range(self.fields))


def storage_group_name(number: int) -> str:
    return f"root.site{number:03d}"


def generate(fleet: Fleet | None = None) -> Iterator[tuple[str, str, pa.Table]]:
    """Yield (storage group, table, rows), one storage group at a time, sorted by (device, time).

    Columns: `time` int64 ms, `device` string, then the fields as float64 without nulls.
    """
    fleet = fleet or Fleet()
    for number in range(fleet.storage_groups):
        yield storage_group_name(number), TABLE, _site(fleet, number)


def _site(fleet: Fleet, number: int) -> pa.Table:
    """All rows of one storage group. Each group has its own random stream and can be generated alone."""
    random = np.random.default_rng([fleet.seed, number])
    steps, devices = fleet.rows_per_device, fleet.devices_per_group
    times = fleet.start_ms + np.arange(steps, dtype=np.int64) * fleet.step_ms
    names = pa.array([f"d{number:03d}-{d:04d}" for d in range(devices)], pa.string())
    columns: dict[str, pa.Array] = {
        "time": pa.array(np.tile(times, devices)),
        TAG: names.take(pa.array(np.repeat(np.arange(devices), steps))),
    }
    for position, field in enumerate(fleet.field_names):
        columns[field] = pa.array(_walks(random, devices, steps, base=20.0 * (position + 1)))
    return pa.table(columns)


def _walks(random: np.random.Generator, devices: int, steps: int, base: float) -> Float64s:
    """One random walk per device, concatenated: multiples of 0.01, each step at most 0.25."""
    moves = random.integers(-25, 26, size=(devices, steps), dtype=np.int64)
    start = int(base * 100) + random.integers(-500, 501, size=(devices, 1), dtype=np.int64)
    walks: Float64s = (start + moves.cumsum(axis=1)) / 100.0
    return walks.reshape(-1)
