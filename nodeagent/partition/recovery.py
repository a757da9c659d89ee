"""Force recovery: which data groups permanently lost their majority, and their recovery leaders."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import GroupChange, Operation, Stage
from nodeagent.model.requests import GroupRecord, GroupStatus, RecoveryLeader

TERMS_BEYOND = 1_000
"""Terms by which the recovery leader goes beyond the newest known term: more than the elections that the lost
nodes may have held among themselves."""


_WITHOUT_ROWS = (Stage.PLANNED, Stage.SEALED, Stage.CANCELLING)


@dataclass(frozen=True, slots=True)
class Lost:
    """A group without a living majority.

    `is_certain` is false while an open change replaces members one by one: the group may have a majority,
    depending on which members vote now. It is lost then if it has no leader.
    """

    survivors: tuple[NodeId, ...]
    """The living members. A node that is still joining does not count."""

    is_certain: bool


def lost_groups(
    groups: Iterable[GroupRecord], living: Collection[NodeId], change: Operation | None = None
) -> dict[GroupId, Lost]:
    """Groups without a living majority; `change` is the one that is open.

    A group that a change created, and that has no rows yet, is not counted: the change is cancelled.
    This includes a group whose recovery waits for a recovery leader that has died. A member that left the
    cluster but is still in the group, because its replacement died before it could join, does not count as
    living: the other nodes ignore it.
    """
    lost = {}
    for group in groups:
        if change is not None and group.group == change.created_group and change.stage in _WITHOUT_ROWS:
            continue
        voters = _possible_voters(group.members, living, _unformed(group.group, change))
        are_lost = [2 * len(of.intersection(living)) <= len(of) for of in voters]
        leader_died = group.recovery is not None and group.recovery.head not in living
        if any(are_lost) or leader_died:
            survivors = tuple(n for n in group.members if n in living)
            lost[group.group] = Lost(survivors, all(are_lost) or leader_died)
    return lost


def recovery_leader_of(group: GroupId, replicas: Mapping[NodeId, GroupStatus]) -> RecoveryLeader:
    """The recovery leader: the member with the newest last entry, by the status of every living member.

    It holds every entry that any living member knows to be committed (the argument of Raft's election rule).
    """
    head = max(sorted(replicas), key=lambda n: (replicas[n].last_term, replicas[n].last))
    return RecoveryLeader(group, head, max(r.term for r in replicas.values()) + TERMS_BEYOND)


def _unformed(group: GroupId, change: Operation | None) -> GroupChange | None:
    """The change of the group's voters that may be in progress: only RECONFIGURING changes voters."""
    if change is None or change.stage is not Stage.RECONFIGURING or group in change.formed:
        return None
    return next((c for c in change.changes if c.group == group), None)


def _possible_voters(
    members: Collection[NodeId], living: Collection[NodeId], step: GroupChange | None
) -> list[set[NodeId]]:
    """The sets of voters that the group may have now. The node that joins votes before a living member
    leaves; dead members that do not stay are dropped at any time."""
    if step is None:
        return [set(members)]
    found = []
    may_leave = set(members) - set(step.after)
    for joins in ({step.joins} if step.joins is not None else set[NodeId](), set[NodeId]()):
        waits = step.joins in living and not joins
        leaving = sorted(may_leave - set(living) if waits else may_leave)
        for number in range(len(leaving) + 1):
            found += [set(members) - set(gone) | joins for gone in combinations(leaving, number)]
    return found
