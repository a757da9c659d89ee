"""Force recovery: which data groups permanently lost their majority, and their recovery leaders."""

from collections.abc import Collection, Iterable, Mapping

from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.requests import GroupRecord, GroupStatus, RecoveryLeader

TERMS_BEYOND = 1_000
"""Terms by which the recovery leader goes beyond the newest known term: more than the elections that the lost
nodes may have held among themselves."""


def lost_groups(
    groups: Iterable[GroupRecord], living: Collection[NodeId]
) -> dict[GroupId, tuple[NodeId, ...]]:
    """Groups without a living majority, each with its living members.

    This includes a group whose recovery waits for a recovery leader that has died. A member that left the
    cluster but is still in the group, because its replacement died before it could join, does not count as
    living: the other nodes ignore it.
    """
    lost = {}
    for group in groups:
        left = tuple(n for n in group.members if n in living)
        leader_died = group.recovery is not None and group.recovery.head not in living
        if 2 * len(left) <= len(group.members) or leader_died:
            lost[group.group] = left
    return lost


def recovery_leader_of(group: GroupId, replicas: Mapping[NodeId, GroupStatus]) -> RecoveryLeader:
    """The recovery leader: the member with the newest last entry, by the status of every living member.

    It holds every entry that any living member knows to be committed (the argument of Raft's election rule).
    """
    head = max(sorted(replicas), key=lambda n: (replicas[n].last_term, replicas[n].last))
    return RecoveryLeader(group, head, max(r.term for r in replicas.values()) + TERMS_BEYOND)
