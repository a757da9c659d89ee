"""The state of a cluster from what its agents say, also when most of them are dead.

Every agent is asked directly (2 s, in parallel); the meta view is taken from the freshest one that
answers, without waiting for a leader. What nobody can tell stays None: nothing is guessed as healthy.
"""

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from iotctl.humanize import span_text
from iotctl.observe.cluster import STATUS_TIMEOUT_S, Cluster
from iotctl.observe.operations import (
    WAITS,
    OperationRow,
    describe_operation,
    open_operations,
    received_bytes,
    removed_by,
)
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.config import RaftSettings
from nodeagent.model.errors import NodeAgentError, OutcomeUnknown
from nodeagent.model.features import Levels, refusal
from nodeagent.model.ids import META
from nodeagent.model.limits import DISK_LOW_BYTES
from nodeagent.model.requests import GetMeta, GroupStatus, MetaView, NodeRecord, NodeStatus

ELECTION_LOOKS_S = (1.0, 1.0, 1.5)
"""Pauses between looks at a group without a leader: together more than an election timeout."""

PASSING = ("no_leader", "not_formed", "unheard", "node_starting", "replica_missing")
"""Problems that a new cluster, node, group or leader has for a moment."""

HEARD_MS_MAX = RaftSettings().election_timeout_ms
"""A voter its leader has not heard for longer cannot be counted on: it may have come back a moment ago and
not be connected yet. A leader hears each follower several times in this."""

ROOM_LESS = ("low", "full")
"""`NodeStatus.room` of a node that takes no rows."""

LOG_PINNED_BYTES = 16 * 1024 * 1024
"""So much log of one group, kept for a follower, is told."""

DAY_MS = 86_400_000
CERT_WARN_MS = 30 * DAY_MS
SILENT_MAX = 2
"""Nodes whose silence is waited for when the meta view is asked for."""

SERVING_MS_MAX = 5_000
"""A node that was started longer ago should take part. One that starts again does so within a second."""

STARTING = ("forming", "joining")
NOT_SERVING = (*STARTING, "refused", "damaged")
"""States in which a node takes no part, as it says itself."""

WAIT_HEALTHY = "iotctl cluster wait --for healthy"

DEAD = "dead"
FINALIZE = "iotctl cluster finalize-upgrade"
"""State of a node that was given up and is still on the ring."""


class MetaRow(msgspec.Struct, frozen=True):
    leader: str | None
    term: int
    voters: list[str]
    observers: list[str]


class NodeRow(msgspec.Struct, frozen=True):
    """`role` is the node's part in the meta group. `slots` are those of the group it heads. `lag_ms` is
    how long its best-connected peer has not heard it. None: nobody could tell."""

    id: str
    host: str
    port: int
    reachable: bool
    state: str
    role: str
    slots: int | None
    groups_led: int | None
    bytes: int | None
    rows: int | None
    lag_ms: int | None
    disk_free_bytes: int | None
    cert_expires_ms: int | None
    version: str
    error: str
    feature_level: int | None = None
    """The highest that its release speaks."""


class GroupRow(msgspec.Struct, frozen=True):
    """`lag` is the largest number of entries a member is behind its leader."""

    group: str
    header: str
    members: list[str]
    live: list[str]
    leader: str | None
    term: int
    quorum: bool
    dissolving: bool
    slots: int
    files: int
    bytes: int
    rows: int
    commit: int
    lag: int
    state: str
    error: str


class Problem(msgspec.Struct, frozen=True):
    """`severity` is error or warning; `next` is the command that helps."""

    severity: str
    code: str
    node: str
    group: str
    message: str
    next: str


class ClusterStatus(msgspec.Struct, frozen=True):
    """`quorum`: the meta group and every data group have one. `source`: the node whose meta view this is
    ("" when none answered, then groups and table version are unknown)."""

    cluster_id: str
    name: str
    table_version: int
    as_of_ms: int
    source: str
    quorum: bool
    meta: MetaRow
    nodes: list[NodeRow]
    groups: list[GroupRow]
    lost_groups: list[str]
    start_nodes: list[str]
    operations: list[OperationRow]
    problems: list[Problem]
    healthy: bool
    feature_level: int = 0
    """The cluster's; 0 if no node answered."""

    feature_level_possible: int = 0
    """The highest that every node speaks; the cluster's own while a node does not answer."""


