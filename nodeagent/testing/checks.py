"""Checks of the invariants in `docs/internals/invariants.md`, during a simulation and at its end."""

import re
import zlib
from collections.abc import Collection

from nodeagent.host.data_replica import DataReplica
from nodeagent.host.effect_queue import Effects
from nodeagent.log.identity import ID_FILE, LOG_DIR
from nodeagent.meta.nodes import DEAD
from nodeagent.meta.state import MetaState
from nodeagent.model.ids import META, NodeId
from nodeagent.model.operation import Operation, Stage
from nodeagent.partition.ranges import to_slots
from nodeagent.partition.table import PartitionTable
from nodeagent.storage.leftovers import LINKED, QUARANTINED, SNAPSHOT, leftovers
from nodeagent.testing.node import SimNode
from nodeagent.testing.raft_checks import RaftSafety
from nodeagent.testing.sim import Sim

_LOG_NAME = re.compile(r"\d{12}\.log|newest|reserve|log\.id|\d+\.\d+\.torn")


class Tables:
    """Checks S14 after every turn: within a life no node's partition table returns to an older version, and
    tables with equal versions are equal."""

    def __init__(self) -> None:
        self._tables: dict[int, int] = {}
        self._table_of: dict[tuple[str, int], PartitionTable] = {}
        """By (node, life). Tables are immutable, so only a new object is compared."""

    def __call__(self, node: SimNode, effects: Effects) -> None:
        table, key = node.host.cluster.meta.placement.table, (node.node, node.life)
        before = self._table_of.get(key)
        if table is None or table is before:
            return
        version = table.version
        assert before is None or version >= before.version, (
            f"S14: the partition table of {node.node} went back"
        )
        self._table_of[key] = table
        digest = zlib.crc32(table.owners.tobytes())
        assert self._tables.setdefault(version, digest) == digest, f"S14: two tables of version {version}"


class Changes:
    """Checks S13 and S14 whenever a node has the newest meta state so far: a node that left does not return,
    and changes follow their order.

    Args:
        safety: knows which groups had a leader.
    """

    def __init__(self, safety: RaftSafety) -> None:
        self._safety = safety
        self._applied = 0
        self._members: dict[NodeId, str] = {}
        """Incarnations, as of index `_applied`."""

    def __call__(self, node: SimNode, effects: Effects) -> None:
        state = node.host.cluster.meta
        if state.applied <= self._applied or not state.image.nodes:
            return
        self._applied = state.applied
        image = state.image
        assert sum(not op.ended for op in image.operations) <= 1, "S14: two changes are open at the same time"
        op = image.operations[-1] if image.operations else None
        if op is not None:
            self._is_in_order(state, op)
        undone = op.node if op is not None and op.stage is Stage.CANCELLED and op.created_group else ""
        members = {name: record.incarnation for name, record in image.nodes.items()}
        if members != self._members:
            for name, incarnation in self._members.items():
                left = members.get(name) != incarnation
                assert not left or name == undone or incarnation in image.retired, (
                    f"S13: {name} {incarnation} left and is not retired"
                )
            self._members = members
        for record in image.nodes.values():
            assert (record.state == DEAD) == (record.incarnation in image.retired), f"S13: {record}"

    def _is_in_order(self, state: MetaState, op: Operation) -> None:
        if op.stage in (Stage.PLANNED, Stage.SEALED, Stage.CANCELLING):
            versions = state.placement.version, op.base_version
            assert versions[0] == versions[1], f"S14: {op.id} {op.stage}: table versions {versions}"
        created = op.created_group
        if op.stage is Stage.CANCELLED:
            undone = {op.node, created} if created else set()
            left = undone & {*state.image.nodes, *state.image.groups}
            assert not left, f"L4: {op.id} is cancelled and {left} still exist"
            for change in op.changes:
                joined = self._safety.config_of(change.group).learners
                assert change.joins not in joined, (
                    f"L4: {op.id} is cancelled and {change.joins} is a learner of {change.group}"
                )
        elif created and op.stage not in (Stage.PLANNED, Stage.CANCELLING) and not op.dead:
            assert self._safety.was_led(created), f"{op.id} {op.stage}: {created} never had a leader"


