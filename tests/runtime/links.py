"""Identities and handlers for connections in tests."""

import functools
from collections.abc import Callable

from nodeagent.client.identity import KeyPair, create_authority, issue
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import Accepted, Hello, Request
from nodeagent.transport.connection import Connection
from nodeagent.transport.tls import Identity
from nodeagent.wire.frames import PROTOCOL

Answer = Callable[[Connection, int, Request], None]


@functools.cache
def authority(name: str) -> KeyPair:
    return create_authority(name)


def identity(name: str, role: str, *, signer: str = "ours", trusts: str = "ours", days: int = 10) -> Identity:
    pair = issue(authority(signer), name, role, days=days)
    return Identity(pair.cert, pair.key, authority(trusts).cert)


def node_hello(name: str = "node1", cluster: str = "cluster", incarnation: str = "i1") -> Hello:
    return Hello(PROTOCOL, "node", name, incarnation, cluster)


def admin_hello(name: str = "alice", cluster: str = "") -> Hello:
    return Hello(PROTOCOL, "admin", name, "", cluster)


class Recorder:
    """A handler that records events, and answers each request with `Accepted` by default."""

    def __init__(self, hello: Hello, answer: Answer | None = None) -> None:
        self.hello = hello
        self.answer = answer
        self.opened: list[Connection] = []
        self.raft: list[Routed] = []
        self.requests: list[Request] = []
        self.errors: list[NodeAgentError] = []
        self.check: Callable[[Hello], None] = lambda hello: None

    def my_hello(self) -> Hello:
        return self.hello

    def check_peer(self, hello: Hello) -> None:
        self.check(hello)

    def on_open(self, connection: Connection) -> None:
        self.opened.append(connection)

    def on_raft(self, connection: Connection, messages: list[Routed]) -> None:
        self.raft += messages

    def on_request(self, connection: Connection, number: int, request: Request) -> None:
        self.requests.append(request)
        if self.answer is not None:
            self.answer(connection, number, request)
        else:
            connection.reply(number, Accepted(len(self.requests)))

    def on_close(self, connection: Connection, error: NodeAgentError) -> None:
        self.errors.append(error)
