"""What any node answers at any time, and the hello."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from nodeagent.model.bounds import Count, Name, Port, Time
from nodeagent.model.config import ClusterSettings, Seed
from nodeagent.model.features import FIRST, Levels
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.requests.base import GUESTS, MEMBERS, READERS, Message, Traits


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

    oldest_protocol: Count = 0
    """It speaks all versions from this one to `protocol`; 0: that one alone, as the first release."""

    @property
    def levels(self) -> Levels:
        return Levels(self.oldest_level, self.newest_level)


class CheckStatus(Message, frozen=True, tag="CheckStatus"):
    """First start and join: are we configured alike?"""

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


class GetStatus(Message, frozen=True, tag="GetStatus"):
    traits: ClassVar = Traits(READERS)


class LogPin(msgspec.Struct, frozen=True):
    """Why a group's log is not purged further.

    `kind`: "follower" (it lacks entries), "snapshot" (one on offer continues there) or "rows" (which are only
    in memory). `node`: the follower, or the node that the snapshot is for.
    """

    kind: str
    node: NodeId = ""

    def __str__(self) -> str:
        match self.kind:
            case "rows":
                return "rows in memory"
            case "snapshot":
                return f"a snapshot for {self.node}"
            case _:
                return f"{self.kind} {self.node}"


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
    """What keeps the log from being purged, in words."""

    log_pin: LogPin | None = None
    """The same; releases before 0.2.0 say it in words alone."""


class NodeStatus(Message, frozen=True, tag="NodeStatus"):
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


class GetEvents(Message, frozen=True, tag="GetEvents"):
    """What happened since `since_ms` (wall clock): the newest `limit` of each kind."""

    traits: ClassVar = Traits(READERS)

    since_ms: Time
    limit: Time


class NodeEvent(msgspec.Struct, frozen=True):
    """A notable note of an agent; `group` is "" when it concerns none."""

    time_ms: int
    event: str
    group: str
    message: str


class EventsReply(Message, frozen=True, tag="EventsReply"):
    """`audit`: (ms, who, what) as of `applied` of the meta group. Both oldest first."""

    node: NodeId
    applied: int
    events: tuple[NodeEvent, ...]
    audit: tuple[tuple[int, str, str], ...]


class SetHolds(Message, frozen=True, tag="SetHolds"):
    """Stop operations at these points (`scaling.holds`), on this node; () lets them go on. For tests."""

    traits: ClassVar = Traits(MEMBERS)

    points: Annotated[tuple[Name, ...], Meta(max_length=64)]


class Accepted(Message, frozen=True, tag="Accepted"):
    index: int = 0


class ErrorReply(Message, frozen=True, tag="ErrorReply"):
    """`code` is one of `errors.BY_CODE`; details are JSON-like."""

    code: str
    what: str
    next_step: str = ""
    details: dict[str, str | int | bool | None] = {}
