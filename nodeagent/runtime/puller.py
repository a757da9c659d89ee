"""Fetches files in chunks over the bulk connection of each peer, for the pull steps of `storage`.

A pull step runs on a thread and calls `fetch` for one chunk after another; the request itself runs on the
loop. While a chunk is written, the next chunks of the file are prefetched. `storage` verifies the data.
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
"""Timeout of one chunk request, without the wait for the rate; a whole transfer has no timeout."""

CALL_TIMEOUT_S = 60.0
"""Timeout of one chunk request including the dialling of the connection."""

PACE_S = 0.5
"""A changed rate takes effect within this time."""

STOP_POLL_S = 1.0
"""A waiting pull notices within this time that the agent stops."""

_MESSAGES = (layout.INDEX, layout.PAYLOAD)
"""Index and checkpoint of a snapshot. They are neither paced nor counted: rate and counters are for data
files, and the length of these two is unknown when they are requested."""

PREFETCH_MAX = 2
"""Chunks prefetched per job, beyond the chunk being written."""

Ask = Callable[[NodeId, FetchChunk, float], Awaitable[Reply]]
"""Send a request over the bulk connection of a node. Raises `NodeAgentError`."""


class Puller:
    """Rate and counters, shared by all pulls of a node. `fetcher` creates the `Fetcher` of one job."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ask: Ask, no_room: Callable[[], str] = lambda: ""
    ) -> None:
        """`no_room` returns why no file may be copied to this node now, "" if files may."""
        self._loop = loop
        self._ask = ask
        self._no_room = no_room
        self._lock = threading.Lock()
        self._stopped = False
        self.rate = Rate()
        self.received_bytes: dict[str, int] = {}
        """Bytes of data files per operation; `catch-up` for snapshots outside any operation. Indexes and
        checkpoints of snapshots are not counted."""

    def fetcher(self, operation: str) -> "Fetcher":
        return Fetcher(self, operation)

    def check_room(self) -> None:
        """Raises `Overloaded` while the disk has no room for files."""
        why = self._no_room()
        if why:
            raise Overloaded(why, next_step="free disk space; the pull then continues")

    def request(self, node: NodeId, wanted: FetchChunk) -> "Future[Chunk]":
        """Request a chunk, from any thread. Raises `Unavailable` once the agent stops."""
        if self._stopped:
            raise Unavailable("the agent is stopping")
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
            raise Unavailable(
                f"{node} did not send {wanted.name} at offset {wanted.offset} in time"
            ) from error
        if not isinstance(reply, Chunk):
            raise InvalidInput(f"{node} answered a chunk request with {type(reply).__name__}")
        if len(reply.data) > wanted.length or wanted.offset + len(reply.data) > reply.size:
            raise InvalidInput(
                f"{node} sent {len(reply.data)} bytes of {wanted.name} at offset {wanted.offset}; "
                f"{wanted.length} were requested, and the file has {reply.size}"
            )
        return reply

    async def _pace(self, count: int) -> None:
        """Wait until `count` bytes may be transferred, or until the rate changes."""
        rate = self.rate.bytes_per_s
        deadline = self._loop.time() + self.rate.take(count, self._loop.time())
        while (left := deadline - self._loop.time()) > 0 and self.rate.bytes_per_s == rate:
            await asyncio.sleep(min(left, PACE_S))


class Fetcher:
    """Fetches the chunks of one job; used by one thread."""

    def __init__(self, puller: Puller, operation: str) -> None:
        self._puller = puller
        self._operation = operation
        self._prefetched: dict[tuple[NodeId, str, str, int], Future[Chunk]] = {}
        """(node, snapshot, name, offset) -> a prefetched chunk; at the end of the file it may be shorter than
        the length requested later."""

        self.received = 0

    def fetch(self, node: NodeId, snapshot: str, name: str, offset: int, length: int) -> bytes:
        """Bytes of a file in a snapshot on `node`; empty only at its end.

        Raises:
            NotFound: `node` has no such file or snapshot.
            Unavailable: `node` cannot be reached, or the agent stops.
            Overloaded: the disk here has no room for files, or `node` has too many chunk requests.
            InvalidInput: the reply of `node` does not match the request.
        """
        if name not in _MESSAGES:
            self._puller.check_room()
        wanted = FetchChunk(snapshot, name, offset, min(length, CHUNK_BYTES))
        try:
            future = self._prefetched.pop((node, snapshot, name, offset), None)
            if future is None:
                self._forget()
                future = self._puller.request(node, wanted)
            chunk = self._result(future)
        except NodeAgentError:
            self._forget()
            raise
        self._prefetch(node, wanted, chunk)
        self.received += len(chunk.data)
        if name not in _MESSAGES:
            self._puller.count(self._operation, len(chunk.data))
        return chunk.data

    def close(self) -> None:
        self._forget()

    def _result(self, future: "Future[Chunk]") -> Chunk:
        """Wait without a timeout: the wait for the rate may be long, and the request has its own timeout."""
        while not wait([future], STOP_POLL_S).done:
            if self._puller.stopped:
                raise Unavailable("the agent is stopping")
        return future.result()

    def _prefetch(self, node: NodeId, got: FetchChunk, chunk: Chunk) -> None:
        offset = got.offset + len(chunk.data)
        for _ in range(PREFETCH_MAX):
            length = min(CHUNK_BYTES, chunk.size - offset)
            if length <= 0 or not chunk.data:
                return
            key = (node, got.snapshot, got.name, offset)
            if key not in self._prefetched:
                following = FetchChunk(got.snapshot, got.name, offset, length)
                self._prefetched[key] = self._puller.request(node, following)
            offset += length

    def _forget(self) -> None:
        for future in self._prefetched.values():
            future.cancel()
        self._prefetched.clear()
