"""Random batches of log operations, like those that the groups of a node write."""

import random
from collections.abc import Sequence

from nodeagent.log import GroupLog
from nodeagent.model.entries import Append, Base, Config, Entry, Forget, HardState, LogOp, Rebase, SetHard
from nodeagent.model.ids import GroupId
from nodeagent.testing.durable import State, follow


def entry(term: int, text: str = "x") -> Entry:
    return Entry(term, 2, text.encode())


def append(group: GroupId, first: int, count: int = 1, term: int = 1, text: str = "x") -> Append:
    return Append(group, first, [entry(term, f"{text}{first + n}") for n in range(count)])


def base(index: int, term: int = 1) -> Base:
    return Base(index, term, Config(("a", "b"), ("c",), "op"))


def copy_state(state: State) -> State:
    return {name: GroupLog(g.base, g.hard, list(g.entries)) for name, g in state.items()}


class Batches:
    """Draws valid batches; `state` is the state after them.

    Args:
        slower: ratio of a group's weight to the weight of the previous group.
        ops_max: maximum number of operations of a batch.
        text_bytes: approximate size of the longest entry.
    """

    def __init__(
        self,
        rng: random.Random,
        groups: Sequence[GroupId],
        slower: float = 1.0,
        ops_max: int = 3,
        text_bytes: int = 60,
    ) -> None:
        self.rng = rng
        self.state: State = {}
        self.term = 1
        self._groups = groups
        self._weights = [slower**n for n in range(len(groups))]
        self._ops_max = ops_max
        self._text_bytes = text_bytes

    def batch(self, but: frozenset[GroupId] = frozenset()) -> list[LogOp]:
        """Operations of groups other than `but`; empty if there is no other group."""
        weights = [0.0 if name in but else w for name, w in zip(self._groups, self._weights, strict=True)]
        if not any(weights):
            return []
        ops: list[LogOp] = []
        for _ in range(self.rng.randint(1, self._ops_max)):
            op = self._op(self.rng.choices(self._groups, weights)[0])
            ops.append(op)
            follow(self.state, [op])
        return ops

    def _op(self, name: GroupId) -> LogOp:
        rng = self.rng
        group = self.state.get(name, GroupLog(Base(0, 0, Config()), HardState(), []))
        last = group.base.index + len(group.entries)
        dice = rng.random()
        if dice < 0.65:
            back = rng.randint(0, min(3, len(group.entries))) if rng.random() < 0.2 else 0
            self.term += back > 0
            text = "y" * rng.randint(0, self._text_bytes)
            return append(name, last + 1 - back, rng.randint(1, 4), self.term, text)
        if dice < 0.8:
            self.term += rng.random() < 0.6
            return SetHard(name, self._hard())
        if dice < 0.93:
            index = rng.randint(group.base.index, last)
            return Rebase(name, base(index, self.term), True)
        if dice < 0.96:
            return Rebase(name, base(rng.randint(group.base.index, last + 5), self.term), False)
        return Forget(name, self._hard() if rng.random() < 0.7 else None)

    def _hard(self) -> HardState:
        held = (self.rng.randint(0, self.term), self.rng.randint(1, 9)) if self.rng.random() < 0.5 else (0, 0)
        return HardState(self.term, self.rng.choice(["", "a", "b"]), held)

    def purge(self) -> list[LogOp]:
        """Operations that drop all entries of every group."""
        ops: list[LogOp] = [
            Rebase(name, base(group.base.index + len(group.entries), self.term), True)
            for name, group in self.state.items()
        ]
        follow(self.state, ops)
        return ops
