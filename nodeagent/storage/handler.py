"""What a worker does with one request. The same code runs in the child process and in the simulator."""

import errno
import itertools
from typing import Protocol

import msgspec

from nodeagent.model.errors import InvalidInput, NodeAgentError, NotFound, Overloaded, Unavailable
from nodeagent.model.files import FileMeta, PageSpec, ScanSpec, Tombstone
from nodeagent.model.jobs import CloseUnit, CompactUnit, MemBatch, Scanned
from nodeagent.storage.format import ClosedUnit, FileFormat, Footer, close_unit, compact_unit, scan_rows
from nodeagent.storage.sources import ContentSources, Sources

CLOSE, COMPACT, SCAN = "close", "compact", "scan"
"""Kinds of work. Temporary names begin with theirs, so that one that fails can clear up after itself."""


class CloseRequest(msgspec.Struct, frozen=True, tag="close"):
    units: tuple[CloseUnit, ...]


class CompactRequest(msgspec.Struct, frozen=True, tag="compact"):
    """`paths` are those of the inputs, under the root."""

    unit: CompactUnit
    paths: tuple[str, ...]


class ScanRequest(msgspec.Struct, frozen=True, tag="scan"):
    """`files` are (path under the root, meta); `heavy` chooses the process that does it."""

    spec: ScanSpec
    files: tuple[tuple[str, FileMeta], ...]
    batches: tuple[MemBatch, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    page: PageSpec = PageSpec()
    heavy: bool = False


class Made(msgspec.Struct, frozen=True):
    """A durable temporary file that waits for its name."""

    path: str
    meta: FileMeta
    footer: Footer


class CloseReply(msgspec.Struct, frozen=True, tag="closed"):
    """In the order of the units; None where no row was left."""

    made: tuple[Made | None, ...]


class ScanReply(msgspec.Struct, frozen=True, tag="scanned"):
    scanned: Scanned


class ErrorReply(msgspec.Struct, frozen=True, tag="error"):
    """`code` is that of the error (`model.errors`), `file` and `found` its details.

    `sound`: no native code failed, the process goes on.
    """

    code: str
    what: str
    file: str = ""
    found: str = ""
    sound: bool = False


class Opening(msgspec.Struct, frozen=True, tag="opening"):
    """No reply yet: native code is about to read this file."""

    path: str


Request = CloseRequest | CompactRequest | ScanRequest
Reply = CloseReply | ScanReply | ErrorReply | Opening


class Place(Protocol):
    """The little a handler needs of a file system; paths are relative to the node's root."""

    def read(self, path: str) -> bytes: ...

    def put(self, name: str, content: bytes) -> str:
        """Write a temporary file (replacing one of that name), sync it, return its path."""
        ...


class Handler:
    """`label` keeps temporary names of different processes apart; `sources` are where scans read from."""

    def __init__(
        self, file_format: FileFormat, place: Place, label: str, sources: Sources | None = None
    ) -> None:
        self._format = file_format
        self._place = place
        self._sources = sources or ContentSources(place.read, file_format)
        self._label = label
        self._counter = itertools.count()

    def handle(self, request: Request) -> Reply:
        """Never raises our own errors or `OSError`: they are the reply."""
        try:
            if isinstance(request, CloseRequest):
                return CloseReply(tuple(self._put(close_unit(u, self._format)) for u in request.units))
            if isinstance(request, CompactRequest):
                made = compact_unit(request.unit, request.paths, self._place.read, self._format)
                return CloseReply((self._put(made),))
            return self._scan(request)
        except NodeAgentError as error:
            file, found = (str(error.details.get(name, "")) for name in ("file", "found"))
            sound = bool(found) or isinstance(error, InvalidInput | NotFound)
            return ErrorReply(error.code, error.what, file, found, sound)
        except FileNotFoundError as error:
            return ErrorReply(NotFound.code, str(error), sound=True)
        except (OSError, MemoryError) as error:
            no_space = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            code = Overloaded.code if no_space else Unavailable.code
            return ErrorReply(code, f"{type(error).__name__}: {error}")

    def _scan(self, request: ScanRequest) -> ScanReply:
        sources = [self._sources.of(path, meta, request.spec) for path, meta in request.files]
        scanned = scan_rows(request.spec, request.page, sources, request.batches, request.tombstones)
        return ScanReply(scanned)

    def _put(self, closed: ClosedUnit | None) -> Made | None:
        if closed is None:
            return None
        path = self._place.put(f"{self._label}-{next(self._counter)}", closed.content)
        return Made(path, closed.meta, closed.footer)
