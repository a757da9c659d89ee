"""The state of a `MigrationWorld`: the logs and replicas of its groups, and the invariants that must hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec

from nodeagent.data import commands as data
from nodeagent.data.checkpoint import decode_checkpoint
from nodeagent.data.slots import expand
from nodeagent.data.state import DataState, initial
from nodeagent.meta import changes
from nodeagent.model.entries import Config, Entry, EntryKind
from nodeagent.model.files import FileMeta, PulledSlot, Tombstone
from nodeagent.model.ids import GroupId, NodeId, PartitionKey
from nodeagent.model.jobs import AdoptFiles
from nodeagent.model.operation import GroupChange, Operation, Options, Ranges, SlotMove, Stage
from nodeagent.scaling import moving
from nodeagent.testing.exhaustive.fork import digest

encode_state = msgspec.msgpack.Encoder().encode

_decode_operation = msgspec.msgpack.Decoder(Operation).decode


_decode_row = msgspec.msgpack.Decoder(FileMeta).decode

Log = tuple[bytes, ...]


Pulled = tuple[PulledSlot, ...]

DELETE = b"delete "
"""Prefix of a command that deletes all rows of a slot; the slot number follows."""


@dataclass(frozen=True, slots=True)
class MigrationBounds:
    """How much may happen in addition to the operation."""

    writes: int = 0
    deletes: int = 0
    spoiled: int = 0
    """Copies that differ from other members' copies: they lack a file or a delete."""

    stale: int = 0
    """Actions by an outdated view of the operation."""

    again: int = 0
    """Commands that are logged twice, as by two leaders."""

    cancels: int = 0
    changes: int = 0
    """Operations after the first: each moves the slots back, or retries a cancelled operation."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A node's replica of a group: the number of log entries that it has applied."""

    applied: int = 0
    origin: bytes = b""
    """The state that was sent to it at its creation; b"" for an initial replica."""

    begun: int = 0
    """Number of entries that `origin` includes."""


@cache
def _after(group: GroupId, slots: Ranges, origin: bytes, log: Log) -> DataState:
    """The group's state after these commands, which follow `origin` if it is given; callers must not change
    the state, because it is cached."""
    state = initial(group, slots)
    if origin:
        saved = decode_checkpoint(origin)
        state = DataState.restore(saved, saved.applied)
    for encoded in log:
        command = data.decode(encoded)
        if isinstance(command, data.Opaque):
            _take(state, command.payload)
        state.apply(state.applied + 1, [Entry(1, int(EntryKind.COMMAND), encoded)], 0)
        for job in [j for j in state.jobs if isinstance(j, AdoptFiles)]:
            state.on_adopted(job)
        state.jobs.clear()
    return state


def _take(state: DataState, payload: bytes) -> None:
    """Apply a row or a delete as the state's next entry."""
    if payload.startswith(DELETE):
        slot = int(payload.removeprefix(DELETE))
        if state.writes.check_slot(slot) is None:
            state.files.tombstones.add(Tombstone((state.applied + 1,), partition_of(slot), "t", (), 0, 0))
        return
    row = _decode_row(payload)
    if state.writes.check_slot(row.slot) is None:
        state.files.manifest.add([row])


def partition_of(slot: int) -> PartitionKey:
    return PartitionKey("s", slot, 0)


def _numbers(state: DataState, slot: int) -> set[str]:
    """Rows of a slot that are not deleted, by their hash, which an adoption does not change."""
    deletes = state.files.tombstones.of(partition_of(slot), "t")
    return {f.xxh3 for f in state.files.manifest.of_slot(slot) if not any(t.masks(f) for t in deletes)}


def _content(pulled: Pulled) -> list[tuple[int, list[str], int]]:
    """Files and deletes of each slot; equal for equal copies."""
    return [(p.slot, sorted(f.xxh3 for f in p.files), len(p.tombstones)) for p in pulled]


def begun_operation(number: int, moves: Sequence[SlotMove], members: Sequence[GroupChange]) -> bytes:
    op = Operation(
        f"op-{number}",
        "rebalance",
        "",
        "",
        0,
        number,
        number + 1,
        list(moves),
        list(members),
        Options(),
        meta_ready=True,
    )
    changes.advance(op, 0)
    return encode_state(op)