class Facts(msgspec.Struct, frozen=True):
    """What was heard. `errors` says why a node did not answer."""

    statuses: dict[str, NodeStatus]
    errors: dict[str, str]
    view: MetaView | None

    @property
    def heard(self) -> dict[str, NodeStatus | NodeAgentError]:
        return dict(self.statuses)


def collect(cluster: Cluster, timeout_s: float = STATUS_TIMEOUT_S) -> Facts:
    """Ask everyone; never raises for a node that is down and never takes longer than a few timeouts."""
    answers = cluster.statuses(timeout_s)
    statuses = {n: s for n, s in answers.items() if isinstance(s, NodeStatus)}
    errors = {n: s.what for n, s in answers.items() if isinstance(s, NodeAgentError)}
    freshest = sorted(statuses.values(), key=lambda s: (s.table_version, _meta_applied(s)), reverse=True)
    silent = 0
    for status in freshest:
        if silent == SILENT_MAX:
            break
        try:
            reply = cluster.call(status.node, GetMeta(), timeout_s=timeout_s)
        except NodeAgentError as error:
            silent += isinstance(error, OutcomeUnknown)
            continue
        assert isinstance(reply, MetaView)
        return Facts(statuses, errors, reply)
    return Facts(statuses, errors, None)


def cluster_status(
    cluster: Cluster, source: ClusterSource, *, now_ms: int, sleep: Callable[[float], None] = time.sleep
) -> ClusterStatus:
    """What all agents say. A group without a leader is looked at again while it may still be electing its
    first: a change makes new groups. So is one whose leader may be about to hear its followers."""
    for pause_s in (*ELECTION_LOOKS_S, None):
        found = build_status(collect(cluster), source, now_ms=now_ms)
        if pause_s is None or not found.quorum or not any(p.code in PASSING for p in found.problems):
            break
        sleep(pause_s)
    return found


def quorum_problem(cluster: Cluster, source: ClusterSource) -> Problem | None:
    """The first group whose majority is gone, the meta group before others; None when there is none."""
    problems = cluster_status(cluster, source, now_ms=0).problems
    return next((p for p in problems if p.code == "quorum_lost"), None)


def build_status(facts: Facts, source: ClusterSource, *, now_ms: int) -> ClusterStatus:
    """Pure: from what was heard to the published document."""
    view = facts.view
    groups = _group_rows(facts)
    meta = _meta_row(facts)
    meta_lost = not _has_quorum(meta.voters, _serving(facts, META))
    lost = ([META] if meta_lost else []) + [g.group for g in groups if not g.quorum]
    nodes = _node_rows(facts, source)
    down = [n.id for n in nodes if not n.reachable]
    operations = [
        describe_operation(o, now_ms=now_ms, received=received_bytes(facts.heard, o.id))
        for o in (open_operations(view) if view else [])
    ]
    level = view.level if view else 0
    spoken = [n.feature_level or 0 for n in nodes if n.state != DEAD]
    start = start_command(source, down)
    problems = [
        *_node_problems(nodes, facts, start, now_ms),
        *_group_problems(facts, groups, meta, meta_lost, down, start),
        *_operation_problems(operations),
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
        start_nodes=down if lost else [],
        operations=operations,
        problems=problems,
        healthy=not any(p.severity == "error" for p in problems),
        feature_level=level,
        feature_level_possible=max(level, min(spoken, default=0)),
    )


def start_command(source: ClusterSource, nodes: list[str]) -> str:
    """The command that starts nodes that are down."""
    if source.is_local:
        return f"iotctl local up --dir {source.directory}"
    return f"iotctl cluster start {' '.join(nodes)}"


def _meta_applied(status: NodeStatus) -> int:
    return next((g.applied for g in status.groups if g.group == META), 0)


def replicas_of(facts: Facts, group: str) -> dict[str, GroupStatus]:
    return {s.node: g for s in facts.statuses.values() for g in s.groups if g.group == group}


def _serving(facts: Facts, group: str) -> set[str]:
    """Nodes whose replica can vote, as one that stopped at an entry does."""
    return {n for n, g in replicas_of(facts, group).items() if g.state in ("running", "stopped")}


def _has_quorum(voters: Iterable[str], serving: set[str]) -> bool:
    members = list(voters)
    return len([v for v in members if v in serving]) > len(members) // 2


def current_of(replicas: Mapping[str, GroupStatus]) -> tuple[str | None, GroupStatus | None]:
    """The replica that says it leads, by the highest term (an isolated old leader may say so too)."""
    leading = [(g.term, n, g) for n, g in replicas.items() if g.role == "leader"]
    if not leading:
        return None, None
    _, node, group = max(leading, key=lambda t: (t[0], t[1]))
    return node, group


