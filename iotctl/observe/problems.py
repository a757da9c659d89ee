"""Problems of a cluster, each with the command to run next. Pure."""

from collections.abc import Iterable

from iotctl.humanize import span_text
from iotctl.observe.collect import Facts, current_of, heard_recently, replicas_of, voting
from iotctl.observe.model import DEAD, GroupRow, MetaRow, NodeRow, Problem
from iotctl.observe.operations import WAITS, OperationRow, removed_by
from iotctl.observe.zones import zone_text, zones_to_set
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.features import Feature, Levels, refusal
from nodeagent.model.ids import META
from nodeagent.model.limits import DISK_LOW_BYTES
from nodeagent.model.requests import MetaView, NodeStatus

ROOM_LESS = ("low", "full")
"""`NodeStatus.room` of a node that accepts no rows."""

LOG_PINNED_BYTES = 16 * 1024 * 1024
"""A group whose log retains this much for a follower is reported."""

DAY_MS = 86_400_000
CERT_WARN_MS = 30 * DAY_MS

SERVING_MS_MAX = 5_000
"""A node that started longer ago than this should participate. A restarted node does so within a second."""

STARTING = ("forming", "joining")

NOT_SERVING = (*STARTING, "refused", "damaged")
"""States in which a node reports that it does not participate."""

DOWN, DAMAGED = "nodes down", "replicas damaged"

WAIT_HEALTHY = "iotctl cluster wait --for healthy"
FINALIZE = "iotctl cluster finalize-upgrade"
SET_ZONES = "iotctl cluster set-zones"


def without_dead(view: MetaView | None, node: str) -> str:
    """The command that ends the membership of a node declared permanently lost. If the cluster has no node to
    spare, a new node must take its place."""
    if view is not None and len(view.ring) <= view.settings.replicas:
        return f"iotctl cluster replace-node {node} NEW --dead"
    return f"iotctl cluster remove-node {node} --dead"


def check_log(node: str) -> str:
    """What the operator of a damaged replica runs."""
    return f"on the machine of {node}, with the agent stopped: nodeagent log check DIRECTORY"


def absent_voters(facts: Facts, group: str, members: Iterable[str]) -> dict[str, list[str]]:
    """The members of a group that cannot vote, by the reason: `DOWN`, `DAMAGED` or another state."""
    replicas, able = replicas_of(facts, group), voting(facts, group)
    found: dict[str, list[str]] = {}
    for member in members:
        if member not in able:
            state = replicas[member].state if member in replicas else "missing"
            reason = f"replicas {state}" if member in facts.statuses else DOWN
            found.setdefault(reason, []).append(member)
    return found


def absent_text(absent: dict[str, list[str]]) -> str:
    return "; ".join(f"{reason}: {', '.join(nodes)}" for reason, nodes in absent.items())


def _restored_by(absent: dict[str, list[str]], start: str) -> str:
    """The next command to restore a quorum; `start` starts the nodes that are down."""
    if DOWN in absent:
        return start
    return check_log(absent[DAMAGED][0]) if DAMAGED in absent else WAIT_HEALTHY


def node_problems(nodes: list[NodeRow], facts: Facts, start: str, now_ms: int) -> list[Problem]:
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
                message = f"{node.id} was declared lost and is still in the cluster"
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
            message = f"{node.id} is draining: it does not lead groups"
            undrain = f"iotctl cluster undrain {node.id}"
            found.append(Problem("warning", "draining", node.id, "", message, undrain))
        if node.cert_expires_ms and node.cert_expires_ms - now_ms < CERT_WARN_MS:
            left = (node.cert_expires_ms - now_ms) / 1000
            when = f"expires in {span_text(left)}" if left > 0 else f"expired {span_text(-left)} ago"
            message = f"the certificate of {node.id} {when}"
            found.append(Problem("warning", "cert_expiring", node.id, "", message, "iotctl cert renew"))
        own = facts.statuses[node.id]
        if own.room in ROOM_LESS:
            message = f"{node.id} accepts no rows: {_megabytes(own.disk_free_bytes)} of disk left"
            found.append(Problem("error", "disk_full", node.id, "", message, "iotctl plan add-node NODE"))
        elif node.disk_free_bytes is not None and 0 < node.disk_free_bytes < DISK_LOW_BYTES:
            message = f"{node.id} has {node.disk_free_bytes // 10**6} MB of disk left"
            found.append(Problem("warning", "disk_low", node.id, "", message, "iotctl plan add-node NODE"))
        found += _log_problem(own)
        found += _unremoved(own)
    return [*found, *_clock_problems(facts)]


