"""Nodes are added one after the other under writers that write in every slot: the largest sizes of what is
sent, logged and stored for their sessions, and of the meta group's replies.

`python -m tests.scaling.eight_changes 2000 10000` takes some minutes and prints the figures of the full size.
"""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from nodeagent.data import commands as data
from nodeagent.data.checkpoint import encode_checkpoint
from nodeagent.data.slot_migration import part_of, seal_result
from nodeagent.data.state import DataState, initial
from nodeagent.host.handlers.views import meta_view
from nodeagent.meta import commands as c
from nodeagent.model.entries import Config, Entry, EntryKind
from nodeagent.model.ids import GroupId
from nodeagent.model.operation import CopyRecord, Operation, SealResult, Stage
from nodeagent.model.requests import Reply, SealedSessions, SessionOpened
from nodeagent.partition.ranges import from_slots, union
from nodeagent.scaling import moving
from nodeagent.wire.codec import encode_reply
from tests.meta.test_changes import Meta, reports_of

WRITES = 100
"""Number of writes of each writer in each slot."""


@dataclass
class Largest:
    meta_reply: int = 0
    meta_checkpoint: int = 0
    meta_entry: int = 0
    data_checkpoint: int = 0
    data_entry: int = 0
    sessions_reply: int = 0

    def see(self, what: str, size: int) -> None:
        setattr(self, what, max(getattr(self, what), size))


@dataclass
class Cluster:
    writers: int
    meta: Meta
    groups: dict[GroupId, DataState] = field(default_factory=dict)
    largest: Largest = field(default_factory=Largest)

    def do(self, group: GroupId, command: data.Command) -> Reply:
        state = self.groups[group]
        entry = Entry(1, int(EntryKind.COMMAND), data.encode(command))
        self.largest.see("data_entry", len(entry.data))
        return state.apply(state.applied + 1, [entry], 0)[0][1]

    def tell(self, evidence_: c.ProgressReport) -> None:
        self.largest.see("meta_entry", len(c.encode(evidence_)))
        self.meta.do(evidence_)
        self.look()

    def look(self) -> None:
        state = self.meta.state
        raft: Any = SimpleNamespace(leader="a", term=1, log=SimpleNamespace(config=Config(("a",))))
        view = meta_view("a", SimpleNamespace(raft=raft, state=state), 0)  # type: ignore[arg-type]
        self.largest.see("meta_reply", len(encode_reply(1, view)))
        self.largest.see("meta_checkpoint", len(state.encode()))

    def save(self, group: GroupId) -> None:
        self.largest.see("data_checkpoint", len(encode_checkpoint(self.groups[group].checkpoint())))

    def write(self, group: GroupId, slots: set[int]) -> None:
        """Every writer writes in every slot, in its own session."""
        state = self.groups[group]
        for _ in range(self.writers):
            reply = self.do(group, data.OpenSession())
            assert isinstance(reply, SessionOpened)
            for slot in slots:
                state.sessions.record(reply.session, slot, WRITES, WRITES - 1)
        self.save(group)

    # --- one change --------------------------------------------------------------------------------

    def add(self, name: str) -> None:
        self.meta.begin("add-node", name)
        op = self.meta.op
        assert op.created_group is not None
        self.groups[op.created_group] = initial(op.created_group, ())
        for stage in (
            Stage.PLANNED,
            Stage.SEALED,
            Stage.OPEN,
            Stage.RECONFIGURING,
            Stage.COPYING,
            Stage.CLEANUP,
        ):
            self._carry_out(op, stage)
            for one in reports_of(op, stage):
                if not isinstance(one, c.SealedBy):
                    self.tell(one)
        assert op.stage is Stage.DONE

    def _carry_out(self, op: Operation, stage: Stage) -> None:
        if stage is Stage.SEALED:
            for group in op.losing:
                self.do(group, data.Seal(op.id, op.table_version, _slots(op, source=group)))
                self.save(group)
                self.tell(c.SealedBy(3, op.id, self._sealed(op, group)))
        elif stage is Stage.OPEN:
            for group in op.gaining:
                self._open(op, group)
        elif stage is Stage.COPYING:
            for unit in moving.units(op):
                for node in unit.move.target_members:
                    copy = CopyRecord(unit.move.target, node, "i", unit.slots, "d" * 32, 1, 1)
                    self.meta.do(c.Copied(3, op.id, copy))
            self.look()
        elif stage is Stage.CLEANUP:
            for group in op.losing:
                self.do(group, data.Release(op.id, op.table_version))

    def _sealed(self, op: Operation, group: GroupId) -> SealResult:
        sealed = self.groups[group].slots.sealed[op.id]
        return seal_result(group, sealed.index, sealed.sessions)

    def _open(self, op: Operation, group: GroupId) -> None:
        sources = sorted({m.source for m in op.moves if m.target == group})
        for source in sources:
            table = self.groups[source].slots.sealed[op.id].sessions
            for number in range(len(op.sealed[source].parts)):
                part = part_of(table, number)
                self.largest.see("sessions_reply", len(encode_reply(1, SealedSessions(part))))
                self.do(group, data.OpenSessions(op.id, source, number, part))
        self.save(group)
        slots = _slots(op, target=group)
        results = tuple(op.sealed[s] for s in sources)
        self.do(group, data.Open(op.id, op.table_version, slots, results))
        opened = self.groups[group].slots.open & {s for a, b in slots for s in range(a, b)}
        assert from_slots(opened) == slots
        self.groups[group].slots.arriving.clear()  # its files are adopted
        self.write(group, opened)


def _slots(op: Operation, source: GroupId = "", target: GroupId = "") -> tuple[tuple[int, int], ...]:
    return union(*(m.slots for m in op.moves if m.source == source or m.target == target))


def run(writers: int, slots: int, *, first: int = 3, changes: int = 8) -> Largest:
    """Grow a cluster of `first` nodes by `changes`; every writer repeats its writes to the moved slots."""
    names = [f"node{i}" for i in range(1, first + changes + 1)]
    cluster = Cluster(writers, Meta(names[:first], slots))
    for record in cluster.meta.state.image.groups.values():
        cluster.groups[record.group] = initial(record.group, record.initial_slots)
        cluster.write(record.group, cluster.groups[record.group].slots.open)
    for name in names[first:]:
        cluster.add(name)
    assert len(cluster.meta.state.image.nodes) == len(names)
    return cluster.largest


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int(sys.argv[2])))
