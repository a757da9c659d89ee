"""This node's role in the meta group: since when, and why."""

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.model.ids import META
from nodeagent.model.meta_role import MetaRole, path


class RoleWatch:
    """Notes each change of the role."""

    def __init__(self, effects: EffectQueue) -> None:
        self._effects = effects
        self.role = MetaRole.INIT
        self.since = effects.now
        """When the role last changed (ms, monotonic)."""

        self.why = "the node starts"

    def look(self, replica: MetaReplica | None) -> None:
        """Called after each turn in which the role may have changed."""
        new = role_of(replica)
        if new is self.role:
            return
        for role in path(self.role, new):
            self.role, self.since = role, self._effects.now
            self.why = _why(role, replica)
            self._effects.note("meta_role", group=META, role=role.value, why=self.why)


def role_of(replica: MetaReplica | None) -> MetaRole:
    if replica is None:
        return MetaRole.INIT
    raft = replica.raft
    if replica.stopped or not raft.hears_leader():
        return MetaRole.UNKNOWN
    if replica.leads:
        return MetaRole.LEADER
    return MetaRole.FOLLOWER if raft.node in raft.log.config.voters else MetaRole.OBSERVER


def _why(role: MetaRole, replica: MetaReplica | None) -> str:
    if replica is None:
        return "the node has no meta state"
    raft = replica.raft
    match role:
        case MetaRole.UNKNOWN:
            return replica.stopped or f"no leader is heard in term {raft.term}"
        case MetaRole.LEADER:
            return f"it was elected in term {raft.term}"
        case _:
            return f"{raft.leader or 'a leader'} leads in term {raft.term}"
