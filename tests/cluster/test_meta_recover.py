"""The meta group loses its majority on real agents while a node is being added."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from iotctl.change.execute import SILENT_MS
from iotctl.demo.generate import TAG, Fleet, generate
from iotctl.fleet.local import LocalFleet
from iotctl.observe.operations import control
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.ids import META
from nodeagent.model.operation import Stage
from nodeagent.model.requests import GetMeta
from tests.cluster.world import World
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.real]

SMALL = Fleet(storage_groups=10, weeks=12, step_ms=12 * 3_600_000)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Seven nodes, three of which vote. R = 5: every data group keeps its majority without two of them."""
    fleet = LocalFleet(tmp_path / "fleet")
    fleet.create(ClusterSettings(name="plant", replicas=5, meta_voters=3), 7, node_settings={})
    world = World(fleet, SMALL)
    try:
        world.up()
        assert world.cluster.write_many(generate(SMALL), tags=[TAG]).rows == SMALL.rows
        world.close_memtables()
        yield world
    finally:
        world.close()


def test_the_meta_group_recovers_during_an_add_node_and_no_row_is_lost(world: World) -> None:
    rows = world.rows()
    voters = next(g for s in world.statuses().values() for g in s.groups if g.group == META).voters
    dead = sorted(voters)[:2]
    begun = world.iotctl("cluster", "add-node", "node8", "--yes", "--no-migrate", "--no-wait", "-o", "json")
    assert begun.code == 0, begun.out + begun.err
    operation = world.open_operation()
    world.wait_stage(operation.id, Stage.COPYING)
    for name in dead:
        assert world.fleet.kill(name)
    lost = ("meta", "recover", *dead)
    confirm = ("--accept-data-loss", "--confirm", "plant")
    early = world.iotctl(*lost, *confirm)
    assert early.code == 5 and "is not dead" in early.err, early.err
    time.sleep(SILENT_MS / 1000)
    assert any("iotctl meta recover" in p.next for p in world.status().problems)
    look = world.iotctl(*lost, "-o", "json")
    assert look.code == 5 and not look.json["done"], look.err
    assert look.json["operation"] == operation.id and not look.json["lost_groups"]
    done = world.iotctl(*lost, *confirm, "-o", "json")
    assert done.code == 0 and done.json["done"], done.err
    assert done.json["next"] == f"iotctl ops wait {operation.id}"
    world.fleet.start(dead)
    until(
        lambda: [s.state for n, s in world.statuses().items() if n in dead] == ["removed"] * 2,
        30.0,
        lambda: str({n: s.state for n, s in world.statuses().items()}),
    )
    for name in dead:
        with pytest.raises(NodeAgentError, match="retired"):
            world.cluster.call(name, GetMeta())
        world.fleet.kill(name)
    control(world.cluster, operation.id, "go", "tester")
    world.wait_stage(operation.id, Stage.DONE, 120.0)
    for name in dead:
        removed = world.iotctl("cluster", "remove-node", name, "--dead", "--confirm", "plant")
        assert removed.code == 0, removed.err
    world.reconnect()
    until(lambda: world.status().healthy, 60.0, lambda: str(world.status().problems))
    assert world.rows() == rows
    said = world.iotctl("verify", "--depth", "hash")
    assert said.code == 0, said.out + said.err
