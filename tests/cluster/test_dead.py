"""Nodes that die for good, in the middle of a change and outside one, and a node that is replaced."""

import re
import shutil
import time
from collections.abc import Iterator

import pytest

from iotctl.change.execute import SILENT_MS
from iotctl.fleet.ports import take_ports
from iotctl.observe.operations import steer
from nodeagent.model.operation import Stage
from tests.cluster.conftest import MakeWorld
from tests.cluster.world import World, until

pytestmark = [pytest.mark.long, pytest.mark.real]


@pytest.fixture(scope="module")
def world(make_world: MakeWorld) -> Iterator[World]:
    world = make_world("dead")
    world.rows_before = world.rows()
    yield world


def bury(world: World, *words: str) -> None:
    """Refused while the node was heard lately; done when it has been silent for long enough."""
    said = world.iotctl("cluster", *words, "--dead", "--confirm", "plant")
    assert said.code == 5 and "is not dead" in said.err, said.err
    time.sleep(SILENT_MS / 1000)
    said = world.iotctl("cluster", *words, "--dead", "--confirm", "plant")
    assert said.code == 0, said.err


def check_whole(world: World, *gone: str) -> None:
    """All rows, equal on R replicas, none of them on a node that is gone."""
    until(lambda: world.status().healthy, 60.0, lambda: str(world.status().problems))
    assert all(len(m) == 3 and not set(m) & set(gone) for m in world.members().values()), world.members()
    said = world.iotctl("verify", "--depth", "hash")
    assert said.code == 0, said.out + said.err


def test_a_member_that_dies_for_good_in_a_change_is_left_behind_and_then_removed(world: World) -> None:
    """node6 is being added when a member of its group dies: the change ends without it, then it goes."""
    load = world.load()
    said = world.iotctl("cluster", "add-node", "node6", "--yes", "--no-wait", "-o", "json")
    assert said.code == 0, said.err
    operation = said.json["operations"][0]
    paused = world.iotctl("ops", "pause", operation)  # else it may be over before anybody is killed
    assert paused.code == 0, paused.err
    record = world.wait_stage(operation, Stage.MOVING)
    world.reconnect()
    victim = record.created_members[1]
    assert world.fleet.kill(victim)
    steer(world.cluster, operation, "resume", "tester")
    bury(world, "remove-node", victim)
    amended = world.operation(operation)
    assert amended is not None and amended.stage is Stage.DONE and amended.dead == [victim]
    assert victim not in world.cluster.meta().ring and victim not in world.fleet.spec_path.read_text()
    assert world.check_load(load) > 0
    check_whole(world, victim)
    world.victim = victim


def test_what_returns_of_a_dead_node_is_not_heard(world: World) -> None:
    """Its directory lies aside; started from there it is refused by everybody, and nothing changes."""
    before = world.members()
    aside = next((world.fleet.directory / "removed").glob(f"{world.victim}-*"))
    home = world.fleet.directory / world.victim
    aside.rename(home)
    try:
        world.fleet.start([world.victim])
        log = home / "agent.log"
        until(lambda: "was retired" in log.read_text(), 30.0, lambda: log.read_text()[-2000:])
    finally:
        world.fleet.kill(world.victim)
        home.rename(aside)
    assert world.members() == before and world.status().healthy


def test_a_node_that_is_listed_instead_of_another_takes_its_place(world: World) -> None:
    ring = world.cluster.meta().ring
    slots = {n.id: n.slots for n in world.status().nodes}
    old = next(n for n in ring if n != "node6")
    spec, ports = world.fleet.spec_path, take_ports(2, world.fleet.directory)
    place = f"host: 127.0.0.1, port: {ports[0]}, http_port: {ports[1]}"
    spec.write_text(re.sub(rf"\{{name: {old}, .*\}}", f"{{name: node7, {place}}}", spec.read_text(), count=1))
    refused = world.iotctl("apply", "--no-input", "--allow-remove")
    assert refused.code == 5 and world.cluster.meta().ring == ring
    said = world.iotctl("apply", "--allow-remove", "--yes")
    assert said.code == 0, said.err
    world.reconnect()
    again = world.iotctl("apply", "--allow-remove", "--yes")
    assert again.code == 0 and "no changes" in again.out
    assert world.cluster.meta().ring == tuple("node7" if n == old else n for n in ring)
    assert {n.id: n.slots for n in world.status().nodes} == {
        "node7" if n == old else n: count for n, count in slots.items()
    }
    names = [n.name for n in world.fleet.nodes()]
    assert "node7" in names and old not in names
    check_whole(world, old)
    assert world.rows() >= world.rows_before


def test_a_node_whose_disk_was_wiped_comes_back_under_its_name(world: World) -> None:
    before = world.cluster.meta()
    victim = before.ring[1]
    load = world.load()
    assert world.fleet.kill(victim)
    home = world.fleet.directory / victim
    shutil.rmtree(home / "data")
    bury(world, "replace-node", victim, victim)
    world.reconnect()
    after = world.cluster.meta()
    assert after.ring == before.ring
    old, new = (next(n for n in m.nodes if n.node == victim) for m in (before, after))
    assert old.incarnation != new.incarnation and new.state == "active"
    assert victim in world.fleet.spec_path.read_text()
    assert world.check_load(load) > 0
    check_whole(world)
    assert all(n.slots for n in world.status().nodes)


def test_a_node_that_dies_while_it_leaves_has_left(world: World) -> None:
    """The change that is open is its own removal: when it is over nothing is left to do."""
    leaver = "node6"
    said = world.iotctl(
        "cluster", "remove-node", leaver, "--yes", "--no-wait", "--rate", "10KB/s", "-o", "json"
    )
    assert said.code == 0, said.err
    operation = said.json["operations"][0]
    world.wait_stage(operation, Stage.FORMAL)  # so slow that it is in there when the node is given up
    assert world.fleet.kill(leaver)
    time.sleep(SILENT_MS / 1000)
    removing = world.process("cluster", "remove-node", leaver, "--dead", "--confirm", "plant")

    def is_given_up() -> bool:
        record = world.operation(operation)
        return record is not None and record.dead == [leaver]

    until(is_given_up, 30.0, lambda: world.said_by(removing))
    faster = world.iotctl("ops", "set", operation, "--rate", "500MB/s")
    assert faster.code == 0, faster.err
    assert removing.wait(60.0) == 0, world.said_by(removing)
    world.reconnect()
    assert leaver not in world.cluster.meta().ring and leaver not in world.fleet.spec_path.read_text()
    assert leaver not in [n.name for n in world.fleet.nodes()]
    check_whole(world, leaver)
