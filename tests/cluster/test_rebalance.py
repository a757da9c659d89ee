"""One operation balances a skewed cluster of real agents under load."""

import pytest

from nodeagent.model.operation import Stage
from nodeagent.model.requests import BeginChange
from nodeagent.partition.ranges import from_slots
from tests.cluster.conftest import MakeWorld
from tests.cluster.world import World

pytestmark = [pytest.mark.long, pytest.mark.real]

COPIES_MAX = 3
"""A moved slot is copied to at most every member of its new group."""
SMALL_FILE = 4096
"""Maximum bytes of a file of one series with a few rows."""


def bytes_by_group(world: World) -> dict[str, int]:
    """Bytes in files of one replica, by group owner."""
    groups = world.cluster.meta().groups
    return {g.owner: sum(f.size for f in world.manifest(g.owner, g.group)) for g in groups}


def max_over_mean(sizes: dict[str, int]) -> float:
    return max(sizes.values()) * len(sizes) / sum(sizes.values())


def skew(world: World) -> None:
    """Move two thirds of the non-empty slots of node2 and node3 to node1, by a rebalance."""
    groups = world.cluster.meta().groups
    slots = [
        sorted({f.slot for f in world.manifest(g.owner, g.group)})
        for g in groups
        if g.owner in ("node2", "node3")
    ]
    taken = from_slots(s for held in slots for s in held[: 2 * len(held) // 3])
    begun = world.cluster.begin_change(BeginChange("rebalance", "", "tester", gains=(("node1", taken),)))
    assert (begun.kind, begun.node, begun.changes) == ("rebalance", "", [])
    world.wait_stage(begun.id, Stage.DONE)


def test_a_skewed_cluster_is_balanced_and_the_next_plan_is_empty(make_world: MakeWorld) -> None:
    """Bytes of the fullest group divided by the mean: above 1.5 before, at most 1.1 after. The second plan is
    empty, the first is stale, replicas have equal files, and no row is missing."""
    world = make_world("rebalance")
    rows = world.rows()
    skew(world)
    before = bytes_by_group(world)
    assert max_over_mean(before) > 1.5, before
    holders = next(g.members for g in world.cluster.meta().groups if g.owner == "node1")
    load = world.load()
    words = ("plan", "rebalance", "--strategy", "bytes", "--detailed-exitcode", "-o", "json")
    planned = world.iotctl(*words, "--out", "p.yaml")
    assert planned.code == 8, planned.err
    summary = planned.json["summary"]
    assert summary["max_over_mean_after"] <= 1.1
    assert summary["slots_moved"] <= 1.3 * summary["lower_bound_slots"]
    applied = world.iotctl("apply", "p.yaml", "--yes", "-o", "json")
    assert applied.code == 0, applied.err
    (operation,) = applied.json["operations"]
    shown = world.iotctl("ops", "show", operation, "-o", "json").json["operations"][0]
    assert (shown["kind"], shown["node"], shown["state"]) == ("rebalance", "", "done")
    assert shown["slots_done"] == summary["slots_moved"]
    # Rows that are in memory at planning time also move, in separate small files.
    moving = {move["slot"] for move in planned.json["moves"]}
    small = sum(s in moving for s in world.slots(list(load.seen.acked)).values()) * COPIES_MAX * SMALL_FILE
    # Members of the losing group link their own files. A member whose files are late may pull copies instead,
    # which a plan cannot predict; test_change compares received bytes without late files.
    assert {move["from"] for move in planned.json["moves"]} == {"node1"}
    received = sum(n for node, n in world.received(operation).items() if node not in holders)
    planned_bytes = summary["bytes_copied"]
    assert 0.95 * planned_bytes <= received <= 1.05 * planned_bytes + small, (received, planned_bytes, small)
    probes = world.check_load(load)
    again = world.iotctl("apply", "p.yaml", "--yes")
    assert again.code == 0 and "carried out before" in again.out
    again = world.iotctl(*words)
    assert again.code == 0 and again.json["moves"] == [], again.out
    world.close_memtables()
    after = bytes_by_group(world)
    assert max_over_mean(after) <= 1.1, after
    for group in world.cluster.meta().groups:
        files = [{(f.name, f.xxh3) for f in world.manifest(member, group.group)} for member in group.members]
        assert files[0] and files[0] == files[1] == files[2], group.group
    assert world.rows() == rows + probes
    by_rate = world.iotctl("plan", "rebalance", "--strategy", "write-rate", "-o", "json")
    assert by_rate.code == 0, by_rate.err
    written = sum(g["write_bytes_per_s_before"] for g in by_rate.json["group_loads"])
    assert written > 0, "the writer's rows were not counted"