def _release_problem(node: NodeRow, facts: Facts) -> list[Problem]:
    """A node that the others ignore because its release does not support the cluster's feature level."""
    status = facts.statuses[node.id]
    level = facts.view.level if facts.view else 0
    why = refusal(node.id, Levels(status.oldest_level, status.newest_level), level)
    if not why or node.state == "not_joined":
        return []
    helps = f"iotctl cluster upgrade {node.id}" if status.newest_level < level else FINALIZE
    return [Problem("error", "release", node.id, "", f"{why}; the other nodes ignore {node.id}", helps)]


def _clock_problems(facts: Facts) -> list[Problem]:
    """Nodes whose clock is wrong according to the leaders of their groups, each node listed once."""
    ahead: dict[str, int] = {}
    for status in facts.statuses.values():
        ahead |= status.clock_skew_ms
    found = []
    for node, ms in sorted(ahead.items()):
        amount = f"{span_text(abs(ms) / 1000)} {'ahead of' if ms > 0 else 'behind'}"
        message = (
            f"the clock of {node} is {amount} the median of the voters' clocks; no rows of its groups expire"
        )
        found.append(Problem("error", "clock_skew", node, "", message, f"set the clock of {node} (NTP)"))
    return found


def _not_serving(node: NodeRow, facts: Facts, start: str) -> list[Problem]:
    """A node that answers but does not participate in the cluster."""
    status = facts.statuses[node.id]
    if status.state not in NOT_SERVING:
        return []
    if status.state == "joining" and node.state == "not_joined":
        return []  # it waits to be added
    why = f": {status.why}" if status.why else ""
    if status.state in STARTING and status.now_ms - status.started_ms <= SERVING_MS_MAX:
        message = f"{node.id} has just started and does not participate in the cluster yet{why}"
        return [Problem("error", "node_starting", node.id, "", message, WAIT_HEALTHY)]
    message = f"{node.id} does not participate in the cluster; its state is {status.state}{why}"
    helps = f"iotctl cluster logs {node.id}"
    if status.state == "damaged":
        helps = f"iotctl cluster replace-node {node.id} NEW"
    elif status.state == "refused" and node.state == "refused":
        helps = f"iotctl cluster replace-node {node.id} NEW --dead"
    elif status.state == "forming" and facts.errors:
        helps = start
    return [Problem("error", "node_not_serving", node.id, "", message, helps)]


def _log_problem(status: NodeStatus) -> list[Problem]:
    """The group whose log retains most for another node, if that is at least `LOG_PINNED_BYTES`."""
    pinned = [(g, g.log_pin) for g in status.groups if g.log_pin is not None and g.log_pin.node]
    most, pin = max(pinned, key=lambda held: held[0].log_bytes, default=(None, None))
    if most is None or pin is None or most.log_bytes < LOG_PINNED_BYTES:
        return []
    kept = _megabytes(most.log_bytes)
    message = f"{status.node} retains {kept} of the log of {most.group} for {pin}"
    look = f"iotctl cluster logs {pin.node}"
    return [Problem("warning", "log_held", status.node, most.group, message, look)]


def _unremoved(status: NodeStatus) -> list[Problem]:
    """Directories that the node cannot delete. They take up space, and the disk may fail in other ways."""
    if not status.unremoved:
        return []
    place, why = min(status.unremoved.items())
    more = len(status.unremoved) - 1
    others = f" and {more} more director{'y' if more == 1 else 'ies'}" if more else ""
    message = f"{status.node} cannot remove data/{place}{others} (retrying): {why}"
    return [Problem("warning", "not_removed", status.node, "", message, f"iotctl cluster logs {status.node}")]


def _megabytes(nbytes: int) -> str:
    return f"{nbytes // 10**6} MB"


def _removal(node: str, facts: Facts) -> Problem | None:
    """A node in cluster.yaml that has left the cluster: the remove command did not wait for the operation,
    so the entry and the agent are still there."""
    operation = removed_by(facts.view, node) if facts.view else None
    if operation is None:
        return None
    message = f"{node} was removed by {operation.id} and is still in cluster.yaml"
    return Problem("warning", "removal_unfinished", node, "", message, f"iotctl ops wait {operation.id}")


