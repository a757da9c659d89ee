"""Fair shares of slow reads: each peer runs a few at a time, and its other reads wait behind those.

A node runs one short and one heavy file read at a time. Without shares, a reader that requests a thousand
pages at once would make all other peers wait for all of them; with shares they wait for a few.
"""

from collections import deque
from collections.abc import Callable

RUNNING_MAX = {"reader": 4}
AT_WORK_DEFAULT = 16
"""Running reads of one peer (role and name, over all its connections)."""

WAITING_MAX = 512
"""Waiting reads of one peer; more are refused."""

Peer = tuple[str, str]


class FairQueue:
    """Starts the reads of each peer within its share."""

    def __init__(self) -> None:
        self._at_work: dict[Peer, int] = {}
        self._waiting: dict[Peer, deque[Callable[[], bool]]] = {}

    def add(self, peer: Peer, start: Callable[[], bool]) -> bool:
        """Run `start` now or when it is its turn; return False if too many reads of the peer wait.

        `start` returns whether it started a read; the caller reports the end of that read by `done`.
        """
        waiting = self._waiting.get(peer)
        if waiting is None and self._at_work.get(peer, 0) < RUNNING_MAX.get(peer[0], AT_WORK_DEFAULT):
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
        """A running read of the peer has ended: start its next one."""
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
