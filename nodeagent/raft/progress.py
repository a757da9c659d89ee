"""What a leader knows about one follower, and how much it may send to the follower.

PROBE      the index at which the logs match is unknown; one append at a time
REPLICATE  that index is known; appends are pipelined up to the window
SNAPSHOT   the entries the follower needs are purged; no append is sent until the snapshot is installed

    PROBE ──accepted──▶ REPLICATE ──rejected──▶ PROBE
      └──entries purged──▶ SNAPSHOT ──installed──▶ REPLICATE   (failed: ▶ PROBE)
"""

from collections import deque
from enum import StrEnum

from nodeagent.model.limits import INFLIGHT_APPENDS_MAX, INFLIGHT_BYTES_MAX
from nodeagent.model.raft_messages import SnapshotOffer

LOST_AFTER_MS = 10_000
"""A follower that refuses entries it acknowledged, and accepts none for this long, has lost them. A single
refusal proves nothing, however late: it may have waited in a buffer while a process slept."""


class ProgressState(StrEnum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """Invariant: 0 <= match < next; `match` never decreases during a term."""

    __slots__ = (
        "active",
        "addition",
        "commit_sent",
        "doubted_at",
        "forgot",
        "inflight",
        "inflight_bytes",
        "is_paced",
        "match",
        "moved_at",
        "next",
        "nudge",
        "offer",
        "paused",
        "read_round",
        "relayed_match",
        "relayed_until",
        "room",
        "state",
    )

    def __init__(self, next_index: int, now: int, addition: int = 0) -> None:
        self.state = ProgressState.PROBE
        self.is_paced = False
        """See `Peers.paced`."""

        self.match = 0
        """Highest index known to be durable on the follower."""

        self.doubted_at: int | None = None
        """When the follower began to refuse entries it acknowledged; None if it does not."""

        self.forgot = False
        """The follower no longer holds entries it acknowledged, so its vote is not safe."""

        self.next = next_index
        """First index of the next append."""

        self.addition = addition
        """Number of this membership of the follower (`AppendRequest`)."""

        self.active = False
        """The follower answered since the last quorum check."""

        self.paused = False
        """PROBE: send no append until the follower answers the last one or a heartbeat."""

        self.nudge = False
        """REPLICATE: an empty append is due, to find out whether earlier appends were lost."""

        self.commit_sent = 0
        """Commit index the follower will know if no sent message is lost."""

        self.read_round = 0
        """Newest read round the follower confirmed."""

        self.room: int | None = None
        """Room on the follower's disk as last reported (`model.space.Room`); None before the first report."""

        self.relayed_match = 0
        """What the follower held according to a relay's last report (`raft.relay`). It does not count for a
        commit."""

        self.relayed_until: int | None = None
        """The follower gets its entries from a relay, until this time if no further report comes; None if it
        gets them from this leader."""

        self.moved_at = now
        """When appends to the follower last made progress or were last retried."""

        self.offer: SnapshotOffer | None = None
        self.inflight: deque[tuple[int, int]] = deque()
        """(last index, bytes) of each unacknowledged append."""

        self.inflight_bytes = 0

    @property
    def is_relayed(self) -> bool:
        return self.relayed_until is not None

    @property
    def held(self) -> int:
        """Highest index that the follower holds, according to its own answers or to its relay."""
        return max(self.match, self.relayed_match) if self.is_relayed else self.match

    @property
    def is_full(self) -> bool:
        return len(self.inflight) >= INFLIGHT_APPENDS_MAX or self.inflight_bytes >= INFLIGHT_BYTES_MAX

    def sent(self, last: int, size: int, now: int) -> None:
        """Note that an append with entries up to `last` was sent; in PROBE, wait for its reply."""
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
        """Note that the follower holds everything up to `match`. Returns whether `match` rose."""
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
        """Note that the follower refused an append after `prev`; `hint` is the highest index that may match.

        Returns:
            Whether to send another append; False for a stale reply (openraft #1501).
        """
        if prev <= self.match:
            if self.doubted_at is None:
                self.doubted_at = now
            self.forgot = self.forgot or now - self.doubted_at >= LOST_AFTER_MS
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

    def relayed(self, match: int, until: int) -> None:
        """A relay reports that the follower holds everything up to `match` and gets its entries from it."""
        if not self.is_relayed:
            self.become_probe(self.next)
        self.relayed_match = match
        self.relayed_until = until

    def end_relay(self) -> None:
        """From now on, this leader sends the follower its entries. If the relay's last report is wrong by
        now, the follower refuses the first append."""
        if self.is_relayed:
            self.next = self.held + 1
            self.commit_sent = 0
            self._clear(ProgressState.REPLICATE)
            self.relayed_until = None

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
