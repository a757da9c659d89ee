"""Reports of the jobs. Keys are those of the command line's JSON; more may be added."""

from typing import Protocol

import msgspec

Value = str | int | float | bool | None

MISMATCHES_MAX = 10_000
"""Mismatches listed in one report; `mismatches_total` counts those beyond it too."""


class Progress(Protocol):
    """Called for every step; `total` 0 means unknown, `unit` is "B" for bytes."""

    def update(
        self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = ""
    ) -> None: ...


class Silent:
    """Progress that is not shown."""

    def update(self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = "") -> None:
        """Do nothing."""


class Mismatch(msgspec.Struct, frozen=True):
    """One difference of one replica: a whole file (`series` is "" and `time_ms` None) or one cell.

    `expected` is the value of the majority, or of the previous holders in a migration; without one, the value
    of all other replicas if they agree, else `NO_MAJORITY`. For a cell, `expected` and `found` are the values
    themselves (None: null or absent; bytes as hex; NaN and infinities as text). `reason` says why it was not
    repaired, if a repair was requested.
    """

    node: str
    slot: int
    file: str
    series: str
    time_ms: int | None
    expected: Value
    found: Value
    repaired: bool = False
    reason: str = ""


NO_MAJORITY = "no majority"
MISSING = "missing"
"""`found` of a file that other replicas have."""

NOT_THERE = "absent"
"""`expected` of a file that other replicas lack."""


class Unread(msgspec.Struct, frozen=True):
    """What could not be read, and why: never counted as equal. `slot` None means the whole replica."""

    node: str
    group: str
    slot: int | None
    reason: str


class Repair(msgspec.Struct, frozen=True):
    """A file that was replaced. `quarantined`: where the damaged file is stored, below the data directory of
    `node`; "" if there was none. `sources`: the nodes that offered the copy."""

    node: str
    group: str
    slot: int
    file: str
    sources: list[str]
    quarantined: str


class VerifyReport(msgspec.Struct):
    """`files` and `bytes` count every replica, `rows` and `series` (table, tags) count once.

    At depth `manifest` nothing is read: the numbers are the recorded ones, and `series` is 0. At depth `hash`
    the bytes are read, but no rows: `rows` is still the recorded number, and `series` is 0. A mismatch counts
    as repaired only after a second verification; mismatches beyond `MISMATCHES_MAX` are not listed and
    count as not repaired.
    """

    depth: str
    replicas_compared: int = 0
    files: int = 0
    bytes: int = 0
    rows: int = 0
    series: int = 0
    unread: list[Unread] = []
    mismatches: list[Mismatch] = []
    mismatches_total: int = 0
    seconds: float = 0.0
    repairs: list[Repair] = []

    @property
    def remaining(self) -> int:
        """Mismatches that were not repaired."""
        return self.mismatches_total - sum(m.repaired for m in self.mismatches)

    @property
    def passed(self) -> bool:
        """Whether at least one replica was compared, everything was read and no mismatch remains."""
        return not (self.unread or self.remaining) and self.replicas_compared > 0

    def add_mismatches(self, found: "list[Mismatch]", total: int | None = None) -> None:
        self.mismatches.extend(found[: max(0, MISMATCHES_MAX - len(self.mismatches))])
        self.mismatches_total += len(found) if total is None else total


class Verified(msgspec.Struct):
    """The verification of a migration. `against`: `previous-holders`, or `replicas` if the previous holders
    had already released their copies (the operation did not wait for a sign-off)."""

    depth: str
    files: int
    rows: int
    series: int
    mismatches: int
    unread: int = 0
    against: str = "previous-holders"


class FailedUnit(msgspec.Struct, frozen=True):
    group: str
    node: str
    slots: int
    reason: str


class MigrateReport(msgspec.Struct):
    """`bytes` crossed the network; `released_slots` were released by their previous holders.

    `state` is the operation's state when the job ended. `verification` lists what `verified` counts.
    """

    operation: str
    units_total: int = 0
    units_done: int = 0
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    retries: int = 0
    verified: Verified | None = None
    released_slots: int = 0
    failed: list[FailedUnit] = []
    state: str = ""
    verification: VerifyReport | None = None
