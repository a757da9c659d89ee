"""The role of a node in the meta group, and the allowed transitions (docs/internals/metadata.md)."""

from enum import StrEnum


class MetaRole(StrEnum):
    INIT = "INIT"
    """The node has no replica of the meta group: it forms or joins a cluster, or its state is damaged."""

    UNKNOWN = "UNKNOWN"
    """The node has a replica and hears no leader, or the replica is stopped. It answers reads until its state
    is older than `meta_staleness_max_ms`."""

    FOLLOWER = "FOLLOWER"
    """The node votes and hears a leader."""

    OBSERVER = "OBSERVER"
    """The node hears a leader and does not vote."""

    LEADER = "LEADER"


NEXT: dict[MetaRole, tuple[MetaRole, ...]] = {
    MetaRole.INIT: (MetaRole.UNKNOWN, MetaRole.FOLLOWER, MetaRole.OBSERVER, MetaRole.LEADER),
    MetaRole.UNKNOWN: (MetaRole.INIT, MetaRole.FOLLOWER, MetaRole.OBSERVER, MetaRole.LEADER),
    MetaRole.FOLLOWER: (MetaRole.INIT, MetaRole.UNKNOWN, MetaRole.OBSERVER, MetaRole.LEADER),
    MetaRole.OBSERVER: (MetaRole.INIT, MetaRole.UNKNOWN, MetaRole.FOLLOWER),
    MetaRole.LEADER: (MetaRole.INIT, MetaRole.UNKNOWN, MetaRole.FOLLOWER, MetaRole.OBSERVER),
}
"""The allowed transitions. An observer votes before it leads. A leader that loses its leadership steps down;
the process continues."""


def path(old: MetaRole, new: MetaRole) -> tuple[MetaRole, ...]:
    """The roles that a node takes from `old` to `new`; an observer that was promoted and elected between two
    observations was a follower in between."""
    return (new,) if new in NEXT[old] else (MetaRole.FOLLOWER, new)
