"""Requests about the meta group: read its state, and change nodes, tables, the level and lost groups."""

from typing import ClassVar

import msgspec

from nodeagent.model.bounds import Count, Name, Nodes, Text, Zones
from nodeagent.model.config import ClusterSettings
from nodeagent.model.features import FIRST
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Operation, Ranges
from nodeagent.model.requests.base import ADMINS, MEMBERS, NODES, READERS, Message, Repeat, Traits
from nodeagent.model.schema import TableSchema


class NodeRecord(msgspec.Struct, frozen=True):
    """A node of the cluster."""

    node: NodeId
    host: str
    port: int
    http_port: int
    incarnation: str
    """Random id of the node's data directory."""

    position: int
    """Place on the ring, in [0, 2^64)."""

    weight: float = 1.0
    """Share of the slots relative to the other nodes; above 0."""

    state: str = "active"
    """`joining`, `active`, `leaving` or `dead`."""

    draining: bool = False
    """The node should lead no group until it is undrained; its slots stay."""

    for_restart: bool = False
    """The node drains only because a rolling restart will stop it (since `Feature.REASONS`)."""

    zone: str = ""
    """Nodes of one zone (a rack, a room) may fail together; "" if it is not known (since `Feature.ZONES`)."""


class Recovery(msgspec.Struct, frozen=True):
    """A force recovery in progress. `head`, as it is stored, is the recovery leader: it leads the group from
    `term` on, with the living members. The config entry that it logs has `operation` as its operation.
    """

    head: NodeId
    term: int
    operation: str


class GroupRecord(msgspec.Struct, frozen=True):
    """A data group that exists; `owner` is the group owner.

    `members` follow from the ring (from the previous ring while the group is `dissolving`), without members
    that are permanently lost. The first replicas are created with `initial_members` and `initial_slots`, as
    the entry that created the group has them; a node that joins later starts empty.
    """

    group: GroupId
    owner: NodeId = msgspec.field(name="header")
    members: tuple[NodeId, ...]
    initial_members: tuple[NodeId, ...]
    initial_slots: Ranges = ()
    dissolving: bool = False
    recovery: Recovery | None = None
    """Set until a leader of the group reports that the force recovery is completed."""


class GetMeta(Message, frozen=True, tag="GetMeta"):
    """Read the meta state of the node, which a leader confirmed within `meta_staleness_max_ms`.

    `strong`: first wait for a read index of the meta group. `any_age`: answer in any case, for routing (a
    group whose leader moved says so) and for a status without a meta quorum.
    """

    traits: ClassVar = Traits(READERS)

    strong: bool = False
    any_age: bool = False
    held: Name = ""
    """The `schemas_digest` of a view that the caller holds, "" for none: if the node remembers what changed
    since, the view has only these tables."""


class MetaView(Message, frozen=True, tag="MetaView"):
    """The meta state as of meta log index `applied` on the answering node.

    `owners`: (first slot, end slot, group owner). `operations`: open operations with whole records, ended
    ones with short records, newest last; see `GetOperation`.
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

    age_ms: int = -1
    """The state holds everything acknowledged longer ago than this; -1 if no leader has confirmed it, or if
    an earlier release answered."""

    schemas_digest: str = ""
    """Stands for the schemas of all tables (`meta.schema_changes`); "" if an earlier release answered."""

    schemas_base: str = ""
    """"": `schemas` are those of all tables. Else those that may have changed since the view with this
    digest; `dropped` are the tables (storage group, table) that were dropped since."""

    dropped: tuple[tuple[str, str], ...] = ()


class OfferState(Message, frozen=True, tag="OfferState"):
    """Make an image of the meta state for `node`, whose own images are all damaged; refused if the state is
    older than journal entry `base`, after which the node's log begins."""

    traits: ClassVar = Traits(NODES)

    node: Name
    base: Count


class BackUpMeta(Message, frozen=True, tag="BackUpMeta"):
    """Make an image of the meta state, with everything that was acknowledged before the request. Refused if
    the cluster's feature level has no images."""

    traits: ClassVar = Traits(ADMINS, is_long=True)


