"""The other members of the group, as their leader sees them: progress, quorum, room on their disks."""

from nodeagent.model import limits
from nodeagent.model.ids import NodeId
from nodeagent.model.space import Room
from nodeagent.raft.progress import Progress, ProgressState
from nodeagent.raft.state import PeerStatus, State


class Peers:
    """Progress of every member except the leader; follows the newest config."""

    __slots__ = ("_beaten", "_state", "commits", "direct", "names", "paced", "progress")

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

        self.commits = (state.commit, state.commit)
        """The commit index at the heartbeat before the last one, and at the last one."""

        self._beaten = 0
        """Position in `paced` of the peer that gets the next heartbeat."""

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

    def next_to_beat(self) -> list[NodeId]:
        """The peers that get the heartbeat that is due: the direct ones, and as many others, in turn, as it
        takes to reach each of them `PACED_HEARTBEATS` times per election timeout."""
        paced, settings = self.paced, self._state.settings
        self.commits = (self.commits[1], self._state.commit)
        if not paced:
            return self.names
        count = -(
            -len(paced) * limits.PACED_HEARTBEATS * settings.heartbeat_ms // settings.election_timeout_ms
        )
        first = self._beaten % len(paced)
        self._beaten = first + count
        return self.direct + (paced * 2)[first : first + min(count, len(paced))]

    def has_quorum(self) -> bool:
        """Whether a quorum answered since the last call."""
        node = self._state.node
        config = self._state.log.config
        answered = sum(1 for v in config.voters if v == node or self.progress[v].active)
        for progress in self.progress.values():
            progress.active = False
        return answered >= config.quorum

    def caught_up(self, peer: NodeId) -> bool:
        """Whether the peer holds every entry that is committed now. A paced peer, which gets entries after
        the commit, must hold those that were committed one to two heartbeats ago: under a steady load it
        never holds all of them."""
        progress = self.progress.get(peer)
        if progress is None or progress.state is not ProgressState.REPLICATE:
            return False
        return progress.match >= (self.commits[0] if progress.is_paced else self._state.commit)

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
        return {peer: PeerStatus(self.progress[peer].match, self.progress[peer].state) for peer in self.names}
