"""The state of a cluster from the answers of its agents, even if most of them are down.

Every agent is asked directly (2 s, in parallel); the meta view comes from the most advanced agent that
answers, without waiting for a leader. Unknown values stay None: nothing is assumed healthy.
"""

import time
from collections.abc import Callable

from iotctl.observe.cluster import Cluster
from iotctl.observe.collect import Facts, collect, current_of, freshest, has_quorum, replicas_of, voting
from iotctl.observe.model import DEAD, ClusterStatus, GroupRow, MetaRow, NodeRow, Problem
from iotctl.observe.operations import describe_operation, open_operations, received_bytes
from iotctl.observe.problems import group_problems, node_problems, operation_problems, zone_problems
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.ids import META
from nodeagent.model.requests import GroupStatus, NodeRecord, NodeStatus

ELECTION_LOOKS_S = (1.0, 1.0, 1.5)
"""Pauses between the attempts to see a leader: together longer than an election timeout."""

PASSING = ("no_leader", "not_formed", "unheard", "node_starting", "replica_missing")
"""Problems that a new cluster, node, group or leader has only briefly."""


def cluster_status(
    cluster: Cluster, source: ClusterSource, *, now_ms: int, sleep: Callable[[float], None] = time.sleep
) -> ClusterStatus:
    """The status from the answers of all agents, taken repeatedly while a problem may pass by itself: a new
    group may still be electing its leader, or a new leader may not have heard its followers yet."""
    for pause_s in (*ELECTION_LOOKS_S, None):
        found = build_status(collect(cluster), source, now_ms=now_ms)
        if pause_s is None or not found.quorum or not any(p.code in PASSING for p in found.problems):
            break
        sleep(pause_s)
    return found


def quorum_problem(cluster: Cluster, source: ClusterSource) -> Problem | None:
    """The problem of the first group without a majority, the meta group first; None if all have one."""
    problems = cluster_status(cluster, source, now_ms=0).problems
    return next((p for p in problems if p.code == "quorum_lost"), None)


def build_status(facts: Facts, source: ClusterSource, *, now_ms: int) -> ClusterStatus:
    """Build the published document from the agents' answers. Pure."""
    view = facts.view
    groups = _group_rows(facts)
    meta = _meta_row(facts)
    meta_lost = not has_quorum(meta.voters, voting(facts, META))
    lost = ([META] if meta_lost else []) + [g.group for g in groups if not g.quorum]
    nodes = _node_rows(facts, source)
    down = [n.id for n in nodes if not n.reachable]
    operations = [
        describe_operation(o, now_ms=now_ms, received=received_bytes(facts.heard, o.id))
        for o in (open_operations(view) if view else [])
    ]
    level = view.level if view else 0
    supported = [n.feature_level or 0 for n in nodes if n.state != DEAD]
    start = start_command(source, down)
    problems = [
        *node_problems(nodes, facts, start, now_ms),
        *group_problems(facts, groups, meta, meta_lost, down, start),
        *zone_problems(facts, source),
        *operation_problems(operations),
    ]
    return ClusterStatus(
        cluster_id=view.cluster_id if view else "",
        name=view.settings.name if view else source.name,
        table_version=view.table_version if view else 0,
        as_of_ms=now_ms,
        source=view.node if view else "",
        quorum=not lost,
        meta=meta,
        nodes=nodes,
        groups=groups,
        lost_groups=lost,
        start_nodes=[n.id for n in nodes if n.id in down and n.state != DEAD] if lost else [],
        operations=operations,
        problems=problems,
        healthy=not any(p.severity == "error" for p in problems),
        feature_level=level,
        feature_level_possible=max(level, min(supported, default=0)),
    )


def start_command(source: ClusterSource, nodes: list[str]) -> str:
    """The command that starts nodes that are down."""
    if source.is_local:
        return f"iotctl local up --dir {source.directory}"
    return f"iotctl cluster start {' '.join(nodes)}"


