"""What the clocks of a group's members say, so that nothing is ever deleted because one clock is wrong.

Every heartbeat's answer carries the wall clock of its sender. A message only gets older on its way, so what
it said, plus the monotonic time since it came, is a time that its sender's clock has passed: late and doubled
messages make a clock look slow, never fast. Slow is the safe side, for everything that is decided here is
whether some time is over.
"""

from collections.abc import Collection

from nodeagent.host.desk import Desk
from nodeagent.model.ids import NodeId
from nodeagent.model.limits import CLOCK_SKEW_MAX_MS
from nodeagent.raft.quorum import majority_value

_NEVER = -(1 << 62)


class Clocks:
    """Times are milliseconds since the epoch.

    Args:
        heard_ms: what a peer said longer ago does not count.
    """

    def __init__(self, node: NodeId, desk: Desk, heard_ms: int) -> None:
        self._node = node
        self._desk = desk
        self._heard_ms = heard_ms
        self._said: dict[NodeId, tuple[int, int]] = {}
        """peer -> (its wall clock, our monotonic time then)"""

    def heard(self, peer: NodeId, wall: int) -> None:
        self._said[peer] = (wall, self._desk.now)

    def _of(self, node: NodeId) -> int:
        """A time that the node's clock has passed; `_NEVER` when it was not heard lately."""
        if node == self._node:
            return self._desk.wall
        wall, at = self._said.get(node, (0, _NEVER))
        age = self._desk.now - at
        return wall + age if age <= self._heard_ms else _NEVER

    def _known(self, voters: Collection[NodeId]) -> dict[NodeId, int]:
        """The clocks of those heard lately; none when they are no majority."""
        said = {n: wall for n in voters if (wall := self._of(n)) != _NEVER}
        return said if 2 * len(said) > len(voters) else {}

    def passed(self, voters: Collection[NodeId]) -> int | None:
        """The latest time that is over by the clock of every voter heard lately.

        None while no majority of them was heard, or two of their clocks are more than `CLOCK_SKEW_MAX_MS`
        apart: whatever is deleted by its age waits.
        """
        walls = self._known(voters).values()
        if not walls or max(walls) - min(walls) > CLOCK_SKEW_MAX_MS:
            return None
        return min(walls)

    def record(self, voters: Collection[NodeId]) -> int:
        """The time to write into a record: what a majority of the voters has passed, or this node's clock
        while no majority was heard."""
        if not self._known(voters):
            return self._desk.wall
        return majority_value([self._of(n) for n in voters])

    def skewed(self, voters: Collection[NodeId]) -> dict[NodeId, int]:
        """Voters whose clock is further than `CLOCK_SKEW_MAX_MS` from what a majority says: ms ahead of it,
        negative when behind."""
        known = self._known(voters)
        if not known:
            return {}
        # Of two clocks neither is a majority: the middle of all is the reference only with a third.
        middle = sorted(known.values())[(len(known) - 1) // 2]
        return {n: wall - middle for n, wall in known.items() if abs(wall - middle) > CLOCK_SKEW_MAX_MS}
