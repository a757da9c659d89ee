"""The commands of the meta group, as its log stores them.

The meta leader proposes each command: on its own behalf, for a client's request, or for a node that sent it
as a report (`requests.Forward`). Times are in milliseconds. `by` names the operator or program that asked,
for the audit log. Tags and field names are the stored format: they stay when a class is renamed
(`tests/compat`).
"""

import msgspec

from nodeagent.model.config import ClusterSettings
from nodeagent.model.features import FIRST
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import CopyRecord, Options, Ranges, SealResult
from nodeagent.model.requests import NodeRecord, RecoveryLeader
from nodeagent.model.schema import TableSchema
from nodeagent.partition.table import TableWire


class _Command(msgspec.Struct, frozen=True, omit_defaults=True):
    now: int
    """The time that records get (`Cluster.record_now`). `hold_release_ms` counts from the `now` of the entry
    with which the hold begins."""


class Bootstrap(_Command, frozen=True, tag="Bootstrap"):
    """Create the cluster: the first command. It has no effect if the cluster exists."""

    cluster_id: str
    settings: ClusterSettings
    nodes: tuple[NodeRecord, ...]
    table: TableWire
    level: int = FIRST
    """The highest feature level that all `nodes` support."""


class PutSchema(_Command, frozen=True, tag="PutSchema"):
    """Create a table or add columns to it; the type of a column never changes.

    `ttl_ms` (ms; 0 for none) sets the TTL, None leaves it unchanged. `if_new` (since `Feature.TTL_IF_NEW`): a
    table that exists retains its TTL.
    """

    schema: TableSchema
    ttl_ms: int | None = None
    if_new: bool = False


class DropTable(_Command, frozen=True, tag="DropTable"):
    """Drop a table, if it is at `version`; see `requests.DropTable`."""

    storage_group: str
    table: str
    version: int


class SetDraining(_Command, frozen=True, tag="SetDraining"):
    """Start (`draining`) or end the drain of `node`: while it drains, it should lead no group."""

    node: NodeId
    draining: bool
    by: str
    lock: int = 0
    """Serial of the cluster lock that the sender holds, 0 for none. The command has no effect if that lock is
    no longer held."""

    for_restart: bool = False
    """As in `requests.NodeRecord`."""


class SetZones(_Command, frozen=True, tag="SetZones"):
    """Set the zones of the nodes that `zones` names, "" for none (since `Feature.ZONES`)."""

    zones: dict[NodeId, str]
    by: str
    lock: int = 0
    """As in `SetDraining`."""


class RaiseLevel(_Command, frozen=True, tag="RaiseLevel"):
    """From this entry on the cluster is at feature level `level`; it has no effect if the level is that
    high already."""

    level: int
    by: str
    lock: int = 0
    """As in `SetDraining`."""

    unnamed_writer: str = ""
    """As in `image.Image`; set by the meta leader."""


class ForceRecover(_Command, frozen=True, tag="GiveUp"):
    """Force recovery, as `requests.ForceRecover`; applying the entry checks again which groups are lost."""

    nodes: tuple[NodeId, ...]
    leaders: tuple[RecoveryLeader, ...] = msgspec.field(name="heirs")
    table_version: int
    by: str


class RecoverMeta(_Command, frozen=True, tag="RecoverMeta"):
    """`nodes` are permanently lost, and with them the majority of the meta group, which continues with the
    journal of `leader` (since `Feature.META_RECOVERY`)."""

    nodes: tuple[NodeId, ...]
    leader: NodeId
    by: str


class TakeLock(_Command, frozen=True, tag="TakeLock"):
    """Take the cluster lock for `owner`, or renew it; see `runs.Lock`."""

    owner: str
    what: str
    by: str
    ttl_ms: int
    serial: int = 0
    """Serial of the lock to renew; 0 takes it."""


class DropLock(_Command, frozen=True, tag="DropLock"):
    """Release the cluster lock `serial`; `outcome` goes to the audit log."""

    serial: int
    by: str
    outcome: str
    renewed: int = 0
    """Log index: the command has no effect if the lock was renewed after it; 0 for no condition. Set by the
    meta leader when the lock lapses."""


class RecordRun(_Command, frozen=True, tag="RecordRun"):
    """Store entry `number` (from 0) of a run; `serial` is that of the cluster lock that the writer holds."""

    run: str
    name: str
    number: int
    entry: bytes
    serial: int
    by: str
    ended: bool = False


class RecoveryCompleted(_Command, frozen=True, tag="LedAgain"):
    """The force recovery `operation` of `group` is complete: its leader committed an entry."""

    group: GroupId
    operation: str


class PlannedMove(msgspec.Struct, frozen=True):
    """Slots that move between groups, given by group owner; applying the entry looks up the groups."""

    slots: Ranges
    source: NodeId
    target: NodeId


class PlannedMembers(msgspec.Struct, frozen=True):
    """The members of one group before and after a change; the group is given by its `owner`."""

    owner: NodeId = msgspec.field(name="header")
    joins: NodeId | None
    leaves: NodeId | None
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]


