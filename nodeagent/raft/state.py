"""State that all roles share: term, vote, log, commit index, and the results for the next Ready.

Nothing here decides; `roles`, `follower` and `leader` do.
"""

from dataclasses import dataclass
from enum import StrEnum

from nodeagent.model.config import RaftSettings
from nodeagent.model.entries import Base, Config, Entry, HardState
from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import AppendReply, RaftMessage, SnapshotOffer
from nodeagent.raft.durability import Durability
from nodeagent.raft.log import RaftLog
from nodeagent.raft.progress import ProgressState

Outgoing = list[tuple[NodeId, RaftMessage]]


class Role(StrEnum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class PeerStatus:
    match: int
    state: ProgressState


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """A status for operators and tests. Only the leader has `progress`."""

    node: NodeId
    term: int
    role: Role
    leader: NodeId | None
    commit: int
    base: int
    last: int
    durable: int
    config: Config
    config_index: int
    progress: dict[NodeId, PeerStatus]


class State:
    """Invariants: handed-out entries are committed and durable here; `commit` never falls."""

    __slots__ = (
        "addition",
        "after",
        "clock",
        "commit",
        "durability",
        "handed_out",
        "hard_changed",
        "held",
        "leader",
        "log",
        "node",
        "now",
        "offer",
        "reads_done",
        "reads_failed",
        "relays",
        "role",
        "room",
        "settings",
        "snapshots",
        "stirred",
        "term",
        "unwritten",
        "vote",
    )

    def __init__(
        self, node: NodeId, log: RaftLog, hard: HardState, settings: RaftSettings, now: int, applied: int
    ) -> None:
        self.node = node
        self.log = log
        self.settings = settings
        self.term = hard.term
        self.vote: NodeId = hard.vote
        self.held = hard.held
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self.addition = 0
        """Number of this replica's membership, as the leader last sent it (`AppendRequest`)."""

        # Only the base is known to be committed, not every entry up to `applied`: a snapshot's state can be
        # newer than its base, and a leader may still have to replace entries in between.
        self.commit = log.base.index
        self.handed_out = max(applied, log.base.index)
        """Last index that a Ready handed out to be applied."""

        self.durability = Durability(log.last_index)
        self.clock = now
        """Time of the last event, in milliseconds."""

        self.room = 0
        """Room on this node's disk, set by the caller; followers report it (`HeartbeatReply`)."""

        self.relays = False
        """Whether followers relay entries to learners, set by the caller: every member must support it."""

        self.stirred = True
        """Whether an event happened since `is_ready` last found nothing to take; if not, there still is
        nothing. A node has hundreds of groups, few of them busy in a turn; for the idle ones only this flag
        is checked."""

        self.hard_changed = False
        self.unwritten: int | None = None
        """First index of the entries that no Ready has contained yet."""

        self.now: Outgoing = []
        self.after: Outgoing = []
        self.reads_done: list[tuple[int, int]] = []
        self.reads_failed: list[int] = []
        self.snapshots: list[NodeId] = []
        self.offer: tuple[NodeId, SnapshotOffer] | None = None

    @property
    def hard(self) -> HardState:
        return HardState(self.term, self.vote, self.held)

    def append(self, first: int, entries: list[Entry], *, commands_only: bool = False) -> None:
        """Add entries at `first`, the end of the log, to be written with the next Ready."""
        assert first == self.log.last_index + 1, (first, self.log.last_index)
        if self.unwritten is None or first < self.unwritten:
            self.unwritten = first
        self.log.append(entries, commands_only=commands_only)

    def truncate(self, first: int) -> None:
        """Remove the entries from `first` on; a conflict at or below the commit index is a bug."""
        assert first > self.commit, f"{self.node}: conflict at {first}, committed {self.commit}"
        self.log.truncate(first)
        self.durability.truncated(first)

    def commit_to(self, index: int) -> None:
        if index > self.commit:
            assert index <= self.log.last_index, (index, self.log.last_index)
            self.commit = index

    def accept(self, sender: NodeId, match: int, read: int, addition: int) -> None:
        """Acknowledge everything up to `match`. Replaces an earlier acknowledgement that is not taken yet."""
        if self.after:
            to, last = self.after[-1]
            if (
                isinstance(last, AppendReply)
                and last.accepted
                and (to, last.term, last.addition) == (sender, self.term, addition)
            ):
                match, read = max(match, last.match), max(read, last.read)
                self.after.pop()
        self.after.append((sender, AppendReply(self.term, True, match, read=read, addition=addition)))

    def _stir(self, now: int) -> None:
        """Note that an event has happened, so that there may be something to take."""
        self.clock = now
        self.stirred = True

    def compact(self, index: int) -> Base:
        """Purge the entries up to `index`, which must be applied; returns the new base."""
        assert index <= min(self.handed_out, self.commit), (index, self.handed_out, self.commit)
        if index <= self.log.base.index:
            return self.log.base
        return self.log.rebase(index)

    def memory(self) -> HardState:
        """The hard state that a removed member must retain when it drops the log. It may become a member
        again, and a voter that forgot an acknowledged entry could elect a leader without it."""
        log = self.log
        return HardState(self.term, self.vote, max(self.held, (log.last_term, log.last_index)))
