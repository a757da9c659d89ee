"""Requests between clients and nodes, and between nodes, with their replies.

Every request gets exactly one reply: its own kind, or `ErrorReply`. The frame carries a number that
pairs them; the sender's identity is that of its certificate.

Tags and names of fields are what is sent: they stay when a class is renamed (`tests/compat`).
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from nodeagent.model import limits
from nodeagent.model.bounds import ChunkBytes, Count, Name, Nodes, Port, Rate, Slot, Slots, Text, Time, Weight
from nodeagent.model.config import ClusterSettings, Seed
from nodeagent.model.features import FIRST, Levels
from nodeagent.model.files import Cursor, FileMeta, FileRef, PulledSlot, ScanSpec, Tombstone
from nodeagent.model.ids import GroupId, NodeId, PartitionKey
from nodeagent.model.operation import CopyRecord, Operation, Options, Ranges
from nodeagent.model.runs import Lock, Run
from nodeagent.model.schema import TableSchema


class _Message(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


class Hello(msgspec.Struct, frozen=True):
    """First frame on every connection, both ways. `cluster_id` is "" while it is not known."""

    protocol: Count
    role: Name
    name: Name
    incarnation: Name = ""
    cluster_id: Name = ""
    table_version: Count = 0
    start: Count = 0
    """Of a node: the number of this start in its directory, counted from 1; 0 for the first release."""

    nonces: tuple[Name, ...] = ()
    """Random names of its last starts, this one's last: two copies of a directory count alike."""

    level: Count = 0
    """The cluster's feature level, as far as the sender knows it; 0 if it does not."""

    oldest_level: Count = FIRST
    newest_level: Count = FIRST
    """What the sender's release speaks (`features.Levels`)."""

    @property
    def levels(self) -> Levels:
        return Levels(self.oldest_level, self.newest_level)


# --- any node, at any time -------------------------------------------------------------------------


class CheckStatus(_Message, frozen=True, tag="CheckStatus"):
    """First start and join: are we configured alike? (seed-facts 1.5)"""

    node: Name
    incarnation: Name
    host: Name
    port: Port
    http_port: Port
    settings: ClusterSettings
    seeds: tuple[Seed, ...]
    join: bool


class StatusChecked(_Message, frozen=True, tag="StatusChecked"):
    """`conflicts` names fields that differ. `known`: the cluster knows `node` by another incarnation."""

    node: NodeId
    incarnation: str
    conflicts: tuple[str, ...]
    cluster_id: str
    known: bool
    ready: bool
    http_port: int = 0
    member: bool = False
    """The cluster knows `node` by this very incarnation."""

    members: tuple[tuple[NodeId, str], ...] = ()
    """(name, incarnation) of the cluster's nodes, as far as the answering one knows them."""

    applied: int = 0
    """How far the answering node follows the meta group; nodes of earlier versions do not say."""


class GetStatus(_Message, frozen=True, tag="GetStatus"):
    pass


class GroupStatus(msgspec.Struct, frozen=True):
    group: GroupId
    role: str
    leader: NodeId | None
    term: int
    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]
    commit: int
    applied: int
    last: int
    slots: int = 0
    files: int = 0
    bytes: int = 0
    rows: int = 0
    memtable_bytes: int = 0
    materialised: int = 0
    compacting: int = 0
    """Compactions that are logged and not done here."""

    files_most: int = 0
    """Files of the time partition that has most of them."""

    lag: dict[str, int] = {}
    state: str = "running"
    error: str = ""
    hint: str = ""
    """The command that helps with `error`; "" where the node's log must be looked at."""
    last_term: int = 0
    """Of the entry at `last`."""

    log_bytes: int = 0
    """Entries that the log holds."""

    log_held_by: str = ""
    """What keeps the log from being purged: a follower, a snapshot for one, rows in memory."""


