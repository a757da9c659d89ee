"""Races that random seeds reach too rarely, each set up deliberately."""

from functools import partial

import msgspec
import pytest

from nodeagent.model import requests as q
from nodeagent.model.files import FileMeta, FileRef
from nodeagent.model.ids import META
from nodeagent.model.operation import Options
from nodeagent.model.requests import OperationReply, Reply
from nodeagent.partition.hash import slot_of
from nodeagent.storage import layout
from nodeagent.testing import writers
from nodeagent.testing.checks import check_converged
from nodeagent.testing.machine import SNAPSHOT_TTL_MS
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import CLIENT
from nodeagent.testing.volume import Fault
from nodeagent.testing.workload import Cell
from nodeagent.testing.writers import Writer
from tests.sim.spread import spread


def formed(seed: int, nodes: int = 4, replicas: int = 3) -> Scenario:
    scenario = Scenario(seed, nodes=nodes, replicas=replicas)
    scenario.begin(reads=False)
    scenario.sim.pause(1_500)
    return scenario


def test_an_old_meta_checkpoint_removes_no_group_at_a_start() -> None:
    """Groups created since the checkpoint have acknowledged rows; the checkpoint does not contain these
    groups."""
    scenario = formed(1)
    newcomer = scenario.newcomers[0]
    for node in scenario.sim.nodes.values():
        if node.node != newcomer:  # the newcomer begins with a checkpoint of the meta group
            node.disk.faults += [Fault("rename", path=f"groups/{META}/", times=1 << 30)]
    scenario.sim.nodes[newcomer].start()
    operation = scenario.change("add-node", newcomer)
    scenario.finish(operation)
    for node in [n for n in scenario.sim.nodes.values() if n.alive]:
        before = set(node.host.replicas.data)
        node.stop(power=False)
        node.start()
        assert set(node.host.replicas.data) >= before, node.node  # also groups that it was about to remove
    scenario.sim.pause(5_000)
    for node in scenario.sim.nodes.values():
        node.disk.faults.clear()
    scenario.quiet()
    scenario.read_everything()


def test_a_newcomer_that_missed_the_cancel_starts_empty() -> None:
    """The state that it received for the cancelled operation lacks the files of sealed slots, which are open
    again."""
    scenario = formed(2)
    newcomer = scenario.newcomers[0]
    node = scenario.sim.nodes[newcomer]
    node.start()
    operation = scenario.change("add-node", newcomer)
    scenario.until(
        lambda: any(not r.state.slots.open for r in node.host.replicas.data.values()), "it has joined"
    )
    others = [n for n in scenario.sim.nodes if n != newcomer]
    scenario.sim.faults.cut |= {(n, newcomer) for n in others}
    scenario.request(q.ControlOperation(operation, "cancel", "sim"), OperationReply)
    scenario.until(lambda: scenario.stage(operation) in ("CANCELLED", "DONE"), "the cancel is over")
    scenario.sim.faults.heal()
    if scenario.stage(operation) == "CANCELLED":
        scenario.finish(scenario.change("add-node", newcomer))
    scenario.quiet()
    scenario.read_everything()


@pytest.mark.parametrize("seed", spread(range(3, 7)))
def test_slots_are_closed_for_less_than_an_election(seed: int) -> None:
    """No group accepts writes between seal and open, so the new group must have a leader before the seal."""
    scenario = formed(seed)
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    operation = scenario.change("add-node", newcomer)
    scenario.until(lambda: scenario.stage(operation) == "SEALED", "slots are sealed")
    record = scenario.record(operation)
    assert record is not None and record.created_group is not None
    replicas = [
        n.host.replicas.data.get(record.created_group) for n in scenario.sim.nodes.values() if n.alive
    ]
    assert any(r is not None and r.leads for r in replicas)
    sealed_at = scenario.sim.now
    scenario.until(lambda: scenario.stage(operation) not in ("SEALED", "OPEN"), "slots are open")
    assert scenario.sim.now - sealed_at < 150
    scenario.finish(operation)
    finish_all(scenario)


