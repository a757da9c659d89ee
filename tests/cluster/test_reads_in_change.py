"""Large reads on real agents during a slot migration."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from nodeagent.model.config import ClusterSettings
from nodeagent.model.limits import PAGE_BYTES
from nodeagent.model.operation import Stage
from nodeagent.partition.ranges import to_slots
from tests.cluster.matrix import NODE, Fleet

pytestmark = [pytest.mark.long, pytest.mark.real]

STORAGE_GROUP, TABLE = "root.g5", "m"
ROWS = 600_000


def test_a_partition_of_several_pages_is_read_during_its_migration(tmp_path: Path) -> None:
    """Its older rows come in pages from the previous group and are merged with pages of the new group, which
    end at other keys: the read ends, and no row is missing or repeated."""
    fleet = Fleet(tmp_path / "fleet")
    world = fleet.world
    try:
        world.fleet.create(ClusterSettings(name="pages"), 5, node_settings={})
        world.up()
        times = np.arange(ROWS, dtype=np.int64) * 500
        rows = pa.table({"time": times, "d": pa.array(["a"] * ROWS), "v": times.astype(np.float64)})
        assert rows.nbytes > 1.5 * PAGE_BYTES
        world.cluster.write(STORAGE_GROUP, TABLE, rows, tags=["d"])
        world.close_memtables()
        fleet.hold("before:RECONFIGURING")
        fleet.prepare("add-node")
        world.process("cluster", "add-node", NODE, "--yes")
        operation = world.open_operation()
        world.reconnect()
        world.wait_stage(operation.id, Stage.OPEN)
        moved = {slot for move in operation.moves for slot in to_slots(move.slots)}
        assert moved & set(world.slots([(STORAGE_GROUP, 0)]).values()), (
            "no slot of this storage group moves: choose another one"
        )

        over = [
            (7_000, -1.0),
            (7_001, -2.0),
            (ROWS * 500, -3.0),
        ]  # an existing row, one between rows, one after the last
        new = pa.table({"time": [t for t, _ in over], "d": ["a"] * 3, "v": [v for _, v in over]})
        world.cluster.write(STORAGE_GROUP, TABLE, new)
        wanted = dict(zip(times.tolist(), times.tolist(), strict=True)) | dict(over)
        found = world.cluster.scan(STORAGE_GROUP, TABLE)
        assert found.num_rows == len(wanted)
        assert dict(zip(found["time"].to_pylist(), found["v"].to_pylist(), strict=True)) == wanted
        (counted,) = world.cluster.count(STORAGE_GROUP, TABLE)
        assert counted["rows"] == len(wanted)
        assert world.cluster.scan(STORAGE_GROUP, TABLE, limit=20).num_rows == 20
        record = world.operation(operation.id)
        assert record is not None and record.stage is Stage.OPEN, "the read ended too late"
    finally:
        world.close()
