"""The replica of the meta group, which every node follows and few nodes vote in."""

from collections.abc import Callable

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.freshness import Freshness
from nodeagent.host.group_context import GroupContext
from nodeagent.host.outbox import Outbox
from nodeagent.host.replica import Replica
from nodeagent.host.state_machine import StateMachine
from nodeagent.meta.sections import sections_of
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Entry
from nodeagent.model.errors import EntryFailed
from nodeagent.model.features import Feature
from nodeagent.model.ids import META, NodeId
from nodeagent.model.image_format import Section
from nodeagent.model.limits import META_ENTRIES_MAX
from nodeagent.model.requests import Reply
from nodeagent.raft.core import Raft


class MetaMachine(StateMachine):
    log_entries_max = META_ENTRIES_MAX

    def __init__(self, state: MetaState, changed: Callable[[], None]) -> None:
        self.state = state
        self._changed = changed

    @property
    def applied_index(self) -> int:
        return self.state.applied

    @property
    def state_index(self) -> int:
        return self.state.applied

    def apply_entries(self, first: int, entries: list[Entry]) -> list[tuple[int, Reply]]:
        replies: list[tuple[int, Reply]] = []
        for index, entry in enumerate(entries, first):
            # One by one: a replica that a cancel removes and a retry creates must be removed in between.
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

    def sections(self) -> tuple[Section, ...] | None:
        image = self.state.image
        return sections_of(image) if image.level >= Feature.IMAGES else None

    def restore(self, payload: bytes, base: int) -> None:
        self.state = MetaState.decode(payload, self.state.levels)
        self._changed()

    def on_role(self) -> None:
        self._changed()


class MetaReplica(Replica):
    """
    Args:
        changed: called after entries were applied, a snapshot was installed, or leadership changed.
    """

    def __init__(
        self,
        raft: Raft,
        effects: EffectQueue,
        outbox: Outbox,
        state: MetaState,
        changed: Callable[[], None],
        new_id: Callable[[], str],
    ) -> None:
        self._machine = MetaMachine(state, changed)
        super().__init__(GroupContext(META, raft, effects, outbox), self._machine, new_id)
        self.freshness = Freshness(effects, self.read, lambda: self.applied_index)

    @property
    def state(self) -> MetaState:
        return self._machine.state
