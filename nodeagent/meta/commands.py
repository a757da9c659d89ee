"""Commands of the meta group. `now` is the wall clock of the leader that proposes, for records only.

Tags and names of fields are what the log holds: they stay when a class is renamed (`tests/compat`).
"""

import msgspec

from nodeagent.model.config import ClusterSettings
from nodeagent.model.features import FIRST
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import CopyRecord, Options, Ranges, SealResult
from nodeagent.model.requests import Heir, NodeRecord
from nodeagent.model.schema import TableSchema
from nodeagent.partition.table import TableWire


class _Command(msgspec.Struct, frozen=True, omit_defaults=True):
    now: int


class Bootstrap(_Command, frozen=True, tag="Bootstrap"):
    """The first entry. Later ones have no effect."""

    cluster_id: str
    settings: ClusterSettings
    nodes: tuple[NodeRecord, ...]
    table: TableWire
    level: int = FIRST
    """The highest feature level that all of them speak."""


class PutSchema(_Command, frozen=True, tag="PutSchema"):
    """Create the table or add columns; never changes a column's type. `ttl_ms` None leaves the TTL."""

    schema: TableSchema
    ttl_ms: int | None = None


class DropTable(_Command, frozen=True, tag="DropTable"):
    """As `requests.DropTable`."""

    storage_group: str
    table: str
    version: int


class SetDraining(_Command, frozen=True, tag="SetDraining"):
    """Whether `node` is kept from leading groups."""

    node: NodeId
    draining: bool
    by: str
    lock: int = 0
    """Serial of the lock its sender works under, 0 for none; without effect when that is not held."""

    for_restart: bool = False
    """As in `requests.NodeRecord`."""


class RaiseLevel(_Command, frozen=True, tag="RaiseLevel"):
    """From here on the cluster is at feature level `level`; without effect if it is there already."""

    level: int
    by: str
    lock: int = 0
    """As in `SetDraining`."""

    unnamed_writer: str = ""
    """As in `image.Image`."""


class GiveUp(_Command, frozen=True, tag="GiveUp"):
    """As `requests.GiveUp`; what is lost is checked again when the entry is applied."""

    nodes: tuple[NodeId, ...]
    heirs: tuple[Heir, ...]
    table_version: int
    by: str


class TakeLock(_Command, frozen=True, tag="TakeLock"):
    """The cluster's lock for `owner`, who renews it with the same command; see `runs.Lock`."""

    owner: str
    what: str
    by: str
    ttl_ms: int
    serial: int = 0
    """When it is renewed."""


class DropLock(_Command, frozen=True, tag="DropLock"):
    """`outcome` is for people. `renewed`: only if nobody renewed it since that entry."""

    serial: int
    by: str
    outcome: str
    renewed: int = 0


class RecordRun(_Command, frozen=True, tag="RecordRun"):
    """Entry `number` (from 0) of a run; `serial` is that of the lock its writer holds."""

    run: str
    name: str
    number: int
    entry: bytes
    serial: int
    by: str
    ended: bool = False


class LedAgain(_Command, frozen=True, tag="LedAgain"):
    """The recovery `operation` of `group` is committed there."""

    group: GroupId
    operation: str


class PlannedMove(msgspec.Struct, frozen=True):
    """Slots that change headers; groups are looked up when the entry is applied."""

    slots: Ranges
    source: NodeId
    target: NodeId


class PlannedMembers(msgspec.Struct, frozen=True):
    header: NodeId
    joins: NodeId | None
    leaves: NodeId | None
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]


class Begin(_Command, frozen=True, tag="Begin"):
    """One change, planned by the leader against table `base_version`; `node` is nameless for a rebalance."""

    kind: str
    node: NodeRecord
    by: str
    base_version: int
    table: TableWire
    moves: tuple[PlannedMove, ...]
    members: tuple[PlannedMembers, ...]
    created: tuple[NodeId, ...]
    """Members of the new group (add), else ()."""

    options: Options
    replaces: NodeId = ""
    """replace-node: whose place on the ring `node` takes."""

    lock: int = 0
    """As in `SetDraining`."""


class _Evidence(_Command, frozen=True):
    operation: str


class MetaReady(_Evidence, frozen=True, tag="MetaReady"):
    """add: the newcomer follows the meta log. remove: the leaver has no meta vote."""


class GroupReady(_Evidence, frozen=True, tag="GroupReady"):
    """The group made for the newcomer has a leader, which committed in its term.

    Slots are not sealed before: between seal and open nobody takes writes for them, and that is no time to
    wait for an election.
    """

    group: GroupId


class SealedBy(_Evidence, frozen=True, tag="SealedBy"):
    result: SealResult


class UnsealedBy(_Evidence, frozen=True, tag="UnsealedBy"):
    """The group logged `Unseal` and has no learner of the operation left."""

    group: GroupId


class SourceReady(_Evidence, frozen=True, tag="SourceReady"):
    """`node` applied the seal of `group` and all files of the sealed slots are made there."""

    group: GroupId
    node: NodeId


class JoinReady(_Evidence, frozen=True, tag="JoinReady"):
    """`node` has made its replica of `group` for this operation.

    What a replica of an earlier membership acknowledged must not count: that one may yet be removed.
    """

    group: GroupId
    node: NodeId


class OpenedBy(_Evidence, frozen=True, tag="OpenedBy"):
    group: GroupId
    index: int


class FormedBy(_Evidence, frozen=True, tag="FormedBy"):
    """The group's committed membership is that of the new ring, or as near as its dead members allow."""

    group: GroupId
    index: int
    members: tuple[NodeId, ...]


class Copied(_Evidence, frozen=True, tag="Copied"):
    record: CopyRecord


class AdoptedBy(_Evidence, frozen=True, tag="AdoptedBy"):
    group: GroupId
    index: int


class ReleasedBy(_Evidence, frozen=True, tag="ReleasedBy"):
    group: GroupId
    index: int


class SteerOperation(_Evidence, frozen=True, tag="SteerOperation"):
    """What an operator says of an open operation; verbs as in `requests.Steer`."""

    verb: str
    by: str
    owner: str = ""
    ttl_ms: int = 0
    rate_bytes_per_s: int = -1
    report: str = ""
    node: NodeId = ""


class ReportError(_Evidence, frozen=True, tag="ReportError"):
    """Why an operation does not go on, for people."""

    what: str
    group: GroupId = ""
    """That it concerns (`Feature.REASONS`)."""


Command = (
    Bootstrap
    | PutSchema
    | SetDraining
    | RaiseLevel
    | GiveUp
    | TakeLock
    | DropLock
    | RecordRun
    | LedAgain
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
    | SteerOperation
    | ReportError
    | DropTable
)
Evidence = (
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
    | SteerOperation
    | ReportError
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode(command: Command) -> bytes:
    return _encoder.encode(command)


def decode(data: bytes) -> Command:
    return _decoder.decode(data)
