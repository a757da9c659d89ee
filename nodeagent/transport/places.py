"""Who may hold one of a node's accepted connections, and how much of a frame that is not whole. Pure.

Before its hello a peer is unknown: few such connections are kept and the oldest goes first, those that have
said nothing before those that have. So half-open connections, however many, keep nobody out. After the hello
each role has places of its own, and one reader has a part of the readers'.
"""

from collections import Counter
from typing import Protocol

from nodeagent.model.errors import NodeAgentError, Overloaded, Unavailable
from nodeagent.model.limits import MIB

UNKNOWN_MAX = 512
"""Connections before their hello."""

PLACES = {"node": 4608, "admin": 1536, "reader": 2048}
"""Connections of each role; a node has two to every other."""

READER_MAX = 512
"""Connections of one reader."""

PARTIAL_BYTES_MAX = {"node": 1024 * MIB, "admin": 512 * MIB, "reader": 64 * MIB}
"""Of unfinished frames, all connections of a role together."""


class Guest(Protocol):
    """A connection, as it is seen here."""

    def abort(self, error: NodeAgentError) -> None: ...

    def close(self) -> None: ...


class Places:
    """Of one listener. Every connection enters once and leaves once."""

    def __init__(self) -> None:
        self._silent: dict[Guest, None] = {}
        self._greeting: dict[Guest, None] = {}
        self._known: dict[Guest, tuple[str, str]] = {}
        self._by_role: Counter[str] = Counter()
        self._by_reader: Counter[str] = Counter()
        self._partial: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._silent) + len(self._greeting) + len(self._known)

    def all(self) -> tuple[Guest, ...]:
        return (*self._silent, *self._greeting, *self._known)

    def enter(self, guest: Guest) -> None:
        """A connection that has said nothing yet; an older one may be aborted for it."""
        self._silent[guest] = None
        if len(self._silent) + len(self._greeting) > UNKNOWN_MAX:
            oldest = next(iter(self._silent if len(self._silent) > 1 else self._greeting))
            oldest.abort(Unavailable("too many connections wait for their hello"))

    def speaks(self, guest: Guest) -> None:
        """The first bytes came."""
        if guest in self._silent:
            del self._silent[guest]
            self._greeting[guest] = None

    def greeted(self, guest: Guest, role: str, name: str) -> None:
        """The hello is good. Raises `Overloaded` when the role, or the reader, has no place left."""
        if self._by_role[role] >= PLACES.get(role, 0):
            raise Overloaded(f"{self._by_role[role]} connections with the role {role} are open")
        if role == "reader" and self._by_reader[name] >= READER_MAX:
            raise Overloaded(f"{READER_MAX} connections of reader {name} are open")
        self._silent.pop(guest, None)
        self._greeting.pop(guest, None)
        self._known[guest] = (role, name)
        self._by_role[role] += 1
        self._by_reader[name] += role == "reader"

    def hold(self, role: str, more: int) -> None:
        """Bytes of unfinished frames grew by `more` (or shrank). Raises `Overloaded`."""
        self._partial[role] += more
        if more > 0 and self._partial[role] > PARTIAL_BYTES_MAX.get(role, 0):
            raise Overloaded(f"{self._partial[role]} bytes of unfinished frames of the role {role}")

    def leave(self, guest: Guest) -> None:
        self._silent.pop(guest, None)
        self._greeting.pop(guest, None)
        role, name = self._known.pop(guest, ("", ""))
        if role:
            self._by_role[role] -= 1
        if role == "reader":
            self._by_reader[name] -= 1
            if not self._by_reader[name]:
                del self._by_reader[name]
