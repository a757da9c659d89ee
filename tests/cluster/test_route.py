"""`iotctl cluster route` on real agents."""

import json

import pytest

from iotctl.demo.generate import EPOCH_MS, TABLE, TAG, WEEK_MS, storage_group_name
from tests.cluster.conftest import MakeWorld

pytestmark = pytest.mark.real


def test_the_files_of_a_route_hold_the_rows_of_the_device(make_world: MakeWorld) -> None:
    world = make_world("route")
    group, at = storage_group_name(3), EPOCH_MS + 7 * WEEK_MS
    rows = world.cluster.scan(group, TABLE, time_from=at, time_to=at + WEEK_MS - 1)
    (device,) = set(rows.column(TAG).to_pylist())
    done = world.iotctl(
        "cluster", "route", group, str(at), "--table", TABLE.upper(), "--tag", f"{TAG}={device}", "-o", "json"
    )
    assert done.code == 0, done.err
    (route,) = json.loads(done.out)["routes"]
    assert sum(f["rows"] for f in route["files"]) == rows.num_rows
    record = next(g for g in world.cluster.meta().groups if g.group == route["group"])
    assert route["members"] == list(record.members)
    for member in record.members:
        names = {f.name for f in world.manifest(member, record.group) if f.slot == route["slot"]}
        assert {f["name"] for f in route["files"]} <= names
