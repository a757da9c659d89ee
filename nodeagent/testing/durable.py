"""A slow and simple model of what a machine's log must contain.

Synced batches survive any crash; of the batches written since, any prefix may survive. A start that recovers
anything else has lost or invented entries (S6, S7, S15).
"""

from collections.abc import Sequence

from nodeagent.log import GroupLog, Recovered
from nodeagent.model.entries import (
    Append,
    Base,
    Config,
    EntryKind,
    Forget,
    HardState,
    LogOp,
    Rebase,
    SetHard,
)
from nodeagent.model.ids import GroupId
from nodeagent.raft import decode_config

State = dict[GroupId, GroupLog]
Left = dict[GroupId, HardState]


def follow(state: State, ops: Sequence[LogOp], left: Left | None = None) -> None:
    """Apply one batch to `state`; `left` receives what is remembered of each group that was left."""
    left = {} if left is None else left
    for op in ops:
        left.pop(op.group, None)
        if isinstance(op, Forget):
            state.pop(op.group, None)
            if op.memory is not None:
                left[op.group] = op.memory
            continue
        group = state.get(op.group)
        if group is None:
            group = state[op.group] = GroupLog(Base(0, 0, Config()), HardState(), [])
        match op:
            case Append(_, first, entries):
                at = first - group.base.index - 1
                assert 0 <= at <= len(group.entries), f"gap in the log of {op.group} before index {first}"
                group.entries[at:] = entries
            case SetHard(_, hard):
                group.hard = hard
            case Rebase(_, base, keep):
                gone = base.index - group.base.index
                group.entries = group.entries[gone:] if keep and gone >= 0 else []
                group.base = base


def _bound(memory: HardState) -> HardState:
    """The bound that a start recovers instead of `memory` if only its row in a block's head is readable."""
    return HardState(memory.term + 1, "", (memory.term, memory.held[1]))


def _forgotten(batches: Sequence[Sequence[LogOp]]) -> set[GroupId]:
    return {op.group for ops in batches for op in ops if isinstance(op, Forget)}


class Durable:
    """The model of one node's log; `groups` is what survives any crash."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.groups: State = {}
        self.left: Left = {}
        self.lost: set[GroupId] = set()
        """Groups reported as damaged: nothing is known about them until they are forgotten."""

        self._since: list[list[LogOp]] = []
        """Batches written since the last sync."""

        self._writing: list[LogOp] | None = None
        """The batch whose write has begun; it may survive a crash."""

    def writes(self, ops: list[LogOp]) -> None:
        self._writing = ops

    def written(self) -> None:
        assert self._writing is not None
        self._since.append(self._writing)
        self._writing = None

    def refused(self) -> None:
        """Note that nothing of the begun batch was written."""
        self._writing = None

    def synced(self) -> None:
        for ops in self._since:
            follow(self.groups, ops, self.left)
        self.lost -= _forgotten(self._since)
        self._since.clear()

    def reopened(self, recovered: Recovered, *, must_fit: bool, hurt: bool = False) -> None:
        """Note what a start recovered; from now on the log must contain that.

        Args:
            must_fit: whether it must match the model.
            hurt: whether bytes were corrupted, so that only a bound may be left of a group's memory.
        """
        if must_fit:
            self._compare(recovered, hurt)
        self.groups = {
            name: GroupLog(found.base, found.hard, list(found.entries))
            for name, found in recovered.groups.items()
        }
        self.left = dict(recovered.left)
        damaged = {d.group for d in recovered.damaged}
        self.lost = damaged | (self.lost - _forgotten(self._begun))
        self._since.clear()
        self._writing = None

    @property
    def _begun(self) -> list[list[LogOp]]:
        """Batches that may have survived: any prefix of them."""
        return self._since if self._writing is None else [*self._since, self._writing]

    def _compare(self, recovered: Recovered, hurt: bool) -> None:
        damaged = {d.group for d in recovered.damaged}
        if "" in damaged:
            return
        batches = self._begun
        for done in range(len(batches) + 1):
            if done:
                follow(self.groups, batches[done - 1], self.left)
            unknown = damaged | (self.lost - _forgotten(batches[:done]))
            if not (unlike := self._unlike(recovered, unknown, hurt)):
                return
        raise AssertionError(f"S6: {self.node} recovered a log that differs from the durable one: {unlike}")

    def _unlike(self, recovered: Recovered, unknown: set[GroupId], hurt: bool) -> str:
        """How the recovered log differs from `groups` and `left`; "" if it does not."""
        found = recovered.groups
        for name in sorted({*self.groups, *found} - unknown):
            ours, theirs = self.groups.get(name), found.get(name)
            if ours is None or theirs is None:
                return f"group {name} is {'missing' if theirs is None else 'present'}"
            if (ours.base, ours.hard) != (theirs.base, theirs.hard):
                return f"{name}: {theirs.base} {theirs.hard}, not {ours.base} {ours.hard}"
            if ours.entries != theirs.entries:
                return f"{name}: {len(theirs.entries)} entries differ from the {len(ours.entries)} written"
        for name in sorted({*self.left, *recovered.left} - unknown):
            kept, said = recovered.left.get(name), self.left.get(name)
            is_bound = hurt and said is not None and kept == _bound(said)
            if kept != said and not is_bound:
                return f"{name}: {kept} is remembered instead of {said}"
        return ""

    # --- what may be promised ----------------------------------------------------------------------

    def holds(self, group: GroupId, index: int, term: int) -> bool:
        """Whether this entry, or a checkpoint that covers it, survives any crash."""
        log = self.groups.get(group)
        if log is None:
            return False
        at = index - log.base.index - 1
        return at < 0 or (at < len(log.entries) and log.entries[at].term == term)

    def configs(self, group: GroupId) -> list[Config]:
        """Every config of the group that a restart may read from this disk."""
        log = self.groups.get(group)
        found = [log.base.config] if log is not None else []
        entries = list(log.entries) if log is not None else []
        for op in (op for ops in self._since for op in ops if op.group == group):
            if isinstance(op, Append):
                entries += op.entries
            elif isinstance(op, Rebase):
                found.append(op.base.config)
        return found + [decode_config(e.data) for e in entries if e.kind == EntryKind.CONFIG]

    def hard(self, group: GroupId) -> HardState:
        log = self.groups.get(group)
        return log.hard if log is not None else HardState()
