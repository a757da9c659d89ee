"""Metadata: what the meta group knows, and what its leader changes."""

from typing import ClassVar

import msgspec

from nodeagent.model.bounds import Count, Name, Nodes, Text
from nodeagent.model.config import ClusterSettings
from nodeagent.model.features import FIRST
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Operation, Ranges
from nodeagent.model.requests.base import ADMINS, MEMBERS, NODES, READERS, Message, Repeat, Traits
from nodeagent.model.schema import TableSchema


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

    for_restart: bool = False
    """It drains as a rolling restart is to stop it, and nobody else wants it to (`Feature.REASONS`)."""


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


class GetMeta(Message, frozen=True, tag="GetMeta"):
    """`strong` waits for a read index of the meta group."""

    traits: ClassVar = Traits(READERS)

    strong: bool = False


class MetaView(Message, frozen=True, tag="MetaView"):
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


class PutSchema(Message, frozen=True, tag="PutSchema"):
    """Create a table or add columns; answered with the schema in force.

    `ttl_ms` sets the table's TTL, 0 for none; None leaves it as it is (that of `schema` says nothing).
    """

    traits: ClassVar = Traits(MEMBERS, Repeat.UNLESS_FAILED)

    schema: TableSchema
    ttl_ms: int | None = None


class DropTable(Message, frozen=True, tag="DropTable"):
    """Write nothing to the table any more and show it to nobody; its rows are deleted by `DeleteRows` before
    and after. Refused when the table is of another `version`. Again it has no effect."""

    traits: ClassVar = Traits(ADMINS, Repeat.UNLESS_FAILED)

    storage_group: str
    table: str
    version: int


class SchemaInForce(Message, frozen=True, tag="SchemaInForce"):
    schema: TableSchema


class RaiseLevel(Message, frozen=True, tag="RaiseLevel"):
    """Raise the cluster's feature level to `level`, if every node speaks it. There is no way back."""

    traits: ClassVar = Traits(ADMINS, Repeat.UNLESS_FAILED)

    level: Count
    by: Text
    lock: Count = 0
    """Serial of the lock its sender works under, 0 for none; refused when that is not held."""


class Drain(Message, frozen=True, tag="Drain"):
    """Keep `node` from leading groups, or (`draining` false) let it lead again. `Accepted` when recorded.

    `lock` as in `BeginChange`, `for_restart` as in `NodeRecord`.
    """

    traits: ClassVar = Traits(MEMBERS, Repeat.UNLESS_FAILED)

    node: Name
    draining: bool
    by: Text
    lock: Count = 0
    for_restart: bool = False


class Heir(msgspec.Struct, frozen=True):
    """Who goes on with a group that lost its majority, and from which term: see `Raft.force`."""

    group: GroupId
    head: NodeId
    term: int


class GiveUp(Message, frozen=True, tag="GiveUp"):
    """`nodes` are gone for ever, and with them the majority of the groups in `heirs`, which go on with the
    members that live. What the lost nodes alone had acknowledged is lost. `Accepted` when recorded.

    `table_version` is the one the caller looked at.
    """

    traits: ClassVar = Traits(ADMINS)

    nodes: Nodes
    heirs: tuple[Heir, ...]
    table_version: Count
    by: Text


class Forward(Message, frozen=True, tag="Forward"):
    """A node hands the meta leader a meta command (evidence of its groups)."""

    traits: ClassVar = Traits(NODES, Repeat.UNLESS_FAILED)

    command: bytes
