"""What all messages have in common, and what is said of each request beside its fields."""

from dataclasses import dataclass
from enum import Enum

import msgspec

READER, ADMIN, NODE, GUEST = "reader", "admin", "node", "guest"
"""A person or program that only reads; a person; a member of the cluster; a node that is none (yet)."""

READERS = frozenset({READER, ADMIN, NODE})
MEMBERS = frozenset({ADMIN, NODE})
ADMINS = frozenset({ADMIN})
NODES = frozenset({NODE})
GUESTS = frozenset({NODE, GUEST})


class Repeat(Enum):
    """What a client does when it cannot know whether a request was carried out."""

    FREELY = "freely"
    """Ask again, wherever: it changes nothing, or the same once more."""

    UNLESS_FAILED = "unless failed"
    """Ask again when an answer is missing; a node that fails with it leaves open what it did."""

    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Traits:
    """How a request is treated, whatever it asks for."""

    by: frozenset[str]
    """The roles that may ask it."""

    repeat: Repeat = Repeat.FREELY
    is_queued: bool = False
    """It takes its turn among those of its peer: a slow read."""

    is_long: bool = False
    """The answer comes when work is done that a second request would only repeat."""

    is_bulk: bool = False
    """Its answer is large: it has a connection of its own, so that no small one waits behind it."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    pass