def is_heard(facts: Facts, leader: str, voter: str) -> bool:
    """Whether that leader heard that voter, which answers us, lately and since it was started."""
    if voter == leader:
        return True
    ms, own = facts.statuses[leader].heard_ms.get(voter), facts.statuses[voter]
    return ms is not None and ms <= min(HEARD_MS_MAX, own.now_ms - own.started_ms)


def _freshest(replicas: Mapping[str, GroupStatus]) -> GroupStatus | None:
    return max(replicas.values(), key=lambda g: (g.term, g.commit), default=None)


def _meta_row(facts: Facts) -> MetaRow:
    replicas = replicas_of(facts, META)
    leader, group = current_of(replicas)
    known = group or _freshest(replicas)
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
    for start, end, header in facts.view.owners:
        owned[header] = owned.get(header, 0) + end - start
    for record in facts.view.groups:
        replicas = replicas_of(facts, record.group)
        leader, leading = current_of(replicas)
        known = leading or _freshest(replicas)
        voters = known.voters if known and known.voters else record.members
        live = _serving(facts, record.group)
        sick = next((g for g in replicas.values() if g.state != "running"), None)
        rows.append(
            GroupRow(
                group=record.group,
                header=record.header,
                members=list(record.members),
                live=[m for m in record.members if m in live],
                leader=leader,
                term=known.term if known else 0,
                quorum=_has_quorum(voters, live),
                dissolving=record.dissolving,
                slots=0 if record.dissolving else owned.get(record.header, 0),
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
    for start, end, header in facts.view.owners if facts.view else ():
        owned[header] = owned.get(header, 0) + end - start
    return [
        _node_row(record, facts, owned.get(record.node, 0) if facts.view else None)
        for record in records.values()
    ]


def _records(facts: Facts, source: ClusterSource) -> dict[str, NodeRecord]:
    """Nodes in ring order, then those only `cluster.yaml` names (state `unknown` or `not_joined`)."""
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
    heard = [
        s.heard_ms[record.node]
        for s in facts.statuses.values()
        if s.node != record.node and record.node in s.heard_ms
    ]
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
        lag_ms=min(heard, default=None),
        disk_free_bytes=status.disk_free_bytes if status else None,
        cert_expires_ms=(status.cert_expires_ms or None) if status else None,
        version=status.version if status else "",
        feature_level=status.newest_level if status else None,
        error=facts.errors.get(record.node, "") if status is None else "",
    )


def _state_of(record: NodeRecord, status: NodeStatus | None) -> str:
    """What the cluster says of the node; of one it calls active, what the node says itself."""
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


def without_dead(view: MetaView | None, node: str) -> str:
    """The command that ends the membership of a node that was given up: with no node to spare another has to
    take its place."""
    if view is not None and len(view.ring) <= view.settings.replicas:
        return f"iotctl cluster replace-node {node} NEW --dead"
    return f"iotctl cluster remove-node {node} --dead"


def _node_problems(nodes: list[NodeRow], facts: Facts, start: str, now_ms: int) -> list[Problem]:
    found = []
    for node in nodes:
        if node.state == "not_joined" and (removal := _removal(node.id, facts)):
            found.append(removal)
            continue
        if not node.reachable:
            detail = f": {node.error}" if node.error else ""
            message = f"{node.id} does not answer{detail}"
            helps = start
            if node.state == DEAD:
                message = f"{node.id} was given up and is still in the cluster"
                helps = without_dead(facts.view, node.id)
            found.append(Problem("error", "node_unreachable", node.id, "", message, helps))
            continue
        if node.state == "not_joined":
            add = f"iotctl cluster add-node {node.id}"
            message = f"{node.id} is in cluster.yaml but not in the cluster"
            found.append(Problem("warning", "not_joined", node.id, "", message, add))
        found += _release_problem(node, facts)
        found += _not_serving(node, facts, start)
        if node.state == "draining":
            message = f"{node.id} is draining: it is kept from leading groups"
            undrain = f"iotctl cluster undrain {node.id}"
            found.append(Problem("warning", "draining", node.id, "", message, undrain))
        if node.cert_expires_ms and node.cert_expires_ms - now_ms < CERT_WARN_MS:
            days = max(0, node.cert_expires_ms - now_ms) // DAY_MS
            message = f"the certificate of {node.id} ends in {days} days"
            found.append(Problem("warning", "cert_expiring", node.id, "", message, "iotctl cert renew"))
        own = facts.statuses[node.id]
        if own.room in ROOM_LESS:
            message = f"{node.id} takes no rows: {_megabytes(own.disk_free_bytes)} of disk left"
            found.append(Problem("error", "disk_full", node.id, "", message, "iotctl plan add-node NODE"))
        elif node.disk_free_bytes is not None and 0 < node.disk_free_bytes < DISK_LOW_BYTES:
            message = f"{node.id} has {node.disk_free_bytes // 10**6} MB of disk left"
            found.append(Problem("warning", "disk_low", node.id, "", message, "iotctl plan add-node NODE"))
        found += _log_problem(own)
        found += _unremoved(own)
    return [*found, *_clock_problems(facts)]


def _release_problem(node: NodeRow, facts: Facts) -> list[Problem]:
    """A node that the others do not hear, as its release does not speak the cluster's feature level."""
    status = facts.statuses[node.id]
    level = facts.view.level if facts.view else 0
    why = refusal(node.id, Levels(status.oldest_level, status.newest_level), level)
    if not why or node.state == "not_joined":
        return []
    helps = f"iotctl cluster upgrade {node.id}" if status.newest_level < level else FINALIZE
    return [Problem("error", "release", node.id, "", f"{why}: the others do not hear it", helps)]


def _clock_problems(facts: Facts) -> list[Problem]:
    """Clocks that the leaders of their groups found wrong, each once."""
    ahead: dict[str, int] = {}
    for status in facts.statuses.values():
        ahead |= status.clock_skew_ms
    found = []
    for node, ms in sorted(ahead.items()):
        amount = f"{span_text(abs(ms) / 1000)} {'ahead of' if ms > 0 else 'behind'}"
        message = (
            f"the clock of {node} is {amount} the other members of its groups; none of their rows expire"
        )
        found.append(Problem("error", "clock_skew", node, "", message, f"set the clock of {node} (NTP)"))
    return found


def _not_serving(node: NodeRow, facts: Facts, start: str) -> list[Problem]:
    """A node that answers and takes no part in the cluster."""
    status = facts.statuses[node.id]
    if status.state not in NOT_SERVING:
        return []
    if status.state == "joining" and node.state == "not_joined":
        return []  # it waits to be added
    why = f": {status.why}" if status.why else ""
    if status.state in STARTING and status.now_ms - status.started_ms <= SERVING_MS_MAX:
        message = f"{node.id} was started a moment ago and takes no part in the cluster yet{why}"
        return [Problem("error", "node_starting", node.id, "", message, WAIT_HEALTHY)]
    message = f"{node.id} takes no part in the cluster, its state is {status.state}{why}"
    helps = f"iotctl cluster logs {node.id}"
    if status.state == "damaged":
        helps = f"iotctl cluster replace-node {node.id} NEW"
    elif status.state == "refused" and node.state == "refused":
        helps = f"iotctl cluster replace-node {node.id} NEW --dead"
    elif status.state == "forming" and facts.errors:
        helps = start
    return [Problem("error", "node_not_serving", node.id, "", message, helps)]


def _log_problem(status: NodeStatus) -> list[Problem]:
    """The group that pins most of the node's log for another node, when that is much."""
    pinned = [(g, g.log_pin) for g in status.groups if g.log_pin is not None and g.log_pin.node]
    most, pin = max(pinned, key=lambda held: held[0].log_bytes, default=(None, None))
    if most is None or pin is None or most.log_bytes < LOG_PINNED_BYTES:
        return []
    kept = _megabytes(most.log_bytes)
    message = f"{status.node} keeps {kept} of log of {most.group} for {pin}"
    look = f"iotctl cluster logs {pin.node}"
    return [Problem("warning", "log_held", status.node, most.group, message, look)]


def _unremoved(status: NodeStatus) -> list[Problem]:
    """Directories that should be gone and take room; a disk that refuses that may refuse more."""
    if not status.unremoved:
        return []
    place, why = min(status.unremoved.items())
    more = len(status.unremoved) - 1
    others = f" and {more} more director{'y' if more == 1 else 'ies'}" if more else ""
    message = f"{status.node} cannot remove data/{place}{others}, and tries again: {why}"
    return [Problem("warning", "not_removed", status.node, "", message, f"iotctl cluster logs {status.node}")]


def _megabytes(nbytes: int) -> str:
    return f"{nbytes // 10**6} MB"


def _removal(node: str, facts: Facts) -> Problem | None:
    """A listed node that has left: whoever removed it did not wait, so its file and agent are as before."""
    operation = removed_by(facts.view, node) if facts.view else None
    if operation is None:
        return None
    message = f"{node} was removed by {operation.id} and is still in cluster.yaml"
    return Problem("warning", "removal_unfinished", node, "", message, f"iotctl ops wait {operation.id}")


def _group_problems(
    facts: Facts, groups: list[GroupRow], meta: MetaRow, meta_lost: bool, down: list[str], start: str
) -> list[Problem]:
    found = []
    if meta_lost:
        absent = [v for v in meta.voters if v in down] or down
        message = f"the meta group has no quorum: down are {', '.join(absent) or 'all its voters'}"
        found.append(Problem("error", "quorum_lost", "", META, message, start))
    elif meta.leader is None:
        message = "the meta group has a quorum and no leader yet"
        found.append(Problem("error", "no_leader", "", META, message, WAIT_HEALTHY))
    elif facts.view is None:
        message = "no node tells what belongs to the cluster: it is not formed yet"
        found.append(Problem("error", "not_formed", "", META, message, WAIT_HEALTHY))
    lost = [m for g in groups if not g.quorum for m in g.members if m in down]
    recover = f"iotctl cluster recover {' '.join(dict.fromkeys(lost))}"
    for group in groups:
        if not group.quorum:
            absent = [m for m in group.members if m not in group.live]
            message = (
                f"group {group.group} ({', '.join(group.members)}) has no quorum: start {', '.join(absent)}"
            )
            helps = f"{start}; gone for ever: {recover}" if lost and not meta_lost else start
            found.append(Problem("error", "quorum_lost", "", group.group, message, helps))
        elif group.leader is None:
            message = f"group {group.group} has a quorum and no leader yet"
            found.append(Problem("error", "no_leader", "", group.group, message, WAIT_HEALTHY))
    found += _missing(facts, groups)
    found += _unheard(facts, [META, *(g.group for g in groups)])
    for status in facts.statuses.values():
        for replica in status.groups:
            if replica.state != "running" or replica.error:
                message = f"{replica.group} on {status.node} is {replica.state}: {replica.error}".rstrip(": ")
                look = replica.hint or f"iotctl cluster logs {status.node}"
                severity = "error" if replica.state != "running" else "warning"
                found.append(Problem(severity, "replica_sick", status.node, replica.group, message, look))
    return found


def _missing(facts: Facts, groups: Iterable[GroupRow]) -> list[Problem]:
    """Members that take part in the cluster and have no replica of their group; once for each node."""
    found: dict[str, Problem] = {}
    for group in groups:
        if group.dissolving:
            continue
        replicas = replicas_of(facts, group.group)
        for member in group.members:
            status = facts.statuses.get(member)
            if status is not None and status.state not in NOT_SERVING and member not in replicas:
                message = f"{member} has no replica of {group.group} yet"
                problem = Problem("error", "replica_missing", member, group.group, message, WAIT_HEALTHY)
                found.setdefault(member, problem)
    return list(found.values())


def _unheard(facts: Facts, groups: Iterable[str]) -> list[Problem]:
    """Voters that run and that their leader does not hear; once for each leader, with the first of their
    groups."""
    found: dict[tuple[str, str], Problem] = {}
    for group in groups:
        replicas = replicas_of(facts, group)
        leader, current = current_of(replicas)
        if leader is None or current is None:
            continue
        for voter in current.voters:
            runs = voter in replicas and replicas[voter].state == "running"
            if runs and not is_heard(facts, leader, voter):
                message = f"{leader}, which leads {group}, did not hear {voter} lately"
                problem = Problem("error", "unheard", voter, group, message, WAIT_HEALTHY)
                found.setdefault((leader, voter), problem)
    return list(found.values())


def _operation_problems(operations: list[OperationRow]) -> list[Problem]:
    found = []
    for operation in operations:
        if operation.state in WAITS:
            paused = operation.state == "paused"
            what = "is paused" if paused else f"waits for {operation.blocked_on}"
            message = f"{operation.id} ({operation.title}) {what}"
            found.append(Problem("warning", operation.state, operation.node, "", message, operation.next))
        elif operation.last_error:
            message = f"{operation.id} ({operation.title}): {operation.last_error}"
            look = f"iotctl ops show {operation.id}"
            found.append(Problem("warning", "operation_error", operation.node, "", message, look))
    return found
