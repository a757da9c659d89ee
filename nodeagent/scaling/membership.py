"""The next single step from a committed configuration to the target configuration (thesis 4.1, 4.2).

A joining node is a learner until it has caught up, and then becomes a voter. One voter changes at a time. A
leader never removes itself: it transfers its leadership first.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
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
    """Up to `count` of the nodes, as evenly over the zones as possible, the first ones of each zone. Nodes
    without a zone count as one zone: they may be in the same room."""
    chosen: list[NodeId] = []
    votes: Counter[str] = Counter()
    left = list(nodes)
    while left and len(chosen) < count:
        best = min(left, key=lambda n: votes[zones.get(n, "")])
        left.remove(best)
        chosen.append(best)
        votes[zones.get(best, "")] += 1
    return tuple(chosen)


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
    many, as evenly over the zones as possible (see `spread`).

    `unfit` nodes (leaving or dead) may follow but not vote: their votes are taken away after the promotions,
    so until then there may be more voters, and an only voter keeps its vote. Members that are not in `nodes`
    are dropped. A vote moves from the zone with the most votes by a promotion, while every voter has caught
    up, and then a demotion.
    """
    members = config.members
    removed = next((n for n in members if n not in nodes), None)
    if removed is not None:
        return transfer_from(config, me, caught_up) if removed == me else drop(config, removed, "")
    fresh = min(nodes.difference(members), default=None)
    if fresh is not None:
        return add_learner(config, fresh, "")
    fit = [n for n in config.voters if n not in unfit]
    ready = [n for n in config.learners if n not in unfit and caught_up(n)]
    votes = Counter(zones.get(n, "") for n in fit)
    # The first of the learners whose zone has the fewest votes.
    fittest = min(ready, key=lambda n: votes[zones.get(n, "")], default=None)
    if len(fit) < voters_max and fittest is not None:
        return promote(config, fittest, "")
    going = next((n for n in config.voters if n in unfit), None)
    if going is not None and len(config.voters) > 1:
        return transfer_from(config, me, caught_up) if going == me else demote(config, going, "")
    others = [n for n in fit if n != me]
    late = [n for n in others if not caught_up(n)]
    if len(fit) > voters_max:
        return demote(config, max(late or others, key=lambda n: votes[zones.get(n, "")]), "")
    most = max(votes.values(), default=0)
    if not late and fittest is not None and votes[zones.get(fittest, "")] + 2 <= most:
        return promote(config, fittest, "")
    return None
