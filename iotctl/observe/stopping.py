"""Which nodes may stop at the same time, according to the statuses of all nodes.

A group keeps serving while more than half of its voters are up and hold all committed entries. A voter that
must catch up first cannot replace a node that stops.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from iotctl.errors import RefusedProblem, Unreachable
from iotctl.observe.cluster import Cluster
from iotctl.observe.collect import Facts, collect, current_of, heard_recently, replicas_of
from nodeagent.model.ids import META
from nodeagent.model.requests import GroupStatus

LAG_ENTRIES_MAX = 1_000
"""A voter that is further behind its leader has not caught up. Under load no follower is ever at 0."""

EXACT_NODES_MAX = 16
"""Up to this many nodes, the largest subset is found by exhaustive search; for more nodes, greedily."""

_MayAdd = Callable[[str, Collection[str]], bool]


class GroupAtRisk(msgspec.Struct, frozen=True):
    """A group that would lose its quorum. `left`: the voters that are live and caught up after the stop;
    `needed`: how many must be. `why` names the voters that do not count even now."""

    group: str
    voters: list[str]
    stopping: list[str]
    left: list[str]
    needed: int
    why: str


class OkToStop(msgspec.Struct, frozen=True):
    """`may_stop`: a subset of `nodes` that may stop simultaneously; for up to 16 nodes, a largest one."""

    as_of_ms: int
    nodes: list[str]
    ok: bool
    lost: list[GroupAtRisk]
    may_stop: list[str]
    unreachable: list[str]


class _Group(msgspec.Struct, frozen=True):
    name: str
    voters: tuple[str, ...]
    fit: frozenset[str]
    """Voters that are live and caught up now."""

    why: str

    @property
    def needed(self) -> int:
        return len(self.voters) // 2 + 1

    def keeps_quorum(self, stopping: Collection[str]) -> bool:
        return sum(v not in stopping for v in self.fit) >= self.needed


def ok_to_stop(cluster: Cluster, nodes: Sequence[str], *, now_ms: int) -> OkToStop:
    """Ask every agent, then decide.

    Raises:
        Unreachable: no agent returned the list of groups.
        RefusedProblem: the cluster does not have one of `nodes`.
    """
    return decide(collect(cluster), nodes, now_ms=now_ms)


def decide(facts: Facts, nodes: Sequence[str], *, now_ms: int) -> OkToStop:
    """Decide from the collected facts (see the module docstring). Pure."""
    if facts.view is None:
        raise Unreachable("no agent returned the list of groups", next="iotctl cluster status")
    wanted = list(dict.fromkeys(nodes))
    known = {n.node for n in facts.view.nodes}
    for node in wanted:
        if node not in known:
            raise RefusedProblem(f"{node} is not in the cluster", next="iotctl cluster nodes")
    members: dict[str, Sequence[str]] = {META: facts.view.voters}
    members |= {g.group: g.members for g in facts.view.groups}
    groups = [_group(facts, name, listed) for name, listed in members.items()]
    lost = [
        GroupAtRisk(
            g.name,
            list(g.voters),
            [v for v in g.voters if v in wanted],
            [v for v in g.voters if v in g.fit and v not in wanted],
            g.needed,
            g.why,
        )
        for g in groups
        if not g.keeps_quorum(wanted)
    ]
    unreachable = sorted(known - set(facts.statuses))
    return OkToStop(now_ms, wanted, not lost, lost, largest(groups, wanted), unreachable)


def _group(facts: Facts, name: str, listed: Sequence[str]) -> _Group:
    """The group as its leader sees it; without a leader, no voter counts as caught up."""
    replicas = replicas_of(facts, name)
    leader, current = current_of(replicas)
    voters = tuple(current.voters) if current is not None and current.voters else tuple(listed)
    reasons = {v: _unfit(facts, v, replicas.get(v), leader, current) for v in voters}
    if leader is None:
        why = "no leader"
    else:
        why = ", ".join(f"{v} {reason}" for v, reason in reasons.items() if reason)
    return _Group(name, voters, frozenset(v for v, reason in reasons.items() if not reason), why)


def _unfit(
    facts: Facts, voter: str, replica: GroupStatus | None, leader: str | None, current: GroupStatus | None
) -> str:
    """Why `voter` does not count; "" if it counts."""
    if replica is None:
        return "does not answer"
    if replica.state != "running":
        return f"is {replica.state}"
    if leader is None or current is None:
        return "has no leader"
    if not heard_recently(facts, leader, voter):
        return f"has not been heard by {leader} recently"
    lag = 0 if voter == leader else current.lag.get(voter, 0)
    return f"is {lag} entries behind" if lag > LAG_ENTRIES_MAX else ""


def largest(groups: Iterable[_Group], nodes: Sequence[str]) -> list[str]:
    """A subset of `nodes` that can stop without a group losing the quorum it has now; for up to
    `EXACT_NODES_MAX` nodes, a largest subset."""
    alive = [g for g in groups if g.keeps_quorum(())]
    touched = {n: [g for g in alive if n in g.fit] for n in nodes}

    def may_add(node: str, chosen: Collection[str]) -> bool:
        return all(g.keeps_quorum({*chosen, node}) for g in touched[node])

    if len(nodes) > EXACT_NODES_MAX:
        chosen: list[str] = []
        for node in sorted(nodes, key=lambda n: len(touched[n])):
            if may_add(node, chosen):
                chosen.append(node)
        return [n for n in nodes if n in chosen]
    return _search(list(nodes), [], [], may_add)


def _search(rest: list[str], chosen: list[str], best: list[str], may_add: _MayAdd) -> list[str]:
    """Branch on each node, first with it, then without; prune a branch that cannot beat `best`."""
    if len(chosen) + len(rest) <= len(best):
        return best
    if not rest:
        return list(chosen)
    if may_add(rest[0], chosen):
        best = _search(rest[1:], [*chosen, rest[0]], best, may_add)
    return _search(rest[1:], chosen, best, may_add)
