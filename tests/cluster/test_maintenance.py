"""Maintenance of real agents: stop, drain, pause, limit the rate, hold."""

import gzip
import time
from collections.abc import Iterator

import pytest

from iotctl.demo.generate import TAG, Fleet, generate
from iotctl.fleet.local import LocalFleet
from iotctl.observe.operations import control
from nodeagent.model.config import ClusterSettings, RaftSettings
from nodeagent.model.ids import META
from nodeagent.model.operation import Stage
from tests.cluster.world import World
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.real]

ROWS = Fleet(storage_groups=8, weeks=26, step_ms=12 * 3_600_000)
HOLD_S = 6.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Five agents with a few rows in files."""
    fleet = LocalFleet(tmp_path_factory.mktemp("maintenance") / "fleet")
    fleet.create(ClusterSettings(name="plant", slots=500), 5, node_settings={})
    made = World(fleet)
    try:
        made.up()
        made.cluster.write_many(generate(ROWS), tags=[TAG])
        made.close_memtables()
        yield made
    finally:
        made.close()


def led_by(world: World, node: str) -> set[str]:
    return {
        g.group for s in world.statuses().values() for g in s.groups if g.role == "leader" and s.node == node
    }


def leads_own(world: World, node: str) -> bool:
    return world.group_of(node) in led_by(world, node)


def test_an_agent_transfers_its_leaderships_before_a_planned_stop(world: World) -> None:
    """After SIGTERM, the group and the meta group have new leaders by the time the process has exited."""
    node = world.leader(META)
    until(lambda: leads_own(world, node), 30.0, lambda: f"{node} does not lead its own group")
    led = led_by(world, node)
    assert META in led
    terms = {g.group: g.term for g in world.statuses()[node].groups}
    began = time.monotonic()
    world.fleet.stop([node])
    assert time.monotonic() - began < 5.0
    leaders = {g.group: s.node for s in world.statuses().values() for g in s.groups if g.role == "leader"}
    assert led <= set(leaders) and node not in leaders.values(), "no election is needed any more"
    log = (world.fleet.directory / node / "agent.log").read_text()
    assert '"event":"handed_over"' in log and '"complete":true' in log
    after = {g.group: g.term for s in world.statuses().values() for g in s.groups if g.role == "leader"}
    assert all(after[g] == terms[g] + 1 for g in led), "one term each: nothing timed out"
    time.sleep(2 * RaftSettings().election_timeout_ms / 1000)
    settled = {g.group: g.term for s in world.statuses().values() for g in s.groups if g.role == "leader"}
    assert {g: settled[g] for g in led} == {g: after[g] for g in led}
    world.fleet.start([node])
    world.wait_healthy()


def test_draining_survives_a_restart_and_ends_with_undrain(world: World) -> None:
    """The node leads nothing after any restart; after `undrain` it leads its own group again."""
    until(lambda: leads_own(world, "node2"), 30.0, lambda: "node2 does not lead its own group")
    said = world.iotctl("cluster", "drain", "node2", "-o", "json")
    assert said.code == 0 and said.json["leads"] == [], said.err
    world.restart("node2")
    world.wait_healthy()
    time.sleep(7.0)  # two rounds in which group owners take back the leadership
    assert led_by(world, "node2") == set()
    node = next(n for n in world.status().nodes if n.id == "node2")
    assert node.state == "draining"
    assert world.iotctl("cluster", "undrain", "node2").code == 0
    until(lambda: leads_own(world, "node2"), 30.0, lambda: "node2 does not lead its group again")


def test_ok_to_stop_names_the_nodes_that_can_stop(world: World) -> None:
    """One node can stop, two neighbours cannot, and the error names the subset that can."""
    world.wait_healthy()
    assert world.iotctl("cluster", "ok-to-stop", "node4").code == 0
    said = world.iotctl("cluster", "ok-to-stop", "node3", "node4", "-o", "json")
    assert said.code == 5 and len(said.json["may_stop"]) == 1


def test_events_and_support_bundle_include_every_live_agent(world: World) -> None:
    """The audit log has the drain, node events have starts and leaders; both outputs name a dead node."""
    world.fleet.kill("node5")
    said = world.iotctl("cluster", "events", "--since", "1h", "-o", "json")
    assert said.code == 0, said.err
    assert [s["node"] for s in said.json["unread"]] == ["node5"]
    told = said.json["events"]
    assert any(e["event"] == "audit" and e["message"] == "drain node2" and e["by"] == "tester" for e in told)
    assert {e["node"] for e in told if e["event"] == "started"} == {f"node{i}" for i in range(1, 5)}
    assert any(e["event"] == "leader" and e["group"] for e in told)
    assert [e["time_ms"] for e in told] == sorted(e["time_ms"] for e in told)
    path = world.fleet.directory.parent / "bundle.tar.gz"
    made = world.iotctl("support", "bundle", "--out", str(path), "-o", "json")
    assert made.code == 0, made.err
    names = {f["name"] for f in made.json["files"]}
    assert {"nodes/node1/status.json", "nodes/node5/agent.log", "events.json"} <= names
    assert [s["node"] for s in made.json["unreachable"]] == ["node5"]
    with gzip.open(path) as archive:
        assert b"PRIVATE KEY" not in archive.read()
    world.fleet.start(["node5"])
    world.wait_healthy()


def test_pause_rate_and_hold_of_a_running_add(world: World) -> None:
    """Slow, paused, resumed at full rate; then the hold retains the old copies for exactly its time."""
    words = ("cluster", "add-node", "node6", "--yes", "--no-wait", "--rate", "8KB/s", "-o", "json")
    begun = world.iotctl(*words, "--hold-release", f"{HOLD_S:.0f}s")
    assert begun.code == 0, begun.err
    operation = begun.json["operations"][0]
    world.reconnect()
    world.wait_stage(operation, Stage.COPYING)
    slow = sum(world.received(operation).values())
    time.sleep(4.0)
    assert sum(world.received(operation).values()) - slow < 8_000 * 4 * 3, (
        "the rate limits the total of all nodes"
    )
    assert world.iotctl("ops", "pause", operation).code == 0
    assert world.iotctl("ops", "set", operation, "--rate", "200MB/s").code == 0
    time.sleep(3.0)  # pulls in progress finish
    paused = world.operation(operation)
    assert paused is not None and paused.state() == "paused" and paused.stage is Stage.COPYING
    before = len(paused.copies)
    time.sleep(2.0)
    still = world.operation(operation)
    assert still is not None and len(still.copies) == before, "a pull started during the pause"
    shown = world.iotctl("cluster", "status", "-o", "json").json
    assert [p["next"] for p in shown["problems"] if p["code"] == "paused"] == [
        f"iotctl ops resume {operation}"
    ]
    assert world.iotctl("migrate", "--op", operation).code == 5
    resumed = world.iotctl("ops", "resume", operation, "--timeout", "60s", "-o", "json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["operations"][0]["state"] == "waiting_release"
    held = world.operation(operation)
    assert held is not None
    done = world.wait_stage(operation, Stage.DONE, 60.0)
    moving = next(s for s in done.stages if s.stage is Stage.COPYING)
    assert HOLD_S * 1000 <= moving.left_ms - held.held_since_ms < HOLD_S * 1000 + 3_000


def check_repair_by_a_signed_off_copy(world: World, operation: str) -> None:
    """Two of three copies of a moved file are lost: only a sign-off proves that the previous holders' are
    correct."""
    target = next(m.target for m in world.open_operation().moves)
    owner = target.partition(".")[0]
    members = world.members()[owner]
    moved = next(f for f in world.manifest(members[0], target) if len(f.order) > 1)
    paths = [world.path_of(n, target, moved) for n in members]
    whole = paths[0].read_bytes()
    for path in paths[:2]:
        path.unlink()
    words = ("verify", "--depth", "hash", "--repair", "--yes", "--slot", str(moved.slot), "-o", "json")
    left = world.iotctl(*words)
    assert left.code == 7 and not left.json["repairs"], left.out + left.err
    control(world.cluster, operation, "sign-off", "tester")
    done = world.iotctl(*words)
    assert done.code == 0, done.out + done.err
    assert [p.read_bytes() for p in paths] == [whole] * 3


def test_release_ends_a_hold_at_once(world: World) -> None:
    """`ops release` deletes copies that were to be retained for a day; until then they are a source for
    repairs."""
    words = ("cluster", "remove-node", "node6", "--yes", "--hold-release", "24h", "-o", "json")
    begun = world.iotctl(*words)
    assert begun.code == 0 and begun.json["state"] == "waiting_release", begun.err
    operation = begun.json["operations"][0]
    assert f"iotctl ops release {operation}" in begun.err
    check_repair_by_a_signed_off_copy(world, operation)
    assert world.iotctl("ops", "release", operation).code == 0
    world.wait_stage(operation, Stage.DONE, 60.0)
