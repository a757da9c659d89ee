"""What a node with a valid certificate is to the node it speaks to (`host.members` decides)."""

from enum import Enum


class Standing(Enum):
    MEMBER = "member"
    UNKNOWN = "unknown"
    """It may ask `CheckStatus`, nothing else. It may be a member all the same, so this is no final answer."""

    RETIRED = "retired"
    """Its incarnation was given up: it is refused for good."""

    OLDER = "older"
    """It runs on an older copy of its directory (`host.starts`): refused until it is replaced."""
