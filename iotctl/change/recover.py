"""Force recovery: declares nodes permanently lost and recovers the groups that have no majority without them.

Entries that only the lost nodes have are lost. The surviving members cannot know how many: a
follower that kept up lacks only the newest entries, a lagging follower lacks more.
"""

import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from iotctl.change.execute import check_silent
from iotctl.errors import Partly, RefusedProblem, Unreachable
from iotctl.observe.cluster import Cluster
from iotctl.observe.collect import Facts, collect, replicas_of
from iotctl.observe.model import DEAD
from iotctl.observe.operations import open_operations
from iotctl.observe.problems import DOWN, absent_text, absent_voters, check_log, without_dead
from iotctl.observe.status import build_status
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.features import Feature
from nodeagent.model.ids import META
from nodeagent.model.requests import ForceRecover, GroupRecord, MetaView, RecoveryLeader
from nodeagent.partition.recovery import lost_groups, recovery_leader_of

POLL_S = 0.2
WAIT_S = 30.0
"""Normally a group has a leader again within a second or two."""


class Survivor(msgspec.Struct, frozen=True):
    """The log of a surviving member: it ends at entry `last` of term `last_term`, is known to be committed up
    to `commit`, and is `behind` entries shorter than that of the recovery leader."""

    node: str
    last: int
    last_term: int
    commit: int
    behind: int


class LostGroup(msgspec.Struct, frozen=True):
    """A group that lost its majority. `head` is the recovery leader, whose log the group continues with:
    acknowledged entries after the end of that log were only on lost members and are lost. Without survivors
    `head` is ""."""

    group: str
    owner: str
    members: list[str]
    lost: list[str]
    survivors: list[Survivor]
    head: str
    slots: list[tuple[int, int]]
    header: str = ""
    """The former name of `owner`, printed until 0.3.0."""


class Recovery(msgspec.Struct, frozen=True):
    """`groups` continue with their survivors; `gone` have no member left. `done`: the recovery was recorded
    and every group in `groups` has a leader."""

    as_of_ms: int
    nodes: list[str]
    table_version: int
    groups: list[LostGroup]
    gone: list[LostGroup]
    done: bool
    next: str


def look(cluster: Cluster, source: ClusterSource, nodes: Sequence[str], *, now_ms: int) -> Recovery:
    """What declaring `nodes` permanently lost would cost. Changes nothing.

    Raises:
        Unreachable: no agent returned the list of groups, or the meta group has no majority.
        RefusedProblem: a node is alive or unknown; no group is lost; a surviving member leads the group or
            did not report a usable log; or a change is open and the cluster's feature level is too low.
    """
    return decide(collect(cluster), source, nodes, now_ms=now_ms)


def decide(facts: Facts, source: ClusterSource, nodes: Sequence[str], *, now_ms: int) -> Recovery:
    """As `look`, from collected facts. Pure."""
    names = list(dict.fromkeys(nodes))
    view = _check_nodes(facts, source, names, now_ms)
    lost = lost_now(facts, view, {n.node for n in view.nodes if n.state != DEAD} - set(names))
    if not lost:
        waiting = [g.group for g in view.groups if g.recovery is not None]
        raise RefusedProblem(
            "nothing to recover: every group has a majority without these nodes; nothing was changed",
            why=f"already being recovered: {', '.join(waiting)}" if waiting else "",
            next="iotctl cluster groups" if waiting else without_dead(view, names[0]),
        )
    for operation in open_operations(view) if view.level < Feature.RECOVERY_IN_CHANGE else []:
        raise RefusedProblem(
            f"{operation.id} ({operation.title}) is open in stage {operation.stage}; nothing was changed",
            why=f"a recovery during a change needs feature level {Feature.RECOVERY_IN_CHANGE:d}; "
            f"groups without a majority: {', '.join(lost)}",
            next="iotctl cluster finalize-upgrade",
        )
    groups = [_lost_group(facts, view, g, lost[g.group]) for g in view.groups if g.group in lost]
    gone = [g for g in groups if not g.survivors]
    confirm = f"iotctl cluster recover {' '.join(names)} --accept-data-loss --confirm {source.name}"
    following = f"start the agent of {' or '.join(gone[0].members)}" if gone else confirm
    alive = [g for g in groups if g.survivors]
    return Recovery(now_ms, names, view.table_version, alive, gone, False, following)