class NodeStatus(_Message, frozen=True, tag="NodeStatus"):
    node: NodeId
    incarnation: str
    cluster_id: str
    cluster: str
    version: str
    state: str
    now_ms: int
    started_ms: int
    """By the node's clock of now: `now_ms - started_ms` is how long it runs, whatever its clock did."""

    table_version: int
    groups: tuple[GroupStatus, ...]
    heard_ms: dict[str, int]
    """Milliseconds since each peer was last heard."""

    disk_free_bytes: int = 0
    log_bytes: int = 0
    cert_expires_ms: int = 0
    received_bytes: dict[str, int] = {}
    """File bytes pulled, per operation."""

    clock_skew_ms: dict[str, int] = {}
    """Voters of the groups led here whose wall clocks are further than `CLOCK_SKEW_MAX_MS` from the others':
    milliseconds ahead of them, negative when behind."""

    why: str = ""
    """What a node waits for that does not serve, or why it refuses to; "" for one that serves."""

    room: str = ""
    """What the disk has room for: enough, low (no rows are taken), full (`model.space.Room`)."""

    disk_total_bytes: int = 0
    log_segments: int = 0
    log_waits: int = 0
    """Batches that wait to be written as the disk is full."""

    unremoved: dict[str, str] = {}
    """Directories below `data/` that the disk does not remove, and why. The node goes on trying."""

    level: int = FIRST
    """The cluster's feature level as this node knows it; 0 without a cluster."""

    oldest_level: int = FIRST
    newest_level: int = FIRST
    """What its release speaks."""


class GetEvents(_Message, frozen=True, tag="GetEvents"):
    """What happened since `since_ms` (wall clock): the newest `limit` of each kind."""

    since_ms: Time
    limit: Time


class NodeEvent(msgspec.Struct, frozen=True):
    """A notable note of an agent; `group` is "" when it concerns none."""

    time_ms: int
    event: str
    group: str
    message: str


class EventsReply(_Message, frozen=True, tag="EventsReply"):
    """`audit`: (ms, who, what) as of `applied` of the meta group. Both oldest first."""

    node: NodeId
    applied: int
    events: tuple[NodeEvent, ...]
    audit: tuple[tuple[int, str, str], ...]


class GetMeta(_Message, frozen=True, tag="GetMeta"):
    """`strong` waits for a read index of the meta group."""

    strong: bool = False


class NodeRecord(msgspec.Struct, frozen=True):
    node: NodeId
    host: str
    port: int
    http_port: int
    incarnation: str
    position: int
    weight: float = 1.0
    state: str = "active"
    draining: bool = False
    """It should lead no group, until undrained; its slots stay."""


class Recovery(msgspec.Struct, frozen=True):
    """A group whose majority was given up: `head` is to lead it from `term` on, with those that live.

    Config entries of a group name the operation they belong to; that of the recovery is `operation`.
    """

    head: NodeId
    term: int
    operation: str


class GroupRecord(msgspec.Struct, frozen=True):
    """A data group that exists. `members` is the ring's derivation (or the last one, when dissolving), less
    those it lost for ever.

    A replica is created with `initial_members` and `initial_slots`, what the entry that made the
    group says; a node that joins later starts empty.
    """

    group: GroupId
    header: NodeId
    members: tuple[NodeId, ...]
    initial_members: tuple[NodeId, ...]
    initial_slots: Ranges = ()
    dissolving: bool = False
    recovery: Recovery | None = None
    """Until a leader of the group reports that it took place."""


class MetaView(_Message, frozen=True, tag="MetaView"):
    """The meta state as of `applied` on the answering node. `owners`: (start, end, header).

    `operations` has open ones whole and ended ones short, newest last; see `GetOperation`.
    """

    node: NodeId
    applied: int
    cluster_id: str
    settings: ClusterSettings
    nodes: tuple[NodeRecord, ...]
    table_version: int
    ring: tuple[NodeId, ...]
    owners: tuple[tuple[int, int, NodeId], ...]
    groups: tuple[GroupRecord, ...]
    schemas: tuple[TableSchema, ...]
    operations: tuple[Operation, ...]
    leader: NodeId | None
    term: int
    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]
    level: int = FIRST
    """The cluster's feature level."""


