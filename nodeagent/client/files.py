"""Files of single nodes: manifests, checks, snapshots and transfers."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from nodeagent.client.manifests import joined
from nodeagent.model.errors import FileCorrupt, Unavailable
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.limits import CHUNK_BYTES
from nodeagent.model.operation import Ranges
from nodeagent.model.requests import (
    BackUpMeta,
    CheckFiles,
    Chunk,
    ExportFiles,
    FetchChunk,
    FilesChecked,
    GetManifest,
    ManifestReply,
    OpenSource,
    PullUnit,
    Reply,
    Request,
    SourceOpened,
    StateOffered,
    UnitPulled,
)
from nodeagent.model.requests.files import PAYLOAD

CHECK_TIMEOUT_S = 600.0
"""Longer than for other requests: the disk and the network limit how fast files are hashed or copied."""

_R = TypeVar("_R", bound=Reply)
Call = Callable[[NodeId, Request, float | None], Awaitable[Reply]]
"""Sends one request to one node. An error reply is raised."""


class Files:
    """Requests about the files of one node, each sent once."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def manifest(self, node: NodeId, group: GroupId, slots: Ranges = ()) -> ManifestReply:
        """The replica's files, by slot and name: all pages as one reply (`manifests.joined`)."""
        pages = [await self._expect(node, GetManifest(group, slots, 0), ManifestReply)]
        while (following := pages[-1].next) is not None:
            pages.append(await self._expect(node, GetManifest(group, slots, following), ManifestReply))
        return joined(pages)

    async def check(self, node: NodeId, group: GroupId, slots: Ranges = ()) -> FilesChecked:
        """Have the node read and hash its files."""
        return await self._expect(node, CheckFiles(group, slots), FilesChecked, CHECK_TIMEOUT_S)

    async def export(self, node: NodeId, group: GroupId, slots: Ranges) -> SourceOpened:
        """Create a snapshot of the node's files for `fetch`."""
        return await self._expect(node, ExportFiles(group, slots), SourceOpened, CHECK_TIMEOUT_S)

    async def open_source(self, node: NodeId, operation: str, group: GroupId, slots: Ranges) -> SourceOpened:
        """Open the sealed slots of an operation at a previous holder."""
        return await self._expect(node, OpenSource(operation, group, slots), SourceOpened, CHECK_TIMEOUT_S)

    async def pull_unit(self, node: NodeId, operation: str, group: GroupId, slots: Ranges) -> UnitPulled:
        """Have the node pull the slots; return when they are verified and durable there."""
        return await self._expect(node, PullUnit(operation, group, slots), UnitPulled, CHECK_TIMEOUT_S)

    async def fetch(self, node: NodeId, snapshot: str, name: str) -> bytes:
        """All bytes of a file in a snapshot, not verified.

        Raises:
            NotFound: there is no such file or snapshot.
            FileCorrupt: the file ended before the size that the node reported.
        """
        content = bytearray()
        while True:
            chunk = await self._expect(node, FetchChunk(snapshot, name, len(content), CHUNK_BYTES), Chunk)
            content += chunk.data
            if len(content) >= chunk.size:
                return bytes(content)
            if not chunk.data:
                raise FileCorrupt(
                    f"{name} on {node} ends at {len(content)} of {chunk.size} bytes",
                    file=name,
                    expected=chunk.size,
                    found=len(content),
                )

    async def back_up_meta(self, node: NodeId) -> bytes:
        """An image of the node's meta state, which has everything acknowledged before; not verified."""
        offered = await self._expect(node, BackUpMeta(), StateOffered, CHECK_TIMEOUT_S)
        return await self.fetch(node, offered.snapshot, PAYLOAD)

    async def _expect(
        self, node: NodeId, request: Request, kind: type[_R], timeout_s: float | None = None
    ) -> _R:
        reply = await self._call(node, request, timeout_s)
        if not isinstance(reply, kind):
            raise Unavailable(f"{node} answered with {type(reply).__name__} instead of {kind.__name__}")
        return reply
