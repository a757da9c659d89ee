"""Where single files for the groups of this node are staged (`repair_area`): one at a time in each group.

What is staged there is put in place by `ReplaceFile`, or dropped; the next file comes when nothing of the
last is left.
"""

from collections import deque
from collections.abc import Callable

from nodeagent.host.desk import Desk
from nodeagent.model.ids import GroupId
from nodeagent.model.jobs import DropStaging, repair_area


class RepairAreas:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._taken: set[GroupId] = set()
        self._waiting: dict[GroupId, deque[Callable[[], None]]] = {}
        """Of groups whose area is taken; as many as files fail to be made there."""

    def is_taken(self, group: GroupId) -> bool:
        return group in self._taken

    def take(self, group: GroupId) -> None:
        assert group not in self._taken, group
        self._taken.add(group)

    def when_taken(self, group: GroupId, then: Callable[[], None]) -> None:
        """Run `then` when the area is the caller's."""
        self._waiting.setdefault(group, deque()).append(then)
        self._next(group)

    def leave(self, group: GroupId, *, is_clear: bool) -> None:
        """Who had the area is done with it; others get it when it is clear."""

        def left() -> None:
            self._taken.discard(group)
            self._next(group)

        if is_clear:
            left()
        else:
            self.clear(group, left)

    def clear(self, group: GroupId, then: Callable[[], None]) -> None:
        self._desk.remove(DropStaging(repair_area(group)), then)

    def _next(self, group: GroupId) -> None:
        if group in self._taken or group not in self._waiting:
            return
        self.take(group)
        then = self._waiting[group].popleft()
        if not self._waiting[group]:
            del self._waiting[group]
        then()
