"""The schedule of a run's faults: when they begin, what was injected, and how they are healed."""

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple, get_args

from nodeagent.host.replica import Replica
from nodeagent.log.identity import LOG_DIR
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import Job
from nodeagent.storage import layout
from nodeagent.testing.hardware import BALLAST
from nodeagent.testing.injections import (
    SPOILING,
    Injection,
    Timed,
)
from nodeagent.testing.machine import Machine
from nodeagent.testing.sim import Sim, WallClock

KINDS = (
    "kill",
    "power",
    "torn",
    "dark",
    "sleep",
    "cut",
    "alone",
    "deposed",
    "storm",
    "slow",
    "stall",
    "sync_error",
    "write_error",
    "read_error",
    "full",
    "flip",
    "stray",
    "lose",
    "transfer",
    "member",
    "drift",
    "straggle",
)
"""Kinds of faults for Raft groups without data."""

WHOLE_KINDS = tuple(k for k in KINDS if k not in ("read_error", "flip", "stray", "lose", "member")) + (
    "files",
    "ambush",
    "jump",
)
"""Kinds of faults for whole clusters: those that lose no data permanently."""

JOBS = tuple(sorted(job.__name__ for job in get_args(Job)))


FILE_OPERATIONS = ("write", "sync", "sync_dir", "create", "rename", "link", "unlink", "mkdirs")

IN_LOG = f"{LOG_DIR}/"


FILE_PLACES = tuple(f"{name}/" for name in (layout.GROUPS, layout.STAGING, layout.SNAPSHOTS, layout.TMP))

_NO_CALLS = {(operation, f"{layout.TMP}/") for operation in ("link", "mkdirs", "sync_dir")}


CALLS = tuple(call for call in product(FILE_OPERATIONS, FILE_PLACES) if call not in _NO_CALLS)
"""(operation, directory) of the disk calls that can fail."""

PASSIVE = ("member", "drift")
"""Kinds that are not injected here: changes of members, and the rates of the machines' clocks."""

Focus = tuple[tuple[str, str], ...]
"""The (class, member) pairs that a run should reach first, by the names of `coverage`."""

FOCUS_KINDS = {"kill": "ambush", "power cut": "ambush", "failed job": "files", "failed on disk": "files"}
"""The kind of fault that reaches the members of each class."""

FOCUS_WEIGHT = 6


def call_of(member: str) -> tuple[str, str]:
    operation, _, place = member.partition(" ")
    return operation, f"{place}/"


class Pace(NamedTuple):
    """Times of faults, in ms."""

    gap_ms: int
    """Average time between two faults."""

    back_ms: int
    """Maximum time that a process is down or suspended."""

    timeout_ms: int
    """Election timeout."""


class Injector:
    """Injects faults, drawn or given. `faults` counts the drawn ones by kind; `done` lists all injected ones.

    A subclass draws the faults of a kind in its method `_KIND`.
    """

    def __init__(
        self,
        sim: Sim[Any],
        rng: random.Random,
        kinds: Mapping[str, int],
        pace: Pace,
        *,
        led: Callable[[random.Random], tuple[Machine, Replica] | None],
        may_spoil: Callable[[NodeId], bool] = lambda name: False,
        focus: Focus = (),
    ) -> None:
        """
        Args:
            rng: used only for faults, so that runs with other faults stay as similar as possible.
            kinds: kinds of faults and their weights.
            pace: how often faults are injected, and how long they last.
            led: draws a group that has a leader; returns the leader and its replica.
            may_spoil: whether this machine may lose data permanently.
            focus: jobs and disk calls to prefer.
        """
        self.sim = sim
        self.rng = rng
        self.calm = True
        self.faults: Counter[str] = Counter()
        self.done: list[Timed] = []
        self.healed_at: int | None = None
        self.spoiled: set[NodeId] = set()
        """Machines that lost data permanently; the operator of the cluster replaces them."""

        self._kinds = kinds
        self._gap_ms, self._back_ms, self._timeout_ms = pace
        self._led = led
        self._may_spoil = may_spoil
        self._jobs = tuple(m for name, m in focus if name in ("kill", "power cut") and m in JOBS) or JOBS
        self._calls = [call_of(m) for name, m in focus if name == "failed on disk"]
        self._round = 0
        """How often faults began."""

    def begin(self, delay_ms: int = 0) -> None:
        """Inject one fault after the other from then on, until `heal`."""
        self.calm = False
        self._round += 1
        self.sim.at(delay_ms, partial(self._next, self._round))

    def follow(self, script: Sequence[Timed]) -> None:
        """Inject only these faults, each at its time, until `heal`."""
        self.calm = False
        self._follow(deque(script))

    def _follow(self, script: deque[Timed]) -> None:
        """Inject the faults that are due and schedule the next ones."""
        while script and script[0][0] <= self.sim.now and not self.calm:
            self._inject(script.popleft()[1])
        if script and not self.calm:
            self.sim.at(script[0][0] - self.sim.now, partial(self._follow, script))

    def _next(self, number: int) -> None:
        if self.calm or number != self._round or not self._kinds:
            return
        [kind] = self.rng.choices(list(self._kinds), list(self._kinds.values()))
        if kind not in PASSIVE:
            getattr(self, f"_{kind}")()
        self.sim.at(self.rng.randint(1, 2 * self._gap_ms), partial(self._next, number))

    def heal(self) -> None:
        """End all faults and restart the machines that are down; spoiled machines stay spoiled."""
        self.calm = True
        self.healed_at = self.sim.now
        self.sim.ambushes.clear()
        self.sim.faults.heal()
        for node in list(self.sim.nodes.values()):
            node.asleep_until = 0
            node.clock = WallClock()
            node.disk.cut_power_at = None
            if node.disk.exists(BALLAST):
                node.disk.unlink(BALLAST)
            if node.node not in self.spoiled:
                node.disk.faults.clear()
            if not node.alive and node.life:
                node.start()

    def _do(self, kind: str, injection: Injection) -> None:
        self.faults[kind] += 1
        self._inject(injection)

    def _inject(self, injection: Injection) -> None:
        if isinstance(injection, SPOILING):
            if not self._may_spoil(injection.node):  # it was drawn when this was still allowed
                return
            self.spoiled.add(injection.node)
        self.done.append((self.sim.now, injection))
        self.sim.events += 1
        injection.inject(self.sim)

    def _alive(self) -> list[Machine]:
        return [n for n in self.sim.nodes.values() if n.alive]

    def _some(self) -> Machine | None:
        alive = self._alive()
        return self.rng.choice(alive) if alive else None

    def _back(self) -> int:
        return self.rng.randint(1, self._back_ms)
