"""Calls to many nodes.

There are two connections per node: file chunks and scanned rows have their own, so that a write never waits
behind a file. After a failed attempt a node is not dialled again until its back-off ends; calls
during the back-off fail at once.
"""

import asyncio
import random
import ssl
from pathlib import Path
from typing import Protocol

from nodeagent.client.identity import certificate_facts
from nodeagent.client.spec import Endpoint
from nodeagent.model.errors import Forbidden, InvalidInput, NodeAgentError, Unavailable
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import Hello, Reply, Request
from nodeagent.transport.connection import Connection
from nodeagent.transport.endpoints import dial
from nodeagent.transport.tls import Identity, client_context
from nodeagent.wire.frames import OLDEST_PROTOCOL, PROTOCOL

DIAL_TIMEOUT_S = 3.0
REDIAL_MIN_S = 0.05
REDIAL_MAX_S = 1.0


class Link(Protocol):
    """Sends requests to nodes and returns their answers."""

    def learn(self, target: str, host: str, port: int) -> None:
        """Use this address for `target` from now on."""
        ...

    def where(self, target: str) -> tuple[str, int] | None:
        """The address of `target`, if known."""
        ...

    def known(self) -> list[str]:
        """All targets with an address, in the order they were learned."""
        ...

    async def call(self, target: str, request: Request, timeout_s: float) -> Reply:
        """The node's answer, never an `ErrorReply`.

        Raises:
            NodeAgentError: the error that the node answered or, with `connected` False, the error that
                prevented a connection.
            Unavailable: the request was not sent, or the node answered that it cannot serve it now.
            OutcomeUnknown: the node may have received the request, but no answer arrived.
        """
        ...

    async def close(self) -> None: ...


class _Channel:
    """The connection to one node, the attempt to open it, or the pause after a failed attempt."""

    def __init__(self) -> None:
        self.dialling: asyncio.Task[Connection] | None = None
        self.connection: Connection | None = None
        self.failure: NodeAgentError | None = None
        self.retry_at = 0.0
        self.pause_s = REDIAL_MIN_S


class NetworkLink:
    """`Link` over TLS, or without TLS on loopback only."""

    def __init__(self, endpoints: tuple[Endpoint, ...], identity: Identity | None) -> None:
        """Raises `InvalidInput` if the identity cannot be loaded."""
        self._addresses: dict[str, tuple[str, int]] = {}
        self._channels: dict[tuple[str, bool], _Channel] = {}
        self._closed = False
        self._context: ssl.SSLContext | None = None
        self._hello = Hello(PROTOCOL, "admin", "client", oldest_protocol=OLDEST_PROTOCOL)
        self._rng = random.Random()
        if identity is not None:
            self._context = client_context(identity)
            facts = certificate_facts(_pem(identity.cert))
            self._hello = Hello(PROTOCOL, facts.role, facts.name, oldest_protocol=OLDEST_PROTOCOL)
        for endpoint in endpoints:
            self.learn(endpoint.target, endpoint.host, endpoint.port)

    def learn(self, target: str, host: str, port: int) -> None:
        if self._addresses.get(target) == (host, port):
            return
        self._addresses[target] = (host, port)
        for bulk in (False, True):
            channel = self._channels.pop((target, bulk), None)
            if channel is not None and channel.connection is not None:
                channel.connection.close()

    def where(self, target: str) -> tuple[str, int] | None:
        return self._addresses.get(target)

    def known(self) -> list[str]:
        return list(self._addresses)

    async def call(self, target: str, request: Request, timeout_s: float) -> Reply:
        started = asyncio.get_running_loop().time()
        connection = await self._connection(target, request.traits.is_bulk, timeout_s)
        left = timeout_s - (asyncio.get_running_loop().time() - started)
        if left <= 0:
            raise not_connected(f"no connection to {target} in time")
        return await connection.call(request, left)

    async def close(self) -> None:
        self._closed = True
        channels, self._channels = list(self._channels.values()), {}
        dialling = [channel.dialling for channel in channels if channel.dialling is not None]
        for task in dialling:
            task.cancel()
        await asyncio.gather(*dialling, return_exceptions=True)
        for channel in channels:
            if channel.connection is not None:
                channel.connection.close()
        await asyncio.sleep(0)

    # --- callbacks of a connection ---------------------------------------------------------------

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

    # --- connections -----------------------------------------------------------------------------

    async def _connection(self, target: str, bulk: bool, timeout_s: float) -> Connection:
        if self._closed:
            raise not_connected("the client has closed its connections to the cluster")
        channel = self._channels.setdefault((target, bulk), _Channel())
        if channel.connection is not None and channel.connection.is_open:
            return channel.connection
        if channel.dialling is None:
            now = asyncio.get_running_loop().time()
            if channel.failure is not None and now < channel.retry_at:
                raise channel.failure
            channel.dialling = asyncio.create_task(self._dial(target, channel))
            channel.dialling.add_done_callback(_retrieve)
        try:
            return await asyncio.wait_for(asyncio.shield(channel.dialling), timeout_s)
        except TimeoutError:
            what = f"{target} did not accept a connection within {timeout_s:g} s"
            raise not_connected(what) from None

    async def _dial(self, target: str, channel: _Channel) -> Connection:
        try:
            connection = await self._open(target)
        except NodeAgentError as error:
            error.connected = False
            channel.failure = error
            channel.retry_at = asyncio.get_running_loop().time() + channel.pause_s * (
                0.5 + self._rng.random() / 2
            )
            channel.pause_s = min(2 * channel.pause_s, REDIAL_MAX_S)
            raise
        else:
            channel.failure, channel.pause_s, channel.connection = None, REDIAL_MIN_S, connection
            return connection
        finally:
            channel.dialling = None

    async def _open(self, target: str) -> Connection:
        address = self._addresses.get(target)
        if address is None:
            raise Unavailable(f"the address of {target} is not known")
        expect = "" if ":" in target else target
        return await dial(self, *address, context=self._context, expect=expect, timeout_s=DIAL_TIMEOUT_S)


def not_connected(what: str) -> Unavailable:
    """There is no connection to the node; nothing was sent."""
    error = Unavailable(what)
    error.connected = False
    return error


def _retrieve(task: asyncio.Task[Connection]) -> None:
    """Mark the exception as retrieved: the channel also stores it, and possibly nothing awaits the task
    any more."""
    if not task.cancelled():
        task.exception()


def _pem(text: str) -> str:
    if "-----BEGIN" in text:
        return text
    try:
        return Path(text).read_text()
    except OSError as error:
        raise InvalidInput(f"certificate {text} cannot be read: {error.strerror}") from error
