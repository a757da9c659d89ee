"""A single agent is SIGKILLed and restarted while slots move: no acknowledged row is lost."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from iotctl.observe.operations import control
from nodeagent.model.operation import Operation, Stage
from nodeagent.partition.ranges import to_slots
from tests.cluster.conftest import MakeWorld
from tests.cluster.world import World, flip, gaining_members
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.real]

SLOW, MEDIUM, FAST = "6KB/s", "60KB/s", "200MB/s"
PLAN = "removal.yaml"
TAKERS = {"node3": "node1", "node4": "node4"}
"""Node with damaged files -> node whose copies start from it."""
DAMAGED_EACH = 3


@dataclass
class Changed:
    """An operation that continued through the death of some agents."""

    operation: Operation
    killed: dict[str, str] = field(default_factory=dict)
    """role -> node"""


@dataclass
class Story:
    world: World
    rows: int
    removal: Changed
    adding: Changed
    acknowledged: int
    damaged: dict[str, set[int]]
    """node -> slots of which it had a damaged file before the removal."""


@pytest.fixture(scope="module")
def story(make_world: MakeWorld) -> Iterator[Story]:
    """A writer runs during the removal of node3 and the addition of node6; four agents die, one by one.

    Before that, files on the leaving node and on an overlapping member are damaged: they must be copied from
    another holder.
    """
    world = make_world("death")
    rows = world.rows()
    damaged = _damage_sources(world)
    load = world.load()

    removal = _begin(world, "apply", PLAN, rate=MEDIUM)
    until(
        lambda: all(_retried_pull(world, n) for n in TAKERS.values()),
        30.0,
        lambda: "the damage was not detected",
    )
    _set_rate(world, removal, SLOW)
    move = removal.operation.moves[0]
    overlapping = next(n for m in removal.operation.moves for n in m.target_members if n in m.source_members)
    _kill(world, removal, "losing leader", world.leader(move.source))
    _kill(world, removal, "overlapping member", overlapping)
    _finish(world, removal)
    world.fleet.stop(["node3"])

    adding = _begin(world, "cluster", "add-node", "node6")
    world.reconnect()
    _kill(world, adding, "joining node", "node6")
    _kill(world, adding, "meta leader", world.leader("meta"))
    _finish(world, adding)
    acknowledged = world.check_load(load)
    yield Story(world, rows, removal, adding, acknowledged, damaged)


def _damage_sources(world: World) -> dict[str, set[int]]:
    """Flip a byte in files of D(node3), on node3 and node4, in slots that will move.

    The plan is saved, because a later plan may move other slots: it depends on current sizes.
    """
    group = world.group_of("node3")
    plan = world.iotctl("plan", "remove-node", "node3", "--out", PLAN, "-o", "json")
    assert plan.code == 0, plan.err
    moves = {m["slot"]: m["to"] for m in plan.json["moves"]}
    out: dict[str, set[int]] = {}
    for node, target in TAKERS.items():
        files = [f for f in world.manifest(node, group) if moves.get(f.slot) == target][:DAMAGED_EACH]
        assert len(files) == DAMAGED_EACH, f"{target} gains too few files"
        for meta in files:
            flip(world.path_of(node, group, meta), meta.size // 2)
        out[node] = {f.slot for f in files}
    return out


def _begin(world: World, *words: str, rate: str = SLOW) -> Changed:
    """Start a change whose slots move only once the rate is set."""
    said = world.iotctl(*words, "--yes", "--no-wait", "--no-migrate", "-o", "json")
    assert said.code == 0, said.err
    begun = Changed(world.wait_stage(said.json["operations"][0], Stage.COPYING))
    _set_rate(world, begun, rate)
    control(world.cluster, begun.operation.id, "go", "tester")
    return begun


def _set_rate(world: World, changed: Changed, rate: str) -> None:
    assert world.iotctl("ops", "set", changed.operation.id, "--rate", rate).code == 0


def _retried_pull(world: World, node: str) -> bool:
    return "pull_again" in (world.fleet.directory / node / "agent.log").read_text()


def _kill(world: World, changed: Changed, role: str, node: str) -> None:
    """SIGKILL a node in COPYING and wait until it serves again."""
    before = world.operation(changed.operation.id)
    assert before is not None and before.stage is Stage.COPYING, before
    world.restart(node)
    changed.killed[role] = node
    until(lambda: node in world.statuses(), 60.0, lambda: f"{node} does not restart")
    until(
        lambda: not any(p.code in ("quorum_lost", "no_leader") for p in world.status().problems),
        60.0,
        lambda: str(world.status().problems),
    )


def _finish(world: World, changed: Changed) -> None:
    before = world.operation(changed.operation.id)
    assert before is not None and before.stage is Stage.COPYING, "a node was killed after the slots had moved"
    _set_rate(world, changed, FAST)
    changed.operation = world.wait_stage(changed.operation.id, Stage.DONE, 120.0)


def test_operations_complete_through_the_death_of_each_role(story: Story) -> None:
    """Joining node, losing leader, meta leader and overlapping member died in COPYING; both changes are
    DONE."""
    assert set(story.removal.killed) | set(story.adding.killed) == {
        "losing leader",
        "overlapping member",
        "joining node",
        "meta leader",
    }
    for changed in (story.removal, story.adding):
        assert changed.operation.state() == "done"
        for node in gaining_members(changed.operation):
            assert sum(c.bytes_received for c in changed.operation.copies if c.node == node) > 0, node


def test_no_acknowledged_row_is_lost(story: Story) -> None:
    """This includes the rows of the writer that ran during all changes, and earlier rows."""
    assert story.acknowledged > 0
    assert story.world.rows() == story.rows + story.acknowledged


def test_the_groups_after_the_removal_of_node3_follow_from_the_ring(story: Story) -> None:
    """{3,4,5} is deleted; {1,2,3} -> {1,2,4}; {2,3,4} -> {2,4,5}; the others are unchanged."""
    operation = story.removal.operation
    assert {c.group.partition(".")[0]: set(c.after) for c in operation.changes} == {
        "node1": {"node1", "node2", "node4"},
        "node2": {"node2", "node4", "node5"},
    }
    assert operation.dissolved_group is not None and operation.dissolved_group.startswith("node3.")
    moved = sum(len(to_slots(m.slots)) for m in operation.moves)
    assert moved == 2_000


def test_damaged_files_are_copied_from_another_holder(story: Story) -> None:
    """A file with a wrong hash is fetched from another holder; so is a member's own damaged copy."""
    copies = story.removal.operation.copies
    for node, slots in story.damaged.items():
        taker = TAKERS[node]
        mine = [c for c in copies if c.node == taker and slots & set(to_slots(c.slots))]
        assert mine, (taker, slots)
        assert _retried_pull(story.world, taker), taker


def test_replicas_are_equal_at_hash_depth_after_deaths(story: Story) -> None:
    """No replica has a damaged file either."""
    story.world.wait_healthy()
    found = story.world.iotctl("verify", "--depth", "hash", "-o", "json")
    assert found.code == 0, found.out[-3000:] + found.err