class Begin(_Command, frozen=True, tag="Begin"):
    """Begin one change, which the meta leader planned against version `base_version` of the table.

    It is refused if the table has another version when the entry is applied.
    """

    kind: str
    """add-node, remove-node, replace-node or rebalance."""

    node: NodeRecord
    """The node that joins or leaves; its name is "" for a rebalance."""
    by: str
    base_version: int
    table: TableWire
    moves: tuple[PlannedMove, ...]
    members: tuple[PlannedMembers, ...]
    created: tuple[NodeId, ...]
    """Members of the new group (add-node, replace-node), else ()."""

    options: Options
    replaces: NodeId = ""
    """replace-node: the node whose place on the ring `node` takes."""

    lock: int = 0
    """As in `SetDraining`."""


class _ProgressReport(_Command, frozen=True):
    """A report on an open operation, or a request to control it; without effect once it has ended."""

    operation: str


class MetaReady(_ProgressReport, frozen=True, tag="MetaReady"):
    """The joining node, if there is one, follows the meta log; the leaving node, if there is one, has no vote
    in the meta group."""


class GroupReady(_ProgressReport, frozen=True, tag="GroupReady"):
    """The group that was created for the joining node has a leader, which committed an entry in its term.

    No slot is sealed before that: between seal and open no group accepts writes for it, and that time must
    not include an election.
    """

    group: GroupId


class SealedBy(_ProgressReport, frozen=True, tag="SealedBy"):
    """A losing group committed its `Seal`."""

    result: SealResult


class UnsealedBy(_ProgressReport, frozen=True, tag="UnsealedBy"):
    """The group committed its `Unseal` and has no learner of the operation left."""

    group: GroupId


class SourceReady(_ProgressReport, frozen=True, tag="SourceReady"):
    """`node` applied the seal of `group` and made all files of the sealed slots."""

    group: GroupId
    node: NodeId


class JoinReady(_ProgressReport, frozen=True, tag="JoinReady"):
    """`node` created its replica of `group` for this operation.

    What a replica of an earlier membership acknowledged does not count: that replica may still be removed.

    `recovery` is the last force recovery of the group during this operation, as `node` knows it: "" for none.
    """

    group: GroupId
    node: NodeId
    recovery: str = ""


class OpenedBy(_ProgressReport, frozen=True, tag="OpenedBy"):
    """A gaining group committed its `Open`, at or before log index `index`."""

    group: GroupId
    index: int


class FormedBy(_ProgressReport, frozen=True, tag="FormedBy"):
    """The group's committed membership is that of the new ring, or as near to it as its dead members
    allow."""

    group: GroupId
    index: int
    """The group's applied index when its leader reported the membership."""

    members: tuple[NodeId, ...]


class Copied(_ProgressReport, frozen=True, tag="Copied"):
    """A node holds a verified, durable copy of some slots."""

    record: CopyRecord


class AdoptedBy(_ProgressReport, frozen=True, tag="AdoptedBy"):
    """A gaining group adopted all of its slots, as of log index `index`."""

    group: GroupId
    index: int


class ReleasedBy(_ProgressReport, frozen=True, tag="ReleasedBy"):
    """A losing group released its slots, as of log index `index`."""

    group: GroupId
    index: int


class ControlOperation(_ProgressReport, frozen=True, tag="SteerOperation"):
    """Control an open operation; fields as in `requests.ControlOperation`."""

    verb: str
    by: str
    owner: str = ""
    ttl_ms: int = 0
    rate_bytes_per_s: int = -1
    """-1 leaves the rate unchanged."""

    report: str = ""
    node: NodeId = ""


class ReportError(_ProgressReport, frozen=True, tag="ReportError"):
    """Why an operation makes no progress, for operators; "" clears the error."""

    what: str
    group: GroupId = ""
    """The data group that the error concerns (since `Feature.REASONS`), else ""."""


Command = (
    Bootstrap
    | PutSchema
    | SetDraining
    | SetZones
    | RaiseLevel
    | RecoverMeta
    | ForceRecover
    | TakeLock
    | DropLock
    | RecordRun
    | RecoveryCompleted
    | Begin
    | MetaReady
    | GroupReady
    | SealedBy
    | UnsealedBy
    | SourceReady
    | JoinReady
    | OpenedBy
    | FormedBy
    | Copied
    | AdoptedBy
    | ReleasedBy
    | ControlOperation
    | ReportError
    | DropTable
)
ProgressReport = (
    MetaReady
    | GroupReady
    | SealedBy
    | UnsealedBy
    | SourceReady
    | JoinReady
    | OpenedBy
    | FormedBy
    | Copied
    | AdoptedBy
    | ReleasedBy
    | ControlOperation
    | ReportError
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode(command: Command) -> bytes:
    return _encoder.encode(command)


def decode(data: bytes) -> Command:
    return _decoder.decode(data)
