"""Nodes that are permanently lost, during a change and without one, and a node that is replaced."""

import re
import shutil
import time
from collections.abc import Iterator

import pytest

from iotctl.change.execute import SILENT_MS
from iotctl.fleet.ports import take_ports
from iotctl.observe.operations import control
from nodeagent.model.operation import Stage
from tests.cluster.conftest import MakeWorld
from tests.cluster.world import World
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.real]


@pytest.fixture(scope="module")
def world(make_world: MakeWorld) -> Iterator[World]:
    world = make_world("dead")
    world.rows_before = world.rows()
    yield world


def remove_dead(world: World, killed_at: float, *words: str) -> None:
    """The command is refused while the node was heard from recently, and succeeds after enough silence.

    On a busy machine, enough silence may have passed since `killed_at` before the first command asks for it.
    """
    said = world.iotctl("cluster", *words, "--dead", "--confirm", "plant")
    if said.code == 0 and time.monotonic() - killed_at >= SILENT_MS / 1000:
        return
    assert said.code == 5 and "is not dead" in said.err, said.err
    time.sleep(SILENT_MS / 1000)
    said = world.iotctl("cluster", *words, "--dead", "--confirm", "plant")
    assert said.code == 0, said.err


def check_complete(world: World, *gone: str) -> None:
    """All rows exist, are equal on R replicas, and no removed node is a member."""
    until(lambda: world.status().healthy, 60.0, lambda: str(world.status().problems))
    assert all(len(m) == 3 and not set(m) & set(gone) for m in world.members().values()), world.members()
    said = world.iotctl("verify", "--depth", "hash")
    assert said.code == 0, said.out + said.err


def test_a_member_lost_during_a_change_is_removed_after_the_change(world: World) -> None:
    """A member of node6's group dies while node6 is added: the change ends without it, then it is removed."""
    load = world.load()
    said = world.iotctl("cluster", "add-node", "node6", "--yes", "--no-wait", "-o", "json")
    assert said.code == 0, said.err
    operation = said.json["operations"][0]
    paused = world.iotctl("ops", "pause", operation)  # otherwise it may end before the kill
    assert paused.code == 0, paused.err
    record = world.wait_stage(operation, Stage.COPYING)
    world.reconnect()
    victim = record.created_members[1]
    assert world.fleet.kill(victim)
    killed_at = time.monotonic()
    control(world.cluster, operation, "resume", "tester")
    remove_dead(world, killed_at, "remove-node", victim)
    amended = world.operation(operation)
    assert amended is not None and amended.stage is Stage.DONE and amended.dead == [victim]
    assert victim not in world.cluster.meta().ring and victim not in world.fleet.spec_path.read_text()
    assert world.check_load(load) > 0
    check_complete(world, victim)
    world.victim = victim


def test_a_returning_dead_node_is_refused(world: World) -> None:
    """Its directory was moved aside; an agent started there is refused by every node, and nothing changes."""
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


def test_a_node_listed_instead_of_another_takes_its_place(world: World) -> None:
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
    check_complete(world, old)
    assert world.rows() >= world.rows_before


def test_a_node_with_a_wiped_disk_rejoins_under_its_name(world: World) -> None:
    before = world.cluster.meta()
    victim = before.ring[1]
    load = world.load()
    assert world.fleet.kill(victim)
    killed_at = time.monotonic()
    home = world.fleet.directory / victim
    shutil.rmtree(home / "data")
    remove_dead(world, killed_at, "replace-node", victim, victim)
    world.reconnect()
    after = world.cluster.meta()
    assert after.ring == before.ring
    old, new = (next(n for n in m.nodes if n.node == victim) for m in (before, after))
    assert old.incarnation != new.incarnation and new.state == "active"
    assert victim in world.fleet.spec_path.read_text()
    assert world.check_load(load) > 0
    check_complete(world)
    assert all(n.slots for n in world.status().nodes)


def test_the_removal_of_a_node_that_dies_during_it_completes(world: World) -> None:
    """The open change is the node's own removal: once it has ended, nothing is left to do."""
    leaver = "node6"
    said = world.iotctl(
        "cluster", "remove-node", leaver, "--yes", "--no-wait", "--rate", "10KB/s", "-o", "json"
    )
    assert said.code == 0, said.err
    operation = said.json["operations"][0]
    world.wait_stage(
        operation, Stage.RECONFIGURING
    )  # so slow that the stage lasts until the node is declared dead
    assert world.fleet.kill(leaver)
    time.sleep(SILENT_MS / 1000)
    removing = world.process("cluster", "remove-node", leaver, "--dead", "--confirm", "plant")

    def is_declared_dead() -> bool:
        record = world.operation(operation)
        return record is not None and record.dead == [leaver]

    until(is_declared_dead, 30.0, lambda: world.said_by(removing))
    faster = world.iotctl("ops", "set", operation, "--rate", "500MB/s")
    assert faster.code == 0, faster.err
    assert removing.wait(60.0) == 0, world.said_by(removing)
    world.reconnect()
    assert leaver not in world.cluster.meta().ring and leaver not in world.fleet.spec_path.read_text()
    assert leaver not in [n.name for n in world.fleet.nodes()]
    check_complete(world, leaver)
