"""Slot migration between groups: the real `scaling`, `meta.changes` and `data`, without Raft.

A group is its committed log and config, and each replica's applied index. Any voter that has applied the
whole log may act as leader, by any view of the operation that the meta group ever had. Progress reports
arrive at any later time, any number of times. A row is a file that is in the manifest at once, and a delete
covers all rows of its slot. A leader sends a state to a newcomer; a node that is no longer a member, by some
view, drops its replica.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec

from nodeagent.data import commands as data
from nodeagent.data.checkpoint import decode_checkpoint, encode_checkpoint
from nodeagent.data.handover import part_of
from nodeagent.data.slots import expand
from nodeagent.data.state import DataState, initial
from nodeagent.meta import changes
from nodeagent.meta import commands as meta
from nodeagent.model.entries import Config, Entry, EntryKind
from nodeagent.model.files import TSFILE, FileMeta, PulledSlot, Tombstone
from nodeagent.model.ids import GroupId, NodeId, PartitionKey
from nodeagent.model.jobs import AdoptFiles
from nodeagent.model.operation import CopyRecord, GroupChange, Operation, Options, Ranges, SlotMove, Stage
from nodeagent.scaling import groups, membership, moving
from nodeagent.testing.exhaustive.fork import digest

LIFE = "life"
"""The incarnation of every node."""

_encode = msgspec.msgpack.Encoder().encode
_decode_operation = msgspec.msgpack.Decoder(Operation).decode
_decode_row = msgspec.msgpack.Decoder(FileMeta).decode

Log = tuple[bytes, ...]
Pulled = tuple[PulledSlot, ...]

DELETE = b"delete "
"""Prefix of a command that deletes all rows of a slot; the slot number follows."""


@dataclass(frozen=True, slots=True)
class HandoverBounds:
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
    """The group's state after these commands, which follow `origin` if it is given. Must not be changed."""
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
            state.files.tombstones.add(Tombstone((state.applied + 1,), _partition(slot), "t", (), 0, 0))
        return
    row = _decode_row(payload)
    if state.writes.check_slot(row.slot) is None:
        state.files.manifest.add([row])


def _partition(slot: int) -> PartitionKey:
    return PartitionKey("s", slot, 0)


def _row(slot: int, index: int, number: int) -> FileMeta:
    name = f"{slot:05d}-{index:012d}-0000{TSFILE}"
    return FileMeta(name, slot, _partition(slot), "t", (index,), 1, f"{number:032x}", 1, 0, 0, (1, 0, 0))


def _numbers(state: DataState, slot: int) -> set[str]:
    """Rows of a slot that are not deleted, by their hash, which an adoption does not change."""
    deletes = state.files.tombstones.of(_partition(slot), "t")
    return {f.xxh3 for f in state.files.manifest.of_slot(slot) if not any(t.masks(f) for t in deletes)}


def _content(pulled: Pulled) -> list[tuple[int, list[str], int]]:
    """Files and deletes of each slot; equal for equal copies."""
    return [(p.slot, sorted(f.xxh3 for f in p.files), len(p.tombstones)) for p in pulled]


def _spoilt(pulled: Pulled) -> Pulled:
    """The copy without one delete or file of its first slot that has any; unchanged if no slot has any."""
    for at, slot in enumerate(pulled):
        if slot.tombstones or slot.files:
            lacks = {"tombstones": slot.tombstones[1:]} if slot.tombstones else {"files": slot.files[1:]}
            return (*pulled[:at], msgspec.structs.replace(slot, **lacks), *pulled[at + 1 :])
    return pulled


def _pulled(state: DataState, slot: int) -> PulledSlot:
    """What `host.sources` offers: without deletes that mask nothing, which only some members have
    forgotten."""
    files = state.files.manifest.of_slot(slot)
    deletes = state.files.tombstones.of(_partition(slot), "t")
    return PulledSlot(slot, files, tuple(t for t in deletes if any(t.masks(f) for f in files)))


def _begun(number: int, moves: Sequence[SlotMove], members: Sequence[GroupChange]) -> bytes:
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
    return _encode(op)


def _back(move: SlotMove) -> SlotMove:
    return SlotMove(move.slots, move.target, move.target_members, move.source, move.source_members)


def _members(op: Operation, change: GroupChange) -> tuple[NodeId, ...]:
    """Members of the group without the operation's change in progress: before its end, no node has left."""
    return change.after if op.stage is Stage.DONE else change.before


def _undone(change: GroupChange) -> GroupChange:
    return GroupChange(change.group, change.leaves, change.joins, change.after, change.before)


