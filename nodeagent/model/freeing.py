"""Frees unused objects in small portions.

A close of many small writes, and the purge of the log behind it, each drop tens of thousands of objects.
Freeing an object takes a microsecond, during which the event loop stands still.
"""

from collections import deque
from typing import Any

FREED_MIN = 512
FREED_SHARE = 16
"""Each call frees `FREED_MIN` objects or one in `FREED_SHARE`, whichever is more: so they never pile up."""


class DeferredFree:
    """Lists whose items are not used any more."""

    def __init__(self) -> None:
        self._lists: deque[list[Any]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, items: list[Any]) -> None:
        """Take over the list; the caller must hold the only reference to it."""
        if items:
            self._lists.append(items)
            self._count += len(items)

    def free(self) -> None:
        """Free a portion, of the oldest lists first; called at every tick."""
        left = max(FREED_MIN, self._count // FREED_SHARE)
        while self._lists and left:
            items = self._lists[0]
            count = min(left, len(items))
            del items[-count:]
            left -= count
            self._count -= count
            if not items:
                self._lists.popleft()
