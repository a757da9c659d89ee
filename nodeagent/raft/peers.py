"""The other members of the group, as their leader sees them: progress, quorum, room on their disks."""

from nodeagent.model.ids import NodeId
from nodeagent.model.space import Room
from nodeagent.raft.progress import Progress, ProgressState
from nodeagent.raft.state import PeerStatus, State


class Peers:
    """Progress of every member except the leader; follows the newest config."""

    __slots__ = ("_state", "names", "progress")

    def __init__(self, state: State) -> None:
        self._state = state
        self.progress: dict[NodeId, Progress] = {}
        self.names: list[NodeId] = []
        """Keys of `progress`, sorted: the order in which messages leave."""

        self.update()

    def update(self, addition: int = 0) -> None:
        """Follow a new config; `addition` becomes the membership number of the peers that it adds."""
        state = self._state
        self.names = sorted(set(state.log.config.members) - {state.node})
        known = self.progress
        next_index = state.log.last_index + 1
        self.progress = {p: known.get(p) or Progress(next_index, state.clock, addition) for p in self.names}

    def has_quorum(self) -> bool:
        """Whether a quorum answered since the last call."""
        node = self._state.node
        config = self._state.log.config
        answered = sum(1 for v in config.voters if v == node or self.progress[v].active)
        for progress in self.progress.values():
            progress.active = False
        return answered >= config.quorum

    def caught_up(self, peer: NodeId) -> bool:
        """Whether the peer holds every entry that is committed now."""
        progress = self.progress.get(peer)
        if progress is None or progress.state is not ProgressState.REPLICATE:
            return False
        return progress.match >= self._state.commit

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
