"""The state of a data group, which the parts of its replica share."""

from nodeagent.data.state import DataState
from nodeagent.host.group_context import Condition


class HeldState:
    """`state` is replaced when a snapshot is installed: read it from here each time."""

    def __init__(self, state: DataState, condition: Condition) -> None:
        self.state = state
        self._condition = condition

    def is_obsolete(self, asking: DataState) -> bool:
        """Whether the state that asked for work no longer needs it; a state that replaced it asks again."""
        return self._condition.removed or bool(self._condition.stopped) or asking is not self.state
