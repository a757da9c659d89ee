"""Requests to the meta group that need a plan: the entry to log, or why there is none."""

from nodeagent.host.cluster import Cluster
from nodeagent.host.context import Context
from nodeagent.host.peers import Peers
from nodeagent.host.proposals import as_reply
from nodeagent.meta import commands as meta
from nodeagent.meta.nodes import DEAD
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.features import Feature
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.requests import BeginChange, ErrorReply, ForceRecover, NodeRecord, Reply
from nodeagent.partition.change import Change, ChangeKind, change_between
from nodeagent.partition.planner import plan_add, plan_remove, plan_replace
from nodeagent.partition.table import PartitionTable

NOBODY = NodeRecord("", "", 0, 0, "", 0)
"""The node record of a change in which no node joins or leaves."""

KINDS = {
    "add-node": ChangeKind.ADD,
    "remove-node": ChangeKind.REMOVE,
    "replace-node": ChangeKind.REPLACE,
    "rebalance": ChangeKind.MOVE,
}
SILENT_TIMEOUTS = 10
"""A node that was heard from within this many election timeouts is not dead."""

LISTENED_TIMEOUTS = 5
"""A leader must have led for this many election timeouts: followers do not hear one another, so before that
it may have heard nothing from a live node. The other half of `SILENT_TIMEOUTS` allows time for the leader's
election."""


