"""A cluster in memory with the client's interface, and a way to run one command line against it."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from iotctl.cli.main import run
from iotctl.cli.session import Session
from iotctl.observe.cluster import Cluster
from nodeagent.client.report import DeleteReport
from nodeagent.client.spec import ClusterSpec
from nodeagent.host.handlers.views import runs_view
from nodeagent.meta import commands
from nodeagent.meta.state import MetaState
from nodeagent.meta.tables import merge_schema
from nodeagent.model.config import ClusterSettings
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.errors import BY_CODE, NodeAgentError, NotFound, Refused, Unavailable
from nodeagent.model.features import Feature
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import META, PartitionKey
from nodeagent.model.operation import CopyRecord, Operation, Options, Ranges, SlotMove, Stage, StageSpan
from nodeagent.model.requests import (
    Accepted,
    AuditReply,
    BeginChange,
    CloseAll,
    ControlOperation,
    Drain,
    DropLock,
    DropTable,
    ErrorReply,
    EventsReply,
    GetAudit,
    GetEvents,
    GetMeta,
    GetRuns,
    GetWriteRates,
    GroupRecord,
    GroupStatus,
    ListPartitions,
    ManifestReply,
    MetaStatus,
    MetaView,
    NodeEvent,
    NodeRecord,
    NodeStatus,
    PartitionInfo,
    PartitionsListed,
    PutSchema,
    RaiseLevel,
    RecordRun,
    Reply,
    Request,
    SchemaInForce,
    SetZones,
    TakeLock,
    WriteRatesReply,
)
from nodeagent.model.schema import TableSchema
from nodeagent.partition.ranges import from_slots, to_slots
from nodeagent.partition.ring import initial_ring
from nodeagent.partition.table import initial_table

SLOTS = 100
NOW_MS = 1_700_000_000_000
SPEC = """\
# The test cluster.
apiVersion: iotctl/v1
cluster:
  name: plant
  replicas: 3
  slots: 100
nodes:
  - {name: node1, host: 127.0.0.1, port: 7001}
  # the second one has a comment
  - {name: node2, host: 127.0.0.1, port: 7002}
  - {name: node3, host: 127.0.0.1, port: 7003}
  - {name: node4, host: 127.0.0.1, port: 7004}
  - {name: node5, host: 127.0.0.1, port: 7005}
