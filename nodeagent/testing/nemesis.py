"""What a seed does to simulated machines: faults of the kinds and weights that it drew, and other bounds for
the code.

No run has everything: a fault that is always there hides what only happens without it (swarm testing, Groce
et al., ISSTA 2012).
"""

import errno
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, get_args
from unittest import mock

from nodeagent.host.replica import Replica
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import Job
from nodeagent.testing.disk import ENDLESS_BYTES, Fault
from nodeagent.testing.machine import BALLAST, Machine
from nodeagent.testing.sim import CLIENT, Sim, WallClock

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
    "lose",
    "transfer",
    "member",
    "drift",
)
"""Classes of faults of Raft groups alone, and what is pushed about."""

WHOLE_KINDS = tuple(k for k in KINDS if k not in ("read_error", "flip", "lose", "member")) + (
    "files",
    "ambush",
    "jump",
)
"""Of whole clusters, in which nothing is lost for good."""

JOBS = tuple(sorted(job.__name__ for job in get_args(Job)))
FILE_OPERATIONS = ("write", "sync", "sync_dir", "create", "rename", "link", "unlink", "mkdirs")

PASSIVE = ("member", "drift")
"""Done by others: by whoever changes members, and by the clocks that machines are made with."""


def draw_kinds(rng: random.Random, kinds: tuple[str, ...]) -> dict[str, int]:
    """Classes of faults and their weights."""
    drawn = {k: rng.choice([1, 1, 3]) for k in kinds if rng.random() < 0.3}
    # Little is seen without a change of leader under way, or a crash behind.
    return drawn | {k: rng.choice([1, 3]) for k in ("deposed", "power")}


