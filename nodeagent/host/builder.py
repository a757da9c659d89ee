"""Builds a replica from its log and its state, and adds it to the running replicas."""

from collections.abc import Callable
from functools import partial

import msgspec

from nodeagent.data.state import DataState
from nodeagent.host.context import Context
from nodeagent.host.data_replica import DataReplica, Helpers
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.host.replicas import Replicas
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import HardState
from nodeagent.model.ids import META, GroupId
from nodeagent.raft.core import Raft
from nodeagent.raft.log import RaftLog


class ReplicaBuilder:
    """
    Args:
        timeout_share: draws the election timeouts of a group (`leadership`).
        helpers: what the data replicas share.
        on_meta: called when entries of the meta group were applied.
    """

    def __init__(
        self,
        context: Context,
        replicas: Replicas,
        timeout_share: Callable[[GroupId], float],
        helpers: Helpers,
        on_meta: Callable[[], None],
    ) -> None:
        self._context = context
        self._replicas = replicas
        self._timeout_share = timeout_share
        self._helpers = helpers
        self._on_meta = on_meta

    def meta(self, log: RaftLog, hard: HardState, state: MetaState) -> MetaReplica:
        context = self._context
        raft = self.raft(META, log, hard, state.applied)
        replica = MetaReplica(raft, context.effects, context.outbox, state, self._on_meta, context.new_id)
        self._replicas.cluster.meta_replica = replica
        return replica

    def data(
        self, group: GroupId, log: RaftLog, hard: HardState, state: DataState, applied: int
    ) -> DataReplica:
        """
        Args:
            applied: Raft hands out the entries after this index.
        """
        context, replicas = self._context, self._replicas
        raft = self.raft(group, log, hard, applied)
        replica = DataReplica(group, raft, context.effects, context.outbox, state, self._helpers)
        raft.passive = META in replicas.damaged  # as a leader it could not serve any request
        raft.room = context.effects.space.room
        replicas.data[group] = replica
        replica.state_jobs.start()
        return replica

    def raft(self, group: GroupId, log: RaftLog, hard: HardState, applied: int) -> Raft:
        context = self._context
        draw = partial(self._timeout_share, group)
        settings = context.config.raft
        if group == META:
            # Every node acts on the meta state, so followers learn of commits at once.
            settings = msgspec.structs.replace(settings, commit_news_ms=0)
        return Raft(context.node, log, hard, settings, draw, context.effects.now, applied)