"""


@dataclass(frozen=True, slots=True)
class Wrote:
    rows: int


@dataclass(slots=True)
class FakeCluster:
    """Five nodes, R = 3. `down` nodes do not answer; `error` is raised by every changing call."""

    names: list[str] = field(default_factory=lambda: [f"node{i}" for i in range(1, 6)])
    down: set[str] = field(default_factory=set)
    silent_ms: int = 60_000
    """How long no node has heard the nodes that are down."""

    audit: list[tuple[int, str, str]] = field(default_factory=list)
    audit_first: int = 0
    audit_base: str = ""
    notes: dict[str, list[NodeEvent]] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    metas: dict[str, MetaStatus] = field(default_factory=dict)
    leaderless: set[str] = field(default_factory=set)
    """Groups that elect no leader."""

    drained: set[str] = field(default_factory=set)
    """Nodes that lead no group in which another member is up."""

    operations: list[Operation] = field(default_factory=list)
    begun: list[BeginChange] = field(default_factory=list)
    steered: list[ControlOperation] = field(default_factory=list)
    written: list[tuple[str, str, pa.Table, tuple[str, ...]]] = field(default_factory=list)
    deleted: list[tuple[str, str, dict[str, str | None], int | None, int | None]] = field(
        default_factory=list
    )
    tables: list[TableSchema] = field(default_factory=list)
    counts: list[dict[str, object]] = field(default_factory=list)
    error: Exception | None = None
    version: int = 7
    owned: dict[int, str] = field(default_factory=dict)
    """Owner of each slot once a change moved some; before, every node has the same share."""

    sizes: dict[int, int] = field(default_factory=dict)
    rates: dict[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    """`rates` by group owner; `sizes` of slots that do not hold 1 000 bytes."""

    kept: MetaState = field(default_factory=MetaState)
    """The lock and the runs."""

    answers: pa.Table | None = None
    """The rows that a scan returns, filtered by the requested tags that are columns."""

    ages_ms: Sequence[int] = ()
    """The ages of the answers to a scan that is not strong."""

    scanned: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[tuple[int, DropTable]] = field(default_factory=list)
    """Each with the number of deletes before it."""

    fail_drop: str = ""
    """The table that cannot be dropped."""

    clock_ms: int = NOW_MS
    """The clock of every node."""

    level: int = 1
    spoken: dict[str, int] = field(default_factory=dict)
    """Node -> highest feature level, of nodes that support more than level 1."""

    for_restart: set[str] = field(default_factory=set)
    """Nodes whose drain is for a restart, as `NodeRecord.for_restart`."""

    zones: dict[str, str] = field(default_factory=dict)
    """The zones that the cluster knows."""

    unaware: set[str] = field(default_factory=set)
    """Nodes that do not learn that the feature level was raised."""

    raised: list[int] = field(default_factory=list)
    image: bytes = b""
    """What `back_up_meta` returns."""

    image_fails: set[str] = field(default_factory=set)
    """Nodes that cannot make it."""

    closed: bool = False
    looks: int = 0
    """How often the meta view was requested."""

    # --- the state --------------------------------------------------------------------------------

    def view(self) -> MetaView:
        ring = initial_ring(self.names)
        table = initial_table(ring, SLOTS, self.version)
        owned = self.owned or {s: n for n in self.names for s in to_slots(table.slots_of(n))}
        owners = [(s, e, n) for n in self.names for s, e in from_slots(s for s in owned if owned[s] == n)]
        return MetaView(
            node=next((n for n in self.names if n not in self.down), ""),
            applied=50,
            cluster_id="c-1",
            settings=ClusterSettings(name="plant", slots=SLOTS),
            nodes=tuple(
                NodeRecord(
                    n.node,
                    "127.0.0.1",
                    7001 + i,
                    8001 + i,
                    f"inc-{n.node}",
                    n.position,
                    n.weight,
                    draining=n.node in self.drained,
                    for_restart=n.node in self.for_restart,
                    zone=self.zones.get(n.node, ""),
                )
                for i, n in enumerate(ring.nodes)
            ),
            table_version=self.version,
            ring=ring.names,
            owners=tuple(sorted(owners)),
            groups=tuple(
                GroupRecord(f"{n}.1", n, ring.members(n, 3), ring.members(n, 3)) for n in self.names
            ),
            schemas=tuple(self.tables),
            operations=tuple(self.operations),
            leader="node1",
            term=3,
            voters=tuple(self.names[:5]),
            learners=(),
            level=self.level,
        )

    def status(self, node: str) -> NodeStatus:
        view = self.view()
        up = [n for n in self.names if n not in self.down]
        groups = []
        for group, members in [(META, view.voters), *((g.group, g.members) for g in view.groups)]:
            live = sorted((m for m in members if m in up), key=lambda m: m in self.drained)
            leader = None if group in self.leaderless or not live else live[0]
            led = len(live) > len(members) // 2 and leader == node
            if node in members:
                groups.append(
                    GroupStatus(
                        group=group,
                        role="leader" if led else "follower",
                        leader=leader if led else None,
                        term=3,
                        voters=tuple(members),
                        learners=(),
                        commit=9,
                        applied=51 if group == META else 9,
                        last=9,
                        slots=20,
                        files=4,
                        bytes=0 if group == META else 4000,
                        rows=100,
                        materialised=9,
                    )
                )
        return NodeStatus(
            node=node,
            incarnation=f"inc-{node}",
            cluster_id="c-1",
            cluster="plant",
            version="0.1.0",
            state="active",
            now_ms=self.clock_ms,
            started_ms=NOW_MS - 1000,
            table_version=self.version,
            groups=tuple(groups),
            heard_ms={n: 40 for n in up if n != node} | dict.fromkeys(self.down, self.silent_ms),
            disk_free_bytes=10**12,
            cert_expires_ms=NOW_MS * 2,
            newest_level=self.spoken.get(node, 1),
            level=1 if node in self.unaware else self.level,
            meta=self.metas.get(node),
        )

    # --- the verbs ---------------------------------------------------------------------------------

    def statuses(self, timeout_s: float = 2.0) -> dict[str, NodeStatus | NodeAgentError]:
        return {
            n: Unavailable(f"{n} refused the connection") if n in self.down else self.status(n)
            for n in self.names
        }

    def meta(self, strong: bool = False, any_age: bool = False) -> MetaView:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return self.view()

    def call(self, node: str, request: Request, timeout_s: float | None = None) -> Reply:
        if node in self.down:
            raise Unavailable(f"{node} refused the connection")
        match request:
            case GetMeta():
                return self.view()
            case GetEvents():
                audit = [(t, who, what) for t, who, what in self.audit if t >= request.since_ms]
                own = [e for e in self.notes.get(node, ()) if e.time_ms >= request.since_ms]
                return EventsReply(node, self.applied.get(node, 50), tuple(own), tuple(audit))
            case CloseAll():
                return Accepted(9)
            case GetWriteRates():
                return WriteRatesReply(self.rates.get(request.group.partition(".")[0], ()))
            case ListPartitions():
                return PartitionsListed(
                    tuple(
                        PartitionInfo(f.partition, f.slot, f.table, f.rows, True, 0, 9, f.size)
                        for f in self.files(request.group)
                    )
                )
            case _:
                raise AssertionError(request)

    def manifest(self, node: str, group: str, slots: Ranges = ()) -> ManifestReply:
        if node in self.down:
            raise Unavailable(f"{node} refused the connection")
        return ManifestReply(group, node, 9, 9, 0, self.files(group))

    def back_up_meta(self, node: str) -> bytes:
        if node in self.down:
            raise Unavailable(f"{node} refused the connection")
        if node in self.image_fails:
            raise Unavailable(f"{node} has no room")
        if self.level < Feature.IMAGES:
            raise Refused("no image was made: this needs a later feature level")
        return self.image

    def files(self, group: str) -> tuple[FileMeta, ...]:
        owner = group.partition(".")[0]
        slots = [s for start, end, h in self.view().owners if h == owner for s in range(start, end)]
        key = PartitionKey("root.plant", 1, 0)
        return tuple(
            FileMeta(f"f{s}", s, key, "m", (1,), self.sizes.get(s, 1000), "0" * 32, 10, 0, 9, (1, 1, 1))
            for s in slots
        )

    def call_meta(self, request: Request) -> Reply:
        if self.error is not None:
            raise self.error
        if sum(n in self.down for n in self.names) * 2 > len(self.names):
            raise Unavailable("the meta group has no quorum")
        if isinstance(request, DropTable):
            if request.table == self.fail_drop:
                raise Unavailable("no leader answers")
            self.dropped.append((len(self.deleted), request))
            self.tables = [
                t for t in self.tables if (t.storage_group, t.table) != (request.storage_group, request.table)
            ]
            return Accepted(51)
        if isinstance(request, PutSchema):
            known = {(t.storage_group, t.table): t for t in self.tables}
            have = known.get((request.schema.storage_group, request.schema.table))
            keep = request.if_new and have is not None
            return SchemaInForce(self.put_schema(request.schema, None if keep else request.ttl_ms))
        if isinstance(request, GetAudit):
            return AuditReply(self.audit_first, self.audit_base, tuple(self.audit))
        if isinstance(request, TakeLock | DropLock | RecordRun | GetRuns):
            return self._of_operators(request)
        if isinstance(request, RaiseLevel):
            self._check_fence(request.lock)
            self.level = request.level
            self.raised.append(request.level)
            return Accepted(51)
        if isinstance(request, SetZones):
            self._check_fence(request.lock)
            self.zones |= request.zones
            return Accepted(51)
        assert isinstance(request, Drain), request
        if request.node not in self.names:
            raise NotFound(f"no node {request.node} in the cluster", next_step="iotctl cluster nodes")
        self._check_fence(request.lock)
        before = self.drained
        is_ours = request.draining and request.for_restart and self.level >= Feature.REASONS
        is_ours &= request.node in self.for_restart or request.node not in self.drained
        self.for_restart = self.for_restart - {request.node} | ({request.node} if is_ours else set())
        self.drained = self.drained | {request.node} if request.draining else self.drained - {request.node}
        if before != self.drained:
            what = f"{'drain' if request.draining else 'undrain'} {request.node}"
            self.audit.append((NOW_MS, request.by, what))
        return Accepted(51)

    def _of_operators(self, request: TakeLock | DropLock | RecordRun | GetRuns) -> Reply:
        """Answer by the meta group's own rules."""
        if isinstance(request, GetRuns):
            return runs_view(self.kept, request.run)
        kind = getattr(commands, type(request).__name__)
        command = kind(NOW_MS, **msgspec.structs.asdict(request))
        entry = Entry(1, int(EntryKind.COMMAND), commands.encode(command))
        ((_, reply),) = self.kept.apply(self.kept.applied + 1, [entry])
        if isinstance(reply, ErrorReply):
            raise _as_error(reply)
        return reply

    def _check_fence(self, lock: int) -> None:
        refusal = self.kept.runs.fenced(lock)
        if refusal is not None:
            raise _as_error(refusal)

    def begin_change(self, change: BeginChange) -> Operation:
        if self.error is not None:
            raise self.error
        self._check_fence(change.lock)
        self.begun.append(change)
        if change.gains:
            self.owned = {s: n for start, end, n in self.view().owners for s in range(start, end)}
            self.owned |= {s: n for n, slots in change.gains for s in to_slots(slots)}
        operation = make_operation(f"op-{50 + len(self.begun)}", change, stage=Stage.DONE)
        operation.base_version = self.version
        self.operations.append(operation)
        self.version += 9  # a version is a log index, so it grows by more than 1
        if change.kind == "remove-node":
            self.names.remove(change.node)
        return operation

    def control(self, control: ControlOperation) -> Operation:
        if self.error is not None:
            raise self.error
        self.steered.append(control)
        found = next(o for o in self.operations if o.id == control.operation)
        if control.verb == "cancel":
            found.stage = Stage.CANCELLED
        if control.verb in ("pause", "resume"):
            found.paused = control.verb == "pause"
        if control.verb == "release":
            found.release_go = True
            found.stage = Stage.DONE
        if control.verb == "go":
            found.migrate_go = True
            found.stage = Stage.DONE
        return found

    def schemas(self) -> list[TableSchema]:
        return list(self.tables)

    def put_schema(self, schema: TableSchema, ttl_ms: int | None = None) -> TableSchema:
        if self.error is not None:
            raise self.error
        known = {(t.storage_group, t.table): t for t in self.tables}
        name = schema.storage_group, schema.table
        merged = merge_schema(known.get(name), schema)
        assert isinstance(merged, TableSchema), merged
        known[name] = merged if ttl_ms is None else msgspec.structs.replace(merged, ttl_ms=ttl_ms)
        self.tables = list(known.values())
        return known[name]

    def write(
        self, storage_group: str, table: str, data: pa.Table, *, tags: Sequence[str] | None = None
    ) -> Wrote:
        if self.error is not None:
            raise self.error
        self.written.append((storage_group, table, data, tuple(tags or ())))
        return Wrote(data.num_rows)

    def delete(
        self,
        storage_group: str,
        table: str,
        *,
        tags: Mapping[str, str | None] | None = None,
        time_from: int | None = None,
        time_to: int | None = None,
    ) -> DeleteReport:
        self.deleted.append((storage_group, table, dict(tags or {}), time_from, time_to))
        return DeleteReport(3, 0.1)

    def scan(
        self,
        storage_group: str,
        table: str,
        *,
        fields: Sequence[str] | None = None,
        tags: Mapping[str, str | None] | None = None,
        time_from: int | None = None,
        time_to: int | None = None,
        read: str = "strong",
        limit: int | None = None,
        on_age: Callable[[int], None] | None = None,
    ) -> pa.Table:
        if self.error is not None:
            raise self.error
        self._tell(read, on_age)
        return self._chosen(tags).slice(0, limit)

    def scan_batches(self, storage_group: str, table: str, **asked: Any) -> Iterator[pa.RecordBatch]:
        self._tell(asked.get("read", "strong"), asked.pop("on_age", None))
        self.scanned.append(asked)
        if self.answers is not None:
            yield from self._chosen(asked.get("tags")).to_batches()

    def _tell(self, read: str, on_age: Callable[[int], None] | None) -> None:
        if on_age is None or read == "strong":
            return
        for age_ms in self.ages_ms:
            on_age(age_ms)

    def _chosen(self, tags: Mapping[str, str | None] | None) -> pa.Table:
        found = self.answers
        assert found is not None
        for tag, value in (tags or {}).items():
            if tag in found.column_names:
                found = found.filter(pc.equal(found.column(tag), value))
        return found

    def count(self, storage_group: str | None = None, table: str | None = None) -> list[dict[str, object]]:
        return self.counts

    def close(self) -> None:
        self.closed = True


