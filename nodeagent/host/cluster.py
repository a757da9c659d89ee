"""The cluster as this node knows it: the meta group's state, as far as it is applied here."""

from collections.abc import Collection, Sequence

from nodeagent.host.context import Context
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Config
from nodeagent.model.ids import GroupId, NodeId


class Cluster:
    """Empty if this node has no replica of the meta group. Handlers reply through `effects`."""

    def __init__(self, context: Context) -> None:
        self.effects = context.effects
        self._clocks = context.clocks
        self._empty = MetaState(levels=context.levels.own)
        self.meta_replica: MetaReplica | None = None
        self.known_to = 0
        """End of the meta log at the start: entries up to there may have created or removed groups."""

    @property
    def meta(self) -> MetaState:
        return self.meta_replica.state if self.meta_replica is not None else self._empty

    @property
    def id(self) -> str:
        return self.meta.cluster_id

    @property
    def first_config(self) -> Config | None:
        """The configuration with which the log of the meta replica begins: before any change of the
        membership, the one with which the replica was created."""
        return self.meta_replica.raft.log.base.config if self.meta_replica is not None else None

    @property
    def table_version(self) -> int:
        return self.meta.placement.version

    @property
    def level(self) -> int:
        """The cluster's feature level; 0 while there is no cluster."""
        return self.meta.image.level if self.id else 0

    @property
    def applied(self) -> int:
        return self.meta.applied

    @property
    def audit(self) -> Sequence[tuple[int, str, str]]:
        """(ms, who, what) of the meta group, oldest first, as far as it is applied here."""
        return self.meta.image.audit

    @property
    def retired(self) -> Collection[str]:
        """Incarnations whose messages are refused. They are read for every request, so nothing is copied."""
        return self.meta.image.retired

    @property
    def is_led_here(self) -> bool:
        """Whether this node leads the meta group."""
        return self.meta_replica is not None and self.meta_replica.leads

    @property
    def is_current(self) -> bool:
        """Whether the meta state is as new as it ever was here.

        After a start it is the state of the checkpoint: it may lack a group that was created later, or still
        name this node in a group that it has left.
        """
        replica = self.meta_replica
        return replica is not None and self.meta.applied >= min(self.known_to, replica.raft.log.last_index)

    @property
    def record_now(self) -> int:
        """The time to write into the meta group's records: that of its voters if this node leads it, else
        this node's wall clock."""
        replica = self.meta_replica
        if replica is None or not replica.leads:
            return self.effects.wall
        return self._clocks.record(replica.raft.log.config.voters)

    def is_source(self, operation: str, group: GroupId, node: NodeId) -> bool:
        """Whether slots of `group` are copied from `node` in `operation`; true if that is unknown here."""
        op = self.meta.operations.find(operation)
        return op is None or any(m.source == group and node in m.source_members for m in op.moves)
