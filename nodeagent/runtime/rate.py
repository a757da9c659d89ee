"""How fast this node pulls: a token bucket over bytes, and the automatic rate `auto`.

`auto` gives rows precedence: while this node writes or reads rows, pulls use the processor time that is left;
otherwise they have no limit.
"""

BURST_S = 0.25
"""Unused time that may be used later, as a burst."""

EVERY_S = 0.5
"""Interval at which `auto` samples the machine."""

ROWS_PER_S = 20.0
"""Log syncs and data requests per second above which rows have precedence. The entries of a change alone stay
below it."""

BUSY_ABOVE = 0.75
BUSY_BELOW = 0.55
"""Used share of processor time: above `BUSY_ABOVE` the rate falls, below `BUSY_BELOW` it rises. Between them,
a rate below `START` rises slowly: after a short burst of other work, copies must not stay at the floor."""

FLOOR = 2_000_000
START = 32_000_000
CEILING = 1_000_000_000
"""Bytes per second. At the floor, a change still completes on a busy machine."""

GIVE_WAY = 0.6
TAKE_MORE = 1.25
RECOVER = 1.1


class Rate:
    """Computes waits, without a clock of its own. `bytes_per_s` may change at any time; 0 means no limit."""

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
            self._paid_until = 0.0  # bytes taken at the old rate must not delay the new one

    def take(self, count: int, now: float) -> float:
        """Account for `count` bytes; return the seconds to wait before the transfer."""
        if self._bytes_per_s <= 0:
            return 0.0
        self._paid_until = max(self._paid_until, now - BURST_S) + count / self._bytes_per_s
        return max(0.0, self._paid_until - now)


class AutoRate:
    """The rate of `auto`, adjusted every `EVERY_S`. The caller passes in clock and processor times."""

    def __init__(self) -> None:
        self._adjusted_at = 0.0
        self._rows = 0
        self._idle_s = 0.0
        self._wall_s = 0.0
        self._limit = START
        self._first = True
        self.bytes_per_s = 0
        """0 means no limit."""

    def is_due(self, now: float) -> bool:
        return now - self._adjusted_at >= EVERY_S

    def adjust(self, now: float, rows: int, idle_s: float, all_s: float) -> None:
        """Adjust the rate by the counts since the last call.

        Args:
            now: seconds, monotonic.
            rows: log syncs and data requests of this agent since its start.
            idle_s, all_s: idle and total processor seconds of the machine, over all processors.
        """
        seconds = now - self._adjusted_at
        asked = (rows - self._rows) / seconds if seconds > 0 else 0.0
        total = all_s - self._wall_s
        busy = 1 - (idle_s - self._idle_s) / total if total > 0 else 0.0
        self._adjusted_at, self._rows, self._idle_s, self._wall_s = now, rows, idle_s, all_s
        if self._first:  # there is nothing to compare with yet
            self._first = False
            return
        if asked <= ROWS_PER_S:
            self.bytes_per_s = 0
            return
        if busy > BUSY_ABOVE:
            self._limit = max(FLOOR, int(self._limit * GIVE_WAY))
        elif busy < BUSY_BELOW:
            self._limit = min(CEILING, int(self._limit * TAKE_MORE))
        elif self._limit < START:
            self._limit = min(START, int(self._limit * RECOVER))
        self.bytes_per_s = self._limit
