"""The published status of a cluster: rows for nodes and groups, and problems."""

import msgspec

from iotctl.observe.operations import OperationRow

DEAD = "dead"
"""State of a node that was declared permanently lost and is still on the ring."""


class MetaRow(msgspec.Struct, frozen=True):
    leader: str | None
    term: int
    voters: list[str]
    observers: list[str]


class NodeRow(msgspec.Struct, frozen=True):
    """`role` is the node's role in the meta group. `slots` is the number of slots of the group it owns.
    `lag_ms` is the time since any peer last heard the node. None means unknown."""

    id: str
    host: str
    port: int
    reachable: bool
    state: str
    role: str
    slots: int | None
    groups_led: int | None
    bytes: int | None
    rows: int | None
    lag_ms: int | None
    disk_free_bytes: int | None
    cert_expires_ms: int | None
    version: str
    error: str
    feature_level: int | None = None
    """The highest feature level that the node's release supports."""


class GroupRow(msgspec.Struct, frozen=True):
    """`lag` is how many entries the slowest member is behind the leader."""

    group: str
    owner: str
    members: list[str]
    live: list[str]
    leader: str | None
    term: int
    quorum: bool
    dissolving: bool
    slots: int
    files: int
    bytes: int
    rows: int
    commit: int
    lag: int
    state: str
    error: str
    header: str = ""
    """The former name of `owner`, printed until 0.3.0."""


class Problem(msgspec.Struct, frozen=True):
    """`severity` is error or warning; `next` is the command to run."""

    severity: str
    code: str
    node: str
    group: str
    message: str
    next: str


class ClusterStatus(msgspec.Struct, frozen=True):
    """`quorum`: the meta group and every data group have a quorum. `source`: the node that returned the meta
    view, or "" if no node did; groups and table version are then unknown."""

    cluster_id: str
    name: str
    table_version: int
    as_of_ms: int
    source: str
    quorum: bool
    meta: MetaRow
    nodes: list[NodeRow]
    groups: list[GroupRow]
    lost_groups: list[str]
    start_nodes: list[str]
    operations: list[OperationRow]
    problems: list[Problem]
    healthy: bool
    feature_level: int = 0
    """The feature level of the cluster; 0 if no node returned the meta view."""

    feature_level_possible: int = 0
    """The highest level that every node supports; the cluster's level while a node does not answer."""
