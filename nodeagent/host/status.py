"""The status of a node and its groups, as the node reports it."""

import msgspec

from nodeagent import __version__
from nodeagent.host.admission import Admission
from nodeagent.host.context import Context
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.meta_role import RoleWatch
from nodeagent.host.own_membership import OwnMembership
from nodeagent.host.peers import Peers
from nodeagent.host.replica import Replica
from nodeagent.host.replicas import Replicas
from nodeagent.model.ids import META, GroupId
from nodeagent.model.requests import GroupStatus, MetaStatus, NodeStatus


class Status:
    def __init__(
        self,
        context: Context,
        replicas: Replicas,
        admission: Admission,
        own_membership: OwnMembership,
        peers: Peers,
        role: RoleWatch,
    ) -> None:
        self._context = context
        self._started = context.effects.now
        self._replicas = replicas
        self._cluster = replicas.cluster
        self._admission = admission
        self._own_membership = own_membership
        self._peers = peers
        self._role = role

    def state(self) -> str:
        cluster = self._cluster
        if self._admission.refused:
            return "refused"
        if META in self._replicas.damaged:
            return "damaged"
        if cluster.meta_replica is None or not cluster.id:
            return "joining" if self._context.config.join else "forming"
        record = cluster.meta.image.nodes.get(self._context.node)
        if self._own_membership.fenced_reason:
            return "removed"
        if record is None:
            return "joining"
        return "draining" if record.draining and record.state == "active" else record.state

    def _why(self) -> str:
        """Why this node serves no requests, "" if no reason is known."""
        refused, damaged, fenced_reason = (
            self._admission.refused,
            self._replicas.damaged,
            self._own_membership.fenced_reason,
        )
        if refused or META in damaged or fenced_reason:
            return refused or damaged.get(META, "") or fenced_reason
        waits = ", ".join(self._admission.waiting_for) if self._cluster.meta_replica is None else ""
        return f"it waits for {waits}" if waits else ""

    def of_node(self, now: int, wall: int) -> NodeStatus:
        """The node's status; the shell fills in what only it knows (disk, certificates, pulled bytes)."""
        context, cluster = self._context, self._cluster
        members = cluster.meta.image.nodes
        groups = [self._of_group(r) for r in self._replicas]
        groups += [self._of_damaged(g, why) for g, why in self._replicas.damaged.items()]
        return NodeStatus(
            node=context.node,
            incarnation=context.incarnation,
            cluster_id=cluster.id,
            cluster=context.config.cluster.name,
            version=__version__,
            state=self.state(),
            now_ms=wall,
            started_ms=wall - (now - self._started),
            table_version=cluster.table_version,
            groups=tuple(groups),
            room=context.effects.space.room.name.lower(),
            heard_ms={n: now - at for n, at in self._peers.heard.items() if n in members or not members},
            clock_skew_ms=dict(self._peers.skewed),
            why=self._why(),
            unremoved=dict(context.effects.unremoved),
            level=cluster.level,
            oldest_level=context.levels.own.oldest,
            newest_level=context.levels.own.newest,
            meta=self._of_meta(),
        )

    def _of_meta(self) -> MetaStatus:
        watch, replica = self._role, self._cluster.meta_replica
        since_ms = self._context.effects.now - watch.since
        why = self._replicas.damaged.get(META, watch.why)
        if replica is None:
            return MetaStatus(watch.role, since_ms, why)
        log, saved = replica.raft.log, replica.checkpoints.images
        return MetaStatus(
            role=watch.role,
            since_ms=since_ms,
            why=why,
            first=log.first_index,
            last=log.last_index,
            applied=replica.applied_index,
            age_ms=replica.freshness.age_ms,
            image=saved.newest,
            fallback=saved.fallback,
            pin=replica.log_start.pin,
        )

    def _of_damaged(self, group: GroupId, why: str) -> GroupStatus:
        node = self._context.node
        hint = f"iotctl cluster replace-node {node} NEW"
        if group in self._replicas.awaiting_meta_state:
            hint = (
                f"wait until {node} has the newest meta state: groups that it left are removed automatically"
            )
        return GroupStatus(group, "damaged", None, 0, (), (), 0, 0, 0, state="damaged", error=why, hint=hint)

    def _of_group(self, replica: Replica) -> GroupStatus:
        status, pin = replica.raft.status(), replica.log_start.pin
        base = GroupStatus(
            group=replica.group,
            role=status.role.value,
            leader=status.leader,
            term=status.term,
            voters=status.config.voters,
            learners=status.config.learners,
            commit=status.commit,
            applied=replica.applied_index,
            last=status.last,
            lag={n: max(0, status.last - p.match) for n, p in status.progress.items()},
            error=replica.stopped or replica.condition.error,
            last_term=replica.raft.log.last_term,
            state="stopped" if replica.stopped else "running",
            hint=f"iotctl cluster upgrade {self._context.node}" if replica.stopped else "",
            log_bytes=replica.context.log_bytes(),
            log_held_by=str(pin) if pin is not None else "",
            log_pin=pin,
        )
        if not isinstance(replica, DataReplica):
            return base
        state = replica.state
        return msgspec.structs.replace(
            base,
            slots=len(state.slots.open),
            files=len(state.files.manifest),
            bytes=state.files.manifest.nbytes,
            rows=state.files.manifest.rows + state.rows.memtable.rows,
            memtable_bytes=state.rows.memtable.nbytes,
            materialised=state.materialised,
            compacting=len(state.compactions.active),
            files_most=state.files.manifest.most_files(),
            error=replica.stopped or replica.trouble,
            hint=self._hint(replica) or base.hint,
            state=base.state if replica.stopped else "running" if state.rows.recovered else "recovering",
        )

    def _hint(self, replica: DataReplica) -> str:
        if replica.failures.is_lost:
            node = self._context.node
            return f"iotctl verify --repair; if that fails: iotctl cluster replace-node {node} NEW"
        return "iotctl verify --repair" if replica.leads and replica.damaged else ""
