"""What is published of a cluster: rows of nodes and groups, problems, the whole status."""

import msgspec

from iotctl.observe.operations import OperationRow

DEAD = "dead"
"""State of a node that was given up and is still on the ring."""


class MetaRow(msgspec.Struct, frozen=True):
    leader: str | None
    term: int
    voters: list[str]
    observers: list[str]


class NodeRow(msgspec.Struct, frozen=True):
    """`role` is the node's part in the meta group. `slots` are those of the group it heads. `lag_ms` is
    how long its best-connected peer has not heard it. None: nobody could tell."""

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
    """The highest that its release speaks."""


class GroupRow(msgspec.Struct, frozen=True):
    """`lag` is the largest number of entries a member is behind its leader."""

    group: str
    header: str
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


class Problem(msgspec.Struct, frozen=True):
    """`severity` is error or warning; `next` is the command that helps."""

    severity: str
    code: str
    node: str
    group: str
    message: str
    next: str


class ClusterStatus(msgspec.Struct, frozen=True):
    """`quorum`: the meta group and every data group have one. `source`: the node whose meta view this is
    ("" when none answered, then groups and table version are unknown)."""

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
    """The cluster's; 0 if no node answered."""

    feature_level_possible: int = 0
    """The highest that every node speaks; the cluster's own while a node does not answer."""
