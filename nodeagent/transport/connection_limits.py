"""Limits of a node's accepted connections, and of the memory for their unfinished frames. Pure.

Before its hello a peer is unknown. Few such connections are allowed; if there are more, the oldest is
aborted, silent connections first. So silent connections cannot use up the limit. After
the hello each role has its own limit, and a single reader may use only a part of the limit for readers.
"""

from collections import Counter
from typing import Protocol

from nodeagent.model.errors import NodeAgentError, Overloaded, Unavailable
from nodeagent.model.limits import MIB

UNKNOWN_MAX = 512
"""Connections that have not sent their hello."""

ROLE_MAX = {"node": 4608, "admin": 1536, "reader": 2048}
"""Connections of each role; a node opens two to every other node."""

READER_MAX = 512
"""Connections of one reader."""

PARTIAL_BYTES_MAX = {"node": 1024 * MIB, "admin": 512 * MIB, "reader": 64 * MIB}
"""Memory for unfinished frames, over all connections of a role."""


class Limited(Protocol):
    """The part of a connection that `ConnectionLimits` uses."""

    def abort(self, error: NodeAgentError) -> None: ...

    def close(self) -> None: ...


class ConnectionLimits:
    """The limits of one listener. Every connection is added once and removed once."""

    def __init__(self) -> None:
        self._silent: dict[Limited, None] = {}
        self._before_hello: dict[Limited, None] = {}
        self._known: dict[Limited, tuple[str, str]] = {}
        self._by_role: Counter[str] = Counter()
        self._by_reader: Counter[str] = Counter()
        self._partial: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._silent) + len(self._before_hello) + len(self._known)

    def all(self) -> tuple[Limited, ...]:
        return (*self._silent, *self._before_hello, *self._known)

    def add(self, connection: Limited) -> None:
        """Add a new, silent connection; this may abort an older connection without hello."""
        self._silent[connection] = None
        if len(self._silent) + len(self._before_hello) > UNKNOWN_MAX:
            oldest = next(iter(self._silent if len(self._silent) > 1 else self._before_hello))
            oldest.abort(Unavailable("too many connections have not sent their hello"))

    def on_first_bytes(self, connection: Limited) -> None:
        """Note that the first bytes of the connection arrived."""
        if connection in self._silent:
            del self._silent[connection]
            self._before_hello[connection] = None

    def on_hello(self, connection: Limited, role: str, name: str) -> None:
        """Count the connection for its role. Raises `Overloaded` if the role or reader is at its limit."""
        if self._by_role[role] >= ROLE_MAX.get(role, 0):
            raise Overloaded(f"{self._by_role[role]} connections with the role {role} are already open")
        if role == "reader" and self._by_reader[name] >= READER_MAX:
            raise Overloaded(f"{READER_MAX} connections of reader {name} are already open")
        self._silent.pop(connection, None)
        self._before_hello.pop(connection, None)
        self._known[connection] = (role, name)
        self._by_role[role] += 1
        self._by_reader[name] += role == "reader"

    def hold(self, role: str, more: int) -> None:
        """Add `more` bytes (negative: remove) of unfinished frames. Raises `Overloaded` above the limit; the
        bytes count even then, until they are removed."""
        self._partial[role] += more
        if more > 0 and self._partial[role] > PARTIAL_BYTES_MAX.get(role, 0):
            raise Overloaded(f"unfinished frames of the role {role} hold {self._partial[role]} bytes")

    def remove(self, connection: Limited) -> None:
        self._silent.pop(connection, None)
        self._before_hello.pop(connection, None)
        role, name = self._known.pop(connection, ("", ""))
        if role:
            self._by_role[role] -= 1
        if role == "reader":
            self._by_reader[name] -= 1
            if not self._by_reader[name]:
                del self._by_reader[name]
