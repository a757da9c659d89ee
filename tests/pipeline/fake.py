"""A cluster that is a directory: real TsFiles, manifests in files, so that Spark tasks share it.

<root>/state               MetaView and what else all nodes agree on
<root>/<node>/<group>/     manifest and files of one replica
<root>/<node>/down         the node does not answer
"""

import contextlib
import fcntl
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from iotctl.pipeline.link import Cluster
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import Busy, NotFound, Refused, Unavailable
from nodeagent.model.files import CloseSpec, FileMeta, Order, PulledSlot, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import CloseUnit, MemBatch
from nodeagent.model.operation import CopyRecord, Lease, Operation, Ranges, SlotMove, Stage
from nodeagent.model.requests import (
    Accepted,
    CheckFiles,
    Chunk,
    CloseAll,
    ControlOperation,
    ExportFiles,
    FetchChunk,
    FileRepaired,
    FilesChecked,
    GroupRecord,
    ManifestReply,
    MetaView,
    NodeRecord,
    OpenSource,
    OperationReply,
    PullUnit,
    RepairFile,
    Reply,
    Request,
    SourceOpened,
    UnitPulled,
)
from nodeagent.model.schema import TableSchema
from nodeagent.partition import ranges
from nodeagent.storage.format import ClosedUnit, close_unit
from nodeagent.storage.tsfile_format import TsFileFormat
from nodeagent.table.arrow import encode


class Replica(msgspec.Struct):
    """A node's replica of a group. `index` is the applied and the materialised index."""

    files: list[FileMeta] = []
    tombstones: list[Tombstone] = []
    sealed: Ranges = ()
    index: int = 100
    pending: int = 0


class State(msgspec.Struct):
    """`pull_failures`: how many of the next orders fail. `log`: the requests to the meta group."""

    meta: MetaView
    pull_failures: int = 0
    pulls: int = 0
    log: list[str] = []
    leases: list[str] = []


@dataclass(frozen=True)
class DirectorySpec:
    """A picklable spec of the cluster in `root`."""

    root: str

    def open(self) -> Cluster:
        return DirectoryCluster(Path(self.root))


