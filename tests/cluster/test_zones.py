"""Real agents: the voters of the meta group are spread over the zones of cluster.yaml."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from iotctl.change.execute import SILENT_MS
from iotctl.fleet.local import LocalFleet
from iotctl.fleet.ports import take_ports
from nodeagent.model.config import ClusterSettings
from tests.cluster.world import World
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.real]

ZONES = {"node1": "a", "node2": "a", "node3": "a", "node4": "b", "node5": "b", "node6": "c"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    fleet = LocalFleet(tmp_path / "fleet")
    fleet.create(ClusterSettings(name="plant", slots=200, meta_voters=3), 5, node_settings={})
    world = World(fleet)
    try:
        world.up()
        yield world
    finally:
        world.close()


def votes(world: World) -> dict[str, int]:
    return Counter(ZONES[v] for v in world.status().meta.voters)


def wait_votes(world: World, wanted: dict[str, int]) -> None:
    until(lambda: votes(world) == wanted, 60.0, lambda: str(votes(world)))
    world.wait_healthy()


def test_votes_follow_the_zones_while_nodes_join_and_are_lost(world: World) -> None:
    """From three votes in one of two zones to one in each of three; a lost vote goes to its zone again."""
    spec = world.fleet.spec_path
    text = re.sub(
        r"\{name: (\w+), (.*)\}", lambda m: f"{{name: {m[1]}, zone: {ZONES[m[1]]}, {m[2]}}}", spec.read_text()
    )
    spec.write_text(text)
    assert [p.code for p in world.status().problems] == ["zones_differ"]
    said = world.iotctl("cluster", "set-zones", "-o", "json")
    assert said.code == 0 and said.json["changed"] == ["node1", "node2", "node3", "node4", "node5"], said.err
    wait_votes(world, {"a": 2, "b": 1})
    assert not world.status().problems

    ports = take_ports(2, world.fleet.directory)
    place = f"  - {{name: node6, host: 127.0.0.1, port: {ports[0]}, http_port: {ports[1]}, zone: c}}\n"
    spec.write_text(spec.read_text().rstrip("\n") + "\n" + place)
    said = world.iotctl("cluster", "add-node", "node6", "--yes", "--accept-layout")
    assert said.code == 0, said.err
    world.reconnect()
    wait_votes(world, {"a": 1, "b": 1, "c": 1})
    assert not world.status().problems

    lost = next(v for v in world.status().meta.voters if ZONES[v] == "b")
    assert world.fleet.kill(lost)
    time.sleep(SILENT_MS / 1000 + 1)
    said = world.iotctl("cluster", "remove-node", lost, "--dead", "--confirm", "plant")
    assert said.code == 0, said.err
    world.reconnect()
    wait_votes(world, {"a": 1, "b": 1, "c": 1})
    assert lost not in world.status().meta.voters