# --- the meta group's leader -----------------------------------------------------------------------


class PutSchema(_Message, frozen=True, tag="PutSchema"):
    """Create a table or add columns; answered with the schema in force.

    `ttl_ms` sets the table's TTL, 0 for none; None leaves it as it is (that of `schema` says nothing).
    """

    schema: TableSchema
    ttl_ms: int | None = None


class DropTable(_Message, frozen=True, tag="DropTable"):
    """Write nothing to the table any more and show it to nobody; its rows are deleted by `DeleteRows` before
    and after. Refused when the table is of another `version`. Again it has no effect."""

    storage_group: str
    table: str
    version: int


class SchemaInForce(_Message, frozen=True, tag="SchemaInForce"):
    schema: TableSchema


class BeginChange(_Message, frozen=True, tag="BeginChange"):
    """`kind`: add-node, remove-node, or rebalance (`node` "", `gains` required).

    For an add, where the newcomer listens and which disk it has.
    """

    kind: Name
    node: Name
    by: Text
    options: Options = Options()
    after: Name | None = None
    host: Name = ""
    port: Port = 0
    http_port: Port = 0
    incarnation: Name = ""
    weight: Weight = 1.0
    table_version: Count = 0
    """The version the caller planned for; 0 skips the check."""

    gains: tuple[tuple[Name, Slots], ...] = ()
    """Slots each group (by header) gains, as the caller planned and showed them; () lets the leader plan."""

    replaces: Name = ""
    """replace-node: whose place on the ring `node` takes."""

    lock: Count = 0
    """Serial of the cluster's lock; refused when it is not held any more. 0 works without it."""


class Steer(_Message, frozen=True, tag="Steer"):
    """Act on an open operation.

    `verb`: go (migrate), sign-off, release, pause, resume, cancel, lease, unlease, set, dead.
    `dead`: `node` died during the operation and will not return.

    """

    operation: Name
    verb: Name
    by: Text
    owner: Text = ""
    ttl_ms: Count = 0
    rate_bytes_per_s: Rate = -1
    report: Text = ""
    node: Name = ""


class TakeLock(_Message, frozen=True, tag="TakeLock"):
    """The cluster's lock, for `ttl_ms` from the last time its owner asked; `serial` when it is renewed.

    `owner` names the process for people (user@host, pid) and is no other's. Answered by `LockReply`, `busy`
    when another holds it, `refused` when what is to be renewed is lost.
    """

    owner: Text
    what: Text
    by: Text
    ttl_ms: Count
    serial: Count = 0


class DropLock(_Message, frozen=True, tag="DropLock"):
    """Give the lock up, also another's; `outcome` goes to the audit log. `not_found` when it is not held."""

    serial: Count
    by: Text
    outcome: Text


class LockReply(_Message, frozen=True, tag="LockReply"):
    lock: Lock


class RecordRun(_Message, frozen=True, tag="RecordRun"):
    """Entry `number` of a run's record, counted from 0; may be sent twice. `serial` is of the lock held."""

    run: Name
    name: Text
    number: Count
    entry: bytes
    serial: Count
    by: Text
    ended: bool = False


class GetRuns(_Message, frozen=True, tag="GetRuns"):
    """The lock and the runs, newest last; entries only of the run that is named."""

    run: Name = ""


class RunsReply(_Message, frozen=True, tag="RunsReply"):
    lock: Lock | None
    runs: tuple[Run, ...]


class GetOperation(_Message, frozen=True, tag="GetOperation"):
    """The whole record of an operation, open or ended; `not_found` when it is not kept any more."""

    operation: str


class SetHolds(_Message, frozen=True, tag="SetHolds"):
    """Stop operations at these points (`scaling.holds`), on this node; () lets them go on. For tests."""

    points: Annotated[tuple[Name, ...], Meta(max_length=64)]


