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
from nodeagent.model.operation import Operation, Stage
from nodeagent.model.requests import GetMeta
from tests.cluster.world import World
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.real]

SMALL = Fleet(storage_groups=10, weeks=12, step_ms=12 * 3_600_000)


CONFIRM = ("--accept-data-loss", "--confirm", "plant")


@pytest.fixture(params=[(7, 5)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Three nodes vote. Of seven nodes and R = 5, every data group keeps its majority without two of them."""
    nodes, replicas = request.param
    fleet = LocalFleet(tmp_path / "fleet")
    fleet.create(ClusterSettings(name="plant", replicas=replicas, meta_voters=3), nodes, node_settings={})
    world = World(fleet, SMALL)
    try:
        world.up()
        assert world.cluster.write_many(generate(SMALL), tags=[TAG]).rows == SMALL.rows
        world.close_memtables()
        yield world
    finally:
        world.close()


def begun(world: World, name: str) -> Operation:
    """An add-node that waits in COPYING for the operator."""
    done = world.iotctl("cluster", "add-node", name, "--yes", "--no-migrate", "--no-wait", "-o", "json")
    assert done.code == 0, done.out + done.err
    operation = world.open_operation()
    world.wait_stage(operation.id, Stage.COPYING)
    return operation


def two_voters(world: World) -> list[str]:
    voters = next(g for s in world.statuses().values() for g in s.groups if g.group == META).voters
    return sorted(voters)[:2]


def come_back_refused(world: World, dead: list[str]) -> None:
    """The lost nodes start again: they serve nobody."""
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


def end_and_verify(world: World, operation: Operation, dead: list[str], rows: int) -> None:
    """The change ends, the lost nodes are removed, and every row is there, in equal files."""
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


def test_the_meta_group_recovers_during_an_add_node_and_no_row_is_lost(world: World) -> None:
    rows, dead = world.rows(), two_voters(world)
    operation = begun(world, "node8")
    for name in dead:
        assert world.fleet.kill(name)
    lost = ("meta", "recover", *dead)
    early = world.iotctl(*lost, *CONFIRM)
    assert early.code == 5 and "is not dead" in early.err, early.err
    time.sleep(SILENT_MS / 1000)
    assert any("iotctl meta recover" in p.next for p in world.status().problems)
    look = world.iotctl(*lost, "-o", "json")
    assert look.code == 5 and not look.json["done"], look.err
    assert look.json["operation"] == operation.id and not look.json["lost_groups"]
    done = world.iotctl(*lost, *CONFIRM, "-o", "json")
    assert done.code == 0 and done.json["done"], done.err
    assert done.json["next"] == f"iotctl ops wait {operation.id}"
    come_back_refused(world, dead)
    end_and_verify(world, operation, dead, rows)


@pytest.mark.parametrize("world", [(6, 3)], indirect=True)
def test_data_groups_that_lost_their_majority_too_recover_and_the_change_ends(world: World) -> None:
    """All members of the groups had all rows."""
    rows, dead = world.rows(), two_voters(world)
    operation = begun(world, "node7")
    for name in dead:
        assert world.fleet.kill(name)
    time.sleep(SILENT_MS / 1000 + 1)
    done = world.iotctl("meta", "recover", *dead, *CONFIRM, "-o", "json")
    assert done.code == 0 and done.json["lost_groups"], done.err
    assert done.json["next"] == f"iotctl cluster recover {' '.join(dead)}"
    recovered = world.iotctl("cluster", "recover", *dead, *CONFIRM, "-o", "json")
    assert recovered.code == 0 and recovered.json["done"], recovered.err
    assert recovered.json["next"] == f"iotctl ops wait {operation.id}"
    come_back_refused(world, dead)
    end_and_verify(world, operation, dead, rows)