class HandoverWorld:
    """A state of the migration. An event is a verb, the node or group that it concerns, and more words."""

    def __init__(
        self,
        owners: Mapping[GroupId, Ranges],
        moves: Sequence[SlotMove],
        left: HandoverBounds,
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
        self.views: tuple[bytes, ...] = (_begun(1, moves, members),)
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

    # --- what may happen ---------------------------------------------------------------------------

    def events(self) -> list[str]:
        left = self.left
        events = [f"tell {at}" for at, _ in enumerate(sorted(self.evidence))]
        oldest = 0 if left.stale else len(self.views) - 1
        views = range(oldest, len(self.views))
        for (group, node), replica in self.replicas.items():
            if node not in self.configs[group].members:
                continue  # a non-member receives no entries
            if replica.applied < len(self.logs[group]):
                events.append(f"apply {group} {node}")
            elif node in self.configs[group].voters:
                events += [f"act {group} {node} {view}" for view in views]
        events += self._of_members(views)
        for node in self.nodes:
            events += [f"ready {node} {view}" for view in views]
            copies = [f"{node} {source} {view}" for view in views for source in self._sources(view)]
            events += [f"copy {copy}" for copy in copies]
            events += [f"spoil {copy}" for copy in copies if left.spoiled]
        open_slots = [(g, slot) for g in self.logs for slot in sorted(self.head(g).slots.open)]
        for verb, count in (("write", left.writes), ("delete", left.deletes)):
            events += [f"{verb} {g} {slot}" for g, slot in open_slots if count]
        if left.again:  # except deletes: sessions ensure that each takes effect once
            logged = [(g, at) for g, log in self.logs.items() for at, c in enumerate(log) if DELETE not in c]
            events += [f"again {g} {at}" for g, at in logged]
        if left.cancels:
            events.append("cancel")
        if left.changes and self.op().ended:
            events.append("change")
        return events

    def _of_members(self, views: range) -> list[str]:
        """Events of member changes: newcomers join and receive states, leavers drop their replicas."""
        events = []
        for view in views:
            op = self.op(view)
            for change in op.changes:
                group, joins = change.group, change.joins
                if joins is not None and not op.ended and (group, joins) not in self.replicas:
                    events.append(f"join {group} {joins} {view}")
                for node in {*change.before, *change.after} - set(_members(op, change)):
                    if (group, node) in self.replicas and (op.id, group, node) not in self.made:
                        events.append(f"drop {group} {node} {view}")
        for group, config in self.configs.items():
            lacking = [n for n in config.members if (group, n) not in self.replicas]
            heads = [n for n in config.voters if self._is_head(group, n)]
            events += [f"send {group} {leader} {node}" for node in lacking for leader in heads]
        return sorted(set(events))

    def _is_head(self, group: GroupId, node: NodeId) -> bool:
        replica = self.replicas.get((group, node))
        return replica is not None and replica.applied == len(self.logs[group])

    def _sources(self, view: int) -> list[NodeId]:
        op = self.op(view)
        return sorted({n for m in op.moves for n in m.source_members}) if op.stage is Stage.MOVING else []

    # --- what happens ------------------------------------------------------------------------------

    def after(self, event: str) -> "HandoverWorld":
        world = HandoverWorld.__new__(HandoverWorld)
        world.owners, world.nodes, world.left = self.owners, self.nodes, self.left
        world.views, world.logs, world.replicas = self.views, dict(self.logs), dict(self.replicas)
        world.configs, world.made = dict(self.configs), self.made
        world.copies, world.evidence = dict(self.copies), self.evidence
        world.written, world.deleted = dict(self.written), dict(self.deleted)
        verb, *words = event.split()
        getattr(world, f"_{verb}")(*words)
        if world._known() == self._known():
            return self
        world._check()
        return world

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

    def _look(self, view: str) -> Operation:
        if int(view) < len(self.views) - 1:
            self._spend("stale")
        return self.op(int(view))

    def _tell(self, at: str) -> None:
        command = meta.decode(sorted(self.evidence)[int(at)])
        assert isinstance(command, meta.Evidence)
        self._record(command)

    def _cancel(self) -> None:
        self._spend("cancels")
        self._record(meta.SteerOperation(0, self.op().id, "cancel", "somebody"))

    def _change(self) -> None:
        self._spend("changes")
        before = self.op()
        moves, members = before.moves, before.changes
        if before.stage is not Stage.CANCELLED:
            moves, members = [_back(move) for move in moves], [_undone(change) for change in members]
        number = 1 + len({self.op(view).id for view in range(len(self.views))})
        self.views = (*self.views, _begun(number, moves, members))

    def _record(self, command: meta.Evidence) -> None:
        op = self.op()
        if op.ended or command.operation != op.id or changes.record(op, command) is not None:
            return
        changes.advance(op, 0)
        if (encoded := _encode(op)) != self.views[-1]:
            self.views = (*self.views, encoded)

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

    def _write(self, group: GroupId, slot: str) -> None:
        self._spend("writes")
        row = _row(int(slot), self.head(group).applied + 1, self.left.writes)
        self._log(group, data.Opaque(_encode(row)))
        self.written[row.slot] = self.written.get(row.slot, frozenset()) | {row.xxh3}

    def _delete(self, group: GroupId, slot: str) -> None:
        self._spend("deletes")
        self._log(group, data.Opaque(DELETE + slot.encode()))
        gone = self.written.pop(int(slot), frozenset())
        self.deleted[int(slot)] = self.deleted.get(int(slot), frozenset()) | gone

    def _again(self, group: GroupId, at: str) -> None:
        self._spend("again")
        self._append(group, self.logs[group][int(at)])

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

    def _act(self, group: GroupId, node: NodeId, view: str) -> None:
        """Let the node lead the group and take its next actions."""
        op = self._look(view)
        if op.ended:
            return
        config = self.configs[group]
        look = groups.Look(
            group,
            node,
            self.at(group, node),
            config,
            lambda n: self._is_head(group, n),
            dict.fromkeys(self.nodes, LIFE),
            lambda _: False,
            0,
        )
        for action in groups.due(op, look):
            match action:
                case groups.Log(command):
                    self._log(group, command)
                case groups.Report(command):
                    self.evidence |= {meta.encode(command)}
                case groups.TakeParts(operation, parts, then):
                    self._take_parts(group, operation, parts, then)
                case groups.AdoptNow():
                    self._adopt(op, group, node)
                case groups.Reconfigure(membership.Change(wanted)):
                    self._reconfigure(op, group, node, wanted)
                case _:
                    pass

    def _reconfigure(self, op: Operation, group: GroupId, leader: NodeId, wanted: Config) -> None:
        before, self.configs[group] = set(self.configs[group].voters), wanted
        voters = set(wanted.voters)
        assert leader in voters, f"S12: {leader} leads {group} and leaves it"
        assert len(before ^ voters) <= 1, f"S12: {group} goes from {before} to {voters}"
        for node in voters - before:
            assert self._is_head(group, node), f"S12: {node} becomes a voter of {group} before it caught up"
        for node in before - voters:
            is_source = any(m.source == group and node in m.source_members for m in op.moves)
            serves = not is_source or self.at(group, node).sealed_ready(op.id)
            assert serves, f"S9: {node} leaves {group} and cannot serve its files for {op.id}"

    def _take_parts(
        self, group: GroupId, operation: str, parts: Sequence[groups.Part], then: data.Open | None
    ) -> None:
        for part in parts:
            table = self.head(part.source).slots.sealed[operation].sessions
            self._log(
                group, data.OpenSessions(operation, part.source, part.number, part_of(table, part.number))
            )
        if then is not None:
            self._log(group, then)

    def _adopt(self, op: Operation, group: GroupId, node: NodeId) -> None:
        """Log adoptions as `Mover.adopt_commands` does."""
        units = [u for u in moving.units(op) if u.move.target == group]
        assert not self._differ(op, group), f"S10: {group} adopts copies that differ"
        staged = [self.copies.get((op.id, group, node, u.slots)) for u in units]
        index = self.head(group).slots.arriving[op.id].index
        for unit, pulled in zip(units, staged, strict=True):
            if pulled is None:
                return
            files, tombstones = moving.adoptions(index, list(pulled))
            self._log(group, data.Adopt(op.id, unit.slots, tuple(files), tuple(tombstones)))

    def _join(self, group: GroupId, node: NodeId, view: str) -> None:
        """Let a newcomer create an empty replica and report it."""
        op = self._look(view)
        self.made |= {(op.id, group, node)}
        reports = groups.joins_due(op, node, {group}, 0)
        self.evidence |= {meta.encode(r.command) for r in reports}

    def _send(self, group: GroupId, leader: NodeId, node: NodeId) -> None:
        """Send a state as `DataReplica` does: without files of leaving slots, unless the newcomer is a
        source."""
        state = self.at(group, leader)
        sources = {self.op(v).id: self.op(v) for v in range(len(self.views))}
        is_source = {
            o for o, op in sources.items() for m in op.moves if m.source == group and node in m.source_members
        }
        sealed = state.slots.sealed
        if state.adoptions.waiting or any(s.hollow and o in is_source for o, s in sealed.items()):
            return
        point = state.checkpoint({o for o in sealed if o not in is_source})
        op = self.op()
        leaving = () if op.ended or op.id in is_source else expand(groups.slots_from(op, group))
        sent = [f.name for f in point.files if f.slot in leaving]
        assert not sent, f"S9: {node} receives {sent}, whose slots leave {group}"
        saved = encode_checkpoint(point)
        applied = len(self.logs[group])
        self.replicas[group, node] = Replica(applied, saved, applied)

    def _drop(self, group: GroupId, node: NodeId, view: str) -> None:
        self._look(view)
        is_member = node in self.configs[group].members
        assert not is_member, f"S9: {node} drops its replica of {group} although it is a member"
        del self.replicas[group, node]

    def _ready(self, node: NodeId, view: str) -> None:
        """Let the node report that it is ready as a source."""
        states = {group: self.at(group, member) for group, member in self.replicas if member == node}
        reports = groups.sources_due(self._look(view), node, states, 0)
        self.evidence |= {meta.encode(r.command) for r in reports}

    def _differ(self, op: Operation, group: GroupId) -> bool:
        """Whether the members of a gaining group have different copies."""
        found: dict[Ranges, list[Any]] = {}
        for (operation, target, node, slots), pulled in self.copies.items():
            if (operation, target) == (op.id, group) and node in op.required(group):
                found.setdefault(slots, []).append(_content(pulled))
        return any(copy != copies[0] for copies in found.values() for copy in copies)

    def _copy(self, node: NodeId, source: NodeId, view: str) -> None:
        """Let the node pull the files it lacks from a source, or use its own, as `Mover` does."""
        op = self._look(view)
        for unit, pulled in self._lacking(op, node, source):
            self._stage(op, node, unit, pulled)

    def _spoil(self, node: NodeId, source: NodeId, view: str) -> None:
        """Stage an altered copy of one unit that other members copy too."""
        op = self._look(view)
        for unit, pulled in self._lacking(op, node, source):
            if len(op.required(unit.move.target)) > 1 and _spoilt(pulled) != pulled:
                self._spend("spoiled")
                self._stage(op, node, unit, _spoilt(pulled))
                return

    def _lacking(self, op: Operation, node: NodeId, source: NodeId) -> list[tuple[moving.Unit, Pulled]]:
        """Units that the node has no copies of, with the files that the source offers."""
        found = []
        for unit in moving.due(op, moving.units(op), node, LIFE):
            move = unit.move
            if (move.source, source) not in self.replicas or source not in move.source_members:
                continue
            state = self.at(move.source, source)
            if state.sealed_ready(op.id) and (op.id, move.target, node, unit.slots) not in self.copies:
                found.append((unit, tuple(_pulled(state, slot) for slot in sorted(expand(unit.slots)))))
        return found

    def _stage(self, op: Operation, node: NodeId, unit: moving.Unit, pulled: Pulled) -> None:
        target = unit.move.target
        self.copies[op.id, target, node, unit.slots] = pulled
        copy = CopyRecord(target, node, LIFE, unit.slots, moving.digest(pulled), len(pulled), 0)
        self.evidence |= {meta.encode(meta.Copied(0, op.id, copy))}

    # --- what must hold ----------------------------------------------------------------------------

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
        waits = op.stage is Stage.MOVING and any(self._differ(op, group) for group in op.gaining)
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
                    assert not back, f"S8: {op.id} ended and {owner} has deleted rows of slot {slot}"
        for change in op.changes:
            config = self.configs[change.group]
            settled = sorted(config.voters) == sorted(_members(op, change)) and not config.learners
            assert settled, f"L4: {op.id} ended and the config of {change.group} is {config}"
        for group, state in heads.items():
            slots = state.slots
            assert not slots.sealed, f"L4: {op.id} ended and {group} still has sealed slots {slots.sealed}"
            assert not slots.arriving, f"L4: {op.id} ended and {group} still waits for {slots.arriving}"

    def name(self) -> bytes:
        left = self.left
        replicas = [(*key, r.applied, r.origin, r.begun) for key, r in self.replicas.items()]
        configs = [(group, c.voters, c.learners) for group, c in self.configs.items()]
        counts = [getattr(left, field) for field in HandoverBounds.__slots__]
        copies = sorted((*key, moving.digest(pulled)) for key, pulled in self.copies.items())
        made = sorted(self.made)
        state = [self.logs, replicas, configs, made, self.views, sorted(self.evidence), copies, counts]
        return digest(state, 0, ())