class RaiseLevel(_Message, frozen=True, tag="RaiseLevel"):
    """Raise the cluster's feature level to `level`, if every node speaks it. There is no way back."""

    level: Count
    by: Text
    lock: Count = 0
    """Serial of the lock its sender works under, 0 for none; refused when that is not held."""


class Drain(_Message, frozen=True, tag="Drain"):
    """Keep `node` from leading groups, or (`draining` false) let it lead again. `Accepted` when recorded.

    `lock` as in `BeginChange`.
    """

    node: Name
    draining: bool
    by: Text
    lock: Count = 0


class Heir(msgspec.Struct, frozen=True):
    """Who goes on with a group that lost its majority, and from which term: see `Raft.force`."""

    group: GroupId
    head: NodeId
    term: int


class GiveUp(_Message, frozen=True, tag="GiveUp"):
    """`nodes` are gone for ever, and with them the majority of the groups in `heirs`, which go on with the
    members that live. What the lost nodes alone had acknowledged is lost. `Accepted` when recorded.

    `table_version` is the one the caller looked at.
    """

    nodes: Nodes
    heirs: tuple[Heir, ...]
    table_version: Count
    by: Text


class OperationReply(_Message, frozen=True, tag="OperationReply"):
    operation: Operation


class Forward(_Message, frozen=True, tag="Forward"):
    """A node hands the meta leader a meta command (evidence of its groups)."""

    command: bytes


class Accepted(_Message, frozen=True, tag="Accepted"):
    index: int = 0


# --- data groups -----------------------------------------------------------------------------------


class ProbeGroup(_Message, frozen=True, tag="ProbeGroup"):
    """Does the group have a live quorum? `Accepted` after a read index, else `unavailable`."""

    group: Name


class OpenSession(_Message, frozen=True, tag="OpenSession"):
    group: Name


class SessionOpened(_Message, frozen=True, tag="SessionOpened"):
    session: str


class Write(_Message, frozen=True, tag="Write"):
    """Rows of one table of one partition, as an Arrow IPC stream.

    `sequence` counts the session's writes to this slot from 1; all sequences <= `settled` are over
    for the client and need not be remembered.
    """

    group: Name
    slot: Slot
    partition: PartitionKey
    table: Name
    schema_version: Count
    session: Name
    sequence: Count
    settled: Count
    table_version: Count
    ipc: bytes


class Written(_Message, frozen=True, tag="Written"):
    index: int
    duplicate: bool = False


class DeleteRows(_Message, frozen=True, tag="DeleteRows"):
    """Range delete in one partition; session, sequence and schema version as in `Write`."""

    group: Name
    slot: Slot
    partition: PartitionKey
    table: Name
    session: Name
    sequence: Count
    settled: Count
    tags: tuple[tuple[str, str | None], ...]
    time_from: Time
    time_to: Time
    schema_version: Count = 0


class Propose(_Message, frozen=True, tag="Propose"):
    """Bare proposals that only the log sees: what a benchmark of the log itself needs."""

    group: Name
    payloads: tuple[bytes, ...]


class Handover(msgspec.Struct, frozen=True):
    """These slots' older rows are still with their previous holders."""

    operation: str
    slots: Ranges
    source: GroupId
    members: tuple[NodeId, ...]


class ScanRows(_Message, frozen=True, tag="ScanRows"):
    """One page of the rows of one table in one group, partition by partition, each in the order (tags, time).

    The page begins at `after` and ends at `until`, or where it is full. Readers of earlier versions give
    none, and continue with `cursor`, a place between two partitions. With `limit` only the first so many rows
    of each partition are wanted, and of each page. `operation` reads sealed slots of that operation from a
    previous holder (`slots` is required).
    """

    group: Name
    storage_group: Name
    spec: ScanSpec
    read: Name = "strong"
    cursor: Time = 0
    slots: Slots = ()
    operation: Name = ""
    after: Cursor | None = None
    until: Cursor | None = None
    limit: Count = 0


