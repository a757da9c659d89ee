"""How much of the local log is on disk, computed from completions that arrive late and may be stale.

The same (index, term) can be written twice: written, overwritten by another leader's entry, and
rewritten by a third leader that held the first entry. The completion of the first write says nothing
about the second (the ABA race of asynchronous log writes). So outstanding writes are recorded in order,
and a truncation lowers the index up to which each of them still counts.
"""

from collections import deque


class _Write:
    __slots__ = ("holds", "last_index", "last_term")

    def __init__(self, last_index: int, last_term: int) -> None:
        self.last_index = last_index
        self.last_term = last_term
        self.holds = last_index


class Durability:
    """Invariant: every entry of the current log up to `index` is on disk."""

    __slots__ = ("_writes", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self._writes: deque[_Write] = deque()

    def started(self, last_index: int, last_term: int) -> None:
        """Note that entries up to `last_index` were handed out to be written."""
        self._writes.append(_Write(last_index, last_term))

    def truncated(self, first: int) -> None:
        """Note that the log no longer holds its old entries from `first` on."""
        self.index = min(self.index, first - 1)
        for write in self._writes:
            write.holds = min(write.holds, first - 1)

    def installed(self, index: int) -> None:
        """Note that a durable checkpoint covers everything up to `index`."""
        self.index = max(self.index, index)

    def completed(self, last_index: int, last_term: int) -> bool:
        """Note that every write up to the one that ended at (`last_index`, `last_term`) is on disk.

        If two writes match, the earlier is taken: it is safe to count an entry as durable late, never early.

        Returns:
            Whether `index` rose.
        """
        writes = self._writes
        if not any(w.last_index == last_index and w.last_term == last_term for w in writes):
            return False
        write = writes.popleft()
        while write.last_index != last_index or write.last_term != last_term:
            write = writes.popleft()
        if write.holds <= self.index:
            return False
        self.index = write.holds
        return True
