"""The base of all messages, and the traits of each request: who may send it and how it is retried."""

from dataclasses import dataclass
from enum import Enum

import msgspec

READER, ADMIN, NODE, GUEST = "reader", "admin", "node", "guest"
"""Roles: a client that only reads; an operator; a member of the cluster; a node that is no member (yet)."""

READERS = frozenset({READER, ADMIN, NODE})
MEMBERS = frozenset({ADMIN, NODE})
ADMINS = frozenset({ADMIN})
NODES = frozenset({NODE})
GUESTS = frozenset({NODE, GUEST})


class Repeat(Enum):
    """Whether a client retries a request when it does not know whether the request was carried out."""

    FREELY = "freely"
    """Retry at any node: the request changes nothing, or a repeat has the same result."""

    UNLESS_FAILED = "unless failed"
    """Retry if no reply arrived, but not after an error reply: a part may have been done."""

    NEVER = "never"
    """Never retry: report that the outcome is unknown."""


@dataclass(frozen=True, slots=True)
class Traits:
    """How requests of one kind are treated."""

    by: frozenset[str]
    """The roles that may send it."""

    repeat: Repeat = Repeat.FREELY
    is_queued: bool = False
    """A slow read: a peer runs a limited number at a time, the others wait (`runtime.shares`)."""

    is_long: bool = False
    """The reply comes after long work, which a second request would only repeat."""

    is_bulk: bool = False
    """The reply is large: the request uses a separate connection, so that no small reply waits behind it."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    pass
