"""Writers and readers of a simulated cluster, and what they saw.

Each writer owns its series and writes increasing values to a few timestamps of each, one or more rows at a
time, and retries with the same session and sequence until the write is acknowledged. So for every (series,
timestamp) a strong read must return a value between the last one acknowledged before the read began and the
last one sent: linearizability per cell, checked during the run. A delete has a number like a value; after it
a read must find nothing until a newer value is written. Tables may gain columns during a run; a series is one
column of one device, so a row that omits a column leaves its older value in place.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from operator import itemgetter

import msgspec
import pyarrow as pa

from nodeagent.model import requests as q
from nodeagent.model.files import Cursor, ScanSpec
from nodeagent.model.ids import GroupId, NodeId, PartitionKey
from nodeagent.model.operation import Operation
from nodeagent.model.requests import ErrorReply, MetaView, Reply, RowsScanned
from nodeagent.model.schema import Column, TableSchema
from nodeagent.partition.hash import slot_of
from nodeagent.partition.ranges import to_slots
from nodeagent.table import arrow
from nodeagent.table.merge import merge
from nodeagent.testing.node import SimNode
from nodeagent.testing.sim import CLIENT, WALL_START_MS, Sim

TABLE = "m"
RETRY_MS = 25
DELETES = 0.1
EXPIRING = "root.expiring"
"""A storage group whose rows have the current time and expire after `TTL_MS`."""

TTL_MS = 6_000
NEWEST = 1 << 62

Pages = Callable[[list[RowsScanned] | None], None]


class Habits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the writers of a run write."""

    rows: int = 1
    """Maximum number of rows of a write."""

    times: int = 2
    """Number of timestamps of a device in a time partition."""

    fields: int = 1
    """Number of columns that each table gains, one after the other."""

    writers: int = 2
    """Number of concurrent writers."""


PLAIN_HABITS = Habits()


def field_of(number: int) -> str:
    """The name of a table's column number `number`, from 0."""
    return f"v{number or ''}"


def schema_of(storage_group: str, fields: int = 1) -> TableSchema:
    """The schema with `fields` fields, which is also its version."""
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
    """By storage group: number of columns that a reply stated for its table; 1 if absent."""

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
        """Note that only these writes may be lost; returns how many of them were acknowledged."""
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
        self.sim.call(CLIENT, target, q.GetMeta(), self._on_meta)

    def _on_meta(self, reply: Reply) -> None:
        self._asking = False
        if isinstance(reply, MetaView) and (self.meta is None or reply.applied >= self.meta.applied):
            self.meta = reply
            self.nodes = sorted({*self.nodes, *(n.node for n in reply.nodes)})

    def group(self, slot: int) -> tuple[GroupId, tuple[NodeId, ...]] | None:
        if self.meta is None:
            return None
        header = next(h for a, b, h in self.meta.owners if a <= slot < b)
        record = next((g for g in self.meta.groups if g.header == header and not g.dissolving), None)
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
        habits: Habits = PLAIN_HABITS,
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
            # Opened after the seal, so none of its writes took effect; an older session moves with the slot.
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
            "log_corrupt",  # only that member's log, as the client knows (`client.calls.GROUP_TRANSIENT`)
        ), reply
        self.view.learn(group, reply)
        self.sim.at(RETRY_MS, lambda: self._send(op))


class ExpiringWriter(Writer):
    """Writes each cell once, at the current time."""

    def _choose(self, interval: int) -> Cell:
        return Cell(EXPIRING, self.name, WALL_START_MS + self.sim.now)


class Widener:
    """A client that adds columns to tables, one after the other, until each has `fields` columns."""

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


def _found(rows: pa.Table, spec: ScanSpec) -> dict[Cell, int]:
    """The values that a read returned, by cell."""
    storage_group, fields = spec.schema.storage_group, spec.schema.fields
    devices, times = rows["device"].to_pylist(), rows["time"].to_pylist()
    return {
        Cell(storage_group, device, time, name): value
        for name in fields
        for device, time, value in zip(devices, times, rows[name].to_pylist(), strict=True)
        if value is not None
    }


