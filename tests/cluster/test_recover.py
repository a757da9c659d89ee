"""Two of five nodes and the majority of two groups are lost; later the nodes return."""

import time
from collections.abc import Iterator

import pytest

from iotctl.change.execute import SILENT_MS
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.requests import GetMeta
from tests.cluster.conftest import MakeWorld
from tests.cluster.world import World
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.real]


@pytest.fixture(scope="module")
def world(make_world: MakeWorld) -> Iterator[World]:
    yield make_world("recover")


def test_two_groups_recover_with_one_member_each_and_returning_nodes_are_refused(world: World) -> None:
    """The two processes are stopped, not killed, so their connections survive. The other nodes have every
    row."""
    world.close_memtables()
    rows = world.rows()
    ring = world.cluster.meta().ring
    dead = ring[1:3]
    confirm = ("--accept-data-loss", "--confirm", "plant")
    with world.frozen(dead):
        early = world.iotctl("cluster", "recover", *dead, *confirm)
        assert early.code == 5 and "is not dead" in early.err, early.err
        time.sleep(SILENT_MS / 1000)
        look = world.iotctl("cluster", "recover", *dead, "-o", "json")
        assert look.code == 5, look.err
        heads = {g["header"]: g["head"] for g in look.json["groups"]}
        assert heads == {ring[0]: ring[0], ring[1]: ring[3]} and not look.json["gone"]
        assert {p.code for p in world.status().problems} >= {"quorum_lost"}
        done = world.iotctl("cluster", "recover", *dead, *confirm)
        assert done.code == 0, done.err
        members = world.members()
        assert {h: members[h] for h in heads} == {h: (head,) for h, head in heads.items()}
    load = world.load()
    until(
        lambda: [s.state for n, s in world.statuses().items() if n in dead] == ["removed"] * 2,
        20.0,
        lambda: str({n: s.state for n, s in world.statuses().items()}),
    )
    for name in dead:
        with pytest.raises(NodeAgentError, match="retired"):
            world.cluster.call(name, GetMeta())
    assert world.members().keys() == set(ring), "the returning nodes changed a group"
    for name in dead:
        removed = world.iotctl("cluster", "remove-node", name, "--dead", "--confirm", "plant")
        assert removed.code == 0, removed.err
    world.reconnect()
    assert world.check_load(load) > 0
    until(lambda: world.status().healthy, 60.0, lambda: str(world.status().problems))
    assert all(set(m) == set(ring) - set(dead) for m in world.members().values()), world.members()
    said = world.iotctl("verify", "--depth", "hash")
    assert said.code == 0, said.out + said.err
    assert world.rows() >= rows
