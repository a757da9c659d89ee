"""An obviously correct log in a dict, and workloads to compare it with."""

import random
from collections.abc import Sequence

from nodeagent.log import GroupLog, Log, LogSettings, Recovered
from nodeagent.model.disk import Disk
from nodeagent.model.entries import Append, Base, Config, Entry, Forget, HardState, LogOp, Rebase, SetHard
from nodeagent.testing.durable import State, follow

SMALL = LogSettings(segment_bytes=2048, zero_step_bytes=1024, reserve_bytes=0, copy_bytes_max=400)
"""Segments of a few batches, so that short tests cross many borders."""


def entry(term: int, text: str = "x") -> Entry:
    return Entry(term, 2, text.encode())


def append(group: str, first: int, count: int = 1, term: int = 1, text: str = "x") -> Append:
    return Append(group, first, [entry(term, f"{text}{first + n}") for n in range(count)])


def base(index: int, term: int = 1) -> Base:
    return Base(index, term, Config(("a", "b"), ("c",), "op"))


def open_log(disk: Disk, settings: LogSettings = SMALL) -> tuple[Log, Recovered]:
    return Log.open(disk, "log", settings)


class Workload:
    """Random valid batches for a few groups; the same seed gives the same batches."""

    def __init__(self, seed: int, groups: Sequence[str] = ("meta", "node1.5", "node2.7")) -> None:
        self.rng = random.Random(seed)
        self.groups = groups
        self.state: State = {}
        self.term = 1

    def batch(self) -> list[LogOp]:
        ops: list[LogOp] = []
        for _ in range(self.rng.randint(1, 3)):
            op = self._op()
            ops.append(op)
            follow(self.state, [op])
        return ops

    def _op(self) -> LogOp:
        rng = self.rng
        name = rng.choice(self.groups)
        group = self.state.get(name, GroupLog(Base(0, 0, Config()), HardState(), []))
        last = group.base.index + len(group.entries)
        dice = rng.random()
        if dice < 0.65:
            back = rng.randint(0, min(3, len(group.entries))) if rng.random() < 0.2 else 0
            self.term += back > 0
            text = "y" * rng.randint(0, 60)
            return append(name, last + 1 - back, rng.randint(1, 4), self.term, text)
        if dice < 0.8:
            self.term += 1
            return SetHard(name, HardState(self.term, rng.choice(["", "a", "b"])))
        if dice < 0.93:
            index = rng.randint(group.base.index, last)
            return Rebase(name, base(index, self.term), True)
        if dice < 0.96:
            return Rebase(name, base(last + rng.randint(0, 5), self.term), False)
        return Forget(name)


def copy_state(state: State) -> State:
    return {name: GroupLog(g.base, g.hard, list(g.entries)) for name, g in state.items()}
