"""Requests that any node answers at any time, and the hello."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from nodeagent.model.bounds import Count, Name, Port, Time
from nodeagent.model.config import ClusterSettings, Seed
from nodeagent.model.entries import Config
from nodeagent.model.features import FIRST, Levels
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.requests.base import GUESTS, MEMBERS, READERS, Message, Traits


class Hello(msgspec.Struct, frozen=True):
    """The first frame on every connection, in both directions. `cluster_id` is "" while it is not known."""

    protocol: Count
    role: Name
    name: Name
    incarnation: Name = ""
    cluster_id: Name = ""
    table_version: Count = 0
    start: Count = 0
    """Of a node: the number of this start in its directory, counted from 1; 0 for release 0.1.0."""

    nonces: tuple[Name, ...] = ()
    """Random names of the node's last starts, this start's last: they tell apart two copies of a directory
    whose starts have the same number."""

    level: Count = 0
    """The cluster's feature level; 0 if the sender does not know it."""

    oldest_level: Count = FIRST
    newest_level: Count = FIRST
    """The feature levels that the sender's release supports (`features.Levels`)."""

    oldest_protocol: Count = 0
    """The sender speaks the protocol versions from this one to `protocol`; 0: only `protocol`, as 0.1.0."""

    @property
    def levels(self) -> Levels:
        return Levels(self.oldest_level, self.newest_level)


class CheckStatus(Message, frozen=True, tag="CheckStatus"):
    """Compare the configuration of two nodes, at a first start or a join."""

    traits: ClassVar = Traits(GUESTS)

    node: Name
    incarnation: Name
    host: Name
    port: Port
    http_port: Port
    settings: ClusterSettings
    seeds: tuple[Seed, ...]
    join: bool


class StatusChecked(Message, frozen=True, tag="StatusChecked"):
    """`conflicts` names the fields that differ. `known`: the cluster has another incarnation of the sender.
    `ready`: nothing keeps the answering node from serving."""

    node: NodeId
    incarnation: str
    conflicts: tuple[str, ...]
    cluster_id: str
    known: bool
    ready: bool
    http_port: int = 0
    member: bool = False
    """The cluster has the sender under this very incarnation."""

    members: tuple[tuple[NodeId, str], ...] = ()
    """(name, incarnation) of the cluster's nodes, as far as the answering node knows them."""

    applied: int = 0
    """Meta log index that the answering node has applied; earlier releases do not set it."""

    first: Config | None = None
    """The configuration with which the log of the answering node's meta replica begins; None without one.
    Earlier releases do not set it."""


class GetStatus(Message, frozen=True, tag="GetStatus"):
    """Read the node's status (`NodeStatus`)."""

    traits: ClassVar = Traits(READERS)


class LogPin(msgspec.Struct, frozen=True):
    """Why a group's log is not purged further.

    `kind`: "follower" (it lacks entries), "snapshot" (an offered snapshot continues there) or "rows" (which
    are only in memory). `node`: the follower, or the node that the snapshot is for.
    """

    kind: str
    node: NodeId = ""

    def __str__(self) -> str:
        match self.kind:
            case "rows":
                return "rows in memory"
            case "snapshot":
                return f"a snapshot offered to {self.node}"
            case _:
                return f"{self.kind} {self.node}"


class GroupStatus(msgspec.Struct, frozen=True):
    """One replica on the answering node. `commit`, `applied`, `last` and `materialised` are log indexes."""

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
    """Compactions that are logged and have not ended here."""

    files_most: int = 0
    """Number of files of the time partition with the most files."""

    lag: dict[str, int] = {}
    """On a leader: follower -> number of entries that it lacks."""

    state: str = "running"
    error: str = ""
    hint: str = ""
    """The command that helps with `error`; "" if the operator must read the node's log."""
    last_term: int = 0
    """Term of the entry at `last`."""

    log_bytes: int = 0
    """Bytes of the entries in the log."""

    log_held_by: str = ""
    """Why the log is not purged further, in words."""

    log_pin: LogPin | None = None
    """The same in structured form; earlier releases set only `log_held_by`."""


