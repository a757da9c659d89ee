"""The other members of the group, as their leader sees them: progress, quorum, room on their disks."""

from collections import deque
from collections.abc import Mapping

from nodeagent.model import limits
from nodeagent.model.ids import NodeId
from nodeagent.model.space import Room
from nodeagent.raft.progress import Progress, ProgressState
from nodeagent.raft.state import PeerStatus, State
from nodeagent.raft.turns import Turns

COMMITS_KEPT = 4
"""A relay and its learners may be behind by what was committed during this many heartbeats."""


class Peers:
    """Progress of every member except the leader; follows the newest config."""

    __slots__ = ("_state", "_turns", "commits", "direct", "names", "paced", "progress", "unrelayed")

    def __init__(self, state: State) -> None:
        self._state = state
        self.progress: dict[NodeId, Progress] = {}
        self.names: list[NodeId] = []
        """Keys of `progress`, sorted: the order in which messages leave."""

        self.direct: list[NodeId] = []
        """Peers that get entries when they are proposed, and every heartbeat."""

        self.paced: list[NodeId] = []
        """The other peers: learners, if there are many. They get entries once these are committed, and
        heartbeats in turn."""

        self.commits = deque([state.commit] * COMMITS_KEPT, COMMITS_KEPT)
        """The commit index at the last heartbeats; the newest is the last item."""

        self._turns = Turns(state.settings)

        self.unrelayed: dict[NodeId, None] = {}
        """The paced peers to which no follower relays."""

        self.update()

    def update(self, addition: int = 0) -> None:
        """Follow a new config; `addition` becomes the membership number of the peers that it adds."""
        state = self._state
        self.names = sorted(set(state.log.config.members) - {state.node})
        known = self.progress
        next_index = state.log.last_index + 1
        self.progress = {p: known.get(p) or Progress(next_index, state.clock, addition) for p in self.names}
        voters = set(state.log.config.voters)
        learners = [p for p in self.names if p not in voters]
        self.paced = learners if len(learners) > limits.DIRECT_LEARNERS_MAX else []
        self.direct = [p for p in self.names if p in voters] if self.paced else self.names
        for peer in self.names:
            self.progress[peer].is_paced = bool(self.paced) and peer not in voters
        for peer in self.direct:
            self.progress[peer].end_relay()
        self.unrelayed = {p: None for p in self.paced if not self.progress[p].is_relayed}
        self._turns.names = self.paced

    def next_to_beat(self) -> list[NodeId]:
        """The peers that get the heartbeat now due: all direct peers, and each paced peer whose turn it is,
        unless a relay has reported it lately; the relay then sends it what it needs."""
        self.commits.append(self._state.commit)
        return self.direct + [
            peer for peer in self._turns.next(self._state.settings.heartbeat_ms) if self._is_own(peer)
        ]

    def _is_own(self, peer: NodeId) -> bool:
        """Whether the leader sends to this paced peer; it does if no relay has reported the peer lately."""
        progress = self.progress[peer]
        if progress.relayed_until is not None:
            if self._state.clock < progress.relayed_until:
                return False
            progress.end_relay()
            self.unrelayed[peer] = None
        return True

    def relayed(self, matches: Mapping[NodeId, int], config_index: int) -> None:
        """A follower relays to these peers, which hold everything up to the given indexes.

        A peer that lacks the oldest of `commits` stays with the leader: the relay itself may no longer
        advance.
        """
        state = self._state
        settings = state.settings
        until = state.clock + max(settings.election_timeout_ms // 2, 3 * settings.heartbeat_ms)
        for peer, match in matches.items():
            progress = self.progress.get(peer)
            if progress is None or not progress.is_paced or config_index < progress.addition:
                continue
            if match >= self.commits[0]:
                progress.active = True
                progress.relayed(min(match, state.commit), until)
                self.unrelayed.pop(peer, None)

    def has_quorum(self) -> bool:
        """Whether a quorum answered since the last call."""
        node = self._state.node
        config = self._state.log.config
        answered = sum(1 for v in config.voters if v == node or self.progress[v].active)
        for progress in self.progress.values():
            progress.active = False
        return answered >= config.quorum

    def caught_up(self, peer: NodeId) -> bool:
        """Whether the peer holds every entry that is committed now. A paced peer gets entries after their
        commit, so under a steady load it never holds all of them; it must hold those that were committed
        before the last heartbeat but one."""
        progress = self.progress.get(peer)
        if progress is None or not (progress.is_relayed or progress.state is ProgressState.REPLICATE):
            return False
        return progress.held >= (self.commits[-2] if progress.is_paced else self._state.commit)

    def voters_low_on_space(self) -> list[NodeId]:
        """Other voters whose disks are nearly full."""
        voters = self._state.log.config.voters
        return [v for v in voters if v in self.progress and self.progress[v].room]

    def has_room(self, peer: NodeId) -> bool:
        """Whether the peer reported enough room to this leader."""
        progress = self.progress.get(peer)
        return progress is not None and progress.room == Room.ENOUGH

    def lost_acknowledged(self) -> list[NodeId]:
        """Followers that no longer hold entries they acknowledged."""
        return [peer for peer in self.names if self.progress[peer].forgot]

    def statuses(self) -> dict[NodeId, PeerStatus]:
        return {peer: self._status(self.progress[peer]) for peer in self.names}

    def _status(self, progress: Progress) -> PeerStatus:
        return PeerStatus(progress.held, ProgressState.REPLICATE if progress.is_relayed else progress.state)
