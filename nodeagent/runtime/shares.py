"""Whose turn it is for slow reads: each peer has a few of them at work, and its others wait behind those.

One node reads files in one place at a time. Without this a reader that asks for a thousand pages at once
would have everybody wait for all of them; so others wait for a few.
"""

from collections import deque
from collections.abc import Callable

AT_WORK = {"reader": 4}
AT_WORK_DEFAULT = 16
"""Of one peer (role and name, over all of its connections) at a time."""

WAITING_MAX = 512
"""Of one peer; more are refused."""

Peer = tuple[str, str]


class Shares:
    """Counts per peer; what is to be run comes as calls."""

    def __init__(self) -> None:
        self._at_work: dict[Peer, int] = {}
        self._waiting: dict[Peer, deque[Callable[[], bool]]] = {}

    def add(self, peer: Peer, start: Callable[[], bool]) -> bool:
        """Run `start` now or when it is its turn; False when too many of the peer wait.

        `start` returns whether it began something, whose end is told by `done`.
        """
        waiting = self._waiting.get(peer)
        if waiting is None and self._at_work.get(peer, 0) < AT_WORK.get(peer[0], AT_WORK_DEFAULT):
            if start():
                self._at_work[peer] = self._at_work.get(peer, 0) + 1
            return True
        if waiting is None:
            waiting = self._waiting[peer] = deque()
        if len(waiting) >= WAITING_MAX:
            return False
        waiting.append(start)
        return True

    def done(self, peer: Peer) -> None:
        """One that had begun has ended: the next of this peer begins."""
        waiting = self._waiting.get(peer, deque())
        began = False
        while waiting and not began:
            began = waiting.popleft()()
        if not waiting:
            self._waiting.pop(peer, None)
        if began:
            return
        self._at_work[peer] -= 1
        if not self._at_work[peer]:
            del self._at_work[peer]

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))
