"""The parts of the host that the shell uses, as protocols, so that tests can replace the host."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from nodeagent.host.levels import PeerLevels
from nodeagent.host.starts import Starts
from nodeagent.model.entries import LogOp
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import Job, JobResult
from nodeagent.model.membership import MembershipStatus
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import NodeStatus, Reply, Request

Address = tuple[str, int]


class EffectsPort(Protocol):
    """The effects to execute now. All effects of one `take` may be executed at once: effects that depend on a
    sync are returned by a later `take`, after `on_persisted`."""

    @property
    def persist(self) -> tuple[int, list[LogOp]] | None: ...

    @property
    def sends(self) -> Sequence[tuple[NodeId, list[Routed]]]: ...

    @property
    def replies(self) -> Sequence[tuple[int, Reply]]: ...

    @property
    def jobs(self) -> Sequence[tuple[int, Job]]: ...

    @property
    def calls(self) -> Sequence[tuple[int, NodeId | Address, Request]]: ...

    @property
    def notes(self) -> Sequence[tuple[str, dict[str, object]]]: ...

    @property
    def applied(self) -> int: ...

    @property
    def applied_bytes(self) -> int: ...


class ClusterPort(Protocol):
    """The cluster by the applied state of the meta group, and its applied index."""

    @property
    def id(self) -> str: ...

    @property
    def table_version(self) -> int: ...

    @property
    def level(self) -> int: ...

    @property
    def applied(self) -> int: ...

    @property
    def audit(self) -> Sequence[tuple[int, str, str]]: ...


class PeersPort(Protocol):
    """Addresses, starts and feature levels of the other nodes."""

    @property
    def addresses(self) -> Mapping[NodeId, Address]: ...

    @property
    def starts(self) -> Starts: ...

    @property
    def levels(self) -> PeerLevels: ...


class OwnMembershipPort(Protocol):
    """The membership status of this node itself."""

    @property
    def older_copy(self) -> str: ...


class StatusPort(Protocol):
    """Builds the status report of this node."""

    def of_node(self, now: int, wall: int) -> NodeStatus: ...


class HostPort(Protocol):
    """All groups of this node, without a clock, a socket or a file."""

    @property
    def cluster(self) -> ClusterPort: ...

    @property
    def peers(self) -> PeersPort: ...

    @property
    def own_membership(self) -> OwnMembershipPort: ...

    @property
    def status(self) -> StatusPort: ...

    @property
    def idle(self) -> bool: ...

    @property
    def requests_failed(self) -> int: ...

    def membership_status(self, node: NodeId, incarnation: str, now: int) -> MembershipStatus: ...

    def on_raft(self, sender: NodeId, messages: list[Routed], now: int) -> None: ...

    def on_request(self, token: int, request: Request, now: int, wall: int) -> None: ...

    def on_persisted(self, batch: int, now: int) -> None: ...

    def on_job(self, number: int, result: JobResult, now: int) -> None: ...

    def on_snapshots_expired(self, names: Collection[str], now: int) -> None: ...

    def on_disk(self, free: int, total: int, now: int) -> None: ...

    @property
    def no_room(self) -> str: ...

    def on_retired(self, why: str, now: int) -> None: ...

    def on_older_copy(self, why: str, now: int) -> None: ...

    def on_reply(self, call: int, reply: Reply, now: int) -> None: ...

    def tick(self, now: int, wall: int) -> None: ...

    def transfer_leadership(self, now: int) -> bool: ...

    def deadline(self) -> int: ...

    def take(self) -> EffectsPort: ...
