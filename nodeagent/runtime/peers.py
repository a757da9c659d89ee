"""Outgoing connections to the other nodes: one for Raft and requests, one for file chunks.

Each peer reconnects independently after a jittered pause, so a node that is down delays no other. While a
peer is down its Raft messages are dropped: Raft repeats the messages that matter.
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping

from nodeagent.model.errors import NodeAgentError, Overloaded, Unavailable
from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import Reply, Request
from nodeagent.transport.connection import Connection
from nodeagent.transport.endpoints import dial
from nodeagent.transport.handler import Handler
from nodeagent.wire.faults import to_reply

PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
DIAL_TIMEOUT_S = 3.0
CALLS_TO_STRANGERS_MAX = 256
"""Concurrent calls to addresses whose node is not known yet."""

Address = tuple[str, int]
OnReply = Callable[[Reply], None]
OnRefused = Callable[[NodeId, NodeAgentError], None]


class Peer:
    """The connections to one other node. Its task runs until `close`."""

    def __init__(
        self,
        node: NodeId,
        address: Address,
        handler: Handler,
        context: ssl.SSLContext | None,
        on_refused: OnRefused,
    ) -> None:
        self.node = node
        self.address = address
        self._handler = handler
        self._context = context
        self._on_refused = on_refused
        self._connection: Connection | None = None
        self._bulk: Connection | None = None
        self._bulk_lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())
        self.raft_dropped = 0
        self.connects = 0

    @property
    def connection(self) -> Connection | None:
        """The open connection, or None."""
        return self._connection if self._connection is not None and self._connection.is_open else None

    def send(self, messages: list[Routed]) -> None:
        connection = self.connection
        if connection is None or not connection.send_raft(messages):
            self.raft_dropped += len(messages)

    async def bulk(self) -> Connection:
        """The connection for file chunks, dialled at first use: Raft never queues behind a file.

        Raises:
            NodeAgentError: the connection cannot be opened.
        """
        async with self._bulk_lock:
            if self._bulk is None or not self._bulk.is_open:
                self._bulk = await self._dial()
            return self._bulk

    def move(self, address: Address) -> None:
        """Use a new address of the node."""
        if address == self.address:
            return
        self.address = address
        for connection in (self._connection, self._bulk):
            if connection is not None:
                connection.abort(Unavailable(f"{self.node} moved to {address[0]}:{address[1]}"))
        self._changed.set()

    def lost(self, connection: Connection) -> None:
        """Must be called when any connection has ended."""
        if connection is self._connection:
            self._changed.set()

    def close(self) -> None:
        self._task.cancel()
        for connection in (self._connection, self._bulk):
            if connection is not None:
                connection.close()

    async def _dial(self) -> Connection:
        host, port = self.address
        return await dial(
            self._handler, host, port, context=self._context, expect=self.node, timeout_s=DIAL_TIMEOUT_S
        )

    async def _keep_connected(self) -> None:
        pause = PAUSE_S_MIN
        while True:
            self._changed.clear()
            try:
                self._connection = await self._dial()
            except NodeAgentError as error:
                self._on_refused(self.node, error)
                await self._wait(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, PAUSE_S_MAX)
                continue
            self.connects += 1
            pause = PAUSE_S_MIN
            if self._connection.is_open:
                await self._changed.wait()
            await asyncio.sleep(PAUSE_S_MIN * random.uniform(0.2, 1.0))

    async def _wait(self, seconds: float) -> None:
        """Wait `seconds`, or until the address changes."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return


class Peers:
    """All other nodes in the host's address book."""

    def __init__(
        self, me: NodeId, handler: Handler, context: ssl.SSLContext | None, on_refused: OnRefused
    ) -> None:
        self._me = me
        self._handler = handler
        self._context = context
        self._on_refused = on_refused
        self._peers: dict[NodeId, Peer] = {}
        self._strangers: set[asyncio.Task[None]] = set()

    def update(self, addresses: Mapping[NodeId, Address]) -> None:
        """Connect to new nodes, follow changed addresses, disconnect from nodes that left."""
        for node in [n for n in self._peers if n not in addresses]:
            self._peers.pop(node).close()
        for node, address in addresses.items():
            if node == self._me:
                continue
            peer = self._peers.get(node)
            if peer is None:
                self._peers[node] = Peer(node, address, self._handler, self._context, self._on_refused)
            else:
                peer.move(address)

    def get(self, node: NodeId) -> Peer:
        """Raises `Unavailable` if the address of the node is unknown."""
        peer = self._peers.get(node)
        if peer is None:
            raise Unavailable(f"the address of {node} is not known")
        return peer

    def send(self, node: NodeId, messages: list[Routed]) -> None:
        peer = self._peers.get(node)
        if peer is not None:
            peer.send(messages)

    def call(self, to: NodeId | Address, request: Request, timeout_s: float, on_reply: OnReply) -> None:
        """Send a request; `on_reply` is called exactly once, perhaps before this returns."""
        if not isinstance(to, str):
            self._call_stranger(to, request, timeout_s, on_reply)
            return
        try:
            connection = self.get(to).connection
            if connection is None:
                raise Unavailable(f"no connection to {to}")
            connection.request(request, timeout_s, on_reply)
        except NodeAgentError as error:
            on_reply(to_reply(error))

    def lost(self, connection: Connection) -> None:
        for peer in self._peers.values():
            peer.lost(connection)

    def statistics(self) -> dict[NodeId, tuple[bool, int, int]]:
        """Per node: connected, connects so far, Raft messages dropped."""
        return {n: (p.connection is not None, p.connects, p.raft_dropped) for n, p in self._peers.items()}

    def close(self) -> None:
        for task in self._strangers:
            task.cancel()
        for peer in self._peers.values():
            peer.close()

    def _call_stranger(self, to: Address, request: Request, timeout_s: float, on_reply: OnReply) -> None:
        if len(self._strangers) >= CALLS_TO_STRANGERS_MAX:
            on_reply(
                to_reply(Overloaded(f"{CALLS_TO_STRANGERS_MAX} calls to unknown nodes are already open"))
            )
            return
        task = asyncio.get_running_loop().create_task(self._ask(to, request, timeout_s, on_reply))
        self._strangers.add(task)
        task.add_done_callback(self._strangers.discard)

    async def _ask(self, to: Address, request: Request, timeout_s: float, on_reply: OnReply) -> None:
        try:
            connection = await dial(
                self._handler, *to, context=self._context, timeout_s=min(timeout_s, DIAL_TIMEOUT_S)
            )
            try:
                reply = await connection.call(request, timeout_s)
            finally:
                connection.close()
        except NodeAgentError as error:
            reply = to_reply(error)
        on_reply(reply)
