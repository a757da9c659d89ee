"""A minimal client: one connection, no retries, nothing between the bench and the agent."""

import os

from nodeagent.client.spec import ClusterSpec
from nodeagent.model.errors import Forbidden, NodeAgentError
from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import Hello, Request
from nodeagent.transport.connection import Connection
from nodeagent.transport.endpoints import dial
from nodeagent.transport.tls import client_context
from nodeagent.wire.frames import PROTOCOL


class _Asking:
    """Handler of the minimal client's connection."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello

    def my_hello(self) -> Hello:
        return self._hello

    def check_peer(self, hello: Hello) -> None:
        pass

    def on_open(self, connection: Connection) -> None:
        pass

    def on_raft(self, connection: Connection, messages: list[Routed]) -> None:
        raise Forbidden("a client does not take part in consensus")

    def on_request(self, connection: Connection, number: int, request: Request) -> None:
        raise Forbidden("a client does not answer requests")

    def on_close(self, connection: Connection, error: NodeAgentError) -> None:
        pass


async def connection_to(spec: ClusterSpec, node: NodeId) -> Connection:
    endpoint = next(e for e in spec.endpoints if e.node == node)
    context = client_context(spec.identity) if spec.identity else None
    handler = _Asking(Hello(PROTOCOL, "admin", os.environ.get("USER") or "operator"))
    return await dial(handler, endpoint.host, endpoint.port, context=context, expect=node)
