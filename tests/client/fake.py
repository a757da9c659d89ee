"""A cluster in memory with groups, slots, sessions and slot migration, whose nodes lose and delay messages
and hang. The state of a group is one value, as with consensus; only nodes and messages fail. The sessions are
those of `nodeagent.data`, so that the real rule recognises duplicates."""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from nodeagent.client.link import not_connected
from nodeagent.client.pages import place_of
from nodeagent.data.sessions import Sessions
from nodeagent.meta.schema_changes import SchemaChanges
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import (
    Moved,
    NodeAgentError,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    Refused,
    SchemaMismatch,
    SessionExpired,
    Unavailable,
)
from nodeagent.model.files import Cursor, RowKey, ScanSpec, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.operation import Operation, Options, SealResult, SlotMove, Stage
from nodeagent.model.requests import (
    Accepted,
    BeginChange,
    ControlOperation,
    DeleteRows,
    GetMeta,
    GetStatus,
    GroupRecord,
    ListPartitions,
    MetaView,
    NodeRecord,
    NodeStatus,
    OpenSession,
    OperationReply,
    PartitionInfo,
    PartitionsListed,
    PendingSlots,
    ProbeGroup,
    PutSchema,
    Reply,
    Request,
    RowsScanned,
    ScanRows,
    SchemaInForce,
    SessionOpened,
    Write,
    Written,
)
from nodeagent.model.schema import TableSchema
from nodeagent.partition import ranges
from nodeagent.table.arrow import decode, encode
from nodeagent.table.merge import merge

SETTINGS = ClusterSettings(name="test", slots=16, shards=2, time_partition_interval_ms=1000)
NODES = ("node1", "node2", "node3", "node4")


@dataclass
class Faults:
    """Probabilities per message; delays in seconds."""

    lose_request: float = 0.0
    late_request: float = 0.0
    """The sender gets no answer, and the request arrives seconds later."""

    lose_reply: float = 0.0
    stale_meta: float = 0.0
    delay_max_s: float = 0.005


@dataclass
class Applied:
    """A write or delete that took effect."""

    order: tuple[int, ...]
    slot: int
    partition: PartitionKey
    table: str
    rows: pa.Table


@dataclass
class Group:
    record: GroupRecord
    leader: str
    slots: set[int]
    index: int = 10
    sealed: dict[int, str] = field(default_factory=dict)
    sessions: Sessions = field(default_factory=Sessions)
    rows: list[Applied] = field(default_factory=list)
    tombstones: list[Tombstone] = field(default_factory=list)
    handovers: dict[int, PendingSlots] = field(default_factory=dict)
    """Slot -> the holder of its older rows."""

    @property
    def name(self) -> str:
        return self.record.group

    def next_index(self) -> int:
        self.index += 1
        return self.index


def _is_strong(request: Request) -> bool:
    """Whether the group answers as for a strong read: any member answers once its state is new enough."""
    if isinstance(request, ScanRows):
        return request.read == "strong" and not request.operation
    return isinstance(request, ProbeGroup)


