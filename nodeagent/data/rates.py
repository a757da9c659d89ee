"""How fast each slot is written: acknowledged bytes with an exponential decay.

After one half-life a byte counts half. The rates are not part of the replicated state: every member counts
what it applies, by its own clock, and starts at 0 after a restart. Counts are linear: for a slot that moved,
what its previous group still remembers and what its new group counted add up to the count of a slot that did
not move.
"""

from dataclasses import dataclass, field

from nodeagent.model.limits import WRITE_RATES_MAX

HALF_LIFE_MS = 600_000
LN2 = 0.6931471805599453
REBASE_HALF_LIVES = 32
"""After this many half-lives the counts are scaled to the present, before they outgrow a float."""


@dataclass(slots=True)
class WriteRates:
    """`counts[slot]` is the sum of bytes * 2 ** (half-lives from `since_ms` to the write) over its writes."""

    since_ms: int = 0
    counts: dict[int, float] = field(default_factory=dict)

    def add(self, slot: int, nbytes: int, now_ms: int) -> None:
        """Count one acknowledged write; past `WRITE_RATES_MAX` slots, forget the slower half."""
        if not self.counts:
            self.since_ms = now_ms
        elif now_ms - self.since_ms > REBASE_HALF_LIVES * HALF_LIFE_MS:
            scale = 2.0 ** ((self.since_ms - now_ms) / HALF_LIFE_MS)
            self.counts = {s: c * scale for s, c in self.counts.items() if c * scale >= 1}
            self.since_ms = now_ms
        weight = 2.0 ** ((now_ms - self.since_ms) / HALF_LIFE_MS)
        self.counts[slot] = self.counts.get(slot, 0.0) + nbytes * weight
        if len(self.counts) > WRITE_RATES_MAX:
            fastest = sorted(self.counts, key=lambda s: (-self.counts[s], s))
            self.counts = {s: self.counts[s] for s in fastest[: WRITE_RATES_MAX // 2]}

    def bytes_per_s(self, now_ms: int) -> dict[int, float]:
        """The rate of each slot, without slots that count for less than one byte."""
        scale = 2.0 ** ((self.since_ms - now_ms) / HALF_LIFE_MS)
        return {
            slot: count * scale * LN2 * 1000 / HALF_LIFE_MS
            for slot, count in sorted(self.counts.items())
            if count * scale >= 1
        }
