"""Snapshots that a leader offers to followers whose entries are purged."""

from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import SnapshotOffer
from nodeagent.raft.outbox import Outbox
from nodeagent.raft.peers import Peers
from nodeagent.raft.progress import Progress, ProgressState
from nodeagent.raft.state import State


class Offers:
    """One offer for each peer in SNAPSHOT, repeated until an accepted append or `failed` ends it."""

    __slots__ = ("_outbox", "_peers", "_state")

    def __init__(self, state: State, peers: Peers, outbox: Outbox) -> None:
        self._state = state
        self._peers = peers
        self._outbox = outbox

    def request(self, peer: NodeId, progress: Progress) -> None:
        """Request a snapshot, but only for a peer that answers and reported no lack of room to install it."""
        if not progress.active or progress.room:
            progress.become_probe(progress.next)
            progress.paused = True
            return
        progress.become_snapshot()
        self._state.snapshots.append(peer)

    def offer(self, peer: NodeId, snapshot: str) -> None:
        """See `Raft.offer_snapshot`."""
        progress = self._peers.progress.get(peer)
        if progress is None or progress.state is not ProgressState.SNAPSHOT:
            return
        progress.offer = SnapshotOffer(self._state.term, self._state.log.base, snapshot, progress.addition)
        self._outbox.send(peer, progress.offer)

    def failed(self, peer: NodeId) -> None:
        """See `Raft.snapshot_failed`."""
        progress = self._peers.progress.get(peer)
        if progress is not None and progress.state is ProgressState.SNAPSHOT:
            progress.become_probe(progress.match + 1)
            # A heartbeat reply ends the pause, at the earliest `heartbeat_ms` from now, so that a lasting
            # failure is not retried in a loop.
            progress.paused = True
            progress.moved_at = self._state.clock

    def repeat(self) -> None:
        for peer in self._peers.names:
            offer = self._peers.progress[peer].offer
            if offer is not None:
                self._outbox.send(peer, offer)
