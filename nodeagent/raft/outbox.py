"""Sends a leader's messages: builds heartbeats, and decides when a message may leave."""

from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import Heartbeat, RaftMessage
from nodeagent.raft.progress import Progress
from nodeagent.raft.reads import LeaderReads
from nodeagent.raft.state import State


class Outbox:
    """Puts a leader's messages into the Ready.

    Args:
        waits_for: messages wait until the entry at this index is durable; None if they need not wait.
    """

    __slots__ = ("_reads", "_state", "_waits_for")

    def __init__(self, state: State, reads: LeaderReads, waits_for: int | None) -> None:
        self._state = state
        self._reads = reads
        self._waits_for = waits_for

    def send(self, peer: NodeId, message: RaftMessage) -> None:
        # A leader that asked for votes made its term durable first. A lone voter asks no other voter, so it
        # waits until its first entry is durable: that is written with the term or after it.
        waits = self._waits_for is not None and self._state.durability.index < self._waits_for
        (self._state.after if waits else self._state.now).append((peer, message))

    def beat(self, peer: NodeId, progress: Progress) -> None:
        """Send a heartbeat; its commit index is never beyond the entries the follower is known to hold."""
        state = self._state
        commit = min(progress.match, state.commit)
        progress.commit_sent = max(progress.commit_sent, commit)
        read = self._reads.round if self._reads.is_open else 0
        self.send(peer, Heartbeat(state.term, commit, read, progress.addition))
