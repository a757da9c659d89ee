"""The next single step from a committed configuration to the target configuration (thesis 4.1, 4.2).

A joining node is a learner until it has caught up, and then becomes a voter. One voter changes at a time. A
leader never removes itself: it transfers its leadership first.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nodeagent.model.entries import Config
from nodeagent.model.ids import NodeId


@dataclass(frozen=True, slots=True)
class Change:
    config: Config


@dataclass(frozen=True, slots=True)
class Transfer:
    target: NodeId


Step = Change | Transfer | None


def add_learner(config: Config, node: NodeId, operation: str) -> Change:
    return Change(Config(config.voters, (*config.learners, node), operation))


def promote(config: Config, node: NodeId, operation: str) -> Change:
    return Change(Config((*config.voters, node), tuple(n for n in config.learners if n != node), operation))


def drop(config: Config, node: NodeId, operation: str) -> Change:
    return Change(
        Config(
            tuple(n for n in config.voters if n != node),
            tuple(n for n in config.learners if n != node),
            operation,
        )
    )


def demote(config: Config, node: NodeId, operation: str) -> Change:
    return Change(Config(tuple(n for n in config.voters if n != node), (*config.learners, node), operation))


def transfer_from(config: Config, leaving: NodeId, caught_up: Callable[[NodeId], bool]) -> Step:
    """The leader leaves: transfer its leadership to the first other voter that has caught up."""
    target = next((n for n in config.voters if n != leaving and caught_up(n)), None)
    return Transfer(target) if target else None


def group_step(
    config: Config,
    joins: NodeId | None,
    leaves: NodeId | None,
    *,
    me: NodeId,
    operation: str,
    caught_up: Callable[[NodeId], bool],
    may_leave: bool,
) -> Step:
    """One step of a data group in RECONFIGURING.

    Args:
        may_leave: False while the group loses slots and the leaving node cannot yet serve as a source of them
            by itself.
    """
    if joins is not None and joins not in config.members:
        return add_learner(config, joins, operation)
    if joins is not None and joins in config.learners:
        return promote(config, joins, operation) if caught_up(joins) else None
    if leaves is None or leaves not in config.members:
        return None
    if not may_leave or (joins is not None and not caught_up(joins)):
        return None
    if leaves == me:
        return transfer_from(config, me, caught_up)
    return drop(config, leaves, operation)


def spread(nodes: Sequence[NodeId], zones: Mapping[NodeId, str], count: int) -> tuple[NodeId, ...]:
    """Up to `count` of the nodes, as evenly over the zones as possible; of equal ones, the first. Nodes
    without a zone count as one zone: they may be in the same room."""
    chosen: list[NodeId] = []
    left = list(nodes)
    while left and len(chosen) < count:
        best = _in_fewest(left, zones, _votes(chosen, zones))
        assert best is not None
        left.remove(best)
        chosen.append(best)
    return tuple(chosen)


def _votes(voters: Iterable[NodeId], zones: Mapping[NodeId, str]) -> Counter[str]:
    return Counter(zones.get(n, "") for n in voters)


def _in_fewest(nodes: Iterable[NodeId], zones: Mapping[NodeId, str], votes: Counter[str]) -> NodeId | None:
    """The first node in the zone with the fewest votes; preferably one whose zone is known."""
    return min(nodes, key=lambda n: (votes[zones.get(n, "")], not zones.get(n)), default=None)


def meta_step(
    config: Config,
    nodes: set[NodeId],
    unfit: Collection[NodeId],
    zones: Mapping[NodeId, str],
    *,
    voters_max: int,
    me: NodeId,
    caught_up: Callable[[NodeId], bool],
) -> Step:
    """One step of the meta group: every node becomes a member, and `voters_max` of them vote if there are as
    many, as evenly over the zones as possible.

    `unfit` nodes (leaving or dead) may follow but not vote: their votes are taken away after the promotions,
    so until then there may be more voters than `voters_max`, and a sole voter keeps its vote. Members that
    are not in `nodes` are dropped.
    """
    members = config.members
    removed = next((n for n in members if n not in nodes), None)
    if removed is not None:
        return transfer_from(config, me, caught_up) if removed == me else drop(config, removed, "")
    fresh = min(nodes.difference(members), default=None)
    if fresh is not None:
        return add_learner(config, fresh, "")
    fit = [n for n in config.voters if n not in unfit]
    if len(fit) < voters_max:
        ready = [n for n in config.learners if n not in unfit and caught_up(n)]
        best = _in_fewest(ready, zones, _votes(fit, zones))
        if best is not None:
            return promote(config, best, "")
    going = next((n for n in config.voters if n in unfit), None)
    if going is not None and len(config.voters) > 1:
        return transfer_from(config, me, caught_up) if going == me else demote(config, going, "")
    if len(fit) > voters_max:
        return _surplus_step(config, zones, me, caught_up)
    return _even_step(config, unfit, zones, me, caught_up)


def _even_step(
    config: Config,
    unfit: Collection[NodeId],
    zones: Mapping[NodeId, str],
    me: NodeId,
    caught_up: Callable[[NodeId], bool],
) -> Step:
    """Promote a learner if its vote and the demotion that follows make the votes more even. Every such
    pair does so, whichever nodes lag in the meantime, so votes do not move indefinitely."""
    votes = _votes(config.voters, zones)
    most = max(votes.values())
    few = {zone for zone in set(zones.values()) if zone and votes[zone] + 2 <= most}
    if not few:  # the usual case: there may be a thousand learners
        return None
    ready = [n for n in config.learners if zones.get(n) in few and n not in unfit and caught_up(n)]
    best = _in_fewest(ready, zones, votes)
    if best is None or not all(n == me or caught_up(n) for n in config.voters):
        return None
    return promote(config, best, "")


def _surplus_step(
    config: Config, zones: Mapping[NodeId, str], me: NodeId, caught_up: Callable[[NodeId], bool]
) -> Step:
    """Demote a voter other than the leader in the zone with the most votes, preferably one that lags, once a
    majority of the remaining voters has caught up: one that was just promoted may lag."""
    votes, others = _votes(config.voters, zones), [n for n in config.voters if n != me]
    late = {n for n in others if not caught_up(n)}
    going = max(others, key=lambda n: (votes[zones.get(n, "")], n in late))
    left = [n for n in config.voters if n != going]
    return demote(config, going, "") if sum(n not in late for n in left) > len(left) // 2 else None
