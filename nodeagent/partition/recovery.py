"""Data groups that lost their majority for ever: which they are, and who goes on with them."""

from collections.abc import Collection, Iterable, Mapping

from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.requests import GroupRecord, GroupStatus, Heir

TERMS_BEYOND = 1_000
"""The lost nodes may have gone on among themselves; so many elections they will not have held."""


def lost_groups(
    groups: Iterable[GroupRecord], living: Collection[NodeId]
) -> dict[GroupId, tuple[NodeId, ...]]:
    """Groups without a living majority, and who is left of each.

    Also one whose recovery waits for a head that died meanwhile. A member that left the cluster, and stayed
    in the stead of one that died before it could join, is none of the living: nobody hears it any more.
    """
    lost = {}
    for group in groups:
        left = tuple(n for n in group.members if n in living)
        headless = group.recovery is not None and group.recovery.head not in living
        if 2 * len(left) <= len(group.members) or headless:
            lost[group.group] = left
    return lost


def heir_of(group: GroupId, replicas: Mapping[NodeId, GroupStatus]) -> Heir:
    """The member whose last entry is the last of all, as every living member of the group says of itself.

    It then holds every entry that any of them knows to be committed (the argument of Raft's election rule).
    """
    head = max(sorted(replicas), key=lambda n: (replicas[n].last_term, replicas[n].last))
    return Heir(group, head, max(r.term for r in replicas.values()) + TERMS_BEYOND)
