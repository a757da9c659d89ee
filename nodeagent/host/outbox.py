"""Keeps the order "persist, then send".

The log operations of all groups in a turn are one batch, made durable together. A message that promises
something waits until the batch with that promise is durable; batches complete in order. The runtime and the
simulator both send through here, so neither can send too early.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from nodeagent.model.entries import LogOp
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.raft_messages import RaftMessage, Routed


@dataclass(slots=True)
class _Batch:
    number: int
    ops: list[LogOp] = field(default_factory=list)
    sends: list[tuple[NodeId, Routed]] = field(default_factory=list)
    then: list[Callable[[], None]] = field(default_factory=list)


class Outbox:
    """Invariant: `_waiting` is ascending by number; its first is the oldest batch not yet durable."""

    def __init__(self) -> None:
        self._batch = _Batch(1)
        self._waiting: list[_Batch] = []
        self._group_batch: dict[GroupId, int] = {}
        """Last batch with an operation of the group."""

        self._sends: dict[NodeId, list[Routed]] = {}

    def persist(self, group: GroupId, ops: list[LogOp], then: Callable[[], None] | None = None) -> None:
        """Add to this turn's batch; `then` runs when it is durable, before its messages are sent."""
        self._batch.ops += ops
        if then is not None:
            self._batch.then.append(then)
        self._group_batch[group] = self._batch.number

    def send(self, to: NodeId, group: GroupId, message: RaftMessage) -> None:
        self._sends.setdefault(to, []).append(Routed(group, message))

    def send_after(self, to: NodeId, group: GroupId, message: RaftMessage) -> None:
        """Send when all operations of `group` so far are durable."""
        number = self._group_batch.get(group, 0)
        if number == self._batch.number:
            self._batch.sends.append((to, Routed(group, message)))
            return
        for batch in self._waiting:
            if batch.number == number:
                batch.sends.append((to, Routed(group, message)))
                return
        self.send(to, group, message)

    def completed(self, number: int) -> None:
        """Batches up to `number` are durable."""
        while self._waiting and self._waiting[0].number <= number:
            batch = self._waiting.pop(0)
            for then in batch.then:
                then()
            for to, routed in batch.sends:
                self._sends.setdefault(to, []).append(routed)

    def take_persist(self) -> tuple[int, list[LogOp]] | None:
        batch = self._batch
        if not batch.ops:
            assert not batch.sends and not batch.then
            return None
        self._batch = _Batch(batch.number + 1)
        self._waiting.append(batch)
        return batch.number, batch.ops

    def take_sends(self) -> list[tuple[NodeId, list[Routed]]]:
        sends, self._sends = self._sends, {}
        return list(sends.items())

    def forget(self, group: GroupId) -> None:
        """The replica is removed: its waiting messages are dropped."""
        for batch in (*self._waiting, self._batch):
            batch.sends = [(to, r) for to, r in batch.sends if r.group != group]

    @property
    def idle(self) -> bool:
        return not self._batch.ops and not self._sends