def _meta_row(facts: Facts) -> MetaRow:
    replicas = replicas_of(facts, META)
    leader, group = current_of(replicas)
    known = group or freshest(replicas)
    if known is not None:
        return MetaRow(leader, known.term, sorted(known.voters), sorted(known.learners))
    view = facts.view
    if view is None:
        return MetaRow(None, 0, [], [])
    return MetaRow(None, view.term, sorted(view.voters), sorted(view.learners))


def _group_rows(facts: Facts) -> list[GroupRow]:
    if facts.view is None:
        return []
    rows = []
    owned: dict[str, int] = {}
    for start, end, owner in facts.view.owners:
        owned[owner] = owned.get(owner, 0) + end - start
    for record in facts.view.groups:
        replicas = replicas_of(facts, record.group)
        leader, leading = current_of(replicas)
        known = leading or freshest(replicas)
        voters = known.voters if known and known.voters else record.members
        live = voting(facts, record.group)
        sick = next((g for g in replicas.values() if g.state != "running"), None)
        rows.append(
            GroupRow(
                group=record.group,
                owner=record.owner,
                header=record.owner,
                members=list(record.members),
                live=[m for m in record.members if m in live],
                leader=leader,
                term=known.term if known else 0,
                quorum=has_quorum(voters, live),
                dissolving=record.dissolving,
                slots=0 if record.dissolving else owned.get(record.owner, 0),
                files=known.files if known else 0,
                bytes=known.bytes if known else 0,
                rows=known.rows if known else 0,
                commit=known.commit if known else 0,
                lag=max(leading.lag.values(), default=0) if leading else 0,
                state=sick.state if sick else "running" if replicas else "unknown",
                error=sick.error if sick else "",
            )
        )
    return rows


def _node_rows(facts: Facts, source: ClusterSource) -> list[NodeRow]:
    records = _records(facts, source)
    owned: dict[str, int] = {}
    for start, end, owner in facts.view.owners if facts.view else ():
        owned[owner] = owned.get(owner, 0) + end - start
    return [
        _node_row(record, facts, owned.get(record.node, 0) if facts.view else None)
        for record in records.values()
    ]


def _records(facts: Facts, source: ClusterSource) -> dict[str, NodeRecord]:
    """The cluster's nodes in the order of its records, not of the ring; then those listed only in
    `cluster.yaml` (state `unknown` or `not_joined`)."""
    found: dict[str, NodeRecord] = {}
    if facts.view is not None:
        found = {n.node: n for n in facts.view.nodes if n.state != "retired"}
    for node in source.file.nodes:
        if node.name not in found:
            state = "not_joined" if facts.view else "unknown"
            port, http_port = source.port_of(node), node.http_port or source.file.defaults.http_port
            found[node.name] = NodeRecord(node.name, node.host, port, http_port, "", 0, node.weight, state)
    return found


def _node_row(record: NodeRecord, facts: Facts, slots: int | None) -> NodeRow:
    status = facts.statuses.get(record.node)
    data = [g for g in status.groups if g.group != META] if status else []
    meta = next((g for g in status.groups if g.group == META), None) if status else None
    return NodeRow(
        id=record.node,
        host=record.host,
        port=record.port,
        reachable=status is not None,
        state=_state_of(record, status),
        role=_meta_role(record.node, meta),
        slots=slots,
        groups_led=sum(g.role == "leader" for g in data) if status else None,
        bytes=sum(g.bytes for g in data) if status else None,
        rows=sum(g.rows for g in data) if status else None,
        lag_ms=facts.heard_ms.get(record.node),
        disk_free_bytes=status.disk_free_bytes if status else None,
        cert_expires_ms=(status.cert_expires_ms or None) if status else None,
        version=status.version if status else "",
        feature_level=status.newest_level if status else None,
        error=facts.errors.get(record.node, "") if status is None else "",
    )


def _state_of(record: NodeRecord, status: NodeStatus | None) -> str:
    """The node's state in the cluster's records; for an active node that is not draining, the state that it
    reports."""
    if record.state != "active":
        return record.state
    if record.draining:
        return "draining"
    return status.state if status else record.state


def _meta_role(node: str, meta: GroupStatus | None) -> str:
    if meta is None:
        return "unknown"
    if meta.role == "leader":
        return "leader"
    return "voter" if node in meta.voters else "observer"
