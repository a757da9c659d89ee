"""Bytes of files that agents offer, several at a time, in bounded memory."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import xxhash

from iotctl.pipeline.link import Cluster, expect
from nodeagent.model.errors import FileCorrupt, NodeAgentError
from nodeagent.model.ids import NodeId
from nodeagent.model.limits import CHUNK_BYTES
from nodeagent.model.requests import Chunk, FetchChunk

FETCHES_MAX = 8
"""Files on their way to one task at a time."""

Wish = tuple[NodeId, str, str, int]
"""(node, snapshot, name, size in bytes)."""


def fetch_file(cluster: Cluster, wish: Wish) -> bytes:
    """The whole file, not yet checked against its hash.

    Raises:
        NodeAgentError: no contact, or no such file.
        FileCorrupt: the file there has another length.
    """
    node, snapshot, name, size = wish
    parts: list[bytes] = []
    got = 0
    while True:
        request = FetchChunk(snapshot, name, got, min(CHUNK_BYTES, max(1, size - got)))
        chunk = expect(cluster.call(node, request), Chunk)
        if chunk.size != size or (not chunk.data and got < size):
            raise FileCorrupt(f"{name} on {node} has {chunk.size} bytes, its manifest says {size}", file=name)
        parts.append(chunk.data)
        got += len(chunk.data)
        if got >= size:
            return b"".join(parts) if len(parts) > 1 else parts[0]


def fetch_files(cluster: Cluster, wishes: Sequence[Wish]) -> list[bytes | NodeAgentError]:
    """Each file or the reason why not, in the order asked for."""

    def one(wish: Wish) -> bytes | NodeAgentError:
        try:
            return fetch_file(cluster, wish)
        except NodeAgentError as error:
            return error

    if len(wishes) < 2:
        return [one(wish) for wish in wishes]
    with ThreadPoolExecutor(min(FETCHES_MAX, len(wishes))) as pool:
        return list(pool.map(one, wishes))


def content_hash(content: bytes) -> str:
    """XXH3-128 as manifests write it."""
    return xxhash.xxh3_128_hexdigest(content)
