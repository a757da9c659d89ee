"""The clock of the host: whole milliseconds."""

import time


class Clock:
    """The clock of this machine."""

    def now(self) -> int:
        """Monotonic milliseconds, for timeouts."""
        return time.monotonic_ns() // 1_000_000

    def wall(self) -> int:
        """Milliseconds since the epoch, for records, and for TTLs and holds (`host.clocks`)."""
        return time.time_ns() // 1_000_000
