"""The clocks of a group's members, so that nothing is deleted because one clock of several is wrong.

Every heartbeat reply carries the wall clock of its sender. Messages only get older in transit, so the
sender's clock has passed that time plus the monotonic time since the reply arrived: late and duplicate
messages make a clock look slow, never fast. Slow is the safe side, because everything decided here is whether
a point in time has passed.
"""

from collections.abc import Collection

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.model.ids import NodeId
from nodeagent.model.limits import CLOCK_SKEW_MAX_MS
from nodeagent.raft.quorum import majority_value

_NEVER = -(1 << 62)


class Clocks:
    """Times are milliseconds since the epoch.

    Args:
        heard_ms: a peer's clock counts for this long after its last heartbeat reply.
    """

    def __init__(self, node: NodeId, effects: EffectQueue, heard_ms: int) -> None:
        self._node = node
        self._effects = effects
        self._heard_ms = heard_ms
        self._said: dict[NodeId, tuple[int, int]] = {}
        """peer -> (its wall clock, this node's monotonic time then)"""

    def heard(self, peer: NodeId, wall: int) -> None:
        self._said[peer] = (wall, self._effects.now)

    def _of(self, node: NodeId) -> int:
        """A time that the node's clock has passed; `_NEVER` if it sent nothing recently."""
        if node == self._node:
            return self._effects.wall
        wall, at = self._said.get(node, (0, _NEVER))
        age = self._effects.now - at
        return wall + age if age <= self._heard_ms else _NEVER

    def _known(self, voters: Collection[NodeId]) -> dict[NodeId, int]:
        """The clocks of the voters that sent something recently; empty if these are no majority."""
        said = {n: wall for n in voters if (wall := self._of(n)) != _NEVER}
        return said if 2 * len(said) > len(voters) else {}

    def passed(self, voters: Collection[NodeId]) -> int | None:
        """The latest time that the clocks of all recently heard voters have passed.

        None if these are no majority, or if two clocks are more than `CLOCK_SKEW_MAX_MS` apart: deletions by
        age then wait.
        """
        walls = self._known(voters).values()
        if not walls or max(walls) - min(walls) > CLOCK_SKEW_MAX_MS:
            return None
        return min(walls)

    def record(self, voters: Collection[NodeId]) -> int:
        """The time to write into a record: a time that a majority of the voters' clocks has passed, or this
        node's clock if no majority sent anything recently."""
        if not self._known(voters):
            return self._effects.wall
        return majority_value([self._of(n) for n in voters])

    def skewed(self, voters: Collection[NodeId]) -> dict[NodeId, int]:
        """Voters whose clock differs from the median by more than `CLOCK_SKEW_MAX_MS`, and by how many ms it
        is ahead, negative if behind."""
        known = self._known(voters)
        if not known:
            return {}
        # With only two clocks the reference is the earlier one.
        middle = sorted(known.values())[(len(known) - 1) // 2]
        return {n: wall - middle for n, wall in known.items() if abs(wall - middle) > CLOCK_SKEW_MAX_MS}
