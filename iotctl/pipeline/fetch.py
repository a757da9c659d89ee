"""Fetches the bytes of files that agents offer, several files in parallel."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import xxhash

from iotctl.pipeline.link import Cluster, expect
from nodeagent.model.errors import FileCorrupt, NodeAgentError
from nodeagent.model.ids import NodeId
from nodeagent.model.limits import CHUNK_BYTES
from nodeagent.model.requests import Chunk, FetchChunk

FETCHES_MAX = 8
"""How many files one task fetches in parallel."""

FileRequest = tuple[NodeId, str, str, int]
"""(node, snapshot, name, size in bytes)."""


def fetch_file(cluster: Cluster, wanted: FileRequest) -> bytes:
    """The whole file, not yet checked against its hash.

    Raises:
        NodeAgentError: the node cannot be reached, or has no such file.
        FileCorrupt: the node's file has another length.
    """
    node, snapshot, name, size = wanted
    parts: list[bytes] = []
    got = 0
    while True:
        request = FetchChunk(snapshot, name, got, min(CHUNK_BYTES, max(1, size - got)))
        chunk = expect(cluster.call(node, request), Chunk)
        if chunk.size != size or (not chunk.data and got < size):
            here = got if chunk.size == size else chunk.size
            raise FileCorrupt(f"{name} on {node} has {here} bytes, but its manifest says {size}", file=name)
        parts.append(chunk.data)
        got += len(chunk.data)
        if got >= size:
            return b"".join(parts) if len(parts) > 1 else parts[0]


def fetch_files(cluster: Cluster, requests: Sequence[FileRequest]) -> list[bytes | NodeAgentError]:
    """Each file or its error, in the order of the requests."""

    def one(request: FileRequest) -> bytes | NodeAgentError:
        try:
            return fetch_file(cluster, request)
        except NodeAgentError as error:
            return error

    if len(requests) < 2:
        return [one(request) for request in requests]
    with ThreadPoolExecutor(min(FETCHES_MAX, len(requests))) as pool:
        return list(pool.map(one, requests))


def content_hash(content: bytes) -> str:
    """XXH3-128 in the notation of manifests."""
    return xxhash.xxh3_128_hexdigest(content)