class StateOffered(Message, frozen=True, tag="StateOffered"):
    """The file `PAYLOAD` of `snapshot` is the image at meta log index `index`; the snapshot is dropped when
    nobody reads it."""

    snapshot: str
    index: int


class PutSchema(Message, frozen=True, tag="PutSchema"):
    """Create a table or add columns; the reply is the schema in force.

    `ttl_ms` sets the table's TTL, 0 for none; None leaves it unchanged (`schema.ttl_ms` is ignored). `if_new`
    (since `Feature.TTL_IF_NEW`): a table that exists retains its TTL.
    """

    traits: ClassVar = Traits(MEMBERS, Repeat.UNLESS_FAILED)

    schema: TableSchema
    ttl_ms: int | None = None
    if_new: bool = False


class DropTable(Message, frozen=True, tag="DropTable"):
    """Accept no rows for the table any more and hide it from reads.

    The caller deletes its rows by `DeleteRows` before and after. Refused if the table has another `version`.
    A repeat has no effect.
    """

    traits: ClassVar = Traits(ADMINS, Repeat.UNLESS_FAILED)

    storage_group: str
    table: str
    version: int


class SchemaInForce(Message, frozen=True, tag="SchemaInForce"):
    schema: TableSchema


class RaiseLevel(Message, frozen=True, tag="RaiseLevel"):
    """Raise the cluster's feature level to `level`, if every node supports it. The level never falls."""

    traits: ClassVar = Traits(ADMINS, Repeat.UNLESS_FAILED)

    level: Count
    by: Text
    lock: Count = 0
    """Serial of the cluster lock that the sender holds, 0 for none; refused if that lock is not held."""


class Drain(Message, frozen=True, tag="Drain"):
    """Stop `node` from leading groups, or (`draining` false) let it lead again. `Accepted` once recorded.

    `lock` as in `BeginChange`, `for_restart` as in `NodeRecord`.
    """

    traits: ClassVar = Traits(MEMBERS, Repeat.UNLESS_FAILED)

    node: Name
    draining: bool
    by: Text
    lock: Count = 0
    for_restart: bool = False


class SetZones(Message, frozen=True, tag="SetZones"):
    """Set the zones of the nodes that `zones` names; "" for none. Refused if one of them is not in the
    cluster. `Accepted` once recorded.

    `lock` as in `BeginChange`.
    """

    traits: ClassVar = Traits(MEMBERS, Repeat.UNLESS_FAILED)

    zones: Zones
    by: Text
    lock: Count = 0


class RecoveryLeader(msgspec.Struct, frozen=True):
    """`head` is the recovery leader of a group without a majority, `term` the term that it begins with
    (`Raft.force`)."""

    group: GroupId
    head: NodeId
    term: int


class ForceRecover(Message, frozen=True, tag="GiveUp"):
    """Force recovery: `nodes` are permanently lost, and so is the majority of the groups in `leaders`, which
    continue with their living members. Writes that only lost nodes hold are lost. `Accepted` once recorded.

    `table_version` is the version of the table that the caller read; refused if it has changed.
    """

    traits: ClassVar = Traits(ADMINS)

    nodes: Nodes
    leaders: tuple[RecoveryLeader, ...] = msgspec.field(name="heirs")
    table_version: Count
    by: Text


class RecoverMeta(Message, frozen=True, tag="RecoverMeta"):
    """Force recovery of the meta group: `nodes` are permanently lost, and with them its majority.

    The node that gets the request leads the group from `term` on (`Raft.force`), with its own journal;
    entries that only lost nodes have are lost. `Accepted` once recorded.

    `last`, `last_term`: the end of the node's journal that the caller read; refused if it has changed.
    """

    traits: ClassVar = Traits(ADMINS, Repeat.NEVER)

    nodes: Nodes
    term: Count
    last: Count
    last_term: Count
    by: Text


class Forward(Message, frozen=True, tag="Forward"):
    """A node sends the meta leader an encoded meta command: a progress report of its groups."""

    traits: ClassVar = Traits(NODES, Repeat.UNLESS_FAILED)

    command: bytes