@pytest.mark.parametrize("seed", spread([7, 2, 12]))
def test_a_new_leader_sends_no_state_older_than_the_log_it_inherited(seed: int) -> None:
    """Otherwise a newcomer applies an `Adopt` of files that were never staged on it."""
    scenario = formed(seed)
    first, second = scenario.newcomers
    scenario.sim.nodes[first].start()
    operation = scenario.change("add-node", first)
    scenario.until(lambda: scenario.stage(operation) in ("RECONFIGURING", "COPYING"), "slots are open")
    record = scenario.record(operation)
    assert record is not None and record.created_group is not None
    group = record.created_group
    for node in scenario.sim.nodes.values():  # the group's checkpoints stay older than the adoption
        node.disk.faults += [Fault("rename", path=layout.checkpoint_path(group), times=1 << 30)]
    scenario.finish(operation)
    newcomer = scenario.sim.nodes[second]
    newcomer.start()
    scenario.sim.pause(800)
    newcomer.disk.faults.clear()
    operation = scenario.change("add-node", second, after=first)
    scenario.until(
        lambda: any(
            node.alive
            and group in node.host.replicas.data
            and second in node.host.replicas.data[group].raft.log.config.learners
            for node in scenario.sim.nodes.values()
        ),
        "the second newcomer is a learner",
    )
    for name in record.created_members:
        scenario.kill(name, 50, power=True)
    scenario.sim.pause(2_000)
    for node in scenario.sim.nodes.values():
        node.disk.faults.clear()
    scenario.finish(operation)
    finish_all(scenario)


@pytest.mark.long
def test_a_member_away_for_longer_than_its_snapshot_gets_another() -> None:
    scenario = formed(2)
    newcomer = scenario.newcomers[0]
    node = scenario.sim.nodes[newcomer]
    node.start()
    scenario.sim.faults.job_ms = (100, 400)
    operation = scenario.change("add-node", newcomer)
    scenario.until(
        lambda: any(r.installing for r in node.host.replicas.data.values()), "it installs a snapshot"
    )
    scenario.kill(newcomer, 4 * SNAPSHOT_TTL_MS, power=True)
    scenario.sim.pause(4 * SNAPSHOT_TTL_MS)
    scenario.sim.faults.job_ms = (1, 10)
    scenario.finish(operation)
    finish_all(scenario)


@pytest.mark.parametrize("seed", spread(range(3)))
def test_a_new_leader_sends_a_snapshot_to_a_member_it_needs_for_a_quorum(seed: int) -> None:
    """Two of three members are up, and one lacks entries that the other has purged. No entry can be
    committed, not even the first entry of a new leader, before the other has sent its state."""
    scenario = formed(seed)
    group = next(g for g in scenario.sim.nodes["node1"].host.replicas.data if g.startswith("node1."))
    members = {n: scenario.sim.nodes[n] for n in ("node1", "node2", "node3")}
    leader = next(n for n, node in members.items() if node.host.replicas.data[group].leads)
    lagging, other = [n for n in members if n != leader]
    end = members[lagging].host.replicas.data[group].raft.log.last_index
    members[lagging].stop(power=False)
    scenario.until(
        lambda: members[other].host.replicas.data[group].raft.log.base.index > end + 10,
        "the others purge their logs",
    )
    members[leader].stop(power=True)
    members[lagging].start()

    def leads() -> bool:
        replica = members[other].host.replicas.data[group]
        return replica.leads and replica.applied_index > replica.led_from

    scenario.until(leads, "the two members commit entries", 20_000)
    members[leader].start()
    finish_all(scenario)


def joined(scenario: Scenario) -> None:
    """The cluster with its first newcomer."""
    scenario.add_plainly(scenario.newcomers[0])


def finish_all(scenario: Scenario) -> None:
    scenario.quiet()
    check_converged(scenario.sim)
    scenario.read_everything()


