"""What a connection calls when something arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nodeagent.model.errors import NodeAgentError
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import Hello, Request

if TYPE_CHECKING:
    from nodeagent.transport.connection import Connection


class Handler(Protocol):
    """Handles the messages that arrive on a connection. The methods must not block."""

    def my_hello(self) -> Hello: ...

    def check_peer(self, hello: Hello) -> None:
        """May refuse the peer with `Forbidden` (a retired incarnation)."""
        ...

    def on_open(self, connection: Connection) -> None: ...

    def on_raft(self, connection: Connection, messages: list[Routed]) -> None: ...

    def on_request(self, connection: Connection, number: int, request: Request) -> None: ...

    def on_close(self, connection: Connection, error: NodeAgentError) -> None:
        """Also called for connections that never opened."""
        ...