def make_operation(
    identity: str, change: BeginChange | None = None, *, stage: Stage, copied: int = 0
) -> Operation:
    """An add of node6 that moves 10 slots from node1 to node6; `copied` of them are copied everywhere."""
    members = ("node6", "node1", "node2")
    copies = [CopyRecord("node6.9", m, f"inc-{m}", ((0, copied),), "d", 1, 1000) for m in members if copied]
    return Operation(
        id=identity,
        kind=change.kind if change else "add-node",
        node=change.node if change else "node6",
        by="tester",
        started_ms=NOW_MS,
        base_version=7,
        table_version=8,
        moves=[SlotMove(((0, 10),), "node1.1", ("node1", "node2", "node3"), "node6.9", members)],
        changes=[],
        options=change.options if change else Options(),
        stage=stage,
        copies=copies,
        stages=[StageSpan("PLANNED", NOW_MS, NOW_MS + 5, ["meta ready"]), StageSpan(stage.value, NOW_MS + 5)],
    )


class Tty(io.StringIO):
    """Answers that an operator types at a terminal."""

    def isatty(self) -> bool:
        return True


@dataclass(slots=True)
class Ran:
    code: int
    out: str
    err: str


def iotctl(
    cwd: Path,
    *words: str,
    cluster: Cluster | None = None,
    env: Mapping[str, str] | None = None,
    stdin: io.StringIO | None = None,
    out: io.StringIO | None = None,
) -> Ran:
    """Run one command line in `cwd`, the client replaced by `cluster`."""

    def connect(spec: ClusterSpec) -> Cluster:
        assert cluster is not None, "this command must not need the cluster"
        return cluster

    out, err = out or io.StringIO(), io.StringIO()
    session = Session(out, err, stdin or io.StringIO(), {"USER": "tester", **(env or {})}, cwd, connect)
    return Ran(run(words, session), out.getvalue(), err.getvalue())


def _as_error(reply: ErrorReply) -> NodeAgentError:
    return BY_CODE[reply.code](reply.what, next_step=reply.next_step, **reply.details)