class Nemesis:
    """Faults of one run, `faults` counted by class."""

    def __init__(
        self,
        sim: Sim[Any],
        kinds: Mapping[str, int],
        *,
        gap_ms: int,
        back_ms: int,
        timeout_ms: int,
        led: Callable[[], tuple[Machine, Replica] | None],
        may_spoil: Callable[[NodeId], bool] = lambda name: False,
    ) -> None:
        """
        Args:
            kinds: classes of faults and their weights.
            gap_ms: between two faults, on average.
            back_ms: a process is down, or asleep, for up to so long.
            timeout_ms: of an election.
            led: the leader of one of the groups, which is drawn, and its replica.
            may_spoil: whether this machine may lose something for good.
        """
        self.sim = sim
        self.rng = sim.rng
        self.calm = True
        self.faults: Counter[str] = Counter()
        self.spoiled: set[NodeId] = set()
        """Machines that lost something for good: whoever runs the cluster replaces them."""

        self._kinds = kinds
        self._gap_ms = gap_ms
        self._back_ms = back_ms
        self._timeout_ms = timeout_ms
        self._led = led
        self._may_spoil = may_spoil
        self._round = 0
        """How often faults began."""

    def begin(self, delay_ms: int = 0) -> None:
        """One fault after the other from then on, until `heal`."""
        self.calm = False
        self._round += 1
        self.sim.at(delay_ms, partial(self._next, self._round))

    def _next(self, number: int) -> None:
        if self.calm or number != self._round:
            return
        [kind] = self.rng.choices(list(self._kinds), list(self._kinds.values()))
        if kind not in PASSIVE:
            getattr(self, f"_{kind}")()
        self.sim.at(self.rng.randint(1, 2 * self._gap_ms), partial(self._next, number))

    def heal(self) -> None:
        """No more faults; what was spoiled stays spoiled."""
        self.calm = True
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

    def _did(self, kind: str) -> None:
        self.faults[kind] += 1

    def _alive(self) -> list[Machine]:
        return [n for n in self.sim.nodes.values() if n.alive]

    def _some(self) -> Machine | None:
        alive = self._alive()
        return self.rng.choice(alive) if alive else None

    def _back(self) -> int:
        return self.rng.randint(1, self._back_ms)

    def _down(self, node: Machine, *, power: bool) -> None:
        node.stop(power=power)
        self.sim.at(self._back(), lambda: None if node.alive else node.start())

    def _kill(self) -> None:
        if node := self._some():
            self._did("kill")
            self._down(node, power=False)

    def _power(self) -> None:
        if node := self._some():
            self._did("power")
            self._down(node, power=True)

    def _torn(self) -> None:
        if node := self._some():
            self._did("torn")
            node.cut_power_soon()

    def _dark(self) -> None:
        if self.rng.random() < 0.3:
            self._did("dark")
            self._all_dark()

    def _sleep(self) -> None:
        if node := self._some():
            self._did("sleep")
            node.sleep(self._back())

    def _cut(self) -> None:
        names = sorted(self.sim.nodes)
        if len(names) < 2:
            return
        one, other = self.rng.sample(names, 2)
        pairs = {(one, other)} if self.rng.random() < 0.6 else {(one, other), (other, one)}
        self._part(pairs, "cut")

    def _alone(self) -> None:
        names = sorted(self.sim.nodes)
        some = set(self.rng.sample(names, self.rng.randint(1, max(1, len(names) // 2))))
        into = {(n, s) for n in (*names, CLIENT) for s in some if n not in some}
        out = {(s, n) for n, s in into}
        self._part(self.rng.choice([into, out, into | out]), "alone")

    def _deposed(self) -> None:
        """A leader is cut off from the others and goes on hearing clients; then, perhaps, all go dark."""
        led = self._led()
        if led is None:
            return
        old = led[0].node
        others = [n for n in sorted(self.sim.nodes) if n != old]
        kept = set(self.rng.sample(others, min(len(others), self.rng.choice([0, 0, 1]))))
        pairs = {(old, n) for n in others if n not in kept}
        wait = self._timeout_ms * self.rng.randint(1, 5)
        self._part(pairs | {(n, o) for o, n in pairs}, "deposed", wait)
        if self.rng.random() < 0.4:
            self.sim.at(self.rng.randint(1, wait), self._all_dark)

    def _all_dark(self) -> None:
        if not self.calm:
            for node in self._alive():
                self._down(node, power=self.rng.random() < 0.7)

    def _part(self, pairs: set[tuple[NodeId, NodeId]], kind: str, wait_ms: int = 0) -> None:
        self._did(kind)
        self.sim.faults.cut |= pairs

        def heal() -> None:
            self.sim.faults.cut -= pairs

        self.sim.at(wait_ms or self._back(), heal)

    def _storm(self) -> None:
        self._did("storm")
        faults, rng = self.sim.faults, self.rng
        faults.drop = rng.choice([0.0, 0.02, 0.1, 0.3])
        faults.duplicate = rng.choice([0.0, 0.05, 0.3])
        faults.delay_ms = rng.choice([(0, 1), (1, 3), (1, 30), (5, self._timeout_ms)])

    def _slow(self) -> None:
        self._did("slow")
        timeout = self._timeout_ms
        self.sim.faults.sync_ms = self.rng.choice([(0, 1), (1, 3), (1, 40), (10, timeout)])
        self.sim.faults.job_ms = self.rng.choice([(0, 1), (1, 10), (20, 2 * timeout)])

    def _stall(self) -> None:
        if node := self._some():
            self._did("stall")
            self.sim.faults.stalled.add(node.node)
            self.sim.at(self._back(), lambda: self.sim.faults.stalled.discard(node.node))

    def _err(self, operation: str, kind: str) -> Machine | None:
        node = self._some()
        if node is not None:
            self._did(kind)
            node.disk.faults.append(Fault(operation, errno.EIO, "log/", skip=self.rng.randint(0, 5)))
        return node

    def _sync_error(self) -> None:
        """What a failed sync did not write shows when the power goes."""
        node = self._err("sync", "sync_error")
        if node is not None and self.rng.random() < 0.7:
            self.sim.at(self._back(), lambda: self._down(node, power=True) if node.alive else None)

    def _write_error(self) -> None:
        self._err("write", "write_error")

    def _read_error(self) -> None:
        """At the next start, and of what is read of the log: a sector that does not come is damage."""
        node = self._some()
        if node is not None and self._may_spoil(node.node):
            self._did("read_error")
            self.spoiled.add(node.node)
            node.lossy = True
            self._down(node, power=False)
            skip = self.rng.randint(0, 3)
            node.disk.faults.append(Fault("read", errno.EIO, "log/0", skip=skip, times=1000))

    def _full(self) -> None:
        """Some writes find no room, or somebody else's file takes all of the disk for a while."""
        node = self._some()
        if node is None:
            return
        self._did("full")
        if node.disk.capacity_bytes == ENDLESS_BYTES or self.rng.random() < 0.3:
            place, times = self.rng.choice(["log/", "data/"]), self.rng.randint(1, 5)
            node.disk.faults.append(Fault("write", errno.ENOSPC, place, times=times))
        else:
            node.take_room(self.rng.choice([0, 4_000, 40_000, 200_000]))
            self.sim.at(2 * self._back(), lambda: node.take_room(node.disk.capacity_bytes))

    def _flip(self) -> None:
        """Bits of its log or of a checkpoint turn over, unseen until it is read."""
        node = self._some()
        if node is None or not self._may_spoil(node.node):
            return
        places = [f"log/{n}" for n in node.disk.listdir("log") if n.endswith(".log")]
        places += [f"data/groups/{g}/checkpoint" for g in node.host.data]
        places = [p for p in places if node.disk.exists(p) and node.disk.stat(p).size]
        if places:
            self._did("flip")
            self.spoiled.add(node.node)
            node.lossy = True
            path = self.rng.choice(places)
            node.disk.flip(path, self.rng.randrange(node.disk.stat(path).size), self.rng.randrange(8))
            self._down(node, power=self.rng.random() < 0.5)

    def _lose(self) -> None:
        node = self._some()
        if node is None or not self._may_spoil(node.node):
            return
        self._did("lose")
        self.spoiled.add(node.node)
        node.stop(power=False)
        logs = [f"log/{n}" for n in node.disk.listdir("log") if n.endswith(".log")]
        choices = ["log", "node.id", "data/groups", self.rng.choice(logs)]
        choices += [f"data/groups/{g}/checkpoint" for g in node.host.data]
        node.lose(self.rng.choice(choices))
        self.sim.at(self._back(), lambda: None if node.alive else node.start())

    def _transfer(self) -> None:
        led = self._led()
        if led is None:
            return
        node, replica = led
        voters = [v for v in replica.raft.log.config.voters if v != node.node]
        if voters:
            try:
                replica.raft.transfer(self.rng.choice(voters), node.now)
            except NodeAgentError:
                return
            self._did("transfer")
            node.wake()

    def _files(self) -> None:
        """Changes of the files of groups, snapshots and pulls fail for a while: no room, or errors of the
        disk."""
        node = self._some()
        if node is None:
            return
        self._did("files")
        error = self.rng.choice([errno.ENOSPC, errno.EIO])
        operations = ("write", "create") if error == errno.ENOSPC else FILE_OPERATIONS
        times, skip = self.rng.randint(1, 4), self.rng.randint(0, 3)
        node.disk.faults.append(Fault(self.rng.choice(operations), error, "data/", skip, times))

    def _ambush(self) -> None:
        """The next machine that begins a job of a kind goes down within it."""
        kind = self.rng.choice(JOBS)

        def strike(node: Machine) -> None:
            self._did("ambush")
            life, power = node.life, self.rng.random() < 0.7
            wait = self.sim.between(self.sim.faults.job_ms) // 2

            def down() -> None:
                if node.alive and node.life == life:
                    self._down(node, power=power)

            self.sim.at(wait, down)

        self.sim.ambushes[kind] = strike

    def _jump(self) -> None:
        """One wall clock, of all, is wrong for a while."""
        node = self._some()
        if node is None or any(n.clock != WallClock() for n in self.sim.nodes.values()):
            return
        self._did("jump")
        node.clock = WallClock(self.rng.choice([-3_600_000, -20_000, 5_000, 60_000, 3_600_000]), self.sim.now)

        def right() -> None:
            node.clock = WallClock()

        self.sim.at(self.rng.randint(1, 8 * self._timeout_ms), right)


@contextmanager
def bounded(limits: dict[str, int]) -> Iterator[None]:
    """Other bounds for the code, as long as this lasts."""
    patches = [mock.patch(place, value) for place, value in limits.items()]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
