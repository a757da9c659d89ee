"""What the writers and readers of a simulated cluster share: tables, their history, and a client's view.

Each writer owns its series and writes increasing values to a few timestamps of each, one or more rows at a
time, and retries with the same session and sequence until the write is acknowledged. So for every (series,
timestamp) a strong read must return a value between the last one acknowledged before the read began and the
last one sent: linearizability per cell, checked during the run. A delete has a number like a value; after it
a read must find nothing until a newer value is written. Tables may gain columns during a run; a series is one
column of one device, so a row that omits a column leaves its older value in place.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from nodeagent.model import requests as q
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Operation
from nodeagent.model.requests import ErrorReply, MetaView, Reply
from nodeagent.model.schema import Column, TableSchema
from nodeagent.partition.ranges import to_slots
from nodeagent.testing.node import SimNode
from nodeagent.testing.sim import CLIENT, Sim

TABLE = "m"
RETRY_MS = 25
EXPIRING = "root.expiring"
"""A storage group whose rows have the current time and expire after `TTL_MS`."""

TTL_MS = 6_000


class WriteProfile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the writers of a run write."""

    rows: int = 1
    """Maximum number of rows of a write."""

    times: int = 2
    """Number of timestamps of a device in a time partition."""

    fields: int = 1
    """Number of fields that each table may have: it begins with one and gains the others one by one."""

    writers: int = 2
    """Number of concurrent writers."""


PLAIN_HABITS = WriteProfile()


def field_of(number: int) -> str:
    """The name of a table's field number `number`, from 0; the column `device` does not count."""
    return f"v{number or ''}"


def schema_of(storage_group: str, fields: int = 1) -> TableSchema:
    """The schema with `fields` fields; their number is also its version."""
    columns = (Column(field_of(i), "INT64", False) for i in range(fields))
    return TableSchema(storage_group, TABLE, fields, (Column("device", "STRING", True), *columns))


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    storage_group: str
    device: str
    time: int
    field: str = "v"


@dataclass(slots=True)
class History:
    fields: dict[str, int] = field(default_factory=dict)
    """By storage group: number of fields that a reply stated for its table; 1 if absent."""

    sent: dict[Cell, int] = field(default_factory=dict)
    acked: dict[Cell, int] = field(default_factory=dict)
    deleted: dict[Cell, int] = field(default_factory=dict)
    """The newest delete that was sent; its number is from the same sequence as the values."""

    expired: set[Cell] = field(default_factory=set)
    """Acknowledged and not deleted cells that a strong read no longer returned."""

    change_began: int = 0
    """When the newest change was requested."""

    moves: dict[tuple[GroupId, int], list[tuple[int, str, bool]]] = field(default_factory=dict)
    """(group, slot) -> (time of the request, operation, whether the slot left) of each change that moved the
    slot from or to the group and was not cancelled."""

    acks: dict[Cell, list[int]] = field(default_factory=dict)
    """All acknowledged values, ascending."""

    acked_at: dict[Cell, list[tuple[int, int]]] = field(default_factory=dict)
    """(time, value) of all acknowledged values, ascending."""

    ops: dict[tuple[str, int, int], tuple[tuple[Cell, ...], int]] = field(default_factory=dict)
    """By (session, slot, sequence), as in the log: the cells and their value."""

    lost_sessions: set[str] = field(default_factory=set)
    """Sessions opened by entries that no living node has."""

    reads: int = 0
    writes: int = 0
    longest_gap_ms: int = 0

    def note_moves(self, operation: Operation) -> None:
        """Note the slot moves of the newest change."""
        for move in operation.moves:
            for slot in to_slots(move.slots):
                for group, left in ((move.source, True), (move.target, False)):
                    event = (self.change_began, operation.id, left)
                    self.moves.setdefault((group, slot), []).append(event)

    def forget_moves(self, operation: str) -> None:
        """Drop the moves of a cancelled change."""
        for key, events in self.moves.items():
            self.moves[key] = [e for e in events if e[1] != operation]

    def had_left(self, group: GroupId, slot: int, at: int) -> bool:
        """Whether the slot's last move requested before or at `at` took it from the group."""
        lefts = [left for began, _, left in self.moves.get((group, slot), ()) if began <= at]
        return bool(lefts) and lefts[-1]

    def schema(self, storage_group: str) -> TableSchema:
        """The table's schema, not older than any that a reply stated."""
        return schema_of(storage_group, self.fields.get(storage_group, 1))

    def lose(self, ops: Iterable[tuple[str, int, int]]) -> int:
        """Note that only these writes may be lost; returns how many acknowledged values (one per cell) they
        had."""
        before = sum(map(len, self.acks.values()))
        for cell, value in ((cell, value) for op in ops for cells, value in [self.ops[op]] for cell in cells):
            left = self.acks[cell] = [v for v in self.acks.get(cell, ()) if v != value]
            self.acked.pop(cell, None)
            if left:
                self.acked[cell] = left[-1]
        return before - sum(map(len, self.acks.values()))


class View:
    """A client's view of the cluster, refreshed from any node that answers."""

    def __init__(self, sim: Sim[SimNode], seeds: list[NodeId]) -> None:
        self.sim = sim
        self.nodes = list(seeds)
        self.meta: MetaView | None = None
        self.leaders: dict[GroupId, NodeId] = {}
        self._asking = False

    def refresh(self) -> None:
        if self._asking:
            return
        self._asking = True
        target = self.sim.rng.choice(self.nodes)
        self.sim.call(CLIENT, target, q.GetMeta(any_age=True), self._on_meta)

    def _on_meta(self, reply: Reply) -> None:
        self._asking = False
        if isinstance(reply, MetaView) and (self.meta is None or reply.applied >= self.meta.applied):
            self.meta = reply
            self.nodes = sorted({*self.nodes, *(n.node for n in reply.nodes)})

    def group(self, slot: int) -> tuple[GroupId, tuple[NodeId, ...]] | None:
        if self.meta is None:
            return None
        owner = next(h for a, b, h in self.meta.owners if a <= slot < b)
        record = next((g for g in self.meta.groups if g.owner == owner and not g.dissolving), None)
        return (record.group, record.members) if record else None

    def target(self, group: GroupId, members: tuple[NodeId, ...]) -> NodeId:
        hint = self.leaders.get(group)
        return hint if hint is not None else self.sim.rng.choice(members)

    def learn(self, group: GroupId, reply: ErrorReply) -> None:
        """Choose the next target after an error."""
        self.leaders.pop(group, None)
        leader = reply.details.get("leader")
        if reply.code == "not_leader" and isinstance(leader, str):
            self.leaders[group] = leader
        else:
            self.refresh()
