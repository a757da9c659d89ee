"""What a leader knows of one follower, and how much it may send it.

PROBE      where the follower's log matches is not known; one append at a time
REPLICATE  it is known; appends are pipelined up to the window
SNAPSHOT   what it needs is purged; nothing is sent until an accepted append reconnects the logs

    PROBE ──accepted──▶ REPLICATE ──rejected──▶ PROBE
      └──entries purged──▶ SNAPSHOT ──installed──▶ REPLICATE   (failed: ▶ PROBE)
"""

from collections import deque
from enum import StrEnum

from nodeagent.model.limits import INFLIGHT_APPENDS_MAX, INFLIGHT_BYTES_MAX
from nodeagent.model.raft_messages import SnapshotOffer

FORGOT_MS = 10_000
"""A follower that refuses what it acknowledged, and accepts nothing for so long, has lost it. One refusal
alone says nothing, however late: it may have waited in a buffer while a process slept."""


class ProgressState(StrEnum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """Invariant: 0 <= match < next; `match` never falls within a term."""

    __slots__ = (
        "active",
        "addition",
        "commit_sent",
        "doubted_at",
        "forgot",
        "inflight",
        "inflight_bytes",
        "match",
        "moved_at",
        "next",
        "nudge",
        "offer",
        "paused",
        "read_round",
        "room",
        "state",
    )

    def __init__(self, next_index: int, now: int, addition: int = 0) -> None:
        self.state = ProgressState.PROBE
        self.match = 0
        """Highest index known to be durable there."""

        self.doubted_at: int | None = None
        """Since when it refuses what it acknowledged."""

        self.forgot = False
        """It does not hold what it acknowledged: it votes with less than it promised."""

        self.next = next_index
        """First index of the next append."""

        self.addition = addition
        """Of which membership this is (`AppendRequest`)."""

        self.active = False
        """It answered since the last quorum check."""

        self.paused = False
        """PROBE: an append is under way."""

        self.nudge = False
        """REPLICATE: an empty append is due, to learn whether earlier ones were lost."""

        self.commit_sent = 0
        """Commit index it will know from what was sent, if nothing is lost."""

        self.read_round = 0
        """Newest read round it confirmed."""

        self.room: int | None = None
        """What its disk has room for, as it said last (`model.space.Room`); None: it said nothing yet."""

        self.moved_at = now
        """When appends to it last made headway or were last tried anew."""

        self.offer: SnapshotOffer | None = None
        self.inflight: deque[tuple[int, int]] = deque()
        """(last index, bytes) of appends not acknowledged."""

        self.inflight_bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.inflight) >= INFLIGHT_APPENDS_MAX or self.inflight_bytes >= INFLIGHT_BYTES_MAX

    def sent(self, last: int, size: int, now: int) -> None:
        """An append with entries up to `last` leaves; in PROBE it waits for the answer."""
        if self.state is ProgressState.PROBE:
            self.paused = True
            self.moved_at = now
            return
        if not self.inflight:
            self.moved_at = now
        self.inflight.append((last, size))
        self.inflight_bytes += size
        self.next = last + 1

    def accepted(self, match: int, now: int) -> bool:
        """It holds everything up to `match`; an old answer changes nothing. Returns whether that is news."""
        if match >= self.match:
            self.doubted_at = None
        inflight = self.inflight
        while inflight and inflight[0][0] <= match:
            self.inflight_bytes -= inflight.popleft()[1]
        if match <= self.match:
            return False
        self.match = match
        if self.next <= match:
            self.next = match + 1
        self.moved_at = now
        return True

    def rejected(self, prev: int, hint: int, now: int) -> bool:
        """It refused an append after `prev`; `hint` is the highest index that may match.

        Returns:
            False when the answer is older than what is known (openraft #1501).
        """
        if prev <= self.match:
            if self.doubted_at is None:
                self.doubted_at = now
            self.forgot = self.forgot or now - self.doubted_at >= FORGOT_MS
            return False
        if self.state is ProgressState.SNAPSHOT:
            return False
        if self.state is ProgressState.REPLICATE:
            self.become_probe(self.match + 1)
            return True
        if prev != self.next - 1:
            return False
        self.next = max(self.match + 1, min(prev, hint + 1))
        self.paused = False
        return True

    def become_probe(self, next_index: int) -> None:
        self._clear(ProgressState.PROBE)
        self.next = next_index
        self.commit_sent = 0

    def become_replicate(self, now: int) -> None:
        self._clear(ProgressState.REPLICATE)
        self.next = self.match + 1
        self.moved_at = now

    def become_snapshot(self) -> None:
        self._clear(ProgressState.SNAPSHOT)

    def _clear(self, state: ProgressState) -> None:
        self.state = state
        self.paused = False
        self.nudge = False
        self.offer = None
        self.inflight.clear()
        self.inflight_bytes = 0