def _within(cell: Cell, spec: ScanSpec) -> bool:
    schema = spec.schema
    is_asked = spec.time_from <= cell.time <= spec.time_to and cell.field in schema.fields
    return is_asked and cell.storage_group == schema.storage_group


def rows_of(pages: list[RowsScanned], spec: ScanSpec) -> pa.Table:
    found = [arrow.decode(p.ipc) for p in pages if p.ipc]
    return pa.concat_tables([merge((), (), spec.schema, spec), *found])


class Reader:
    """Sends strong reads of whole slots, also during slot migrations."""

    def __init__(self, sim: Sim[SimNode], view: View, history: History, groups: list[str]) -> None:
        self.sim = sim
        self.view = view
        self.history = history
        self.groups = groups
        self.stopping = False

    def start(self) -> None:
        if not self.stopping:
            if self.view.meta is None:
                self.view.refresh()
                self.sim.at(RETRY_MS, self.start)
                return
            self.read(*self.sim.rng.choice(self.partitions()), lambda _: None)
            self.sim.at(self.sim.rng.randint(20, 120), self.start)

    def partitions(self) -> list[tuple[str, int]]:
        """(storage group, week) of everything that is written."""
        assert self.view.meta is not None
        now = (WALL_START_MS + self.sim.now) // self.view.meta.settings.time_partition_interval_ms
        return [(EXPIRING, now), *((g, w) for g in self.groups for w in range(4))]

    def read(self, storage_group: str, week: int, then: Callable[[bool], None], retry: bool = False) -> None:
        """Read one partition, check it against the history, and call `then` with whether it was read."""
        meta = self.view.meta
        assert meta is not None
        partition = PartitionKey(storage_group, week, 0)
        slot = slot_of(storage_group, week, 0, meta.settings)
        place = self.view.group(slot)
        floor = dict(self.history.acked)
        expired = set(self.history.expired)

        def again() -> None:
            self.view.refresh()
            if retry:
                self.sim.at(RETRY_MS, lambda: self.read(storage_group, week, then, retry))
            else:
                then(False)

        if place is None:
            again()
            return
        group, members = place
        interval = meta.settings.time_partition_interval_ms
        schema = self.history.schema(storage_group)
        spec = ScanSpec(schema, time_from=week * interval, time_to=(week + 1) * interval - 1)
        slots = ((slot, slot + 1),)

        def on_new(pages: list[RowsScanned] | None) -> None:
            if pages is None or len({p.handover for p in pages}) > 1:
                self.view.leaders.pop(group, None)
                return again()
            rows = rows_of(pages, spec)
            if not pages[0].handover:
                self._check(spec, floor, expired, rows)
                return then(True)
            hand = pages[0].handover[0]

            def on_old(older: list[RowsScanned] | None) -> None:
                if older is None:
                    return again()
                # The target group has already applied its deletes to its own rows.
                parts = [((), rows_of(older, spec)), ((NEWEST,), rows)]
                # Deletes of all pages: a later page may lack rows by a delete that the first page did not
                # know.
                known = dict.fromkeys(t for page in pages for t in page.tombstones)
                deletes = [t for t in known if t.partition == partition]
                whole = merge(parts, deletes, spec.schema, spec)
                self._check(spec, floor, expired, whole)
                return then(True)

            old = q.ScanRows(
                hand.source, storage_group, spec, slots=slots, operation=hand.operation, after=Cursor()
            )
            self._pages(self.sim.rng.choice(hand.members), old, [], on_old)
            return None

        request = q.ScanRows(group, storage_group, spec, slots=slots, after=Cursor())
        self._pages(self.view.target(group, members), request, [], on_new)

    def _pages(self, node: NodeId, request: q.ScanRows, got: list[RowsScanned], then: Pages) -> None:
        """Fetch all pages of a scan from one node and pass them to `then`; None if a page failed."""

        def on_page(reply: Reply) -> None:
            if not isinstance(reply, RowsScanned):
                return then(None)
            got.append(reply)
            if reply.next is None:
                return then(got)
            return self._pages(node, msgspec.structs.replace(request, after=reply.next), got, then)

        self.sim.call(CLIENT, node, request, on_page)

    def _check(self, spec: ScanSpec, floor: dict[Cell, int], expired: set[Cell], rows: pa.Table) -> None:
        """Check the rows of a strong read; `floor` and `expired` are as of the begin of the read."""
        found = _found(rows, spec)
        self.history.reads += 1
        for cell, value in floor.items():
            if _within(cell, spec):
                value = min(value, self.history.acked.get(cell, 0))  # it may have been lost during the read
                got = found.get(cell, self.history.deleted.get(cell, 0))
                if cell.storage_group == EXPIRING and cell.time < WALL_START_MS + self.sim.now - TTL_MS:
                    if not got:
                        self.history.expired.add(cell)
                    continue
                assert got >= value, (
                    f"S6: {cell} was acknowledged as {value}, a later strong read returned {found.get(cell)}"
                )
        for cell, value in found.items():
            assert value <= self.history.sent.get(cell, 0), f"S6: {cell} = {value} was never sent"
            assert cell not in expired, f"S6: {cell} = {value} had expired and was read"


