"""Objects that nobody needs any more, freed some at a time.

A close of many small writes and the purge of the log behind it let go of tens of thousands of objects each.
To free them takes a microsecond apiece, and the loop stands still meanwhile.
"""

from collections import deque
from typing import Any

FREED_MIN = 512
FREED_SHARE = 16
"""At a time so many, or that part of all there are: however many come, they do not pile up."""


class ToFree:
    """Lists whose items are of no more use."""

    def __init__(self) -> None:
        self._lists: deque[list[Any]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, items: list[Any]) -> None:
        """Take the list, which nobody else may hold."""
        if items:
            self._lists.append(items)
            self._count += len(items)

    def free(self) -> None:
        """Let go of some of those that came first; called again and again."""
        left = max(FREED_MIN, self._count // FREED_SHARE)
        while self._lists and left:
            items = self._lists[0]
            count = min(left, len(items))
            del items[-count:]
            left -= count
            self._count -= count
            if not items:
                self._lists.popleft()
