"""Time as the host wants it: whole milliseconds."""

import time


class Clock:
    def now(self) -> int:
        """Monotonic milliseconds, for timeouts."""
        return time.monotonic_ns() // 1_000_000

    def wall(self) -> int:
        """Milliseconds since the epoch, for records that people read."""
        return time.time_ns() // 1_000_000