class DirectoryCluster:
    """Answers as agents would, from files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    # --- state -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def state(self) -> Iterator[State]:
        """The state, locked until the block ends and then written back."""
        with (self.root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self.root / "state"
            state = msgspec.msgpack.decode(path.read_bytes(), type=State)
            yield state
            path.write_bytes(msgspec.msgpack.encode(state))

    def load(self, node: str, group: str) -> Replica:
        path = self.root / node / group / "manifest"
        if not path.exists():
            raise NotFound(f"{node} has no group {group}")
        return msgspec.msgpack.decode(path.read_bytes(), type=Replica)

    def save(self, node: str, group: str, replica: Replica) -> None:
        path = self.root / node / group / "manifest"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.msgpack.encode(replica))

    def put(self, node: str, group: str, made: ClosedUnit) -> Path:
        """Add or replace a file and its manifest entry."""
        with contextlib.suppress(NotFound):
            replica = self.load(node, group)
            replica.files = [f for f in replica.files if f.name != made.meta.name] + [made.meta]
            self.save(node, group, replica)
            path = self.root / node / group / made.meta.name
            path.write_bytes(made.content)
            return path
        self.save(node, group, Replica())
        return self.put(node, group, made)

    # --- the verbs -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def meta(self, strong: bool = False, any_age: bool = False) -> MetaView:
        with self.state() as state:
            return state.meta

    def call_group(self, group: str, request: Request) -> Reply:
        assert isinstance(request, CloseAll)
        members = next(g.members for g in self.meta().groups if g.group == group)
        return Accepted(max(self.load(n, group).index for n in members))

    def manifest(self, node: str, group: str, slots: Ranges = ()) -> ManifestReply:
        self._check_up(node)
        replica = self.load(node, group)
        files = tuple(self._of(node, group, slots))
        return ManifestReply(group, node, replica.index, replica.index, replica.pending, files)

    def _check_up(self, node: str) -> None:
        if (self.root / node / "down").exists():
            raise Unavailable(f"{node} does not answer")

    def call(self, node: str, request: Request, timeout_s: float | None = None) -> Reply:
        self._check_up(node)
        match request:
            case CheckFiles():
                files = self._of(node, request.group, request.slots)
                return FilesChecked(
                    tuple(files), tuple((f.name, self._hash(node, request.group, f)) for f in files)
                )
            case ExportFiles():
                return self._offer(node, request.group, request.slots)
            case OpenSource():
                if ranges.subtract(request.slots, self.load(node, request.group).sealed):
                    raise Refused("not sealed here")
                return self._offer(node, request.group, request.slots)
            case FetchChunk():
                content = (self.root / node / request.snapshot / request.name).read_bytes()
                return Chunk(content[request.offset : request.offset + request.length], len(content))
            case RepairFile():
                return self._repair(node, request)
            case PullUnit():
                return UnitPulled(self._pull(node, request))
            case _:
                raise AssertionError(request)

    def write(
        self, storage_group: str, table: str, data: pa.Table, *, tags: Sequence[str] | None = None
    ) -> object:
        """Store the rows unchanged, so that a test can read them."""
        target = self.root / "written" / storage_group / table / ",".join(tags or ())
        target.mkdir(parents=True, exist_ok=True)
        pq.write_table(data, target / f"{uuid.uuid4()}.parquet")
        return None

    def _of(self, node: str, group: str, slots: Ranges) -> list[FileMeta]:
        files = self.load(node, group).files
        return [f for f in files if not slots or ranges.contains(slots, f.slot)]

    def _hash(self, node: str, group: str, meta: FileMeta) -> str:
        path = self.root / node / group / meta.name
        return xxhash.xxh3_128_hexdigest(path.read_bytes()) if path.exists() else "missing"

    def _repair(self, node: str, request: RepairFile) -> FileRepaired:
        """Move the old file to quarantine and copy that of the first source to its place. A node with a file
        `stuck` refuses; a node with a file `lying` only claims to have done it."""
        if (self.root / node / "stuck").exists():
            raise Refused("installing")
        if (self.root / node / "lying").exists():
            return FileRepaired("")
        wanted, source = request.wanted, request.sources[0]
        content = (self.root / source.node / source.snapshot / source.name).read_bytes()
        assert xxhash.xxh3_128_hexdigest(content) == wanted.xxh3
        path = self.root / node / request.group / wanted.name
        kept = self.root / node / "quarantine" / wanted.name
        kept.parent.mkdir(exist_ok=True)
        if path.exists():
            path.rename(kept)
        path.write_bytes(content)
        replica = self.load(node, request.group)
        assert wanted.name in {f.name for f in replica.files}
        replica.files = [wanted if f.name == wanted.name else f for f in replica.files]
        self.save(node, request.group, replica)
        return FileRepaired(f"quarantine/{wanted.name}" if kept.exists() else "")

    def _offer(self, node: str, group: str, slots: Ranges) -> SourceOpened:
        replica = self.load(node, group)
        partitions = {f.partition: f.slot for f in replica.files}
        pulled = tuple(
            PulledSlot(
                slot,
                tuple(f for f in replica.files if f.slot == slot),
                tuple(t for t in replica.tombstones if partitions.get(t.partition) == slot),
            )
            for slot in ranges.to_slots(slots)
        )
        return SourceOpened(node, group, pulled)

    # --- changes -------------------------------------------------------------------------------------

    def _pull(self, node: str, request: PullUnit) -> CopyRecord:
        """Copy from the first source and record the copy; adopt once all members have all slots."""
        with self.state() as state:
            state.pulls += 1
            fails = state.pull_failures > 0
            state.pull_failures -= fails
        if fails:
            raise Unavailable("the source went away")
        with self.state() as state:
            operation = state.meta.operations[0]
            move = next(m for m in operation.moves if m.target == request.group)
            size = files = 0
            for meta in self._of(move.source_members[0], move.source, request.slots):
                content = (self.root / move.source_members[0] / move.source / meta.name).read_bytes()
                adopted = msgspec.structs.replace(meta, name=f"adopted-{meta.name}", order=(50, *meta.order))
                self.put(node, request.group, ClosedUnit(adopted, content, None))  # type: ignore[arg-type]
                size, files = size + len(content), files + 1
            incarnation = next(n.incarnation for n in state.meta.nodes if n.node == node)
            copy = CopyRecord(request.group, node, incarnation, request.slots, "d", files, size)
            operation.copies.append(copy)
            done = {
                n: ranges.union(*(c.slots for c in operation.copies if c.node == n))
                for n in move.target_members
            }
            if all(not ranges.subtract(move.slots, d) for d in done.values()):
                operation.adopted = [request.group]
                if not operation.options.verify:
                    _release(operation)
            return copy

    def call_meta(self, request: Request) -> Reply:
        assert isinstance(request, ControlOperation)
        with self.state() as state:
            operation = next(o for o in state.meta.operations if o.id == request.operation)
            state.log.append(request.verb if request.verb != "sign-off" else f"sign-off {request.report}")
            match request.verb:
                case "lease":
                    if operation.lease is not None and operation.lease.owner != request.owner:
                        raise Busy(f"lease held by {operation.lease.owner}")
                    operation.lease = Lease(request.owner, 1, request.ttl_ms)
                case "unlease":
                    operation.lease = None
                case "go":
                    operation.migrate_go = True
                case "sign-off":
                    operation.signed_off = True
                    _release(operation)
                case _:
                    pass  # only recorded in the log
            return OperationReply(operation)


def _release(operation: Operation) -> None:
    operation.stage = Stage.DONE
    operation.released = operation.losing


class Maker:
    """Makes real TsFiles as an agent would."""

    def __init__(self) -> None:
        self._scratch = tempfile.mkdtemp(prefix="pipeline-test-")
        self._format = TsFileFormat(self._scratch)

    def close(self) -> None:
        shutil.rmtree(self._scratch)

    def file(
        self, schema: TableSchema, rows: pa.Table, slot: int, order: Order, partition: int | None = None
    ) -> ClosedUnit:
        key = PartitionKey(schema.storage_group, slot if partition is None else partition, 0)
        name = f"{slot:05d}-{'-'.join(map(str, order))}-{schema.table}.tsfile"
        spec = CloseSpec(name, slot, key, order, schema)
        made = close_unit(CloseUnit(spec, (MemBatch((1,), encode(rows)),)), self._format)
        assert made is not None
        return made


def create(
    root: Path,
    members: Mapping[str, tuple[str, ...]],
    schemas: tuple[TableSchema, ...],
    operations: tuple[Operation, ...] = (),
) -> DirectoryCluster:
    """A cluster whose groups have these members; every node gets an incarnation `i-<node>`."""
    nodes = sorted({n for m in members.values() for n in m})
    records = tuple(NodeRecord(n, "127.0.0.1", 1, 2, f"i-{n}", position) for position, n in enumerate(nodes))
    groups = tuple(GroupRecord(g, g.partition(".")[0], m, m) for g, m in members.items())
    headers = [g.owner for g in groups]
    share = 100 // len(headers)
    owners = tuple((i * share, (i + 1) * share, h) for i, h in enumerate(headers))
    meta = MetaView(
        node=nodes[0],
        applied=9,
        cluster_id="c",
        settings=ClusterSettings("fake", slots=100),
        nodes=records,
        table_version=1,
        ring=tuple(nodes),
        owners=owners,
        groups=groups,
        schemas=schemas,
        operations=operations,
        leader=nodes[0],
        term=1,
        voters=tuple(nodes),
        learners=(),
    )
    root.mkdir(parents=True, exist_ok=True)
    (root / "state").write_bytes(msgspec.msgpack.encode(State(meta)))
    cluster = DirectoryCluster(root)
    for group, own in members.items():
        for node in own:
            cluster.save(node, group, Replica())
    return cluster


def one_move(slots: Ranges, source: str, target: str, meta_groups: Mapping[str, tuple[str, ...]]) -> SlotMove:
    return SlotMove(slots, source, meta_groups[source], target, meta_groups[target])