@pytest.mark.parametrize("seed", spread(range(3)))
def test_a_dead_node_is_removed_and_refused_when_it_returns(seed: int) -> None:
    scenario = formed(seed)
    joined(scenario)
    scenario.die("node2")
    scenario.finish(scenario.change("remove-node", "node2", Options(dead=True)))
    back = scenario.sim.nodes["node2"]
    back.start()
    scenario.sim.pause(5_000)
    assert back.host.cluster.meta_replica is not None
    assert not any(r.leads for r in (*back.host.replicas.data.values(), back.host.cluster.meta_replica))
    back.stop(power=False)
    finish_all(scenario)


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("seed", spread(range(3)))
def test_a_node_replaces_another(seed: int, dead: bool) -> None:
    scenario = formed(seed)
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    if dead:
        scenario.die("node3")
    scenario.finish(scenario.change("replace-node", newcomer, Options(dead=dead), replaces="node3"))
    scenario.sim.nodes["node3"].alive = False
    finish_all(scenario)


def test_a_node_that_responds_is_not_dead() -> None:
    scenario = formed(1)
    joined(scenario)
    began = q.BeginChange("remove-node", "node2", "sim", Options(dead=True))
    refused: list[q.Reply] = []

    def ask() -> None:
        for node in ("node1", "node3", "node4"):
            scenario.sim.call(CLIENT, node, began, refused.append)

    ask()
    scenario.sim.pause(3_000)
    assert any("is not dead" in getattr(r, "what", "") for r in refused), refused
    assert not any(isinstance(r, OperationReply) for r in refused)
    finish_all(scenario)


def test_no_node_is_declared_dead_in_a_change_while_one_of_its_groups_has_no_quorum() -> None:
    """Two of three members are down, and the operator declares only one of them dead. The other may hold
    entries that the running member lacks and the dead one has lost."""
    scenario = formed(11, nodes=5)
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    operation = scenario.change("add-node", newcomer, Options(hold_release_ms=3_600_000))

    def is_held() -> bool:
        record = scenario.record(operation)
        return record is not None and record.state() == "waiting_release"

    scenario.until(is_held, "the previous copies are held")
    _, away, gone = next(iter(scenario.newest().image.groups.values())).members
    for name in (away, gone):
        scenario.sim.nodes[name].stop(power=True)
    scenario.sim.pause(6_000)
    said: list[q.Reply] = []
    for node in (n for n in scenario.sim.nodes.values() if n.alive):
        scenario.sim.call(
            CLIENT, node.node, q.ControlOperation(operation, "dead", "sim", node=gone), said.append
        )
    scenario.sim.pause(3_000)
    assert any("no live quorum in" in getattr(r, "what", "") for r in said), said
    record = scenario.record(operation)
    assert record is not None and not record.dead

    scenario.sim.nodes[away].start()
    scenario.dead.append(scenario.sim.nodes[gone])
    scenario.request(q.ControlOperation(operation, "dead", "sim", node=gone), OperationReply)
    record = scenario.record(operation)
    assert record is not None and record.dead == [gone]
    scenario.request(q.ControlOperation(operation, "release", "sim"), OperationReply)
    scenario.finish(operation)
    scenario.finish(scenario.change("remove-node", gone, Options(dead=True)))
    finish_all(scenario)


