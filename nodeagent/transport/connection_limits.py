"""Limits of a node's accepted connections, and of the memory for their unfinished frames. Pure.

Before its hello a peer is unknown. There are few places for such connections; beyond them the oldest is
aborted, silent connections first. So any number of half-open connections locks no peer out. After the hello
each role has its own places, and a single reader has at most a part of the places for readers.
"""

from collections import Counter
from typing import Protocol

from nodeagent.model.errors import NodeAgentError, Overloaded, Unavailable
from nodeagent.model.limits import MIB

UNKNOWN_MAX = 512
"""Connections that have not sent their hello."""

PLACES = {"node": 4608, "admin": 1536, "reader": 2048}
"""Connections of each role; a node opens two to every other node."""

READER_MAX = 512
"""Connections of one reader."""

PARTIAL_BYTES_MAX = {"node": 1024 * MIB, "admin": 512 * MIB, "reader": 64 * MIB}
"""Memory for unfinished frames, over all connections of a role."""


class Guest(Protocol):
    """The part of a connection that `ConnectionLimits` uses."""

    def abort(self, error: NodeAgentError) -> None: ...

    def close(self) -> None: ...


class ConnectionLimits:
    """The places of one listener. Every connection enters once and leaves once."""

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
        """Add a new, silent connection; this may abort an older connection without hello."""
        self._silent[guest] = None
        if len(self._silent) + len(self._greeting) > UNKNOWN_MAX:
            oldest = next(iter(self._silent if len(self._silent) > 1 else self._greeting))
            oldest.abort(Unavailable("too many connections have not sent their hello"))

    def speaks(self, guest: Guest) -> None:
        """The first bytes of the connection arrived."""
        if guest in self._silent:
            del self._silent[guest]
            self._greeting[guest] = None

    def greeted(self, guest: Guest, role: str, name: str) -> None:
        """The hello was accepted. Raises `Overloaded` if the role, or the reader, has no place left."""
        if self._by_role[role] >= PLACES.get(role, 0):
            raise Overloaded(f"{self._by_role[role]} connections with the role {role} are already open")
        if role == "reader" and self._by_reader[name] >= READER_MAX:
            raise Overloaded(f"{READER_MAX} connections of reader {name} are already open")
        self._silent.pop(guest, None)
        self._greeting.pop(guest, None)
        self._known[guest] = (role, name)
        self._by_role[role] += 1
        self._by_reader[name] += role == "reader"

    def hold(self, role: str, more: int) -> None:
        """Add `more` bytes (negative: remove) of unfinished frames. Raises `Overloaded` above the limit."""
        self._partial[role] += more
        if more > 0 and self._partial[role] > PARTIAL_BYTES_MAX.get(role, 0):
            raise Overloaded(f"unfinished frames of the role {role} hold {self._partial[role]} bytes")

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
