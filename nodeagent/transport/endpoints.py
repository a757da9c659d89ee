"""The two ways to get a connection: dial a node, or accept connections."""

import asyncio
import ssl

from nodeagent.model.errors import Unavailable
from nodeagent.transport.connection import Connection
from nodeagent.transport.connection_limits import ConnectionLimits
from nodeagent.transport.handler import Handler
from nodeagent.transport.sockets import reason_of


async def dial(
    handler: Handler,
    host: str,
    port: int,
    *,
    context: ssl.SSLContext | None,
    expect: str = "",
    timeout_s: float = 5.0,
) -> Connection:
    """Connect to a node and exchange hellos. `context` None means TLS is off (loopback only).

    Raises:
        Unavailable: no connection within `timeout_s`.
        Forbidden: one side refuses the other's certificate, name, role, cluster, incarnation or release.
        Overloaded: the node has too many connections of this role or reader.
    """
    loop = asyncio.get_running_loop()
    where = f"{expect} at {host}:{port}" if expect else f"{host}:{port}"
    connection = Connection(handler, dialled=True, context=context, expect=expect)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: connection, host, port)
            await asyncio.shield(connection.opened)
    except TimeoutError:
        error = Unavailable(f"{where} did not answer within {timeout_s:g} s")
        connection.abort(error)
        raise error from None
    except asyncio.CancelledError:
        connection.abort(Unavailable(f"the attempt to reach {where} was cancelled"))
        raise
    except OSError as os_error:
        raise Unavailable(f"{where} cannot be reached: {reason_of(os_error)}") from os_error
    return connection


class Listener:
    """The accepting side: every accepted connection is in `connections` until it ends."""

    def __init__(self, handler: Handler, context: ssl.SSLContext | None) -> None:
        self._handler = handler
        self._context = context
        self._server: asyncio.Server | None = None
        self.connections = ConnectionLimits()

    async def start(self, host: str, port: int) -> None:
        """Raises `OSError` if the address cannot be bound."""
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, host, port, backlog=512, reuse_address=True
        )

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop accepting, and close every connection after its queued replies."""
        if self._server is not None:
            self._server.close()
        for connection in self.connections.all():
            connection.close()

    def _accept(self) -> Connection:
        return Connection(self._handler, dialled=False, context=self._context, limits=self.connections)
