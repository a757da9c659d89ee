"""Rows to write: random-walk doubles of many devices, as prepared Arrow streams that are shifted for each
batch.

A batch contains rows of one partition: some devices, each with consecutive times. Before each reuse its times
advance and every field gets a new offset, so that no two batches contain equal values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nodeagent.model.config import ClusterSettings
from nodeagent.model.ids import PartitionKey
from nodeagent.model.schema import Column, TableSchema
from nodeagent.partition.hash import shard_of, slot_of, time_span
from nodeagent.table.arrow import arrow_schema, encode

TABLE = "sensors"
STEP_MS = 100


def storage_group(number: int) -> str:
    return f"root.plant{number:03d}"


def schema_of(group: str, fields: int) -> TableSchema:
    columns = [Column("device", "STRING", True), *(Column(f"f{i}", "DOUBLE", False) for i in range(fields))]
    return TableSchema(group, TABLE, 1, tuple(columns))


@dataclass(slots=True)
class Source:
    """The batches of one partition. `template` is a whole stream that contains the columns at `offsets`."""

    partition: PartitionKey
    slot: int
    rows: int
    steps: int
    template: bytes
    offsets: tuple[int, ...]
    sent: int = 0

    def next(self, random: np.random.Generator) -> bytearray:
        """The next batch: later times, other values."""
        batch = bytearray(self.template)
        time, *fields = self.offsets
        np.frombuffer(batch, np.int64, self.rows, time)[:] += self.sent * self.steps * STEP_MS
        for at, shift in zip(fields, random.normal(size=len(fields)), strict=True):
            np.frombuffer(batch, np.float64, self.rows, at)[:] += shift
        self.sent += 1
        return batch


def sources(
    settings: ClusterSettings,
    *,
    groups: Sequence[int],
    devices: int,
    fields: int,
    rows: int,
    partitions: int = 1,
    first_week: int = 2_900,
) -> Iterator[Source]:
    """Sources for `groups` storage groups of `devices` devices each, over `partitions` time partitions.

    Batches hold about `rows` rows, never more.
    """
    for number in groups:
        random = np.random.default_rng(number)
        group = storage_group(number)
        by_shard: dict[int, list[str]] = {}
        for i in range(devices):
            name = f"d{number:03d}-{i:04d}"
            by_shard.setdefault(shard_of((name,), settings.shards), []).append(name)
        for week in range(first_week, first_week + partitions):
            first, _ = time_span(week, settings.time_partition_interval_ms)
            for shard, names in sorted(by_shard.items()):
                steps = max(1, rows // len(names))
                template, offsets = _template(random, schema_of(group, fields), names[:rows], steps, first)
                slot = slot_of(group, week, shard, settings)
                count = steps * len(names[:rows])
                yield Source(PartitionKey(group, week, shard), slot, count, steps, template, offsets)


def _template(
    random: np.random.Generator, schema: TableSchema, names: Sequence[str], steps: int, first: int
) -> tuple[bytes, tuple[int, ...]]:
    count = len(names) * steps
    columns: dict[str, np.ndarray] = {
        "time": np.tile(first + np.arange(steps, dtype=np.int64) * STEP_MS, len(names))
    }
    for name in schema.fields:
        columns[name] = random.normal(size=(len(names), steps)).cumsum(axis=1).reshape(count)
    tags = pa.array(np.repeat(np.array(names, object), steps), pa.string())
    arrays = [pa.array(columns["time"]), tags, *(pa.array(columns[f]) for f in schema.fields)]
    stream = encode(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema)))
    offsets = tuple(stream.index(column.tobytes()) for column in columns.values())
    return stream, offsets