def lost_now(facts: Facts, view: MetaView, living: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Groups without a majority among `living`, each with its survivors. While a change replaces members, a
    group that may have a majority counts as lost if none of its members leads it."""
    change = next(iter(open_operations(view)), None)
    return {
        group: found.survivors
        for group, found in lost_groups(view.groups, living, change).items()
        if found.is_certain or not any(r.role == "leader" for r in replicas_of(facts, group).values())
    }


def after_recovery(view: MetaView, dead: str) -> str:
    """The next command once every group has a majority: the open change continues, then the dead nodes are
    removed."""
    for operation in open_operations(view):
        return f"iotctl ops wait {operation.id}"
    return without_dead(view, dead)


def check_lost(facts: Facts, names: Sequence[str]) -> MetaView:
    """Check that the nodes are members and do not answer; returns the newest view.

    Raises:
        Unreachable: no agent returned a view.
        RefusedProblem: a node is alive or unknown.
    """
    view = facts.view
    if view is None:
        raise Unreachable("no agent returned the list of groups", next="iotctl cluster status")
    known = {n.node: n for n in view.nodes}
    for name in names:
        if name not in known:
            raise RefusedProblem(f"{name} is not in the cluster", next="iotctl cluster nodes")
        if known[name].state != DEAD:
            check_silent(facts.heard, name, known[name].incarnation, otherwise=f"omit {name}")
    return view


def _check_nodes(facts: Facts, source: ClusterSource, names: list[str], now_ms: int) -> MetaView:
    view = check_lost(facts, names)
    status = build_status(facts, source, now_ms=now_ms)
    if META in status.lost_groups:
        absent = absent_voters(facts, META, status.meta.voters)
        raise Unreachable(
            f"the meta group has lost its majority; {absent_text(absent)}",
            why="cluster recover needs the meta group; if its nodes are permanently lost, recover it first: "
            "iotctl meta recover NODES",
            next=f"start the agent of {' or '.join(absent[DOWN])}"
            if DOWN in absent
            else "iotctl cluster status",
        )
    return view


def _lost_group(facts: Facts, view: MetaView, record: GroupRecord, left: Sequence[str]) -> LostGroup:
    head, survivors = log_ends(facts, view, record.group, left)
    return LostGroup(
        group=record.group,
        owner=record.owner,
        header=record.owner,
        members=list(record.members),
        lost=[m for m in record.members if m not in left],
        survivors=survivors,
        head=head,
        slots=[(a, b) for a, b, owner in view.owners if owner == record.owner and not record.dissolving],
    )


def log_ends(facts: Facts, view: MetaView, group: str, left: Sequence[str]) -> tuple[str, list[Survivor]]:
    """The recovery leader among the surviving members `left` ("" without any), and where their logs end.

    Raises:
        RefusedProblem: one of them did not report a usable log, or leads the group.
    """
    replicas = replicas_of(facts, group)
    incarnations = {n.node: n.incarnation for n in view.nodes}
    for node in left:
        status = facts.statuses.get(node)
        if status is None or status.incarnation != incarnations[node] or node not in replicas:
            raise RefusedProblem(
                f"{node} did not report its log of group {group}; nothing was changed",
                why="the member with the newest entries must become the recovery leader",
                next=f"start the agent of {node}, or name {node} too if it is permanently lost",
            )
        if replicas[node].state == "damaged":
            raise RefusedProblem(
                f"the replica of group {group} on {node} is damaged; nothing was changed",
                why=replicas[node].error,
                next=check_log(node),
            )
        if replicas[node].role == "leader":
            raise RefusedProblem(
                f"{node} leads group {group}; nothing was changed",
                why="a group with a leader is not lost",
                next="iotctl cluster groups",
            )
    head = recovery_leader_of(group, {n: replicas[n] for n in left}).head if left else ""
    if head and replicas[head].state == "stopped":
        raise RefusedProblem(
            f"the replica of group {group} on {head}, which has the newest log, is stopped;"
            " nothing was changed",
            why=replicas[head].error,
            next=replicas[head].hint,
        )
    return head, [
        Survivor(
            n,
            replicas[n].last,
            replicas[n].last_term,
            replicas[n].commit,
            max(0, replicas[head].last - replicas[n].last),
        )
        for n in left
    ]


def recover(
    cluster: Cluster,
    found: Recovery,
    by: str,
    *,
    timeout_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Recovery:
    """Record the recovery in the meta group and wait until every lost group has a leader.

    Raises:
        NodeAgentError: the meta group refuses it, or does not answer.
        RefusedProblem: a survivor stopped answering, a group has a leader now, or another survivor would now
            be its recovery leader.
        Partly: a group has no leader when the timeout expires.
    """
    statuses = collect(cluster)
    heirs = tuple(_recovery_leader(statuses, g) for g in found.groups)
    cluster.call_meta(ForceRecover(tuple(found.nodes), heirs, found.table_version, by))
    deadline = clock() + (WAIT_S if timeout_s is None else timeout_s)
    while waiting := _waiting(collect(cluster), heirs):
        if clock() >= deadline:
            raise Partly(
                f"the recovery of {', '.join(waiting)} has not completed yet",
                why="it is recorded; the recovery leaders complete it as soon as they can",
                next="iotctl cluster groups",
            )
        sleep(POLL_S)
    following = after_recovery(cluster.meta(strong=True), found.nodes[0])
    return msgspec.structs.replace(found, done=True, next=following)


def _recovery_leader(facts: Facts, group: LostGroup) -> RecoveryLeader:
    """The recovery leader according to the current statuses; refused if it differs from the one shown."""
    replicas = replicas_of(facts, group.group)
    names = [s.node for s in group.survivors]
    if any(n not in replicas for n in names):
        raise RefusedProblem(
            f"a member of {group.group} stopped answering; nothing was changed", next="repeat the command"
        )
    heir = recovery_leader_of(group.group, {n: replicas[n] for n in names})
    if any(replica.role == "leader" for replica in replicas.values()):
        raise RefusedProblem(
            f"{group.group} has a leader now; nothing was changed", next="iotctl cluster groups"
        )
    if heir.head != group.head:
        raise RefusedProblem(
            f"the logs of {group.group} have changed since they were shown; nothing was changed",
            next="repeat the command",
        )
    return heir


def _waiting(facts: Facts, heirs: Sequence[RecoveryLeader]) -> list[str]:
    return [
        h.group
        for h in heirs
        if not any(r.role == "leader" and r.term >= h.term for r in replicas_of(facts, h.group).values())
    ]
