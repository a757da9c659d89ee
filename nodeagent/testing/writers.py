"""Writers of a simulated cluster, and the client that adds columns to tables."""

from dataclasses import dataclass, replace

import pyarrow as pa

from nodeagent.model import requests as q
from nodeagent.model.ids import GroupId, NodeId, PartitionKey
from nodeagent.model.requests import ErrorReply, Reply
from nodeagent.model.schema import TableSchema
from nodeagent.partition.hash import slot_of
from nodeagent.table import arrow
from nodeagent.testing.node import SimNode
from nodeagent.testing.sim import CLIENT, WALL_START_MS, Sim
from nodeagent.testing.workload import (
    EXPIRING,
    PLAIN_HABITS,
    RETRY_MS,
    TABLE,
    Cell,
    History,
    View,
    WriteProfile,
    schema_of,
)

DELETES = 0.1


@dataclass(slots=True)
class _Op:
    cells: tuple[Cell, ...]
    """Cells of one device, by time and field; for a delete, all that it covers, whether they exist or not."""

    schema: TableSchema
    value: int
    partition: PartitionKey
    slot: int
    delete: bool
    session: str = ""
    sequence: int = 0
    since: int = 0
    opened: int = 0
    """When its session was opened."""


class Writer:
    """A client that sends one write after the other until `stopping`."""

    def __init__(
        self,
        sim: Sim[SimNode],
        name: str,
        view: View,
        history: History,
        groups: list[str],
        habits: WriteProfile = PLAIN_HABITS,
    ) -> None:
        self.sim = sim
        self.name = name
        self.view = view
        self.history = history
        self.groups = groups
        self.habits = habits
        self.stopping = False
        self.idle = True
        self._sessions: dict[GroupId, tuple[str, int]] = {}
        """By group: the session, and when it was opened."""

        self._sequences: dict[tuple[str, int], int] = {}
        self._value = 0

    def start(self) -> None:
        self.idle = False
        self._next()

    def _next(self) -> None:
        meta = self.view.meta
        if self.stopping:
            self.idle = True
            return
        if meta is None:
            self.view.refresh()
            self.sim.at(RETRY_MS, self._next)
            return
        rng = self.sim.rng
        interval = meta.settings.time_partition_interval_ms
        first = self._choose(interval)
        week = first.time // interval
        partition = PartitionKey(first.storage_group, week, 0)
        slot = slot_of(first.storage_group, week, 0, meta.settings)
        self._value += 1
        delete = rng.random() < DELETES
        schema = self.history.schema(first.storage_group)
        cells = self._cells(first, schema, delete)
        for cell in cells:
            self.history.sent[cell] = self._value
            if delete:
                self.history.deleted[cell] = self._value
        self._send(_Op(cells, schema, self._value, partition, slot, delete, since=self.sim.now))

    def _choose(self, interval: int) -> Cell:
        """The first cell of the next write."""
        rng = self.sim.rng
        week, group = rng.randrange(4), rng.choice(self.groups)
        return Cell(group, self.name, week * interval + rng.randrange(self.habits.times))

    def _cells(self, first: Cell, schema: TableSchema, delete: bool) -> tuple[Cell, ...]:
        """The cells of some consecutive rows: for a delete all fields, otherwise at least one per row."""
        rng, fields = self.sim.rng, schema.fields
        rows = rng.randint(1, self.habits.rows) if self.habits.rows > 1 else 1
        cells = []
        for time in range(first.time, first.time + rows):
            some = fields if delete or len(fields) == 1 else rng.sample(fields, rng.randint(1, len(fields)))
            cells += [replace(first, time=time, field=name) for name in fields if name in some]
        return tuple(cells)

    def _send(self, op: _Op) -> None:
        place = self.view.group(op.slot)
        if place is None:
            self.view.refresh()
            self.sim.at(RETRY_MS, lambda: self._send(op))
            return
        group, members = place
        if not op.session:
            session = self._sessions.get(group)
            if session is None:
                self._open(group, members, op)
                return
            op.session, op.opened = session
            key = (op.session, op.slot)
            op.sequence = self._sequences[key] = self._sequences.get(key, 0) + 1
            self.history.ops[op.session, op.slot, op.sequence] = (op.cells, op.value)
        meta = self.view.meta
        assert meta is not None
        request: q.Request
        if op.delete:
            request = q.DeleteRows(
                group,
                op.slot,
                op.partition,
                TABLE,
                op.session,
                op.sequence,
                op.sequence - 1,
                (("device", op.cells[0].device),),
                op.cells[0].time,
                op.cells[-1].time,
            )
        else:
            request = q.Write(
                group,
                op.slot,
                op.partition,
                TABLE,
                op.schema.version,
                op.session,
                op.sequence,
                op.sequence - 1,
                meta.table_version,
                _rows(op),
            )
        self.sim.call(CLIENT, self.view.target(group, members), request, lambda r: self._on(op, group, r))

    def _open(self, group: GroupId, members: tuple[NodeId, ...], op: _Op) -> None:
        def opened(reply: Reply) -> None:
            if isinstance(reply, q.SessionOpened):
                self._sessions[group] = (reply.session, self.sim.now)
                self._send(op)
            else:
                assert isinstance(reply, ErrorReply), reply
                self.view.learn(group, reply)
                self.sim.at(RETRY_MS, lambda: self._send(op))

        self.sim.call(CLIENT, self.view.target(group, members), q.OpenSession(group), opened)

    def _on(self, op: _Op, group: GroupId, reply: Reply) -> None:
        if isinstance(reply, q.Written):
            for cell in op.cells:
                self.history.acked[cell] = op.value
                self.history.acks.setdefault(cell, []).append(op.value)
                self.history.acked_at.setdefault(cell, []).append((self.sim.now, op.value))
            self.history.writes += 1
            self.history.longest_gap_ms = max(self.history.longest_gap_ms, self.sim.now - op.since)
            self.sim.at(self.sim.rng.randint(1, 20), self._next)
            return
        assert isinstance(reply, ErrorReply), reply
        if reply.code == "session_expired":
            # Unless it was lost, the session was opened after the slot was sealed, so none of its writes to
            # the slot took effect. A session opened earlier moves with the slot.
            lost = op.session in self.history.lost_sessions
            assert lost or self.history.had_left(op.session.partition(":")[0], op.slot, op.opened), reply
            self._sessions = {g: s for g, s in self._sessions.items() if s[0] != op.session}
            op.session = ""
            self.sim.at(RETRY_MS, lambda: self._send(op))
            return
        assert reply.code in (
            "not_leader",
            "moved",
            "unavailable",
            "outcome_unknown",
            "overloaded",
            "refused",
            "not_found",
            "log_corrupt",  # only of this member: the client asks others (`client.calls.GROUP_TRANSIENT`)
        ), reply
        self.view.learn(group, reply)
        self.sim.at(RETRY_MS, lambda: self._send(op))


