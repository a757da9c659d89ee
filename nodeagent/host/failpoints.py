"""Failpoints of operations on this node (`scaling.failpoints`), with which tests inspect every stage."""

from collections.abc import Collection

from nodeagent.model.requests import ErrorReply
from nodeagent.scaling import failpoints


class Failpoints:
    def __init__(self) -> None:
        self.points: frozenset[str] = frozenset()
        self.may_set = False
        """Whether this agent was started for tests; failpoints may be set only then."""

    def set(self, points: Collection[str]) -> ErrorReply | None:
        """From now on stop at exactly these failpoints."""
        if not self.may_set:
            return ErrorReply(
                "refused",
                "failpoints are for tests",
                "start the agent with `nodeagent run --test-failpoints`",
            )
        unknown = sorted(set(points) - set(failpoints.POINTS))
        if unknown:
            return ErrorReply("invalid_input", f"no failpoint {unknown[0]}", ", ".join(failpoints.POINTS))
        self.points = frozenset(points)
        return None
