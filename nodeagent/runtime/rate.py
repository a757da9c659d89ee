"""A token bucket over bytes."""

BURST_S = 0.25
"""Unused time that may be made up for."""


class Rate:
    """Says how long to wait. `bytes_per_s` 0 means no limit; it may change at any time. No clock inside."""

    def __init__(self, bytes_per_s: int = 0) -> None:
        self._bytes_per_s = bytes_per_s
        self._paid_until = 0.0

    @property
    def bytes_per_s(self) -> int:
        return self._bytes_per_s

    @bytes_per_s.setter
    def bytes_per_s(self, value: int) -> None:
        if value != self._bytes_per_s:
            self._bytes_per_s = value
            self._paid_until = 0.0  # what was taken at the old rate must not hold up the new one

    def take(self, count: int, now: float) -> float:
        """Account for `count` bytes; seconds to wait before they are moved."""
        if self._bytes_per_s <= 0:
            return 0.0
        self._paid_until = max(self._paid_until, now - BURST_S) + count / self._bytes_per_s
        return max(0.0, self._paid_until - now)