@pytest.mark.parametrize(
    ("stage", "victim"),
    spread(
        [
            *(
                ("SEALED", "newcomer"),
                ("OPEN", "holder"),
                ("RECONFIGURING", "member"),
                ("COPYING", "newcomer"),
            ),
            *(("OPEN", "newcomer"), ("RECONFIGURING", "newcomer"), ("SEALED", "member"), ("OPEN", "member")),
            *(
                ("COPYING", "member"),
                ("SEALED", "holder"),
                ("RECONFIGURING", "holder"),
                ("COPYING", "holder"),
            ),
        ],
        4,
    ),
)
def test_a_permanent_loss_amends_the_operation_and_is_cleared_by_the_next(stage: str, victim: str) -> None:
    """The newcomer, a member of the new group, or the leader of a group that gives slots away dies. A hold
    delays the end of the change: otherwise it would end before the victim counts as dead."""
    scenario = formed(7)
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    operation = scenario.change("add-node", newcomer, Options(hold_release_ms=3_600_000))
    reached = ("SEALED", "OPEN", "RECONFIGURING", "COPYING")
    scenario.until(
        lambda: scenario.stage(operation) in reached[reached.index(stage) :], f"{stage} is reached"
    )
    record = scenario.record(operation)
    assert record is not None
    name = {
        "newcomer": newcomer,
        "member": record.created_members[1],
        "holder": record.moves[-1].source_members[0],
    }[victim]
    scenario.sim.nodes[name].stop(power=True)
    scenario.dead.append(scenario.sim.nodes[name])
    scenario.request(q.ControlOperation(operation, "dead", "sim", node=name), OperationReply)
    scenario.request(q.ControlOperation(operation, "release", "sim"), OperationReply)
    if not scenario.finish(operation, cancelled=True):
        return
    scenario.sim.pause(6_000)
    plain: list[q.Reply] = []
    for node in (n for n in scenario.sim.nodes.values() if n.alive):
        scenario.sim.call(CLIENT, node.node, q.BeginChange("remove-node", name, "sim"), plain.append)
    scenario.sim.pause(3_000)
    assert any("repeat with --dead" in getattr(r, "next_step", "") for r in plain), plain
    scenario.finish(scenario.change("remove-node", name, Options(dead=True)))
    finish_all(scenario)


def test_a_rebalance_that_moves_nothing_or_names_a_node_is_refused() -> None:
    """The meta leader checks the request; afterwards the cluster carries out a valid rebalance."""
    scenario = formed(3)
    leader = next(n for n in scenario.sim.nodes.values() if n.alive and n.host.cluster.meta_replica.leads)  # type: ignore[union-attr]
    table = leader.host.cluster.meta.placement.table
    assert table is not None
    first, second = table.ring.names[:2]
    own = table.slots_of(first)
    some = ((own[0][0], own[0][0] + 3),)
    version = table.version
    bad = {
        q.BeginChange("rebalance", "", "sim"): "invalid_input",
        q.BeginChange("rebalance", "", "sim", gains=((first, own),)): "invalid_input",
        q.BeginChange("rebalance", second, "sim", gains=((second, some),)): "invalid_input",
        q.BeginChange("rebalance", "", "sim", gains=(("nobody", some),)): "not_found",
        q.BeginChange("rebalance", "", "sim", gains=((second, ((0, 999),)),)): "invalid_input",
        q.BeginChange("rebalance", "", "sim", table_version=version + 1, gains=((second, some),)): "refused",
    }
    for request, code in bad.items():
        got: list[q.Reply] = []
        scenario.sim.call(CLIENT, leader.node, request, got.append)
        scenario.until(lambda got=got: bool(got), "an answer")  # type: ignore[misc]
        assert isinstance(got[0], q.ErrorReply) and got[0].code == code, (request, got)
    good = q.BeginChange("rebalance", "", "sim", table_version=version, gains=((second, some),))
    reply = scenario.request(good, OperationReply)
    assert isinstance(reply, OperationReply) and reply.operation.moves[0].slots == some
    scenario.finish(reply.operation.id)
    scenario.quiet()
    check_converged(scenario.sim)
    scenario.read_everything()
    newest = max(
        (n.host.cluster.meta for n in scenario.sim.nodes.values() if n.alive), key=lambda m: m.applied
    )
    assert newest.placement.table is not None and newest.placement.table.route(some[0][0]) == second


