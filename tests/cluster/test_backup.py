"""`meta backup` of a running cluster of real agents; `meta restore` into a new cluster of its nodes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from iotctl.demo.generate import TAG, Fleet, generate
from iotctl.fleet.local import LocalFleet
from nodeagent.model.config import ClusterSettings
from nodeagent.model.operation import Stage
from nodeagent.model.requests import BeginChange
from tests.cluster.world import World

pytestmark = [pytest.mark.long, pytest.mark.real]

SMALL = Fleet(storage_groups=3, weeks=2, step_ms=12 * 3_600_000)
NODES = 4


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[list[World]]:
    made: list[World] = []
    try:
        yield made
    finally:
        for world in made:
            world.close()


def new_world(worlds: list[World], directory: Path) -> World:
    fleet = LocalFleet(directory / "fleet")
    directory.mkdir()
    fleet.create(ClusterSettings(name="plant", slots=1_000), NODES, node_settings={})
    worlds.append(World(fleet, SMALL))
    worlds[-1].up()
    return worlds[-1]


def owners(world: World) -> list[tuple[int, int, str]]:
    return sorted(world.cluster.meta(strong=True).owners)


def test_tables_and_placement_come_back_in_a_new_cluster(worlds: list[World], tmp_path: Path) -> None:
    """A node is down during the backup. In the new cluster, the rows have the groups that they had."""
    world = new_world(worlds, tmp_path / "old")
    assert world.cluster.write_many(generate(SMALL), tags=[TAG]).rows == SMALL.rows
    gains = (("node2", _of_others(world, "node2")),)
    operation = world.cluster.begin_change(BeginChange("rebalance", "", "test", gains=gains))
    world.wait_stage(operation.id, Stage.DONE)
    table = world.cluster.schemas()[0]
    world.cluster.put_schema(table, 30 * 365 * 86_400_000)
    world.fleet.kill("node3")
    backup = tmp_path / "meta.bak"
    done = world.iotctl("meta", "backup", str(backup), "-o", "json")
    assert done.code == 0, done.err
    schemas, placed = world.cluster.schemas(), owners(world)
    assert done.json["tables"] == len(schemas) and done.json["bytes"] == os.path.getsize(backup)
    for name in ("node2", "node4"):
        world.fleet.kill(name)
    before = backup.read_bytes()
    failed = world.iotctl("--timeout", "5s", "meta", "backup", str(backup), "--yes")
    assert failed.code not in (0, 1), "three of four voters are down"
    assert backup.read_bytes() == before
    world.close()

    new = new_world(worlds, tmp_path / "new")
    assert owners(new) != placed
    restored = new.iotctl("meta", "restore", str(backup), "--yes", "-o", "json")
    assert restored.code == 0, restored.err
    assert restored.json["slots"] > 0 and restored.json["operation"]
    assert owners(new) == placed
    assert [(s.table, s.columns, s.ttl_ms) for s in new.cluster.schemas()] == [
        (s.table, s.columns, s.ttl_ms) for s in schemas
    ]
    assert new.cluster.write_many(generate(SMALL), tags=[TAG]).rows == SMALL.rows
    assert new.rows() == SMALL.rows
    new.wait_healthy()
    again = new.iotctl("meta", "restore", str(backup), "-o", "json")
    assert again.code == 0 and again.json["slots"] == 0, again.err


def _of_others(world: World, owner: str) -> tuple[tuple[int, int], ...]:
    """Some slots of other owners."""
    return tuple((a, a + 40) for a, b, n in owners(world) if n != owner and b - a > 40)
