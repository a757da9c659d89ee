"""Real agents, so many that followers of the meta group relay entries to observers."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from iotctl.fleet.local import LocalFleet
from nodeagent.model.config import ClusterSettings, RaftSettings
from nodeagent.model.ids import META, NodeId
from nodeagent.model.limits import DIRECT_LEARNERS_MAX
from nodeagent.model.requests import GroupStatus
from tests.cluster.world import World
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.real]

VOTERS = 3
NODES = VOTERS + DIRECT_LEARNERS_MAX + 1
ELECTION_S = RaftSettings().election_timeout_ms / 1000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    fleet = LocalFleet(tmp_path / "fleet")
    fleet.create(ClusterSettings(name="plant", slots=200, meta_voters=VOTERS), NODES, node_settings={})
    world = World(fleet)
    try:
        world.fleet.start()
        world.wait_healthy(240.0)
        yield world
    finally:
        world.close()


def meta(world: World) -> dict[NodeId, GroupStatus]:
    """The meta group on every node that answers."""
    return {n: g for n, s in world.statuses().items() for g in s.groups if g.group == META}


def change(world: World, number: int) -> int:
    """Create a table; returns the index of the meta group that every node must then reach."""
    named = ("--storage-group", "root.plant", "--table", f"t{number}", "--create")
    said = world.iotctl("data", "write", "v=1", *named)
    assert said.code == 0, said.err
    return max(g.commit for g in meta(world).values())


def wait_applied(world: World, index: int, nodes: set[NodeId], timeout_s: float) -> None:
    def lagging() -> dict[NodeId, int]:
        applied = dict.fromkeys(nodes, -1) | {n: g.applied for n, g in meta(world).items()}
        return {n: applied[n] for n in nodes if applied[n] < index}

    until(lambda: not lagging(), timeout_s, lambda: f"{index} is not applied: {lagging()}")


def test_observers_follow_while_a_voter_is_down(world: World) -> None:
    """Whichever voter is down, the leader sends to the observers to which that voter relayed."""
    everyone = set(meta(world))
    assert len(everyone) == NODES
    wait_applied(world, change(world, 1), everyone, 30.0)
    groups = meta(world)
    leader = next(n for n, g in groups.items() if g.role == "leader")
    relay = next(n for n in groups[leader].voters if n != leader)
    world.fleet.kill(relay)
    wait_applied(world, change(world, 2), everyone - {relay}, 60.0)
    world.fleet.start([relay])
    world.wait_healthy(120.0)
    with world.frozen([relay]):
        time.sleep(ELECTION_S)
        wait_applied(world, change(world, 3), everyone - {relay}, 60.0)
    world.wait_healthy(120.0)
    wait_applied(world, change(world, 4), everyone, 30.0)
