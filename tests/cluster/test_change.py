"""A change compared with its plan, with iotctl and the Spark driver killed: the agents complete it."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from iotctl.observe.operations import control
from nodeagent.model.operation import Operation, Stage
from tests.cluster.conftest import MakeWorld
from tests.cluster.world import NONEMPTY_MIN, Said, World, gaining_members, kill_session
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.spark]

SLOW, FAST = "1KB/s", "200MB/s"


@dataclass
class Added:
    """Plan and result of adding node6 after node2."""

    world: World
    nonempty: int
    rows: int
    plan: dict[str, Any]
    """The JSON output of the command."""

    operation: Operation
    received: dict[str, int]
    lease_seen: bool
    stage_at_kills: list[Stage]


@pytest.fixture(scope="module")
def added(make_world: MakeWorld) -> Iterator[Added]:
    """`iotctl cluster add-node` and the Spark driver of `iotctl migrate`, both SIGKILLed in stage COPYING."""
    world = make_world("change")
    nonempty, rows = world.nonempty_slots(), world.rows()
    plan = world.iotctl("plan", "add-node", "node6", "--after", "node2", "-o", "json")
    assert plan.code == 0, plan.err
    iotctl = world.process("cluster", "add-node", "node6", "--after", "node2", "--yes")
    operation = world.open_operation()
    # Paused until the rate is set: otherwise everything could be copied before the kill.
    assert world.iotctl("ops", "pause", operation.id).code == 0
    world.wait_stage(operation.id, Stage.COPYING)
    assert world.iotctl("ops", "set", operation.id, "--rate", SLOW).code == 0
    control(world.cluster, operation.id, "resume", "tester")
    driver = world.process("migrate", "--op", operation.id)
    killed = []
    assert iotctl.poll() is None, world.said_by(iotctl)
    kill_session(iotctl)
    killed.append(_stage(world, operation.id))

    def leased() -> bool:
        assert driver.poll() is None, world.said_by(driver)
        found = world.operation(operation.id)
        return found is not None and found.lease is not None

    until(leased, 90.0, lambda: f"the driver does not take the lease: {world.said_by(driver)}")
    kill_session(driver)
    killed.append(_stage(world, operation.id))
    assert world.iotctl("ops", "set", operation.id, "--rate", FAST).code == 0
    done = world.wait_stage(operation.id, Stage.DONE, 120.0)
    world.reconnect()
    yield Added(world, nonempty, rows, plan.json, done, world.received(done.id), True, killed)


def _stage(world: World, operation: str) -> Stage:
    found = until(lambda: world.operation(operation), 10.0, lambda: "no node reports the operation")
    assert isinstance(found, Operation)
    return found.stage


def test_agents_finish_an_add_whose_iotctl_and_spark_driver_were_killed(added: Added) -> None:
    """Both were killed in COPYING and not restarted; the operation is DONE and no row is missing."""
    assert added.stage_at_kills == [Stage.COPYING, Stage.COPYING]
    assert added.operation.state() == "done"
    assert added.world.rows() == added.rows
    added.world.wait_healthy()


def test_slots_moved_are_the_lower_bound_and_the_table_is_even(added: Added) -> None:
    """5 -> 6 of 10 000 slots: 1 666 move, most minus least is at most 1 afterwards."""
    summary = added.plan["summary"]
    assert summary["slots_moved"] == summary["lower_bound_slots"] == 1_666
    assert summary["max_minus_min_after"] <= 1
    slots = [n.slots for n in added.world.status().nodes]
    assert sum(s or 0 for s in slots) == 10_000
    assert max(s or 0 for s in slots) - min(s or 0 for s in slots) <= 1


def test_received_bytes_are_those_planned(added: Added) -> None:
    """Within 2 % of the plan, including catch-up, on a cluster with at least 1 500 non-empty slots; every
    gaining member received bytes."""
    assert added.nonempty >= NONEMPTY_MIN
    planned, received = added.plan["summary"]["bytes_copied"], sum(added.received.values())
    assert received == pytest.approx(planned, rel=0.02)
    for node in gaining_members(added.operation):
        assert added.received[node] > 0, (node, added.received)


def test_the_groups_after_the_add_follow_from_the_ring(added: Added) -> None:
    """{1,2,3} -> {1,2,6}; {2,3,4} -> {2,6,3}; new {6,3,4}; the others are unchanged, in the plan and in the
    cluster."""
    changes = {g["group"]: (g["joins"], g["leaves"]) for g in added.plan["group_changes"]}
    assert changes == {
        "node1": (["node6"], ["node3"]),
        "node2": (["node6"], ["node4"]),
        "node6": (["node6", "node3", "node4"], []),
    }
    assert {h: set(m) for h, m in added.world.members().items()} == {
        "node1": {"node1", "node2", "node6"},
        "node2": {"node2", "node6", "node3"},
        "node6": {"node6", "node3", "node4"},
        "node3": {"node3", "node4", "node5"},
        "node4": {"node4", "node5", "node1"},
        "node5": {"node5", "node1", "node2"},
    }


def test_replicas_are_equal_at_hash_depth_after_the_add(added: Added) -> None:
    """Every replica of every group reads its files, and their hashes equal the recorded ones."""
    found = added.world.iotctl("verify", "--depth", "hash", "-o", "json")
    assert found.code == 0, found.out + found.err
    assert found.json["replicas_compared"] == 18 and not found.json["mismatches"]


def test_migrate_verify_moves_verifies_and_signs_off(added: Added) -> None:
    """`iotctl migrate --verify` without other options completes a waiting removal, at depth content."""
    world = added.world
    begun = world.iotctl("cluster", "remove-node", "node6", "--verify", "--no-migrate", "--yes", "-o", "json")
    assert begun.code == 0, begun.err
    assert begun.json["state"] == "waiting_migrate"
    operation = begun.json["operations"][0]
    migrated = world.process("migrate", "--verify")
    code = migrated.wait(180)
    said = Said(code, world.said_by(migrated), "")
    assert code == 0, said.out
    assert "PASS at depth content" in said.out
    done = world.wait_stage(operation, Stage.DONE, 60.0)
    assert done.signed_off
    for node in gaining_members(done):
        assert sum(c.bytes_received for c in done.copies if c.node == node) > 0, node
    world.fleet.stop(["node6"])
    assert world.rows() == added.rows


def test_a_terminated_wait_names_the_command_to_continue(added: Added) -> None:
    """SIGTERM ends a waiting iotctl with exit 143 and the next command; the cluster is not affected."""
    waiting = added.world.process("cluster", "wait", "--for", "op=op-none")
    assert waiting.wait(30) == 5, added.world.said_by(waiting)
    watching = added.world.process("cluster", "status", "--watch")
    until(lambda: "plant" in added.world.said_by(watching), 30.0, lambda: added.world.said_by(watching))
    watching.send_signal(signal.SIGTERM)
    assert watching.wait(20) == 143
    assert "next: iotctl ops list" in added.world.said_by(watching)