class FakeCluster:
    """Implements `Link`. Each node owns one group of three members."""

    def __init__(self, seed: int = 0, faults: Faults | None = None) -> None:
        self.rng = random.Random(seed)
        self.faults = faults or Faults()
        self.down: set[str] = set()
        self.hung: set[str] = set()
        self.scan_s: dict[str, float] = {}
        """Seconds a node needs for a page; it answers other requests during that time."""

        self.behind: set[str] = set()
        """Nodes that delay strong reads of their groups until they have caught up."""

        self.exact = True
        self.page_rows = 1 << 30
        self.log: list[tuple[str, Request]] = []
        self.ages_ms: dict[str, int] = {}
        """Age of a node's answers to bounded and weak reads."""

        self.schemas: dict[tuple[str, str], TableSchema] = {}
        self.changes = SchemaChanges(())
        self.operations: list[Operation] = []
        self.meta_lost = False
        self.late: set[asyncio.Task[None]] = set()
        self._addresses = {n: ("10.0.0.1", i) for i, n in enumerate(NODES)}
        per_node = SETTINGS.slots // len(NODES)
        self.groups: dict[str, Group] = {}
        for i, node in enumerate(NODES):
            members = tuple(NODES[(i + k) % len(NODES)] for k in range(3))
            record = GroupRecord(f"{node}.1", node, members, members)
            self.groups[record.group] = Group(record, node, set(range(i * per_node, (i + 1) * per_node)))
        self.owner = {s: g.record.owner for g in self.groups.values() for s in g.slots}
        self.version = 1
        self.applied = 1
        self.views: list[MetaView] = [self._make_view()]

    # --- Link ------------------------------------------------------------------------------------

    def learn(self, target: str, host: str, port: int) -> None:
        self._addresses[target] = (host, port)

    def where(self, target: str) -> tuple[str, int] | None:
        return self._addresses.get(target)

    def known(self) -> list[str]:
        return list(self._addresses)

    async def close(self) -> None:
        pass

    async def call(self, target: str, request: Request, timeout_s: float) -> Reply:
        started = asyncio.get_running_loop().time()
        if target in self.down or target not in self._addresses:
            raise not_connected(f"{target} refuses connections")
        self.log.append((target, request))
        if target in self.hung or self._roll(self.faults.lose_request):
            await self._silence(target, started, timeout_s)
        if self._roll(self.faults.late_request):
            task = asyncio.create_task(self._arrive_late(target, request))
            self.late.add(task)
            await self._silence(target, started, timeout_s)
        await asyncio.sleep(self.rng.random() * self.faults.delay_max_s)
        if target in self.behind and _is_strong(request):
            await self._silence(target, started, timeout_s)
        if isinstance(request, ScanRows) and target in self.scan_s:
            work_s = self.scan_s[target]
            await asyncio.sleep(min(work_s, timeout_s))
            if target in self.hung or work_s > timeout_s:
                await self._silence(target, started, timeout_s)
        lose_reply = self._roll(self.faults.lose_reply)
        reply = self.handle(target, request)
        await asyncio.sleep(self.rng.random() * self.faults.delay_max_s)
        if lose_reply:
            if self.rng.random() < 0.5:
                raise OutcomeUnknown(f"connection to {target} was lost")
            await self._silence(target, started, timeout_s)
        return reply

    def _roll(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    async def _silence(self, target: str, started: float, timeout_s: float) -> None:
        await asyncio.sleep(max(0.0, timeout_s - (asyncio.get_running_loop().time() - started)))
        raise OutcomeUnknown(f"{target} did not answer")

    async def _arrive_late(self, target: str, request: Request) -> None:
        await asyncio.sleep(self.rng.random() * 12)
        with contextlib.suppress(NodeAgentError):
            self.handle(target, request)

    async def settle(self) -> None:
        """Deliver every late message."""
        await asyncio.gather(*self.late)

    # --- requests --------------------------------------------------------------------------------

    def handle(self, target: str, request: Request) -> Reply:
        match request:
            case GetStatus():
                return NodeStatus(target, "i", "c", "test", "1", "running", 0, 0, self.version, (), {})
            case GetMeta(strong=strong, held=held):
                if strong and self.meta_lost:
                    raise Unavailable("the meta group has no quorum")
                stale = not strong and target != NODES[0] and self._roll(self.faults.stale_meta)
                view = self.views[-2] if stale and len(self.views) > 1 else self.views[-1]
                if view is self.views[-1] and (keys := self.changes.since(held)) is not None:
                    changed = tuple(self.schemas[k] for k in sorted(keys) if k in self.schemas)
                    dropped = tuple(sorted(keys - self.schemas.keys()))
                    view = msgspec.structs.replace(view, schemas=changed, schemas_base=held, dropped=dropped)
                return msgspec.structs.replace(view, node=target)
            case PutSchema() | BeginChange() | ControlOperation():
                if target != NODES[0]:
                    raise NotLeader("not the meta leader", leader=NODES[0])
                return self._change(request)
            case OpenSession():
                group = self._led(target, request.group)
                name = f"{group.name}:{group.next_index()}"
                group.sessions.open(name)
                return SessionOpened(name)
            case Write() | DeleteRows():
                return self._apply(self._led(target, request.group), request)
            case ScanRows():
                return self._scan(target, request)
            case ProbeGroup():
                return Accepted(self._group(target, request.group).index)
            case ListPartitions():
                return self._list(target, request)
            case _:
                raise AssertionError(request)

    def _change(self, request: PutSchema | BeginChange | ControlOperation) -> Reply:
        if isinstance(request, PutSchema):
            schema = request.schema
            if request.ttl_ms is not None:
                schema = msgspec.structs.replace(schema, ttl_ms=request.ttl_ms)
            self.add_table(schema)
            return SchemaInForce(schema)
        assert isinstance(request, BeginChange)
        if self.operations:
            raise Refused("another change is open")
        operation = Operation(
            f"op-{self.applied}", request.kind, request.node, request.by, 0, 1, 2, [], [], Options()
        )
        self.operations.append(operation)
        self.publish()
        return OperationReply(operation)

    def _group(self, target: str, name: str) -> Group:
        group = self.groups.get(name)
        if group is None or target not in group.record.members:
            raise NotFound(f"{target} has no group {name}")
        return group

    def _led(self, target: str, name: str) -> Group:
        group = self._group(target, name)
        if group.leader != target:
            raise NotLeader(f"{target} does not lead {name}", leader=group.leader)
        return group

    def _check_slot(self, group: Group, slot: int) -> None:
        if slot not in group.slots:
            raise Moved(
                f"slot {slot} is not open in {group.name}",
                slot=slot,
                header=self.owner[slot],
                table_version=self.version,
                wait=slot in group.sealed,
            )

    def _apply(self, group: Group, w: Write | DeleteRows) -> Reply:
        self._check_slot(group, w.slot)
        if not group.sessions.knows(w.session, w.slot):
            raise SessionExpired(f"session {w.session} is not known to {group.name}")
        if (w.partition.storage_group, w.table) not in self.schemas:
            raise SchemaMismatch("not in use yet")
        floor = max(group.sessions.floor(w.session, w.slot), w.acknowledged_through)
        if not group.sessions.record(w.session, w.slot, w.sequence, w.acknowledged_through):
            return Written(0, duplicate=True)
        assert w.sequence <= floor + 1024, "the client stays within the window"
        index = group.next_index()
        if isinstance(w, DeleteRows):
            tomb = Tombstone((index,), w.partition, w.table, w.tags, w.time_from, w.time_to)
            group.tombstones.append(tomb)
        else:
            group.rows.append(Applied((index,), w.slot, w.partition, w.table, decode(w.ipc)))
        return Written(index)

    def _scan(self, target: str, r: ScanRows) -> Reply:
        group = self._group(target, r.group)
        assert r.slots, "the client names the slots"
        wanted = set(ranges.to_slots(r.slots))
        if r.operation:
            if any(group.sealed.get(s) != r.operation for s in wanted):
                raise NotFound(f"{group.name} has no sealed slots of {r.operation} there")
        else:
            for slot in wanted:
                self._check_slot(group, slot)
        schema = r.spec.schema
        assert r.after is not None, "the client pages by keys"
        page, end = self._page(group, r, wanted)
        tombs = tuple(t for t in group.tombstones if t.table == schema.table)
        return RowsScanned(
            encode(page),
            page.num_rows,
            0,
            self.version,
            () if r.operation else self._handover(group, wanted),
            () if r.operation else tombs,
            age_ms=-1 if r.operation or r.read == "strong" else self.ages_ms.get(target, 0),
            next=end,
        )

    def _page(self, group: Group, r: ScanRows, wanted: set[int]) -> tuple[pa.Table, Cursor | None]:
        """The next `page_rows` rows behind `after`, up to `until`; of each partition only the first `limit`.
        If the page begins or ends inside a partition, it has rows of this partition only."""
        assert r.after is not None
        schema = r.spec.schema
        pieces = [merge([], (), schema, r.spec)]
        room = self.page_rows
        for p in self._partitions(group, wanted, r.storage_group, schema.table):
            merged = self._merged(group, p, r)
            merged = merged.slice(0, r.limit or merged.num_rows)
            keys = list(zip(*(merged.column(n).to_pylist() for n in (*schema.tags, "time")), strict=True))
            places = [place_of(Cursor(p.position, RowKey(k[:-1], k[-1]))) for k in keys]
            inside = [
                at
                for at, place in enumerate(places)
                if place > place_of(r.after) and (r.until is None or place <= place_of(r.until))
            ]
            if not inside:
                continue
            is_begun = r.after.key is not None and r.after.position == p.position
            if len(pieces) > 1 and (is_begun or len(inside) > room):
                return pa.concat_tables(pieces), Cursor(p.position)
            taken = inside[:room]
            room -= len(taken)
            pieces.append(merged.slice(taken[0], len(taken)))
            if len(taken) < len(inside):
                last = keys[taken[-1]]
                return pa.concat_tables(pieces), Cursor(p.position, RowKey(last[:-1], last[-1]))
            if is_begun:
                return pa.concat_tables(pieces), Cursor(p.position + 1)
        return pa.concat_tables(pieces), None

    def _partitions(
        self, group: Group, slots: set[int], storage_group: str, table: str
    ) -> list[PartitionKey]:
        return sorted(
            {
                a.partition
                for a in group.rows
                if a.slot in slots and a.table == table and a.partition.storage_group == storage_group
            }
        )

    def _merged(self, group: Group, partition: PartitionKey, r: ScanRows) -> pa.Table:
        table = r.spec.schema.table
        parts = [(a.order, a.rows) for a in group.rows if a.partition == partition and a.table == table]
        tombs = [t for t in group.tombstones if t.partition == partition]
        return merge(parts, tombs, r.spec.schema, r.spec)

    def _handover(self, group: Group, slots: set[int]) -> tuple[PendingSlots, ...]:
        found = {h.source: h for s, h in group.handovers.items() if s in slots}
        return tuple(found.values())

    def _list(self, target: str, r: ListPartitions) -> Reply:
        group = self._led(target, r.group)
        assert r.slots, "the client names the slots"
        for slot in ranges.to_slots(r.slots):
            self._check_slot(group, slot)
        infos = []
        for (storage_group, name), schema in self.schemas.items():
            if r.storage_group not in ("", storage_group) or r.table not in ("", name):
                continue
            for p in self._partitions(group, group.slots, storage_group, name):
                slot = next(a.slot for a in group.rows if a.partition == p)
                request = ScanRows(group.name, storage_group, ScanSpec(schema))
                time = self._merged(group, p, request).column("time").to_pylist() or [0]
                rows = len(time) if self.exact else 10 * len(time)
                infos.append(PartitionInfo(p, slot, name, rows, self.exact, min(time), max(time), 1))
        return PartitionsListed(tuple(infos), self._handover(group, group.slots), self.version)

    # --- events of a cluster ---------------------------------------------------------------------

    def publish(self) -> None:
        self.applied += 1
        self.views.append(self._make_view())

    def _make_view(self) -> MetaView:
        owners = tuple((s, s + 1, h) for s, h in sorted(self.owner.items()))
        return MetaView(
            node=NODES[0],
            applied=self.applied,
            cluster_id="c",
            settings=SETTINGS,
            nodes=tuple(NodeRecord(n, *self._addresses[n], 0, "i", i) for i, n in enumerate(NODES)),
            table_version=self.version,
            ring=NODES,
            owners=owners,
            groups=tuple(g.record for g in self.groups.values()),
            schemas=tuple(self.schemas.values()),
            operations=tuple(msgspec.structs.replace(o, sealed=dict(o.sealed)) for o in self.operations),
            leader=NODES[0],
            term=1,
            voters=NODES,
            learners=(),
            schemas_digest=self.changes.digest,
        )

    def add_table(self, schema: TableSchema) -> None:
        key = (schema.storage_group, schema.table)
        self.changes.changed(self.schemas.get(key), schema)
        self.schemas[key] = schema
        self.publish()

    def drop_table(self, storage_group: str, table: str) -> None:
        old = self.schemas.pop((storage_group, table))
        self.changes.changed(old, msgspec.structs.replace(old, dropped=True))
        self.publish()

    def elect(self, group: str) -> None:
        g = self.groups[group]
        g.leader = self.rng.choice([m for m in g.record.members if m != g.leader])

    def expire_sessions(self, group: str) -> None:
        sessions = self.groups[group].sessions
        sessions.expire(sessions.known())

    def plan(self, slots: set[int], source: str, target: str) -> str:
        """The table names the new owner; the source still serves."""
        a, b = self.groups[source], self.groups[target]
        assert slots <= a.slots
        self.version += 1
        move = SlotMove(ranges.from_slots(slots), source, a.record.members, target, b.record.members)
        operation = Operation(
            f"op-{self.version}", "move", "", "t", 0, self.version - 1, self.version, [move], [], Options()
        )
        self.operations.append(operation)
        self.owner |= {s: b.record.owner for s in slots}
        self.publish()
        return operation.id

    def seal(self, operation: str) -> None:
        op = self._operation(operation)
        source, slots = self._ends(op)[0], self._slots(op)
        op.stage = Stage.SEALED
        source.slots -= slots
        source.sealed |= {s: operation for s in slots}
        op.sealed[source.name] = SealResult(source.name, source.next_index(), source.sessions.export(slots))
        self.publish()

    def open(self, operation: str) -> None:
        op = self._operation(operation)
        (source, target), slots = self._ends(op), self._slots(op)
        op.stage = Stage.OPEN
        target.sessions.import_tables([op.sealed[source.name].sessions], slots)
        target.slots |= slots
        for s in slots:
            target.sealed.pop(s, None)
            target.handovers[s] = PendingSlots(
                operation, ranges.from_slots(slots), source.name, source.record.members
            )
        target.next_index()
        op.opened.append(target.name)
        self.publish()

    def adopt(self, operation: str) -> None:
        """Move the old rows below the rows of the new group; the source drops them."""
        op = self._operation(operation)
        (source, target), slots = self._ends(op), self._slots(op)
        op.stage = Stage.DONE
        moved = [a for a in source.rows if a.slot in slots]
        dead = [t for t in source.tombstones if any(a.partition == t.partition for a in moved)]
        target.rows += [Applied((0, *a.order), a.slot, a.partition, a.table, a.rows) for a in moved]
        target.tombstones += [msgspec.structs.replace(t, order=(0, *t.order)) for t in dead]
        source.rows = [a for a in source.rows if a.slot not in slots]
        for s in slots:
            del source.sealed[s], target.handovers[s]
        self.publish()

    def _operation(self, operation: str) -> Operation:
        return next(o for o in self.operations if o.id == operation)

    def _ends(self, op: Operation) -> tuple[Group, Group]:
        return self.groups[op.moves[0].source], self.groups[op.moves[0].target]

    def _slots(self, op: Operation) -> set[int]:
        return set(ranges.to_slots(op.moves[0].slots))

    # --- checks of a test ------------------------------------------------------------------------

    def times_applied(self, marker: float) -> int:
        """How often the row with `v` = marker was logged, over all groups."""
        return sum(a.rows.column("v").to_pylist().count(marker) for g in self.groups.values() for a in g.rows)