class RowsScanned(_Message, frozen=True, tag="RowsScanned"):
    """`tombstones` and `handover` concern slots whose older rows are elsewhere. The next page begins at
    `next`, None behind the last; `cursor` is the same place where it is between two partitions, else 0.
    """

    ipc: bytes
    rows: int
    cursor: int
    table_version: int
    handover: tuple[Handover, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    age_ms: int = -1
    """Of a mid or weak read: everything acknowledged so long before it began is in the answer. -1 when no
    leader confirmed it yet, and with a strong read, which has no age."""
    next: Cursor | None = None


class ListPartitions(_Message, frozen=True, tag="ListPartitions"):
    """What a group holds; rows are exact where `exact`, else an upper bound.

    With `paged` one page of it, behind `after`, a (partition, table) that the page before ended with. Readers
    of earlier versions ask for all of it. A list does not say what it leaves out: it is refused unless all of
    `slots` are open. Readers of earlier versions name none.
    """

    group: Name
    storage_group: Name = ""
    table: Name = ""
    read: Name = "strong"
    paged: bool = False
    after: tuple[PartitionKey, Text] | None = None
    slots: Slots = ()


class PartitionInfo(msgspec.Struct, frozen=True):
    partition: PartitionKey
    slot: int
    table: str
    rows: int
    exact: bool
    time_min: int
    time_max: int
    bytes: int


class PartitionsListed(_Message, frozen=True, tag="PartitionsListed"):
    partitions: tuple[PartitionInfo, ...]
    handover: tuple[Handover, ...] = ()
    table_version: int = 0
    age_ms: int = -1
    """As in `RowsScanned`."""
    next: tuple[PartitionKey, str] | None = None
    """Where the next page begins, None behind the last."""


class GetManifest(_Message, frozen=True, tag="GetManifest"):
    """The replica's files at its materialised index: whole slots from `first` on, as many as make
    `limits.MANIFEST_FILES` files. None: all at once, as earlier versions ask."""

    group: Name
    slots: Slots = ()
    first: Annotated[int, Meta(ge=0, le=limits.SLOTS_MAX)] | None = None


class DamagedFile(msgspec.Struct, frozen=True):
    """A file of this replica that a read, a compaction or a check found to be other than its manifest says.

    `found` is what its bytes hash to, `missing` or `unreadable`. A compaction that cannot be done for it is
    named by the file it was to make, `output`, and all that it was to merge, `inputs`: the other members may
    have only the output.
    """

    file: str
    slot: int
    expected: str
    found: str
    output: str = ""
    inputs: tuple[str, ...] = ()


class ManifestReply(_Message, frozen=True, tag="ManifestReply"):
    group: GroupId
    node: NodeId
    applied: int
    materialised: int
    pending: int
    """What is logged and not in files yet: closes, adoptions and compactions, plus unclosed batches."""

    files: tuple[FileMeta, ...]
    damaged: tuple[DamagedFile, ...] = ()
    next: int | None = None
    """The slot at which the next page begins, None behind the last. A merge stays within a slot, so pages
    that were read one after the other have every row once."""

    at_work: bool = False
    """Whether files of what is pending are being made, or wait for a worker that makes others, and none
    fails. Earlier versions do not tell."""


class GetWriteRates(_Message, frozen=True, tag="GetWriteRates"):
    """How fast the group's slots are written, as this member counted it; the leader's count is the best."""

    group: Name


class WriteRatesReply(_Message, frozen=True, tag="WriteRatesReply"):
    """(slot, bytes per second). Slots that left the group are named too, until their count has faded: the
    rate of a slot is the sum over all groups."""

    rates: tuple[tuple[int, float], ...]


class CloseAll(_Message, frozen=True, tag="CloseAll"):
    """The leader closes every open partition (of the given slots); answered when it applied that."""

    group: Name
    slots: Slots = ()


class CheckFiles(_Message, frozen=True, tag="CheckFiles"):
    """Re-read and hash the replica's files of these slots; of them only `names`, when given. With names alone
    those of slots that left the group are hashed too, as long as it keeps them."""

    group: Name
    slots: Slots = ()
    names: tuple[str, ...] = ()


class FilesChecked(_Message, frozen=True, tag="FilesChecked"):
    files: tuple[FileMeta, ...]
    found: tuple[tuple[str, str], ...]


class RepairFile(_Message, frozen=True, tag="RepairFile"):
    """Admins only: make this replica hold `wanted`, which a majority of the group holds; `sources` are copies
    in snapshots those replicas offer (`ExportFiles`).

    Name, slot, partition, table and order must be those of a file in the replica's manifest. What lay there
    goes to quarantine, never away. Repeating it changes nothing.
    """

    group: Name
    wanted: FileMeta
    sources: tuple[FileRef, ...]


class FileRepaired(_Message, frozen=True, tag="FileRepaired"):
    """`quarantined`: where the damaged file is kept, below the node's data directory; "" when there was none.

    The file is in place and the manifest that names it saved.
    """

    quarantined: str


class ExportFiles(_Message, frozen=True, tag="ExportFiles"):
    """Make a hard-link snapshot of the replica's files of these slots, or of those called `names`, to be
    fetched by chunks."""

    group: Name
    slots: Slots
    names: tuple[str, ...] = ()


class OpenSource(_Message, frozen=True, tag="OpenSource"):
    """A new member asks a previous holder for sealed slots of an operation."""

    operation: Name
    group: Name
    slots: Slots


class SourceOpened(_Message, frozen=True, tag="SourceOpened"):
    node: NodeId
    snapshot: str
    slots: tuple[PulledSlot, ...]


class GetSealedSessions(_Message, frozen=True, tag="GetSealedSessions"):
    """A gaining group's leader asks any member of a sealed group for a part of the sessions that go with the
    slots; `not_found` from one that has not applied the seal, with `wait` only after `SEAL_WAIT_MS`."""

    operation: str
    group: GroupId
    part: int
    wait: bool = False


class SealedSessions(_Message, frozen=True, tag="SealedSessions"):
    data: bytes


class FetchChunk(_Message, frozen=True, tag="FetchChunk"):
    """Bytes of a file of a snapshot. A missing file is `not_found`, never an empty chunk."""

    snapshot: Name
    name: Name
    offset: Count
    length: ChunkBytes


class Chunk(_Message, frozen=True, tag="Chunk"):
    data: bytes
    size: int


class PullUnit(_Message, frozen=True, tag="PullUnit"):
    """Whoever holds the operation's lease orders a target node to pull some slots now."""

    operation: Name
    group: Name
    slots: Slots


class UnitPulled(_Message, frozen=True, tag="UnitPulled"):
    copy: CopyRecord


class ErrorReply(_Message, frozen=True, tag="ErrorReply"):
    """`code` is one of `errors.BY_CODE`; details are JSON-like."""

    code: str
    what: str
    next_step: str = ""
    details: dict[str, str | int | bool | None] = {}


Request = (
    CheckStatus
    | GetStatus
    | GetEvents
    | GetMeta
    | PutSchema
    | BeginChange
    | Steer
    | SetHolds
    | Drain
    | RaiseLevel
    | GiveUp
    | TakeLock
    | DropLock
    | RecordRun
    | GetRuns
    | GetOperation
    | Forward
    | ProbeGroup
    | OpenSession
    | Write
    | DeleteRows
    | Propose
    | ScanRows
    | ListPartitions
    | GetManifest
    | GetWriteRates
    | CloseAll
    | CheckFiles
    | RepairFile
    | ExportFiles
    | OpenSource
    | GetSealedSessions
    | FetchChunk
    | PullUnit
    | DropTable
)
Reply = (
    StatusChecked
    | NodeStatus
    | EventsReply
    | MetaView
    | SchemaInForce
    | OperationReply
    | LockReply
    | RunsReply
    | Accepted
    | SessionOpened
    | Written
    | RowsScanned
    | PartitionsListed
    | ManifestReply
    | WriteRatesReply
    | FilesChecked
    | FileRepaired
    | SourceOpened
    | SealedSessions
    | Chunk
    | UnitPulled
    | ErrorReply
)
