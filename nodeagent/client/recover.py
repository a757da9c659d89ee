"""Who goes on with a data group that lost its majority."""

from collections.abc import Mapping

from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.requests import GroupStatus, Heir

TERMS_BEYOND = 1_000
"""The lost nodes may have gone on among themselves; so many elections they will not have held."""


def heir_of(group: GroupId, replicas: Mapping[NodeId, GroupStatus]) -> Heir:
    """The member whose last entry is the last of all, as every living member of the group says of itself.

    It then holds every entry that any of them knows to be committed (the argument of Raft's election rule).
    """
    head = max(sorted(replicas), key=lambda n: (replicas[n].last_term, replicas[n].last))
    return Heir(group, head, max(r.term for r in replicas.values()) + TERMS_BEYOND)