def group_problems(
    facts: Facts, groups: list[GroupRow], meta: MetaRow, meta_lost: bool, down: list[str], start: str
) -> list[Problem]:
    found = []
    if meta_lost:
        absent = absent_voters(facts, META, meta.voters or [*facts.statuses, *facts.errors])
        message = f"the meta group has no quorum; {absent_text(absent)}"
        helps = _restored_by(absent, start)
        if DOWN in absent and facts.view is not None:
            helps = f"{helps}; if permanently lost: iotctl meta recover {' '.join(absent[DOWN])}"
        found.append(Problem("error", "quorum_lost", "", META, message, helps))
    elif meta.leader is None:
        message = "the meta group has a quorum but no leader yet"
        found.append(Problem("error", "no_leader", "", META, message, WAIT_HEALTHY))
    elif facts.view is None:
        message = "no node returned the cluster's members: the cluster is not formed yet"
        found.append(Problem("error", "not_formed", "", META, message, WAIT_HEALTHY))
    dead = {n.node for n in facts.view.nodes if n.state == DEAD} if facts.view is not None else set()
    lost = [m for g in groups if not g.quorum for m in g.members if m in down]
    recover = f"iotctl cluster recover {' '.join(dict.fromkeys(lost))}"
    for group in groups:
        if not group.quorum:
            absent = absent_voters(facts, group.group, group.members)
            message = f"group {group.group} ({', '.join(group.members)}) has no quorum; {absent_text(absent)}"
            helps = _restored_by(absent, start)
            if lost and helps == start and not meta_lost:
                is_declared = dead.issuperset(absent[DOWN])  # they are refused if they start
                helps = recover if is_declared else f"{start}; if permanently lost: {recover}"
            found.append(Problem("error", "quorum_lost", "", group.group, message, helps))
        elif group.leader is None:
            message = f"group {group.group} has a quorum but no leader yet"
            found.append(Problem("error", "no_leader", "", group.group, message, WAIT_HEALTHY))
    found += _missing(facts, groups)
    found += _unheard(facts, [META, *(g.group for g in groups)])
    for status in facts.statuses.values():
        for replica in status.groups:
            if replica.state != "running" or replica.error:
                subject = f"the replica of group {replica.group} on {status.node}"
                state = "reports" if replica.state == "running" else f"is {replica.state}"
                message = f"{subject} {state}: {replica.error}".rstrip(": ")
                look = replica.hint or f"iotctl cluster logs {status.node}"
                severity = "error" if replica.state != "running" else "warning"
                found.append(Problem(severity, "replica_sick", status.node, replica.group, message, look))
    return found


def _missing(facts: Facts, groups: Iterable[GroupRow]) -> list[Problem]:
    """Members that take part in the cluster but have no replica of their group; one problem per node."""
    found: dict[str, Problem] = {}
    for group in groups:
        if group.dissolving:
            continue
        replicas = replicas_of(facts, group.group)
        for member in group.members:
            status = facts.statuses.get(member)
            if status is not None and status.state not in NOT_SERVING and member not in replicas:
                message = f"{member} has no replica of group {group.group} yet"
                problem = Problem("error", "replica_missing", member, group.group, message, WAIT_HEALTHY)
                found.setdefault(member, problem)
    return list(found.values())


def _unheard(facts: Facts, groups: Iterable[str]) -> list[Problem]:
    """Running voters from which their leader does not hear; one problem per leader and voter, for the first
    of their groups."""
    found: dict[tuple[str, str], Problem] = {}
    for group in groups:
        replicas = replicas_of(facts, group)
        leader, current = current_of(replicas)
        if leader is None or current is None:
            continue
        for voter in current.voters:
            runs = voter in replicas and replicas[voter].state == "running"
            if runs and not heard_recently(facts, leader, voter):
                message = f"{leader}, which leads {group}, has not heard from {voter} recently"
                problem = Problem("error", "unheard", voter, group, message, WAIT_HEALTHY)
                found.setdefault((leader, voter), problem)
    return list(found.values())


def zone_problems(facts: Facts, source: ClusterSource) -> list[Problem]:
    """One problem for all nodes whose zone in cluster.yaml differs from the cluster's."""
    view = facts.view
    if view is None or view.level < Feature.ZONES or not (differ := zones_to_set(source, view)):
        return []
    first = min(differ)
    known = next(n.zone for n in view.nodes if n.node == first)
    message = f"the zone of {first} is {zone_text(differ[first])} in cluster.yaml, "
    message += f"{zone_text(known)} in the cluster"
    if len(differ) > 1:
        message += f"; {len(differ)} nodes differ"
    return [Problem("warning", "zones_differ", first, "", message, SET_ZONES)]


def operation_problems(operations: list[OperationRow]) -> list[Problem]:
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
