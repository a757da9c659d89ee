"""Force recovery of the meta group: declares nodes permanently lost, and continues from the newest journal of
a living node.

Journal entries that only the lost nodes had are lost. Nobody can know how many: a node that kept up lacks
only the newest entries.
"""

import time
from collections.abc import Callable, Sequence

import msgspec

from iotctl.change.recover import Survivor, after_recovery, check_lost, log_ends, lost_now
from iotctl.errors import Partly, RefusedProblem
from iotctl.observe.cluster import Cluster
from iotctl.observe.collect import Facts, collect, current_of, freshest, has_quorum, replicas_of
from iotctl.observe.model import DEAD
from iotctl.observe.operations import open_operations
from iotctl.observe.problems import without_dead
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.ids import META
from nodeagent.model.requests import MetaView, RecoverMeta
from nodeagent.partition.recovery import recovery_leader_of

POLL_S = 0.2
WAIT_S = 30.0


class MetaRecovery(msgspec.Struct, frozen=True):
    """`leader` has the newest journal, which ends at entry `last` of term `last_term`; later ones are lost.
    `lost_groups` are data groups that lost their majority too. `done`: the recovery was recorded and the
    meta group has a leader."""

    as_of_ms: int
    nodes: list[str]
    voters: list[str]
    leader: str
    term: int
    last: int
    last_term: int
    survivors: list[Survivor]
    lost_groups: list[str]
    operation: str
    """The open change, which continues or ends by its own rules; "" if none is open."""

    done: bool
    next: str


def look(cluster: Cluster, source: ClusterSource, nodes: Sequence[str], *, now_ms: int) -> MetaRecovery:
    """What declaring `nodes` permanently lost would cost. Changes nothing.

    Raises:
        Unreachable: no agent returned a view.
        RefusedProblem: a node is alive or unknown, the meta group keeps its majority, or a node that is not
            among `nodes` did not report its journal.
    """
    return decide(collect(cluster), source, nodes, now_ms=now_ms)


def decide(facts: Facts, source: ClusterSource, nodes: Sequence[str], *, now_ms: int) -> MetaRecovery:
    """As `look`, from collected facts. Pure."""
    names = list(dict.fromkeys(nodes))
    view = check_lost(facts, names)
    replicas = replicas_of(facts, META)
    newest = freshest(replicas)
    if newest is None:
        raise RefusedProblem("no node reported its journal; nothing was changed", next="iotctl meta status")
    voters = newest.voters
    silent = [v for v in voters if v not in names and v not in facts.statuses]
    if silent:
        raise RefusedProblem(
            f"{silent[0]} is a voter of the meta group and does not answer; nothing was changed",
            next=f"start the agent of {silent[0]}, or name {silent[0]} too if it is permanently lost",
        )
    if has_quorum(voters, set(voters) - set(names)):
        raise RefusedProblem(
            f"the meta group has a majority without {', '.join(names)}; nothing was changed",
            why=f"its voters are {', '.join(voters)}",
            next=without_dead(view, names[0]),
        )
    dead = {n.node for n in view.nodes if n.state == DEAD} | set(names)
    known = {n.node for n in view.nodes}
    left = [n for n in (*voters, *newest.learners) if n in known and n not in dead]
    leader, survivors = log_ends(facts, view, META, left)
    if not leader:
        raise RefusedProblem("no node with a journal is left; nothing was changed", next="iotctl meta status")
    heir = recovery_leader_of(META, {n: replicas[n] for n in left})
    operations = [o.id for o in open_operations(view)]
    lost = lost_now(facts, view, known - dead)
    return MetaRecovery(
        as_of_ms=now_ms,
        nodes=names,
        voters=list(voters),
        leader=leader,
        term=heir.term,
        last=replicas[leader].last,
        last_term=replicas[leader].last_term,
        survivors=survivors,
        lost_groups=sorted(lost),
        operation=operations[0] if operations else "",
        done=False,
        next=f"iotctl meta recover {' '.join(names)} --accept-data-loss --confirm {source.name}",
    )


def recover(
    cluster: Cluster,
    source: ClusterSource,
    found: MetaRecovery,
    by: str,
    *,
    timeout_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> MetaRecovery:
    """Make `found.leader` lead the meta group, and wait until it does.

    Raises:
        NodeAgentError: the node refuses it, or does not answer.
        RefusedProblem: something changed since `found` was shown.
        Partly: the group has no leader when the timeout expires.
    """
    now = decide(collect(cluster), source, found.nodes, now_ms=found.as_of_ms)
    if msgspec.structs.replace(now, term=found.term) != found:
        raise RefusedProblem(
            "the journals or the members have changed since they were shown; nothing was changed",
            next="repeat the command",
        )
    request = RecoverMeta(tuple(found.nodes), now.term, found.last, found.last_term, by)
    cluster.call(found.leader, request)
    deadline = clock() + (WAIT_S if timeout_s is None else timeout_s)
    while current_of(replicas_of(collect(cluster), META))[0] is None:
        if clock() >= deadline:
            raise Partly(
                "the meta group has no leader yet",
                why=f"the recovery is recorded on {found.leader}",
                next="iotctl meta status",
            )
        sleep(POLL_S)
    return msgspec.structs.replace(found, done=True, next=_following(found, cluster.meta(strong=True)))


def _following(found: MetaRecovery, view: MetaView) -> str:
    if found.lost_groups:
        return f"iotctl cluster recover {' '.join(found.nodes)}"
    return after_recovery(view, found.nodes[0])
