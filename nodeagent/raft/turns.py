"""Spreads the heartbeats to many learners over time."""

from nodeagent.model import limits
from nodeagent.model.config import RaftSettings
from nodeagent.model.ids import NodeId


class Turns:
    """Each of the learners has its turn `PACED_HEARTBEATS` times per election timeout, or with each heartbeat
    if these are rarer. A change of the names does not begin a new round."""

    __slots__ = ("_at", "_settings", "names")

    def __init__(self, settings: RaftSettings) -> None:
        self.names: list[NodeId] = []
        self._settings = settings
        self._at = 0
        """Position of the learner whose turn is next."""

    def next(self, elapsed_ms: int) -> list[NodeId]:
        """The learners whose turn has come in the last `elapsed_ms`."""
        names = self.names
        count = -(-len(names) * limits.PACED_HEARTBEATS * elapsed_ms // self._settings.election_timeout_ms)
        if not names:
            return []
        first, count = self._at % len(names), min(count, len(names))
        self._at = first + count
        return (names * 2)[first : first + count]