class MetaStatus(msgspec.Struct, frozen=True):
    """The meta group on the answering node. `role` is a `model.meta_role.MetaRole`; `first`, `last` and
    `applied` are journal ids, that is log indexes of the meta group."""

    role: str
    since_ms: int
    """Milliseconds since the role last changed."""

    why: str
    first: int = 0
    """The first entry in the journal; one past `last` if it has none."""

    last: int = 0
    applied: int = 0
    age_ms: int = -1
    """The state holds everything acknowledged longer ago than this; -1 if no leader has confirmed it."""

    image: int = 0
    """Journal id of the newest validated image; 0 if there is none."""

    fallback: int = 0
    """Journal id of the image before it, from which on the journal is retained; 0 if there is none, or if no
    image was saved since the node started."""

    pin: LogPin | None = None
    """Why the journal is not purged up to `fallback`."""


class NodeStatus(Message, frozen=True, tag="NodeStatus"):
    """The status of the answering node; `cluster` is the cluster's name, `version` the agent's release."""

    node: NodeId
    incarnation: str
    cluster_id: str
    cluster: str
    version: str
    state: str
    now_ms: int
    started_ms: int
    """Derived from the node's current clock: `now_ms - started_ms` is its uptime, even if the clock was
    set."""

    table_version: int
    groups: tuple[GroupStatus, ...]
    heard_ms: dict[str, int]
    """Milliseconds since the last message of each peer."""

    disk_free_bytes: int = 0
    log_bytes: int = 0
    cert_expires_ms: int = 0
    received_bytes: dict[str, int] = {}
    """Operation -> bytes of files pulled for it."""

    clock_skew_ms: dict[str, int] = {}
    """Voters of groups led here whose wall clocks differ by more than `CLOCK_SKEW_MAX_MS` from the median of
    their group: milliseconds ahead of it, negative if behind."""

    why: str = ""
    """Why the node does not serve: what it waits for, or why it refuses; "" if it serves."""

    room: str = ""
    """Room on the disk: enough, low (no rows are accepted) or full (`model.space.Room`)."""

    disk_total_bytes: int = 0
    log_segments: int = 0
    log_waits: int = 0
    """Batches that wait to be written because the disk is full."""

    unremoved: dict[str, str] = {}
    """Directory below `data/` that could not be removed -> reason. The node retries the removal."""

    level: int = FIRST
    """The cluster's feature level as this node knows it; 0 if it is in no cluster."""

    oldest_level: int = FIRST
    newest_level: int = FIRST
    """The feature levels that the node's release supports."""

    meta: MetaStatus | None = None
    """None: an earlier release answered."""


class GetEvents(Message, frozen=True, tag="GetEvents"):
    """Read the events since `since_ms` (wall clock): the newest `limit` events of each kind."""

    traits: ClassVar = Traits(READERS)

    since_ms: Time
    limit: Time


class NodeEvent(msgspec.Struct, frozen=True):
    """A notable event of an agent; `group` is "" if it concerns no group."""

    time_ms: int
    event: str
    group: str
    message: str


class EventsReply(Message, frozen=True, tag="EventsReply"):
    """The events of the node, and the cluster's audit log as of meta log index `applied`, both oldest first.

    `audit`: (wall clock in ms, who, what).
    """

    node: NodeId
    applied: int
    events: tuple[NodeEvent, ...]
    audit: tuple[tuple[int, str, str], ...]


class SetFailpoints(Message, frozen=True, tag="SetHolds"):
    """For tests: stop operations at these failpoints (`scaling.failpoints`) on this node; () lets them
    continue."""

    traits: ClassVar = Traits(MEMBERS)

    points: Annotated[tuple[Name, ...], Meta(max_length=64)]


class Accepted(Message, frozen=True, tag="Accepted"):
    """The request was carried out; `index` is the log index of its entry, 0 if it has none."""

    index: int = 0


class ErrorReply(Message, frozen=True, tag="ErrorReply"):
    """The request failed. `code` is a key of `errors.BY_CODE`; the other fields as in `NodeAgentError`."""

    code: str
    what: str
    next_step: str = ""
    details: dict[str, str | int | bool | None] = {}
