"""One node of a `RaftWorld`: its Raft, its disk, and the writes in progress."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

from nodeagent.log import GroupLog
from nodeagent.model.config import RaftSettings
from nodeagent.model.entries import Base, Config, HardState, LogOp
from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import (
    RaftMessage,
    SnapshotOffer,
)
from nodeagent.raft import Raft, RaftLog
from nodeagent.raft.state import Role
from nodeagent.testing.exhaustive.fork import digest, fork

GROUP = "g"

SETTINGS = RaftSettings(heartbeat_ms=100, election_timeout_ms=1_000, commit_news_ms=1 << 40)


BOUNDS = (SETTINGS.heartbeat_ms, SETTINGS.election_timeout_ms)


@dataclass(slots=True)
class DiskWrite:
    ops: list[LogOp]
    last: tuple[int, int] | None = None
    """Last (index, term) of the log, if the write contains entries."""

    base: Base | None = None
    """Base of the snapshot that the write installs."""

    sends: list[tuple[NodeId, RaftMessage]] = field(default_factory=list)

    def copy(self) -> "DiskWrite":
        return replace(self, sends=list(self.sends))


def _drawn(life: int) -> float:
    """The random number of a process; differs in each life."""
    return (0.5 + life / 128) % 1


class Member:
    """A node, which is both the machine and the replica that `RaftSafety` checks."""

    __slots__ = (
        "applied_index",
        "_name",
        "disk",
        "incarnation",
        "life",
        "node",
        "offer",
        "raft",
        "read_from",
        "rebasing",
        "writes",
    )

    group = GROUP
    lossy = False

    def __init__(self, node: NodeId, config: Config, life: int = 0) -> None:
        self.node = node
        self.life = life
        self.incarnation = f"{node}.{life}"
        self.disk = GroupLog(Base(0, 0, config), HardState(), [])
        self._start(0)

    def _start(self, clock: int) -> None:
        disk = self.disk
        log = RaftLog(disk.base, list(disk.entries))
        self.raft = Raft(
            self.node, log, disk.hard, SETTINGS, partial(_drawn, self.life), clock, disk.base.index
        )
        self.applied_index = disk.base.index
        self.writes: list[DiskWrite] = []
        self.offer: tuple[NodeId, SnapshotOffer] | None = None
        self.read_from: int | None = None
        """Minimum index that a read in progress must return."""

        self.rebasing = False
        self._name: bytes | None = None

    def copy(self) -> "Member":
        made = Member.__new__(Member)
        for name in ("node", "life", "incarnation", "applied_index", "offer", "read_from", "rebasing"):
            setattr(made, name, getattr(self, name))
        made.raft = fork(self.raft)
        made.disk = GroupLog(self.disk.base, self.disk.hard, list(self.disk.entries))
        made.writes = [w.copy() for w in self.writes]
        made._name = None
        return made

    @property
    def name(self) -> bytes:
        if self._name is None:
            state = [
                self.raft,
                self.disk,
                self.writes,
                self.offer,
                self.read_from,
                self.rebasing,
                self.applied_index,
                self.life,
            ]
            self._name = digest(state, self.raft.clock, BOUNDS)
        return self._name

    def crash(self) -> None:
        self.life += 1
        self._start(self.raft.clock)

    # Required by `RaftSafety`.

    @property
    def durable(self) -> Self:
        return self

    @property
    def leads(self) -> bool:
        return self.raft.role is Role.LEADER

    def replicas(self) -> tuple[Self]:
        return (self,)

    def replica(self, group: str) -> Self:
        return self

    def hard(self, group: str) -> HardState:
        return self.disk.hard

    def holds(self, group: str, index: int, term: int) -> bool:
        disk = self.disk
        at = index - disk.base.index
        if at <= 0:
            return True
        return at <= len(disk.entries) and disk.entries[at - 1].term == term
