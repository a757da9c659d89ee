"""Injects the faults of one run into simulated machines, by the kinds and weights that its seed drew.

No run has all kinds of faults, because a fault that is always present hides what happens only without it
(swarm testing, Groce et al., ISSTA 2012).
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

from nodeagent.log.identity import ID_FILE, LOG_DIR
from nodeagent.model.ids import META, GroupId, NodeId
from nodeagent.storage import layout
from nodeagent.testing.injections import (
    Ambush,
    DiskError,
    Disks,
    Down,
    Flip,
    Full,
    Jump,
    Lose,
    Network,
    Part,
    Sleep,
    Stall,
    Stragglers,
    Stray,
    Torn,
    Transfer,
    Unreadable,
)
from nodeagent.testing.injector import (
    CALLS,
    FILE_OPERATIONS,
    FILE_PLACES,
    FOCUS_KINDS,
    FOCUS_WEIGHT,
    IN_LOG,
    JOBS,
    WHOLE_KINDS,
    Focus,
    Injector,
    call_of,
)
from nodeagent.testing.inodes import SECTOR_BYTES
from nodeagent.testing.machine import Machine
from nodeagent.testing.sim import CLIENT, WallClock
from nodeagent.testing.volume import ENDLESS_BYTES


def focusable(name: str, member: str) -> bool:
    """Whether a run of a whole cluster can look for this member of a class."""
    if name == "fault":
        return member in WHOLE_KINDS
    if name == "failed on disk":
        return call_of(member) in CALLS
    return name == "operation" or (name in FOCUS_KINDS and member in JOBS)


def focus_kinds(focus: Focus) -> dict[str, int]:
    """Kinds of faults that reach `focus`, and their weights."""
    kinds = {member if name == "fault" else FOCUS_KINDS.get(name, "") for name, member in focus}
    return dict.fromkeys(sorted(kinds.intersection(WHOLE_KINDS)), FOCUS_WEIGHT)


def draw_kinds(rng: random.Random, kinds: tuple[str, ...]) -> dict[str, int]:
    """Kinds of faults and their weights."""
    drawn = {k: rng.choice([1, 1, 3]) for k in kinds if k != "straggle" and rng.random() < 0.3}
    # Without changes of leader and power cuts, runs reach few rare states.
    return drawn | {k: rng.choice([1, 3]) for k in ("deposed", "power")}


def draw_stragglers(rng: random.Random) -> dict[str, int]:
    """Draw the kind `straggle`; apart from `draw_kinds`, so that the draws of older seeds stay the same."""
    return {"straggle": rng.choice([1, 3])} if rng.random() < 0.4 else {}


class Nemesis(Injector):
    """Draws and injects the faults of one run; `faults` and `done` as in `Injector`."""

    def _kill(self) -> None:
        if node := self._some():
            self._do("kill", Down(node.node, False, self._back()))

    def _power(self) -> None:
        if node := self._some():
            self._do("power", Down(node.node, True, self._back()))

    def _torn(self) -> None:
        if node := self._some():
            self._do("torn", Torn(node.node, self.rng.randint(1, 40)))

    def _dark(self) -> None:
        if self.rng.random() < 0.3:
            self.faults["dark"] += 1
            self._all_dark()

    def _all_dark(self) -> None:
        if not self.calm:
            for node in self._alive():
                self._inject(Down(node.node, self.rng.random() < 0.7, self._back()))

    def _sleep(self) -> None:
        if node := self._some():
            self._do("sleep", Sleep(node.node, self._back()))

    def _cut(self) -> None:
        names = sorted(self.sim.nodes)
        if len(names) < 2:
            return
        one, other = self.rng.sample(names, 2)
        pairs = {(one, other)} if self.rng.random() < 0.6 else {(one, other), (other, one)}
        self._part("cut", pairs, self._back())

    def _alone(self) -> None:
        names = sorted(self.sim.nodes)
        some = set(self.rng.sample(names, self.rng.randint(1, max(1, len(names) // 2))))
        into = {(n, s) for n in (*names, CLIENT) for s in some if n not in some}
        out = {(s, n) for n, s in into}
        self._part("alone", self.rng.choice([into, out, into | out]), self._back())

    def _deposed(self) -> None:
        """Cut a leader off from all other nodes or all but one, not from clients; sometimes all machines go
        down then."""
        led = self._led(self.rng)
        if led is None:
            return
        old = led[0].node
        others = [n for n in sorted(self.sim.nodes) if n != old]
        kept = set(self.rng.sample(others, min(len(others), self.rng.choice([0, 0, 1]))))
        pairs = {(old, n) for n in others if n not in kept}
        wait = self._timeout_ms * self.rng.randint(1, 5)
        self._part("deposed", pairs | {(n, o) for o, n in pairs}, wait)
        if self.rng.random() < 0.4:
            self.sim.at(self.rng.randint(1, wait), self._all_dark)

    def _part(self, kind: str, pairs: set[tuple[NodeId, NodeId]], heal_ms: int) -> None:
        self._do(kind, Part(tuple(sorted(f"{a}>{b}" for a, b in pairs)), heal_ms))

    def _storm(self) -> None:
        rng = self.rng
        drop, duplicate = rng.choice([0.0, 0.02, 0.1, 0.3]), rng.choice([0.0, 0.05, 0.3])
        delay = rng.choice([(0, 1), (1, 3), (1, 30), (5, self._timeout_ms)])
        self._do("storm", Network(drop, duplicate, delay))

    def _slow(self) -> None:
        timeout = self._timeout_ms
        sync = self.rng.choice([(0, 1), (1, 3), (1, 40), (10, timeout)])
        self._do("slow", Disks(sync, self.rng.choice([(0, 1), (1, 10), (20, 2 * timeout)])))

    def _straggle(self) -> None:
        chance = self.rng.choice([0.01, 0.05, 0.2])
        self._do("straggle", Stragglers(chance, self._timeout_ms * self.rng.choice([1, 3, 10])))

    def _stall(self) -> None:
        if node := self._some():
            self._do("stall", Stall(node.node, self._back()))

    def _sync_error(self) -> None:
        """Fail a sync of the log, mostly followed by a power cut, which loses the data that was not
        synced."""
        if node := self._some():
            self._do("sync_error", DiskError(node.node, "sync", "EIO", IN_LOG, skip=self.rng.randint(0, 5)))
            if self.rng.random() < 0.7:
                self.sim.at(self._back(), partial(self._inject, Down(node.node, True, self._back())))

    def _write_error(self) -> None:
        if node := self._some():
            self._do("write_error", DiskError(node.node, "write", "EIO", IN_LOG, skip=self.rng.randint(0, 5)))

    def _read_error(self) -> None:
        """Make sectors of the log unreadable, which the next start finds as damage."""
        node = self._some()
        if node is not None and self._may_spoil(node.node):
            self._do("read_error", Unreadable(node.node, self.rng.randint(0, 3), self._back()))

    def _full(self) -> None:
        """Fail some writes for lack of disk space, or fill the disk with a foreign file for a while."""
        node = self._some()
        if node is None:
            return
        if node.disk.capacity_bytes == ENDLESS_BYTES or self.rng.random() < 0.3:
            place = self.rng.choice([IN_LOG, *FILE_PLACES])
            times = self.rng.randint(1, 5)
            self._do("full", DiskError(node.node, "write", "ENOSPC", place, times=times))
        else:
            leave = self.rng.choice([0, 4_000, 40_000, 200_000])
            self._do("full", Full(node.node, leave, 2 * self._back()))

    def _flip(self) -> None:
        """Flip a bit of the log or of a checkpoint."""
        node = self._some()
        if node is None or not self._may_spoil(node.node):
            return
        places = node.segments()
        places += [
            path(g) for g in _data_groups(node) for path in (layout.checkpoint_path, layout.delta_path)
        ]
        places = [p for p in places if node.disk.exists(p) and node.disk.written(p)]
        if places:
            path = self.rng.choice(places)
            byte, bit = self.rng.randrange(node.disk.written(path)), self.rng.randrange(8)
            self._do("flip", Flip(node.node, path, byte, bit, self.rng.random() < 0.5, self._back()))

    def _stray(self) -> None:
        """Copy sectors of the log to another place in the log."""
        node = self._some()
        if node is None or not self._may_spoil(node.node):
            return
        logs = node.segments()
        source, path = self.rng.choice(logs), self.rng.choice(logs)
        count = self.rng.choice([1, 1, 8])
        first, last = (node.disk.written(p) // SECTOR_BYTES - count for p in (source, path))
        if first >= 0 and last >= 0:
            at, to = (SECTOR_BYTES * self.rng.randint(0, n) for n in (first, last))
            power, length = self.rng.random() < 0.5, SECTOR_BYTES * count
            if (source, at) != (path, to):
                self._do("stray", Stray(node.node, source, at, path, to, length, power, self._back()))

    def _lose(self) -> None:
        node = self._some()
        if node is None or not self._may_spoil(node.node):
            return
        logs = node.segments()
        choices = [LOG_DIR, ID_FILE, layout.GROUPS, self.rng.choice(logs)]
        choices += [
            path(g) for g in _data_groups(node) for path in (layout.group_dir, layout.checkpoint_path)
        ]
        self._do("lose", Lose(node.node, self.rng.choice(choices), self._back()))

    def _transfer(self) -> None:
        led = self._led(self.rng)
        if led is None:
            return
        node, replica = led
        voters = [v for v in replica.raft.log.config.voters if v != node.node]
        if voters:
            self._do("transfer", Transfer(node.node, replica.group, self.rng.choice(voters)))

    def _files(self) -> None:
        """Fail some disk calls on the files of groups, snapshots or pulls, with ENOSPC or EIO."""
        node = self._some()
        if node is None:
            return
        error = self.rng.choice(["ENOSPC", "EIO"])
        operation = self.rng.choice(("write", "create") if error == "ENOSPC" else FILE_OPERATIONS)
        place, times, skip = self.rng.choice(FILE_PLACES), self.rng.randint(1, 4), self.rng.randint(0, 3)
        if self._calls:
            (operation, place), error = self.rng.choice(self._calls), "EIO"
        self._do("files", DiskError(node.node, operation, error, place, skip, times))

    def _ambush(self) -> None:
        after = self.rng.randint(0, self.sim.faults.job_ms[1] // 2)
        power = self.rng.random() < 0.7
        self._do("ambush", Ambush(self.rng.choice(self._jobs), after, power, self._back()))

    def _jump(self) -> None:
        """Set the wall clock of one node wrong for a while, if all clocks are right."""
        node = self._some()
        if node is None or any(n.clock != WallClock() for n in self.sim.nodes.values()):
            return
        ahead = self.rng.choice([-3_600_000, -20_000, 5_000, 60_000, 3_600_000])
        self._do("jump", Jump(node.node, ahead, self.rng.randint(1, 8 * self._timeout_ms)))


def _data_groups(node: Machine) -> list[GroupId]:
    return [r.group for r in node.replicas() if r.group != META]


@contextmanager
def bounded(limits: dict[str, int]) -> Iterator[None]:
    """Replace limits of the code, by name, within the block."""
    patches = [mock.patch(place, value) for place, value in limits.items()]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
