"""The staging area of each group for single files (`repair_area`), which one repair or copy uses at a time.

`ReplaceFile` puts the staged file in place, or it is dropped; the next file is staged when the area is empty.
"""

from collections import deque
from collections.abc import Callable

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.model.ids import GroupId
from nodeagent.model.jobs import DropStaging, repair_area


class RepairAreas:
    def __init__(self, effects: EffectQueue) -> None:
        self._effects = effects
        self._taken: set[GroupId] = set()
        self._waiting: dict[GroupId, deque[Callable[[], None]]] = {}
        """Callers that wait for a group's area, at most one for each file that this node fails to make."""

    def is_taken(self, group: GroupId) -> bool:
        return group in self._taken

    def take(self, group: GroupId) -> None:
        assert group not in self._taken, group
        self._taken.add(group)

    def when_taken(self, group: GroupId, then: Callable[[], None]) -> None:
        """Take the area for the caller once it is free, and run `then`."""
        self._waiting.setdefault(group, deque()).append(then)
        self._next(group)

    def leave(self, group: GroupId, *, is_clear: bool) -> None:
        """Release the area; the next caller gets it when it is empty (`is_clear`: it is now)."""

        def left() -> None:
            self._taken.discard(group)
            self._next(group)

        if is_clear:
            left()
        else:
            self.clear(group, left)

    def clear(self, group: GroupId, then: Callable[[], None]) -> None:
        self._effects.remove(DropStaging(repair_area(group)), then)

    def _next(self, group: GroupId) -> None:
        if group in self._taken or group not in self._waiting:
            return
        self.take(group)
        then = self._waiting[group].popleft()
        if not self._waiting[group]:
            del self._waiting[group]
        then()