@pytest.mark.parametrize("cut", spread([5, 14, 0, 2, 8, 11, 17, 20, 25, 30], 2))
def test_a_forged_file_is_repaired_across_a_power_cut(cut: int) -> None:
    """At whatever point the node goes down, a retry makes the replicas equal; the forged bytes are
    quarantined."""
    scenario = formed(3)
    sim = scenario.sim
    joined(scenario)
    compacted_after(scenario, 1 << 60)
    sim.pause(500)
    scenario.until(lambda: not compacting(scenario), "running compactions end")
    scenario.until(lambda: bool(_forgeable(scenario)), "a follower has files")
    victim, group, mine = _forgeable(scenario)[0]
    replica = victim.host.replicas.data[group]
    source = next(
        n for n in sim.nodes.values() if n is not victim and n.alive and group in n.host.replicas.data
    )
    scenario.until(
        lambda: mine in source.host.replicas.data[group].state.files.manifest.files(),
        "the source has made the file, too",
    )
    path = layout.file_path(group, mine.slot, mine.name)
    victim.disk.flip(path, mine.size // 2)
    forged = victim.disk.read(path)
    false = msgspec.structs.replace(mine, xxh3=victim.storage.files.hash(group, mine), rows=mine.rows + 1)
    replica.state.files.manifest.replace([mine.name], [false])
    replica.context.unsaved.changes += 1
    sim.pause(2_000)
    victim.disk.cut_power_at = victim.disk.operations + cut if cut else None
    repaired: list[Reply] = []

    def offered(reply: Reply) -> None:
        if not isinstance(reply, q.SourceOpened):
            return sim.at(500, ask)
        ref = FileRef(source.node, reply.snapshot, mine.name, mine.size, mine.xxh3)
        request = q.RepairFile(group, mine, (ref,))
        return sim.call(CLIENT, victim.node, request, answered)

    def answered(reply: Reply) -> None:
        if isinstance(reply, q.FileRepaired):
            repaired.append(reply)
        else:
            sim.at(500, ask)

    def ask() -> None:
        request = q.ExportFiles(group, ((mine.slot, mine.slot + 1),))
        sim.call(CLIENT, source.node, request, offered)

    ask()
    scenario.until(lambda: bool(repaired), "it is repaired")
    victim.disk.cut_power_at = None
    victim.stop(power=True)
    victim.start()
    assert victim.host.replicas.data[group].state.files.manifest.get(mine.name) == mine
    assert victim.storage.files.hash(group, mine) == mine.xxh3
    directory = layout.quarantine_dir(group)
    assert [victim.disk.read(f"{directory}/{n}") for n in victim.disk.listdir(directory)] == [forged]
    compacted_after(scenario, 0)
    finish_all(scenario)


def _forgeable(scenario: Scenario) -> list[tuple[SimNode, str, FileMeta]]:
    """Files of followers, by node, group and name."""
    return [
        (node, group, file)
        for node in scenario.sim.nodes.values()
        if node.alive
        for group, replica in node.host.replicas.data.items()
        if not replica.leads
        for file in replica.state.files.manifest.files()
        if file.slot in replica.state.slots.open and file.partition.storage_group in scenario.storage_groups
    ]


def compacted_after(scenario: Scenario, now: int) -> None:
    """Pause all compactions until `now`, as a comparison of files does."""
    for node in scenario.sim.nodes.values():
        for replica in node.host.replicas.data.values() if node.alive else ():
            replica.compared_at = now


def compacting(scenario: Scenario, slots: set[int] | None = None) -> list[tuple[str, str]]:
    """(node, group) of replicas with a compaction in progress, only of `slots` if given."""
    return [
        (node.node, group)
        for node in scenario.sim.nodes.values()
        if node.alive
        for group, replica in node.host.replicas.data.items()
        if any(slots is None or c.command.slot in slots for c in replica.state.compactions.active)
    ]


@pytest.mark.parametrize("seed", spread(range(4)))
@pytest.mark.parametrize("kind", ["add-node", "remove-node"])
def test_slots_move_while_their_files_are_compacted(kind: str, seed: int) -> None:
    """Compactions take much longer than the stages that must wait for them."""
    scenario = formed(seed)
    newcomer = scenario.newcomers[0]
    if kind == "remove-node":
        joined(scenario)
    else:
        scenario.sim.nodes[newcomer].start()
    scenario.sim.faults.compact_ms = (2_000, 5_000)
    losing = "node" if kind == "add-node" else "node2."

    def begun() -> bool:
        return sum(group.startswith(losing) for _, group in compacting(scenario)) >= 3

    scenario.until(begun, "compactions of leaving slots run")
    operation = scenario.change(kind, newcomer if kind == "add-node" else "node2")
    met: set[str] = set()

    def over() -> bool:
        record = scenario.record(operation)
        assert record is not None
        moved = {s for m in record.moves for a, b in m.slots for s in range(a, b)}
        if compacting(scenario, moved if kind == "remove-node" else None):
            met.add(record.stage.name)
        return record.stage.name == "DONE"

    if seed % 2:
        scenario.sim.at(500, lambda: scenario.kill("node3", 300, power=True))
    scenario.until(over, f"{operation} has ended")
    assert met & {"SEALED", "OPEN", "RECONFIGURING", "COPYING"}, met
    if kind == "remove-node":
        scenario.sim.nodes["node2"].alive = False
    scenario.sim.faults.heal()
    finish_all(scenario)


@pytest.mark.long
def test_no_undamaged_copy_is_deleted_while_a_damaged_copy_exists() -> None:
    """Files of which a member has a damaged copy are not compacted and are named; after a repair they are."""
    scenario = formed(3)
    joined(scenario)
    scenario.until(lambda: bool(_forgeable(scenario)), "a follower has files")
    victim, group, file = _forgeable(scenario)[0]
    path = layout.file_path(group, file.slot, file.name)
    good = victim.disk.read(path)
    victim.disk.flip(path, file.size // 2)

    def trouble() -> str:
        led = (
            n.host.replicas.data[group]
            for n in scenario.sim.nodes.values()
            if n.alive and group in n.host.replicas.data
        )
        return next((r.trouble for r in led if r.leads), "")

    scenario.until(lambda: file.name in trouble(), "the leader names it")
    assert victim.node in trouble()
    scenario.sim.pause(15_000)
    for node in scenario.sim.nodes.values():
        if node.alive and group in node.host.replicas.data:
            assert file.name in node.host.replicas.data[group].state.files.manifest, "the file is lost"
    victim.disk.write_atomic(path, good)
    scenario.until(lambda: not trouble(), "the leader reports no trouble")
    finish_all(scenario)


@pytest.mark.long
def test_a_copy_damaged_after_the_check_delays_only_its_own_files() -> None:
    """The member continues with all other work, also after a restart, and copies the output of the others."""
    scenario = formed(5)
    joined(scenario)
    scenario.sim.faults.compact_ms = (400, 800)
    found: list[tuple[SimNode, str, FileMeta, str]] = []

    def begun() -> bool:
        for node in scenario.sim.nodes.values():
            for group, replica in node.host.replicas.data.items() if node.alive else ():
                for c in replica.state.compactions.active:
                    if not replica.leads and c.job is not None:
                        found.append((node, group, c.job.unit.inputs[0], c.job.unit.spec.name))
                        return True
        return False

    scenario.until(begun, "a follower compacts")
    victim, group, file, output = found[0]
    victim.disk.flip(layout.file_path(group, file.slot, file.name), file.size // 2)
    scenario.until(lambda: output in victim.host.replicas.data[group].failures.stuck, "it fails")
    before = len(victim.host.replicas.data[group].state.files.manifest)
    victim.stop(power=True)
    victim.start()
    scenario.until(lambda: output in victim.host.replicas.data[group].failures.stuck, "it fails again")
    assert before
    scenario.sim.pause(8_000)
    state = victim.host.replicas.data[group].state
    assert file.name in state.files.manifest and output not in state.files.manifest
    assert {c.key for c in state.compactions.active if c.job is not None and c.job.unit.spec.name in output}
    scenario.until(lambda: not victim.host.replicas.data[group].failures.stuck, "it is no longer stuck")
    finish_all(scenario)


MORE_SURVIVORS = [*((seed, 6, 3) for seed in range(2, 7)), *((seed, 8, 5) for seed in (7, 9, 10))]


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "nodes", "replicas"),
    spread([(8, 8, 5), (1, 6, 3), (0, 6, 3), *MORE_SURVIVORS]),
)
def test_groups_that_lost_their_majority_continue_with_the_survivors_data(
    seed: int, nodes: int, replicas: int
) -> None:
    """Neighbours on the ring are permanently lost under writes: two of six with R = 3, so that the groups
    they share keep one member; three of eight with R = 5, so that these groups keep two, of which one may
    lag.

    Before they die, these nodes reach only each other for a while, so that they acknowledge writes that no
    other node has: these may be lost. In every other seed the survivors lose power at about the time of the
    forced recovery.
    """
    scenario = formed(seed, nodes, replicas)
    sim, rng = scenario.sim, scenario.sim.rng
    sim.faults.sync_ms = rng.choice([(1, 3), (1, 40)])
    sim.faults.delay_ms = rng.choice([(1, 3), (1, 30)])
    sim.pause(rng.randint(0, 3_000))
    first = rng.randrange(nodes)
    dead = tuple(f"node{(first + i) % nodes + 1}" for i in range(replicas // 2 + 1))
    left = [n for n in sim.nodes if n not in dead]
    sim.faults.cut |= {(n, rng.choice(left)) for n in dead for _ in left}
    sim.pause(rng.randint(100, 500))
    sim.faults.cut |= {(n, other) for n in dead for other in left}
    sim.pause(rng.randint(100, 2_000))
    scenario.die(*dead)
    sim.faults.heal()
    lost = scenario.recover(*dead)

    def cut_short(name: str) -> None:
        scenario.kill(name, rng.randint(50, 2_000), power=True)

    if seed % 2:
        for node in [n for n in scenario.sim.nodes.values() if n.alive]:
            sim.at(rng.randint(0, 60), partial(cut_short, node.node))
    sim.note(f"{lost} acknowledged writes are lost")
    scenario.until(scenario.recovered, "recovery completed in every group")
    writes = scenario.history.writes
    scenario.until(lambda: scenario.history.writes > writes + 50, "writers continue")
    for name in rng.sample(dead, len(dead)):
        scenario.finish(scenario.change("remove-node", name, Options(dead=True)))
    for node in scenario.dead:
        node.start()
    sim.pause(6_000)
    for node in scenario.dead:
        assert node.host.own_membership.fenced_reason and node.host.status.state() == "removed"
        node.stop(power=False)
    finish_all(scenario)


class OneCell(Writer):
    """Writes or deletes one cell once at each start."""

    def _choose(self, interval: int) -> Cell:
        self.stopping = True
        return Cell(self.groups[0], self.name, 0)


def test_a_delete_of_a_slot_s_earlier_ownership_hides_nothing_when_the_slot_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slot returns to a group that has closed no file since and so has not forgotten the delete. Until it
    adopts the rows that were written elsewhere, a strong read asks both groups."""
    scenario = Scenario(1)
    scenario.form()
    scenario.schemas()
    name = scenario.storage_groups[0]
    writer = OneCell(scenario.sim, "w", scenario.view, scenario.history, [name])
    scenario.writers = [writer]
    meta = scenario.newest()
    assert meta.placement.table is not None and meta.image.settings is not None
    slot = slot_of(name, 0, 0, meta.image.settings)
    home = meta.placement.table.route(slot)
    away = next(n for n in meta.placement.table.ring.names if n != home)

    def write(*, deletes: float) -> None:
        monkeypatch.setattr(writers, "DELETES", deletes)
        writer.stopping = False
        writer.start()
        scenario.until(lambda: writer.idle, "it is acknowledged")

    def move(to: str) -> str:
        return scenario._begin(q.BeginChange("rebalance", "", "sim", gains=((to, ((slot, slot + 1),)),)))

    write(deletes=1.0)
    scenario.finish(move(away))
    write(deletes=0.0)
    scenario.hold("after:COPYING")
    operation = move(home)
    states = [
        r.state
        for n in scenario.sim.nodes.values()
        for g, r in (n.host.replicas.data.items() if n.alive else ())
        if g.startswith(f"{home}.")
    ]
    scenario.until(lambda: all(s.slots.arriving_by(slot) == operation for s in states), "the slot is back")
    assert [[t.partition.storage_group for t in s.files.tombstones] for s in states] == [[name]] * 3
    scenario.read_everything()
    scenario.hold()
    scenario.finish(operation)
    finish_all(scenario)