def check_converged(sim: Sim[SimNode]) -> None:
    """Check L3 and L4: groups are derived from the ring, replicas have equal files, and no file is left
    over."""
    nodes = [n for n in sim.nodes.values() if n.alive]
    state = max((n.host.cluster.meta for n in nodes), key=lambda m: m.applied)
    assert state.placement.table is not None and state.image.settings is not None
    assert state.operations.open() is None, state.operations.open()
    for owner in state.placement.table.ring.names:
        record = state.groups.of(owner)
        assert record is not None, f"L4: {owner} owns no group"
        expected = state.placement.table.ring.members(owner, state.image.settings.replicas)
        assert set(record.members) == set(expected), (record, expected)
        replicas = [sim.nodes[m].host.replicas.data[record.group] for m in expected]
        _check_group(record.group, replicas, set(expected))
        owned = set(to_slots(state.placement.table.slots_of(owner)))
        wrong = {r.raft.node: r.state.slots.open ^ owned for r in replicas if r.state.slots.open != owned}
        assert not wrong, (
            f"L4: {record.group}: slots that are open but not owned, or owned but not open: {wrong}"
        )
    for node in (sim.nodes[n] for n in state.image.nodes):
        wanted = {g.group for g in state.image.groups.values() if node.node in g.members}
        assert set(node.host.replicas.data) == wanted, (
            f"L4: {node.node} has {sorted(node.host.replicas.data)}, not {wanted}"
        )
    check_clean(sim, (SNAPSHOT, LINKED, QUARANTINED))


def _check_group(group: str, replicas: list[DataReplica], members: set[str]) -> None:
    for replica in replicas:
        slots = replica.state.slots
        assert not slots.sealed and not slots.arriving, f"L4: {group} still has migrating slots"
        config = replica.raft.log.config
        assert set(config.voters) == members and not config.learners, (group, config, members)
    files = [r.state.files.manifest.files() for r in replicas]
    names = [r.raft.node for r in replicas]
    for other, name in zip(files[1:], names[1:], strict=True):
        assert other == files[0], (
            f"L3: {group}: {names[0]} and {name} differ: {list(set(files[0]) ^ set(other))[:4]}"
        )


def check_clean(sim: Sim[SimNode], kinds: Collection[str] = ()) -> None:
    """Check L3 and L4: the disks of all members contain exactly what their manifests name, byte for byte, and
    checkpoints name the same files. Leftovers of these `kinds` are allowed."""
    state = max((n.host.cluster.meta for n in sim.nodes.values() if n.alive), key=lambda m: m.applied)
    for node in (sim.nodes[n] for n in state.image.nodes):
        _check_disk(node, kinds)


def _check_disk(node: SimNode, kinds: Collection[str]) -> None:
    assert node.lossy or not node.host.replicas.damaged, f"{node.node}: {node.host.replicas.damaged}"
    manifests = {g: r.state.files.manifest.files() for g, r in node.host.replicas.data.items()}
    found = leftovers(node.disk, {**manifests, META: []}, beside=(LOG_DIR, ID_FILE))
    left = [f"{f.path} ({f.kind})" for f in found if f.kind not in kinds]
    assert not left, f"L4: {node.node} has leftover files {left[:4]}"
    for group, files in manifests.items():
        for meta in files:
            bytes_now = node.storage.files.hash(group, meta)
            assert bytes_now == meta.xxh3, f"L3: {node.node} {group}: {meta.name} is {bytes_now}"
        saved = node.saved(group)
        assert saved == list(files), f"L4: {node.node} {group}: the checkpoint names other files: {saved}"
    names = [n for n in node.disk.listdir(LOG_DIR) if not _LOG_NAME.fullmatch(n)]
    assert not names, f"L4: {node.node} has unknown files {names} in its log directory"