class ExpiringWriter(Writer):
    """Writes each cell once, at the current time."""

    def _choose(self, interval: int) -> Cell:
        return Cell(EXPIRING, self.name, WALL_START_MS + self.sim.now)


class Widener:
    """A client that adds fields to tables, one after the other, until each table has `fields` of them."""

    def __init__(
        self, sim: Sim[SimNode], view: View, history: History, groups: list[str], fields: int
    ) -> None:
        self.sim = sim
        self.view = view
        self.history = history
        self.left = [group for group in groups for _ in range(1, fields)]
        self.stopping = False
        self.leader = ""

    def start(self) -> None:
        if self.left and not self.stopping:
            self.sim.at(self.sim.rng.randint(100, 6_000), self._next)

    def _next(self) -> None:
        self.sim.rng.shuffle(self.left)
        group = self.left.pop()
        self._ask(group, schema_of(group, self.history.fields.get(group, 1) + 1))

    def _ask(self, group: str, wanted: TableSchema) -> None:
        def on_reply(reply: Reply) -> None:
            if isinstance(reply, q.SchemaInForce):
                assert reply.schema == wanted, (
                    f"S14: {group}: the schema is {reply.schema} instead of {wanted}"
                )
                self.history.fields[group] = wanted.version
                return self.start()
            assert isinstance(reply, ErrorReply), reply
            leader = reply.details.get("leader")
            self.leader = leader if isinstance(leader, str) else ""
            self.sim.at(RETRY_MS, lambda: self._ask(group, wanted))
            return None

        if not self.stopping:
            target = self.leader or self.sim.rng.choice(self.view.nodes)
            self.sim.call(CLIENT, target, q.PutSchema(wanted), on_reply)


def _rows(op: _Op) -> bytes:
    times = sorted({cell.time for cell in op.cells})
    written = {(cell.time, cell.field) for cell in op.cells}
    fields = [[op.value if (t, name) in written else None for t in times] for name in op.schema.fields]
    return arrow.encode(
        pa.record_batch(
            [
                pa.array(times, pa.int64()),
                pa.array([op.cells[0].device] * len(times), pa.string()),
                *(pa.array(values, pa.int64()) for values in fields),
            ],
            names=["time", "device", *op.schema.fields],
        )
    )
