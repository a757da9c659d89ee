"""The demo's rows: loads them, and checks that the cluster still has all of them."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from iotctl.demo.fleet import DemoFleet
from iotctl.demo.generate import (
    EPOCH_MS,
    HOUR_MS,
    TABLE,
    TAG,
    WEEK_MS,
    Fleet,
    generate,
    storage_group_name,
)
from iotctl.demo.load import DEVICE, FIELD, Seen
from iotctl.demo.log import DemoLog
from iotctl.observe.layout import table_of
from iotctl.rows.examples import named_file
from nodeagent.model.schema import TableSchema
from nodeagent.partition.hash import shard_of, slot_of, time_partition
from nodeagent.table.checksum import checksum

WEATHER_GROUP, WEATHER_TABLE = "root.weather", "weather"
FLEET = Fleet(storage_groups=44, weeks=52)
PLACES = 60
"""How many time partitions the writer writes to, in turn."""

Fingerprint = dict[tuple[str, ...], tuple[int, int, int]]
"""(storage group, tag) -> count and two sums over every value."""


def weather_rows() -> pa.Table:
    """The packaged readings, in the form of `data import --time time_hour --tag origin`."""
    here = named_file("example:weather", Path.cwd())
    from nodeagent.table.arrow import TIME

    table = pq.read_table(here)
    names = [TIME if n == "time_hour" else n for n in table.column_names]
    return table.rename_columns(names)


class DemoRows:
    """Rows of the demo's cluster: weather readings, a generated fleet, and the writer's rows."""

    def __init__(self, fleet: DemoFleet, log: DemoLog) -> None:
        self._fleet = fleet
        self._log = log

    def load(self) -> int:
        """Write the weather readings and the generated fleet; returns the number of rows."""
        cluster = self._fleet.cluster
        weather = weather_rows()
        self._log.say(f"loading {weather.num_rows} weather readings and {FLEET.points:,} generated points")
        done = cluster.write(WEATHER_GROUP, WEATHER_TABLE, weather, tags=["origin"])
        fleet_rows = cluster.write_many(self._watched(generate(FLEET)), tags=[TAG])  # type: ignore[attr-defined]
        total = self.count()
        if total != done.rows + fleet_rows.rows:
            self._log.fail(f"wrote {done.rows + fleet_rows.rows} rows, the cluster counts {total}")
        return total

    def _watched(self, tables: Iterator[tuple[str, str, pa.Table]]) -> Iterator[tuple[str, str, pa.Table]]:
        for i, item in enumerate(tables):
            self._log.progress("storage groups loaded", i + 1, FLEET.storage_groups)
            yield item

    def count(self) -> int:
        return sum(int(str(t["rows"])) for t in self._fleet.cluster.count())

    def fingerprint(self) -> Fingerprint:
        """The fingerprint of all series, without the writer's rows."""
        out: Fingerprint = {}
        schemas = {s.storage_group: s for s in self._fleet.cluster.schemas()}
        for i, (group, schema) in enumerate(sorted(schemas.items())):
            self._log.progress("series checksums", i + 1, len(schemas))
            out |= self._fingerprint_of(group, schema)
        return out

    def _fingerprint_of(self, group: str, schema: TableSchema) -> Fingerprint:
        fields = [f for f in schema.fields if f != FIELD]
        rows = self._fleet.cluster.scan(group, schema.table, fields=fields)
        narrow = msgspec.structs.replace(
            schema, columns=tuple(c for c in schema.columns if c.tag or c.name in fields)
        )
        sums = checksum(rows, narrow)
        tags = [str(t) for t in sums.column(schema.tags[0]).to_pylist()]
        out: Fingerprint = {}
        counts = sums.column("$count").to_pylist()
        first, second = sums.column("$h1").to_pylist(), sums.column("$h2").to_pylist()
        for tag, count, h1, h2 in zip(tags, counts, first, second, strict=True):
            if tag != DEVICE:
                old = out.get((group, tag), (0, 0, 0))
                out[group, tag] = (old[0] + count, (old[1] + h1) % 2**64, (old[2] + h2) % 2**64)
        return out

    def places(self) -> dict[tuple[str, int], str]:
        """Where the writer writes: (storage group, time) -> group owner, spread over all storage groups."""
        meta = self._fleet.cluster.meta()
        table = table_of(meta)
        out: dict[tuple[str, int], str] = {}
        for i in range(PLACES):
            group = storage_group_name(i % FLEET.storage_groups)
            at = EPOCH_MS + (i * 7 % FLEET.weeks) * WEEK_MS + HOUR_MS // 2
            week = time_partition(at, meta.settings.time_partition_interval_ms)
            slot = slot_of(group, week, shard_of([DEVICE], meta.settings.shards), meta.settings)
            out[group, at] = table.route(slot)
        return out

    def check(self, seen: Seen) -> None:
        """Check that the cluster still has every acknowledged row of the writer."""
        for why in seen.missing[:3]:
            self._log.fail(f"a strong read missed an acknowledged row: {why}")
        for (group, at), value in seen.acked.items():
            rows = self._fleet.cluster.scan(
                group, TABLE, fields=[FIELD], tags={TAG: DEVICE}, time_from=at, time_to=at
            )
            if rows.column(FIELD).to_pylist() != [value]:
                self._log.fail(
                    f"acknowledged {value} at {group}@{at}, but read {rows.column(FIELD).to_pylist()}"
                )
