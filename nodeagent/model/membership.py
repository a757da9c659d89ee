"""The membership status of a peer with a valid certificate (`host.members` decides it)."""

from enum import Enum


class MembershipStatus(Enum):
    MEMBER = "member"
    UNKNOWN = "unknown"
    """The peer may send `CheckStatus`, nothing else. It may be a member that this node does not know yet."""

    RETIRED = "retired"
    """The peer's incarnation was retired: it is refused permanently."""

    OLDER = "older"
    """The peer runs on an older copy of its directory (`host.starts`): it is refused until it is replaced."""
