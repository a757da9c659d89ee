"""What the shell needs of the host, so that tests can stand in for it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from nodeagent.model.entries import LogOp
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import Job, JobResult
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import NodeStatus, Reply, Request
from nodeagent.model.standing import Standing

Address = tuple[str, int]


class EffectsPort(Protocol):
    """What is to be done now. Everything in one take may be done at once: what has to wait for a sync
    is given out by a later take, after `on_persisted`."""

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


class HostPort(Protocol):
    """All groups of this node, without a clock, a socket or a file."""

    @property
    def idle(self) -> bool: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def table_version(self) -> int: ...

    @property
    def audit(self) -> Sequence[tuple[int, str, str]]: ...

    @property
    def meta_applied(self) -> int: ...

    @property
    def addresses(self) -> Mapping[NodeId, Address]: ...

    def standing(self, node: NodeId, incarnation: str, now: int) -> Standing: ...

    def on_raft(self, sender: NodeId, messages: list[Routed], now: int) -> None: ...

    def on_request(self, token: int, request: Request, now: int, wall: int) -> None: ...

    def on_persisted(self, batch: int, now: int) -> None: ...

    def on_job(self, number: int, result: JobResult, now: int) -> None: ...

    def on_snapshots_expired(self, names: Collection[str], now: int) -> None: ...

    def on_retired(self, why: str, now: int) -> None: ...

    def on_reply(self, call: int, reply: Reply, now: int) -> None: ...

    def tick(self, now: int, wall: int) -> None: ...

    def hand_over(self, now: int) -> bool: ...

    def deadline(self) -> int: ...

    def take(self) -> EffectsPort: ...

    def node_status(self, now: int, wall: int) -> NodeStatus: ...
