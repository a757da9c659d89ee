"""The meta group's replica: everybody follows, few vote."""

from collections.abc import Callable

from nodeagent.host.desk import Desk
from nodeagent.host.outbox import Outbox
from nodeagent.host.replica import Replica
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Entry
from nodeagent.model.errors import EntryFailed
from nodeagent.model.ids import META, NodeId
from nodeagent.model.requests import Reply
from nodeagent.raft.core import Raft


class MetaReplica(Replica):
    """`changed` is called after entries were applied or an image was installed."""

    def __init__(
        self,
        raft: Raft,
        desk: Desk,
        outbox: Outbox,
        state: MetaState,
        changed: Callable[[], None],
        new_id: Callable[[], str],
    ) -> None:
        super().__init__(META, raft, desk, outbox)
        self.state = state
        self._changed = changed
        self._new_id = new_id

    @property
    def seen(self) -> int:
        return self.state.applied

    @property
    def state_index(self) -> int:
        return self.state.applied

    def apply_entries(self, first: int, entries: list[Entry]) -> list[tuple[int, Reply]]:
        replies: list[tuple[int, Reply]] = []
        self.pressing = True
        for index, entry in enumerate(entries, first):
            # One by one: a group that a cancel takes away and a retry brings back must go in between.
            try:
                replies += self.state.apply(index, [entry])
            except EntryFailed as error:
                raise EntryFailed(error.index, error.why, replies) from error
            self._changed()
        return replies

    def log_needed_after(self) -> int:
        return self.state.applied

    def encode_state(self, peer: NodeId | None) -> bytes:
        return self.state.encode()

    def restore(self, payload: bytes, base: int) -> None:
        self.state = MetaState.decode(payload, self.state.levels)
        self._changed()

    def new_snapshot_id(self) -> str:
        return self._new_id()

    def on_role(self) -> None:
        self._changed()