class Changes:
    """Plans changes on the leader of the meta group, against its current state."""

    def __init__(self, context: Context, cluster: Cluster, peers: Peers) -> None:
        self._node = context.node
        self._effects = context.effects
        self._timeout_ms = context.config.raft.election_timeout_ms
        self._cluster = cluster
        self._peers = peers

    def begin(self, request: BeginChange) -> meta.Begin | Reply:
        """The entry for a change, planned against the current table, or why there is none."""
        state = self._cluster.meta
        table, settings = state.placement.table, state.image.settings
        kind = KINDS.get(request.kind)
        if table is None or settings is None:
            return ErrorReply("unavailable", "the cluster is not bootstrapped yet")
        if kind is None:
            return ErrorReply("invalid_input", f"unknown kind of change {request.kind!r}")
        if request.table_version not in (0, state.placement.version):
            return ErrorReply(
                "refused",
                f"the plan was made for table version {request.table_version},"
                f" it is {state.placement.version} now",
                "plan again",
            )
        try:
            change = _change(kind, request, table, settings.replicas)
        except NodeAgentError as error:
            return as_reply(error)
        if kind is ChangeKind.MOVE and (request.node or not change.moves):
            what = "a rebalance must name slots that change groups, and must not name a node"
            return ErrorReply("invalid_input", what)
        refusal = self._check(request, table, settings.replicas)
        if refusal is not None:
            return refusal
        begin = self._entry(request, change)
        return state.operations.check_begin(begin) or begin

    def _entry(self, request: BeginChange, change: Change) -> meta.Begin:
        state = self._cluster.meta
        return meta.Begin(
            now=self._cluster.record_now,
            kind=request.kind,
            node=self._record(request, change),
            by=request.by,
            base_version=state.placement.version,
            table=change.new.to_wire(),
            moves=tuple(meta.PlannedMove(m.slots, m.source, m.target) for m in change.moves),
            members=tuple(
                meta.PlannedMembers(
                    m.group,
                    m.joins[0] if m.joins else None,
                    m.leaves[0] if m.leaves else None,
                    m.before,
                    m.after,
                )
                for m in change.members
            ),
            created=change.created.after if change.created else (),
            options=request.options,
            replaces=request.replaces,
            lock=request.lock,
        )

    def _record(self, request: BeginChange, change: Change) -> NodeRecord:
        """The record of the joining node, else of the node that the change is about."""
        if change.created is None:
            return self._cluster.meta.image.nodes.get(request.node, NOBODY)
        place = change.new.ring.nodes[change.new.ring.index(request.node)]
        return NodeRecord(
            request.node,
            request.host,
            request.port,
            request.http_port,
            request.incarnation,
            place.position,
            place.weight,
            zone=request.zone if self._cluster.level >= Feature.ZONES else "",
        )

    def _check(self, request: BeginChange, table: PartitionTable, replicas: int) -> ErrorReply | None:
        if request.kind == "remove-node" and len(table.ring) <= replicas:
            return ErrorReply(
                "refused",
                f"a cluster of {len(table.ring)} nodes cannot lose one: every group has {replicas} replicas"
                " (cluster too small)",
                f"iotctl cluster replace-node {request.node} NEW --dead"
                if request.options.dead
                else "add a node first",
            )
        comes = request.kind in ("add-node", "replace-node")
        if comes and not (request.host and request.port and request.incarnation):
            return ErrorReply("invalid_input", "a change names the newcomer's host, port and incarnation")
        leaves = request.node if request.kind == "remove-node" else request.replaces
        dead = {n for n, r in self._cluster.meta.image.nodes.items() if r.state == DEAD}
        if dead and leaves not in dead:
            names = ", ".join(sorted(dead))
            spare = len(table.ring) > replicas
            helps = "remove-node NODE --dead" if spare else "replace-node NODE NEW --dead"
            return ErrorReply("refused", f"dead and still in the cluster: {names}", f"iotctl cluster {helps}")
        if leaves in dead and not request.options.dead:
            return ErrorReply(
                "refused", f"{leaves} is dead: an earlier change continued without it", "repeat with --dead"
            )
        return self.check_silent(leaves) if request.options.dead else None

    def check_silent(self, node: NodeId) -> ErrorReply | None:
        """Why `node` cannot be declared dead, None if it can or has been."""
        if node in self._cluster.meta.nodes.dead:
            return None  # it is retired: no node hears it
        timeout_ms = self._timeout_ms
        silent_ms = self._effects.now - self._peers.heard.get(node, -(1 << 62))
        limit_ms = SILENT_TIMEOUTS * timeout_ms
        if node == self._node:
            return ErrorReply(
                "refused",
                f"{node} is not dead: it leads the meta group",
                "omit --dead (of `cluster recover`: the node)",
            )
        if silent_ms < limit_ms:
            return ErrorReply(
                "refused",
                f"{node} is not dead: {self._node} heard from it {max(0, silent_ms)} ms ago",
                f"repeat when it has been silent for {limit_ms / 1000:g} s, or omit --dead"
                " (of `cluster recover`: the node)",
            )
        leading = self._cluster.meta_replica
        assert leading is not None  # it leads
        listened_ms = self._effects.now - leading.led_since
        if listened_ms < LISTENED_TIMEOUTS * timeout_ms:
            return ErrorReply(
                "refused",
                f"{node} is not known to be dead: {self._node} has led the meta group for only"
                f" {listened_ms} ms",
                f"repeat in {LISTENED_TIMEOUTS * timeout_ms / 1000:g} s, or omit --dead"
                " (of `cluster recover`: the node)",
            )
        return None

    def without(self, operation: str, node: NodeId) -> dict[GroupId, tuple[NodeId, ...]] | ErrorReply:
        """The groups in which `node` votes, or may vote by now, each with its other members: every group must
        answer before the open operation may continue without `node`. Or why the operation may not."""
        op = self._cluster.meta.operations.find(operation)
        if op is None or op.ended or node in op.dead:
            return {}  # applying the entry gives the answer
        refusal = self.check_silent(node)
        if refusal is not None:
            return refusal
        joins = {c.group: (c.joins,) for c in op.changes if c.joins is not None}
        voters = {
            g.group: (*g.members, *joins.get(g.group, ()))
            for g in self._cluster.meta.image.groups.values()
            if g.group != op.created_group or op.group_ready
        }
        return {
            group: tuple(n for n in names if n != node) for group, names in voters.items() if node in names
        }

    def give_up(self, request: ForceRecover) -> meta.ForceRecover | ErrorReply:
        """The entry that forces the recovery without these nodes, or why there is none."""
        now = self._cluster.record_now
        command = meta.ForceRecover(now, request.nodes, request.leaders, request.table_version, request.by)
        silent = (self.check_silent(n) for n in request.nodes)
        return self._cluster.meta.recovery.check(command) or next(filter(None, silent), None) or command


def _change(kind: ChangeKind, request: BeginChange, table: PartitionTable, replicas: int) -> Change:
    if kind is ChangeKind.MOVE:
        gains = {owner: slots for owner, slots in request.gains if slots}
        return change_between(kind, "", table, table.moved(gains, table.ring, table.version + 1), replicas)
    if kind is ChangeKind.ADD:
        change = plan_add(table, request.node, request.after, replicas, request.weight)
    elif kind is ChangeKind.REPLACE:
        return plan_replace(table, request.replaces, request.node, replicas)
    else:
        change = plan_remove(table, request.node, replicas)
    if not request.gains:
        return change
    # The operator confirmed exactly these moves.
    new = table.moved(dict(request.gains), change.new.ring, change.new.version)
    return change_between(kind, request.node, table, new, replicas)
