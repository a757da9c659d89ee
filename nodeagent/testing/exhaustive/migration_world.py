"""Slot migration between groups: the real `scaling`, `meta.changes` and `data`, without Raft.

A group is its committed log and config, and each replica's applied index. Any voter that has applied the
whole log may act as leader, by any view of the operation that the meta group ever had. Progress reports
arrive at any later time, any number of times. A row is a file that its write adds to the manifest, and a
delete covers all rows of its slot. A leader sends a state to a newcomer; a node that is no longer a member,
by some view, drops its replica.
"""

from collections.abc import Sequence

import msgspec

from nodeagent.data import commands as data
from nodeagent.data.checkpoint import encode_checkpoint
from nodeagent.data.slot_migration import part_of
from nodeagent.data.slots import expand
from nodeagent.data.state import DataState
from nodeagent.meta import changes
from nodeagent.meta import commands as meta
from nodeagent.model.entries import Config
from nodeagent.model.files import TSFILE, FileMeta, PulledSlot
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import CopyRecord, GroupChange, Operation, SlotMove, Stage
from nodeagent.scaling import groups, membership, moving
from nodeagent.testing.exhaustive.migration import (
    DELETE,
    MigrationState,
    Pulled,
    Replica,
    begun_operation,
    encode_state,
    members_of,
    partition_of,
)

LIFE = "life"
"""The incarnation of every node."""


def _row(slot: int, index: int, number: int) -> FileMeta:
    name = f"{slot:05d}-{index:012d}-0000{TSFILE}"
    return FileMeta(name, slot, partition_of(slot), "t", (index,), 1, f"{number:032x}", 1, 0, 0, (1, 0, 0))


def _spoilt(pulled: Pulled) -> Pulled:
    """The copy without one delete or file of its first slot that has any; unchanged if no slot has any."""
    for at, slot in enumerate(pulled):
        if slot.tombstones or slot.files:
            lacks = {"tombstones": slot.tombstones[1:]} if slot.tombstones else {"files": slot.files[1:]}
            return (*pulled[:at], msgspec.structs.replace(slot, **lacks), *pulled[at + 1 :])
    return pulled


def _pulled(state: DataState, slot: int) -> PulledSlot:
    """What `host.sources` offers: without deletes that mask nothing, because some members may have forgotten
    them already."""
    files = state.files.manifest.of_slot(slot)
    deletes = state.files.tombstones.of(partition_of(slot), "t")
    return PulledSlot(slot, files, tuple(t for t in deletes if any(t.masks(f) for f in files)))


def _back(move: SlotMove) -> SlotMove:
    return SlotMove(move.slots, move.target, move.target_members, move.source, move.source_members)


def _undone(change: GroupChange) -> GroupChange:
    return GroupChange(change.group, change.leaves, change.joins, change.after, change.before)


class MigrationWorld(MigrationState):
    """A state of the migration. An event is a verb, the node or group that it concerns, and more words."""

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
                for node in {*change.before, *change.after} - set(members_of(op, change)):
                    if (group, node) in self.replicas and (op.id, group, node) not in self.made:
                        events.append(f"drop {group} {node} {view}")
        for group, config in self.configs.items():
            lacking = [n for n in config.members if (group, n) not in self.replicas]
            heads = [n for n in config.voters if self._is_head(group, n)]
            events += [f"send {group} {leader} {node}" for node in lacking for leader in heads]
        return sorted(set(events))

    def _sources(self, view: int) -> list[NodeId]:
        op = self.op(view)
        return sorted({n for m in op.moves for n in m.source_members}) if op.stage is Stage.COPYING else []

    # --- what happens ------------------------------------------------------------------------------

    def after(self, event: str) -> "MigrationWorld":
        world = MigrationWorld.__new__(MigrationWorld)
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

    def _look(self, view: str) -> Operation:
        if int(view) < len(self.views) - 1:
            self._spend("stale")
        return self.op(int(view))

    def _tell(self, at: str) -> None:
        command = meta.decode(sorted(self.evidence)[int(at)])
        assert isinstance(command, meta.ProgressReport)
        self._record(command)

    def _cancel(self) -> None:
        self._spend("cancels")
        self._record(meta.ControlOperation(0, self.op().id, "cancel", "somebody"))

    def _change(self) -> None:
        self._spend("changes")
        before = self.op()
        moves, members = before.moves, before.changes
        if before.stage is not Stage.CANCELLED:
            moves, members = [_back(move) for move in moves], [_undone(change) for change in members]
        number = 1 + len({self.op(view).id for view in range(len(self.views))})
        self.views = (*self.views, begun_operation(number, moves, members))

    def _record(self, command: meta.ProgressReport) -> None:
        op = self.op()
        if op.ended or command.operation != op.id or changes.record(op, command) is not None:
            return
        changes.advance(op, 0)
        if (encoded := encode_state(op)) != self.views[-1]:
            self.views = (*self.views, encoded)

    def _write(self, group: GroupId, slot: str) -> None:
        self._spend("writes")
        row = _row(int(slot), self.head(group).applied + 1, self.left.writes)
        self._log(group, data.Opaque(encode_state(row)))
        self.written[row.slot] = self.written.get(row.slot, frozenset()) | {row.xxh3}

    def _delete(self, group: GroupId, slot: str) -> None:
        self._spend("deletes")
        self._log(group, data.Opaque(DELETE + slot.encode()))
        gone = self.written.pop(int(slot), frozenset())
        self.deleted[int(slot)] = self.deleted.get(int(slot), frozenset()) | gone

    def _again(self, group: GroupId, at: str) -> None:
        self._spend("again")
        self._append(group, self.logs[group][int(at)])

    def _act(self, group: GroupId, node: NodeId, view: str) -> None:
        """Let the node lead the group and take its next actions."""
        op = self._look(view)
        if op.ended:
            return
        config = self.configs[group]
        look = groups.GroupView(
            group,
            node,
            self.at(group, node),
            config,
            lambda n: self._is_head(group, n),
            dict.fromkeys(self.nodes, LIFE),
            lambda _: False,
            0,
        )
        for action in groups.next_actions(op, look):
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
            serves = not is_source or self.at(group, node).is_source_ready(op.id)
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
        """Log adoptions as `SlotCopier.adopt_commands` does."""
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
        reports = groups.joins_to_report(op, node, {group}, 0)
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
        if state.adoptions.waiting or any(s.metadata_only and o in is_source for o, s in sealed.items()):
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
        reports = groups.sources_to_report(self._look(view), node, states, 0)
        self.evidence |= {meta.encode(r.command) for r in reports}

    def _copy(self, node: NodeId, source: NodeId, view: str) -> None:
        """Let the node pull the files it lacks from a source, or use its own, as `SlotCopier` does."""
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
        for unit in moving.units_to_copy(op, moving.units(op), node, LIFE):
            move = unit.move
            if (move.source, source) not in self.replicas or source not in move.source_members:
                continue
            state = self.at(move.source, source)
            if state.is_source_ready(op.id) and (op.id, move.target, node, unit.slots) not in self.copies:
                found.append((unit, tuple(_pulled(state, slot) for slot in sorted(expand(unit.slots)))))
        return found

    def _stage(self, op: Operation, node: NodeId, unit: moving.Unit, pulled: Pulled) -> None:
        target = unit.move.target
        self.copies[op.id, target, node, unit.slots] = pulled
        copy = CopyRecord(target, node, LIFE, unit.slots, moving.digest(pulled), len(pulled), 0)
        self.evidence |= {meta.encode(meta.Copied(0, op.id, copy))}
