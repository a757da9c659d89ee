"""Clock and network of a simulated cluster.

Everything that happens is an event on one heap, ordered by (time, number), and all randomness comes from one
seeded generator. So a seed determines a run: repeating it gives the same trace.
"""

import heapq
import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from nodeagent.host.effect_queue import Effects
from nodeagent.model.ids import NodeId
from nodeagent.model.requests import ErrorReply, Reply, Request

if TYPE_CHECKING:
    from nodeagent.testing.machine import Machine

WALL_START_MS = 1_700_000_000_000
CALL_TIMEOUT_MS = 3_000
LATE_MS = 2_500
"""How much later than the original a duplicate may arrive."""

CLIENT = "client"
LOOK_MS = 10
"""How often `Sim.run` evaluates the condition that it waits for."""

M = TypeVar("M", bound="Machine")


@dataclass(slots=True)
class Faults:
    """Probabilities and ranges in force; `heal` turns all of them off."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay_ms: tuple[int, int] = (1, 3)
    cut: set[tuple[NodeId, NodeId]] = field(default_factory=set)
    """Links that lose everything, one way: (from, to)."""

    sync_ms: tuple[int, int] = (1, 3)
    stalled: set[NodeId] = field(default_factory=set)
    """Nodes on which no sync completes. Messages are still sent and received."""

    job_ms: tuple[int, int] = (1, 10)
    compact_ms: tuple[int, int] | None = None
    """Duration of compactions, if it differs from `job_ms`."""

    straggler: float = 0.0
    """Probability that a message, a sync or a job takes up to `straggler_ms` longer than the others."""

    straggler_ms: int = 0

    def heal(self) -> None:
        self.drop = self.duplicate = self.straggler = 0.0
        self.cut.clear()
        self.stalled.clear()
        self.delay_ms, self.sync_ms, self.job_ms = (1, 3), (1, 3), (1, 10)
        self.compact_ms = None


@dataclass(frozen=True, slots=True)
class WallClock:
    """A node's wall clock. It was `ahead_ms` off at `since_ms` and runs at `rate` times the true rate from
    then on; a clock with rate 0 stands still."""

    ahead_ms: int = 0
    since_ms: int = 0
    rate: float = 1.0

    def at(self, now_ms: int) -> int:
        """The time that it shows, in milliseconds since the epoch."""
        return WALL_START_MS + self.ahead_ms + self.since_ms + int((now_ms - self.since_ms) * self.rate)


class Sim(Generic[M]):
    """The simulated world of machines of one kind. `trace` is a running hash of all notes (`note`)."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.faults = Faults()
        self.nodes: dict[NodeId, M] = {}
        self.events = 0
        """Deliveries, replies sent, completed syncs and jobs, and injected faults. Timers do not count."""

        self.trace = 0
        self.log: list[str] = []
        """The last events, for the report of a failure."""

        self.checks: list[Callable[[M, Effects], None]] = []
        self.may_err = False
        """Whether disks may fail, which ends the process; otherwise a disk error fails the run."""

        self.may_stop = False
        """Whether a group may stop at an entry that it cannot apply; otherwise that fails the run."""

        self.unknown = 0
        """Frames from nodes that the receiver did not know as members."""

        self.jobs: Counter[str] = Counter()
        """Completed jobs, by kind."""

        self.ambushes: dict[str, Callable[[M], None]] = {}
        """Actions, each run once when some machine begins a job of this kind."""

        self.seen: Counter[tuple[str, str]] = Counter()
        """How often each (class, member) of `coverage` happened."""

        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now + max(0, delay_ms), self._number, action))

    def note(self, what: str) -> None:
        """Add an event to the trace and the log."""
        self.trace = zlib.crc32(f"{self.now} {what}".encode(), self.trace)
        self.log.append(f"{self.now:>8} {what}")
        if len(self.log) > 400:
            del self.log[:200]

    def run(self, until: Callable[[], bool], limit_ms: int) -> bool:
        """Run events until the condition holds; returns False if `limit_ms` pass first."""
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
        """Draw a duration from `span`; stragglers take longer."""
        f = self.faults
        is_late = f.straggler and self.rng.random() < f.straggler
        return self.between(span) + (self.rng.randint(0, f.straggler_ms) if is_late else 0)

    # --- network -----------------------------------------------------------------------------------

    def carry(self, source: NodeId, target: NodeId, deliver: Callable[[M], None]) -> None:
        """Deliver to the process that runs on `target` at arrival, unless the message is lost."""
        f = self.faults
        if (source, target) in f.cut or self.rng.random() < f.drop:
            return
        self.at(self.lasting(f.delay_ms), lambda: self._arrive(target, deliver))
        if self.rng.random() < f.duplicate:
            late = self.between(f.delay_ms) + self.rng.choice((0, self.rng.randint(0, LATE_MS)))
            self.at(late, lambda: self._arrive(target, deliver))

    def hand(self, target: NodeId, deliver: Callable[[M], None]) -> None:
        """Deliver as `carry` does, but over a connection: nothing is lost or duplicated."""
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
        """Send a request and pass exactly one reply to `then`: `unavailable` after a timeout if none
        arrives."""
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
        """Deliver a reply to its receiver at `target`, unless it is lost."""
        f = self.faults
        if (source, target) not in f.cut and self.rng.random() >= f.drop:
            self.events += 1
            self.at(self.lasting(f.delay_ms), deliver)