class StaleReader(Reader):
    """Sends bounded and weak reads to any member and checks S17: the stated ages are true, whatever the
    clocks show, and no bounded read is older than its bound."""

    def __init__(
        self, sim: Sim[SimNode], view: View, history: History, groups: list[str], bound_ms: int
    ) -> None:
        super().__init__(sim, view, history, groups)
        self.bound_ms = bound_ms
        self.answers = 0

    def partitions(self) -> list[tuple[str, int]]:
        return [(g, w) for g in self.groups for w in range(4)]

    def read(self, storage_group: str, week: int, then: Callable[[bool], None], retry: bool = False) -> None:
        meta = self.view.meta
        assert meta is not None
        slot = slot_of(storage_group, week, 0, meta.settings)
        place = self.view.group(slot)
        if place is None:
            return self.view.refresh()
        group, members = place
        interval = meta.settings.time_partition_interval_ms
        schema = self.history.schema(storage_group)
        spec = ScanSpec(schema, time_from=week * interval, time_to=(week + 1) * interval - 1)
        level = self.sim.rng.choice(("mid", "weak"))
        began = self.sim.now

        def on_pages(pages: list[RowsScanned] | None) -> None:
            if pages is not None and not any(page.handover for page in pages):
                self._check_age(spec, level, began, pages)
            else:
                self.view.refresh()
            then(True)

        request = q.ScanRows(group, storage_group, spec, level, slots=((slot, slot + 1),), after=Cursor())
        self._pages(self.sim.rng.choice(members), request, [], on_pages)
        return None

    def _check_age(self, spec: ScanSpec, level: str, began: int, pages: list[RowsScanned]) -> None:
        ages = [page.age_ms for page in pages]
        if level == "mid":
            assert min(ages) >= 0 and max(ages) <= self.bound_ms, (
                f"S17: a bounded read has ages {ages}, its bound is {self.bound_ms}"
            )
        if min(ages) < 0:
            return
        found = _found(rows_of(pages, spec), spec)
        self.answers += 1
        until = began - max(ages)
        for cell, acks in self.history.acked_at.items():
            if _within(cell, spec):
                before = bisect_right(acks, until, key=itemgetter(0))
                floor = acks[before - 1][1] if before else 0
                got = found.get(cell, self.history.deleted.get(cell, 0))
                assert got >= floor, (
                    f"S17: {cell} was acknowledged as {floor} before {began} - {max(ages)} ms, "
                    f"a {level} read returned {found.get(cell)}"
                )
