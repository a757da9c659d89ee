"""Clock and network of a simulated cluster.

Everything that happens is an event on one heap, ordered by (time, number); all chance comes from one
seeded generator. So a seed is a run, and running it again gives the same trace.
"""

import heapq
import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from nodeagent.host.desk import Effects
from nodeagent.model.ids import NodeId
from nodeagent.model.requests import ErrorReply, Reply, Request

if TYPE_CHECKING:
    from nodeagent.testing.machine import Machine

WALL_START_MS = 1_700_000_000_000
CALL_TIMEOUT_MS = 3_000
LATE_MS = 2_500
"""A duplicate may be so much later than what it repeats."""

CLIENT = "client"
LOOK_MS = 10
"""A condition that is waited for is looked at this often."""

M = TypeVar("M", bound="Machine")


@dataclass(slots=True)
class Faults:
    """Chances and ranges in force; all off when healed."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay_ms: tuple[int, int] = (1, 3)
    cut: set[tuple[NodeId, NodeId]] = field(default_factory=set)
    """One-way: (from, to)"""

    sync_ms: tuple[int, int] = (1, 3)
    stalled: set[NodeId] = field(default_factory=set)
    """Whose disk stands still: no sync ends there. Messages come and go."""

    job_ms: tuple[int, int] = (1, 10)
    compact_ms: tuple[int, int] | None = None
    """Of compactions alone, when they are to be slower or faster."""

    straggler: float = 0.0
    """The chance of a message, a sync or a job to take up to `straggler_ms` longer than the others."""

    straggler_ms: int = 0

    def heal(self) -> None:
        self.drop = self.duplicate = self.straggler = 0.0
        self.cut.clear()
        self.stalled.clear()
        self.delay_ms, self.sync_ms, self.job_ms = (1, 3), (1, 3), (1, 10)
        self.compact_ms = None


@dataclass(frozen=True, slots=True)
class WallClock:
    """A node's wall clock: it was set wrong by `ahead_ms` at `since_ms` and goes `rate` times too fast from
    then on; a rate of 0 is a clock that stands still."""

    ahead_ms: int = 0
    since_ms: int = 0
    rate: float = 1.0

    def at(self, now_ms: int) -> int:
        """What it shows, in milliseconds since the epoch."""
        return WALL_START_MS + self.ahead_ms + self.since_ms + int((now_ms - self.since_ms) * self.rate)


class Sim(Generic[M]):
    """The virtual world of machines of one kind. `trace` is a running hash of all that happened."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.faults = Faults()
        self.nodes: dict[NodeId, M] = {}
        self.events = 0
        """Deliveries, what disks and jobs completed, calls of clients and faults: timers do not count."""

        self.trace = 0
        self.log: list[str] = []
        """The last things that happened, for a failure's report."""

        self.checks: list[Callable[[M, Effects], None]] = []
        self.may_err = False
        """Whether disks may fail, which ends the process of the one that does; else that is a bug of ours."""

        self.may_stop = False
        """Whether a group may meet an entry that cannot be applied; else that is a bug of ours."""

        self.unknown = 0
        """Frames of nodes that the receiver did not know as members."""

        self.jobs: Counter[str] = Counter()
        """Jobs that were done, by kind."""

        self.ambushes: dict[str, Callable[[M], None]] = {}
        """What waits for a job of a kind to begin on some machine, once each."""

        self.seen: Counter[tuple[str, str]] = Counter()
        """(class, member) of what happened (`coverage`)."""

        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now + max(0, delay_ms), self._number, action))

    def tell(self, what: str) -> None:
        self.trace = zlib.crc32(f"{self.now} {what}".encode(), self.trace)
        self.log.append(f"{self.now:>8} {what}")
        if len(self.log) > 400:
            del self.log[:200]

    def run(self, until: Callable[[], bool], limit_ms: int) -> bool:
        """Run events until the condition holds; False when `limit_ms` passed first."""
        end = self.now + limit_ms
        look_at = self.now
        while True:
            if self.now >= look_at:
                if until():
                    return True
                look_at = self.now + LOOK_MS
            if not self._heap or self._heap[0][0] > end:
                self.now = end
                return until()
            self.now, _, action = heapq.heappop(self._heap)
            action()

    def pause(self, ms: int) -> None:
        self.run(lambda: False, ms)

    def between(self, span: tuple[int, int]) -> int:
        return self.rng.randint(*span)

    def lasting(self, span: tuple[int, int]) -> int:
        """How long something takes that takes as long as `span` says, unless it is one of the stragglers."""
        f = self.faults
        is_late = f.straggler and self.rng.random() < f.straggler
        return self.between(span) + (self.rng.randint(0, f.straggler_ms) if is_late else 0)

    # --- network -----------------------------------------------------------------------------------

    def carry(self, source: NodeId, target: NodeId, deliver: Callable[[M], None]) -> None:
        """Deliver to the process that runs on `target` when it arrives, unless it is lost."""
        f = self.faults
        if (source, target) in f.cut or self.rng.random() < f.drop:
            return
        self.at(self.lasting(f.delay_ms), lambda: self._arrive(target, deliver))
        if self.rng.random() < f.duplicate:
            late = self.between(f.delay_ms) + self.rng.choice((0, self.rng.randint(0, LATE_MS)))
            self.at(late, lambda: self._arrive(target, deliver))

    def hand(self, target: NodeId, deliver: Callable[[M], None]) -> None:
        """As `carry`, on a connection: nothing is lost, and nothing comes twice."""
        self.at(self.between(self.faults.delay_ms), lambda: self._arrive(target, deliver))

    def _arrive(self, target: NodeId, deliver: Callable[[M], None]) -> None:
        node = self.nodes.get(target)
        if node is None or not node.alive:
            return
        if node.asleep_until > self.now:
            self.at(node.asleep_until - self.now, lambda: self._arrive(target, deliver))
        else:
            self.events += 1
            deliver(node)

    def call(self, source: NodeId, target: NodeId, request: Request, then: Callable[[Reply], None]) -> None:
        """A request and exactly one reply; a lost one is `unavailable` after a time-out."""
        done = False

        def finish(reply: Reply) -> None:
            nonlocal done
            if not done:
                done = True
                then(reply)

        def serve(node: M) -> None:
            node.serve(source, request, lambda reply: self.back(target, source, lambda: finish(reply)))

        self.carry(source, target, serve)
        self.at(CALL_TIMEOUT_MS, lambda: finish(ErrorReply("unavailable", f"{target} did not answer")))

    def back(self, source: NodeId, target: NodeId, deliver: Callable[[], None]) -> None:
        """Deliver an answer to whoever waits for it at `target`, unless it is lost."""
        f = self.faults
        if (source, target) not in f.cut and self.rng.random() >= f.drop:
            self.events += 1
            self.at(self.lasting(f.delay_ms), deliver)
