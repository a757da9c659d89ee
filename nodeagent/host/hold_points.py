"""Where operations stop on this node (`scaling.holds`): for tests, which so look at every stage."""

from collections.abc import Collection

from nodeagent.model.requests import ErrorReply
from nodeagent.scaling import holds


class HoldPoints:
    def __init__(self) -> None:
        self.points: frozenset[str] = frozenset()
        self.may_set = False
        """Whether this agent was started for tests, which alone set any."""

    def set(self, points: Collection[str]) -> ErrorReply | None:
        """Stop at these points from now on, and at no other."""
        if not self.may_set:
            return ErrorReply(
                "refused", "hold points are for tests", "start the agent with `nodeagent run --test-holds`"
            )
        unknown = sorted(set(points) - set(holds.POINTS))
        if unknown:
            return ErrorReply("invalid_input", f"no hold point {unknown[0]}", ", ".join(holds.POINTS))
        self.points = frozenset(points)
        return None
