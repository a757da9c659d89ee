"""Files from other nodes: chunks over each peer's bulk connection, for the storage room's pull steps.

The storage room's step runs on a thread and asks `fetch` for one chunk after the other; the request
itself runs on the loop. While a chunk is being written, the next one of the same file is already on its
way. What is fetched is verified there, not here.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait

from nodeagent.model.errors import InvalidInput, NodeAgentError, Overloaded, Unavailable
from nodeagent.model.ids import NodeId
from nodeagent.model.limits import CHUNK_BYTES
from nodeagent.model.requests import Chunk, FetchChunk, Reply
from nodeagent.runtime.rate import Rate
from nodeagent.storage import layout

CHUNK_TIMEOUT_S = 15.0
"""One chunk; a transfer as a whole has no limit, and the wait for the rate does not count."""

CALL_TIMEOUT_S = 60.0
"""One chunk, the dialling of its connection included."""

PACE_S = 0.5
"""A changed rate takes effect after this long."""

STOP_POLL_S = 1.0
"""A waiting pull sees that the agent stops after this long."""

_MESSAGES = (layout.INDEX, layout.PAYLOAD)
"""Index and checkpoint of a snapshot: the rate and the counters are about data files alone, and how
long these two are is not known when they are asked for."""

AHEAD_MAX = 2
"""Chunks requested ahead of the one being written, per job."""

Ask = Callable[[NodeId, FetchChunk, float], Awaitable[Reply]]
"""Send a request over the bulk connection of a node. Raises `NodeAgentError`."""


class Puller:
    """Shared by all pulls of a node: the rate and the counters. `fetcher` gives one per job."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ask: Ask, no_room: Callable[[], str] = lambda: ""
    ) -> None:
        """`no_room` says why nothing more may be copied here for now, "" when it may."""
        self._loop = loop
        self._ask = ask
        self._no_room = no_room
        self._lock = threading.Lock()
        self._stopped = False
        self.rate = Rate()
        self.received_bytes: dict[str, int] = {}
        """Bytes of data files per operation; `catch-up` for snapshots of groups outside of one. Indexes and
        checkpoints of snapshots are messages and count nowhere."""

    def fetcher(self, operation: str) -> "Fetcher":
        return Fetcher(self, operation)

    def check_room(self) -> None:
        """Raises `Overloaded` while the disk has no room for files."""
        why = self._no_room()
        if why:
            raise Overloaded(why, next_step="it is pulled when there is room")

    def request(self, node: NodeId, wanted: FetchChunk) -> "Future[Chunk]":
        """May be called on any thread. Raises `Unavailable` once the agent stops."""
        if self._stopped:
            raise Unavailable("the agent stops")
        return asyncio.run_coroutine_threadsafe(self._fetch(node, wanted), self._loop)

    @property
    def stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        self._stopped = True

    def count(self, operation: str, received: int) -> None:
        with self._lock:
            self.received_bytes[operation] = self.received_bytes.get(operation, 0) + received

    async def _fetch(self, node: NodeId, wanted: FetchChunk) -> Chunk:
        if wanted.name not in _MESSAGES:
            await self._pace(wanted.length)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                reply = await self._ask(node, wanted, CHUNK_TIMEOUT_S)
        except TimeoutError as error:
            raise Unavailable(f"{node} did not send {wanted.name} at {wanted.offset} in time") from error
        if not isinstance(reply, Chunk):
            raise InvalidInput(f"{node} answered a chunk request with {type(reply).__name__}")
        if len(reply.data) > wanted.length or wanted.offset + len(reply.data) > reply.size:
            raise InvalidInput(
                f"{node} sent {len(reply.data)} bytes of {wanted.name}; {wanted.length} wanted"
            )
        return reply

    async def _pace(self, count: int) -> None:
        """Wait until `count` bytes may be moved, or until the rate is another one."""
        rate = self.rate.bytes_per_s
        due = self._loop.time() + self.rate.take(count, self._loop.time())
        while (left := due - self._loop.time()) > 0 and self.rate.bytes_per_s == rate:
            await asyncio.sleep(min(left, PACE_S))


class Fetcher:
    """One job's chunks; used by one thread."""

    def __init__(self, puller: Puller, operation: str) -> None:
        self._puller = puller
        self._operation = operation
        self._ahead: dict[tuple[NodeId, str, str, int], Future[Chunk]] = {}
        """(node, snapshot, name, offset) -> a chunk on its way; it may be shorter than is then asked for,
        at the end of the file only."""

        self.received = 0

    def fetch(self, node: NodeId, snapshot: str, name: str, offset: int, length: int) -> bytes:
        """Bytes of a file of a snapshot on `node`; empty only at its end.

        Raises:
            NodeAgentError: not there (`NotFound`), or no contact (`Unavailable`).
        """
        if name not in _MESSAGES:
            self._puller.check_room()
        wanted = FetchChunk(snapshot, name, offset, min(length, CHUNK_BYTES))
        try:
            future = self._ahead.pop((node, snapshot, name, offset), None)
            if future is None:
                self._forget()
                future = self._puller.request(node, wanted)
            chunk = self._result(future)
        except NodeAgentError:
            self._forget()
            raise
        self._look_ahead(node, wanted, chunk)
        self.received += len(chunk.data)
        if name not in _MESSAGES:
            self._puller.count(self._operation, len(chunk.data))
        return chunk.data

    def close(self) -> None:
        self._forget()

    def _result(self, future: "Future[Chunk]") -> Chunk:
        """Wait as long as the rate makes it take; the call itself has its own limit."""
        while not wait([future], STOP_POLL_S).done:
            if self._puller.stopped:
                raise Unavailable("the agent stops")
        return future.result()

    def _look_ahead(self, node: NodeId, got: FetchChunk, chunk: Chunk) -> None:
        offset = got.offset + len(chunk.data)
        for _ in range(AHEAD_MAX):
            length = min(CHUNK_BYTES, chunk.size - offset)
            if length <= 0 or not chunk.data:
                return
            key = (node, got.snapshot, got.name, offset)
            if key not in self._ahead:
                following = FetchChunk(got.snapshot, got.name, offset, length)
                self._ahead[key] = self._puller.request(node, following)
            offset += length

    def _forget(self) -> None:
        for future in self._ahead.values():
            future.cancel()
        self._ahead.clear()
