"""Builds a replica around its log and its state, and puts it among those that run."""

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
        timeout_share: for the election timeouts of a group (`leadership`).
        helpers: what data replicas turn to.
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
        replica = MetaReplica(raft, context.desk, context.outbox, state, self._on_meta, context.new_id)
        self._replicas.cluster.meta_replica = replica
        return replica

    def data(
        self, group: GroupId, log: RaftLog, hard: HardState, state: DataState, applied: int
    ) -> DataReplica:
        """`applied`: the entry up to which Raft need not hand out any."""
        context, replicas = self._context, self._replicas
        raft = self.raft(group, log, hard, applied)
        replica = DataReplica(group, raft, context.desk, context.outbox, state, self._helpers)
        raft.passive = META in replicas.damaged  # it could serve nothing that it leads
        raft.room = context.desk.space.room
        replicas.data[group] = replica
        replica.state_jobs.start()
        return replica

    def raft(self, group: GroupId, log: RaftLog, hard: HardState, applied: int) -> Raft:
        context = self._context
        draw = partial(self._timeout_share, group)
        settings = context.config.raft
        if group == META:
            # Every node acts on what it reads there.
            settings = msgspec.structs.replace(settings, commit_news_ms=0)
        return Raft(context.node, log, hard, settings, draw, context.desk.now, applied)