def members_of(op: Operation, change: GroupChange) -> tuple[NodeId, ...]:
    """Members of the group at the operation's stage: the new ones in DONE, else the old ones."""
    return change.after if op.stage is Stage.DONE else change.before


class MigrationState:
    """The groups of a slot migration, their replicas, and the staged copies."""

    def __init__(
        self,
        owners: Mapping[GroupId, Ranges],
        moves: Sequence[SlotMove],
        left: MigrationBounds,
        members: Sequence[GroupChange] = (),
    ) -> None:
        """
        Args:
            members: groups whose members change with the operation.
        """
        _after.cache_clear()
        self.owners = owners
        before: dict[GroupId, tuple[NodeId, ...]] = {}
        for move in moves:
            before[move.source], before[move.target] = move.source_members, move.target_members
        before |= {change.group: change.before for change in members}
        after = {n for change in members for n in change.after}
        self.nodes = sorted({*after, *(n for names in before.values() for n in names)})
        self.configs = {group: Config(before[group]) for group in owners}
        self.left = left
        self.views: tuple[bytes, ...] = (begun_operation(1, moves, members),)
        """All states of the operations in the meta group, newest last."""

        self.logs: dict[GroupId, Log] = dict.fromkeys(owners, ())
        self.replicas: dict[tuple[GroupId, NodeId], Replica] = {
            (g, n): Replica() for g in owners for n in before[g]
        }
        self.made: frozenset[tuple[str, GroupId, NodeId]] = frozenset()
        """Newcomers that can receive a state, by operation: nothing of an earlier replica is left."""

        self.copies: dict[tuple[str, GroupId, NodeId, Ranges], Pulled] = {}
        """Staged files by operation, target, node and slots of the unit."""

        self.evidence: frozenset[bytes] = frozenset()
        self.written: dict[int, frozenset[str]] = {}
        """By slot: rows that were acknowledged and not deleted."""

        self.deleted: dict[int, frozenset[str]] = {}
        """By slot: rows whose delete was acknowledged."""

    def head(self, group: GroupId) -> DataState:
        return _after(group, self.owners[group], b"", self.logs[group])

    def at(self, group: GroupId, node: NodeId) -> DataState:
        return self._state(group, self.replicas[group, node], self.replicas[group, node].applied)

    def _coming(self, group: GroupId, node: NodeId) -> DataState:
        """The state of a member after it applies the whole log; the current state of a non-member."""
        replica = self.replicas[group, node]
        is_member = node in self.configs[group].members
        return self._state(group, replica, len(self.logs[group]) if is_member else replica.applied)

    def _state(self, group: GroupId, replica: Replica, applied: int) -> DataState:
        log = self.logs[group][replica.begun : applied]
        return _after(group, self.owners[group], replica.origin, log)

    def op(self, view: int = -1) -> Operation:
        return _decode_operation(self.views[view])

    def _is_head(self, group: GroupId, node: NodeId) -> bool:
        replica = self.replicas.get((group, node))
        return replica is not None and replica.applied == len(self.logs[group])

    def _known(self) -> list[Any]:
        """Everything except the remaining bounds."""
        return [
            self.logs,
            self.replicas,
            self.configs,
            self.made,
            self.views,
            self.evidence,
            self.copies,
        ]

    def _spend(self, what: str) -> None:
        left: dict[str, Any] = {what: getattr(self.left, what) - 1}
        self.left = replace(self.left, **left)

    def _apply(self, group: GroupId, node: NodeId) -> None:
        replica = self.replicas[group, node]
        self._is_staged(group, node, self.logs[group][replica.applied])
        self.replicas[group, node] = replace(replica, applied=replica.applied + 1)

    def _is_staged(self, group: GroupId, node: NodeId, encoded: bytes) -> None:
        """Check that a member that applies an `Adopt` has staged the files it adopts."""
        command = data.decode(encoded)
        if isinstance(command, data.Adopt) and command.operation in self.at(group, node).slots.arriving:
            staged = (command.operation, group, node, command.slots) in self.copies
            assert staged, f"S10: {node} adopts {command.slots} in {group} without a copy"

    def _log(self, group: GroupId, command: data.Command) -> None:
        self._append(group, data.encode(command))

    def _append(self, group: GroupId, command: bytes) -> None:
        """Append a command. Members of a group that loses no slots apply it at once, because their lag has no
        effect."""
        log = self.logs[group] = (*self.logs[group], command)
        if group in self.op().losing:
            return
        for (of, node), replica in list(self.replicas.items()):
            if of == group and node in self.configs[group].members:
                for _ in range(replica.applied, len(log)):
                    self._apply(group, node)

    def _differ(self, op: Operation, group: GroupId) -> bool:
        """Whether the members of a gaining group have different copies."""
        found: dict[Ranges, list[Any]] = {}
        for (operation, target, node, slots), pulled in self.copies.items():
            if (operation, target) == (op.id, group) and node in op.required(group):
                found.setdefault(slots, []).append(_content(pulled))
        return any(copy != copies[0] for copies in found.values() for copy in copies)

    def _check(self) -> None:
        op = self.op()
        heads = {group: self.head(group) for group in self.logs}
        for slot in {s for move in op.moves for s in expand(move.slots)}:
            takers = [g for g, state in heads.items() if slot in state.slots.open]
            assert len(takers) <= 1, f"S8: {takers} all accept writes of slot {slot}"
            held = (_numbers(self._coming(group, node), slot) for group, node in self.replicas)
            lost = self._written_in(slot).difference(*held)
            assert not lost, f"S10: rows of slot {slot} are lost"
        if op.ended:
            self._check_end(op, heads)

    def _written_in(self, slot: int) -> frozenset[str]:
        return self.written.get(slot, frozenset())

    def rest(self) -> None:
        """Every operation ends, unless copies differ: then it waits for an operator."""
        op = self.op()
        waits = op.stage is Stage.COPYING and any(self._differ(op, group) for group in op.gaining)
        assert op.ended or waits, f"L2: {op.id} stays in {op.stage}"

    def _check_end(self, op: Operation, heads: Mapping[GroupId, DataState]) -> None:
        for move in op.moves:
            owner = move.source if op.stage is Stage.CANCELLED else move.target
            for slot in expand(move.slots):
                taken = slot in heads[owner].slots.open
                assert taken, f"L2: {op.id} ended and {owner} accepts no writes of slot {slot}"
                for node in self.configs[owner].voters:
                    lacks = self._written_in(slot) - _numbers(self._coming(owner, node), slot)
                    assert not lacks, f"S9: {op.id} ended and {node} lacks rows of slot {slot} in {owner}"
                    back = self.deleted.get(slot, frozenset()) & _numbers(self._coming(owner, node), slot)
                    assert not back, (
                        f"S8: {op.id} ended and deleted rows of slot {slot} are back in {owner} on {node}"
                    )
        for change in op.changes:
            config = self.configs[change.group]
            settled = sorted(config.voters) == sorted(members_of(op, change)) and not config.learners
            assert settled, f"L4: {op.id} ended and the config of {change.group} is {config}"
        for group, state in heads.items():
            slots = state.slots
            assert not slots.sealed, f"L4: {op.id} ended and {group} still has sealed slots {slots.sealed}"
            assert not slots.arriving, f"L4: {op.id} ended and {group} still waits for {slots.arriving}"

    def name(self) -> bytes:
        left = self.left
        replicas = [(*key, r.applied, r.origin, r.begun) for key, r in self.replicas.items()]
        configs = [(group, c.voters, c.learners) for group, c in self.configs.items()]
        counts = [getattr(left, field) for field in MigrationBounds.__slots__]
        copies = sorted((*key, moving.digest(pulled)) for key, pulled in self.copies.items())
        made = sorted(self.made)
        state = [self.logs, replicas, configs, made, self.views, sorted(self.evidence), copies, counts]
        return digest(state, 0, ())
