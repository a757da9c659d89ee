"""How a worker handles one request. The same code runs in the child process and in the simulator."""

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
"""Kinds of work. Names of temporary files begin with the kind, so that failed work can be cleaned up."""


class CloseRequest(msgspec.Struct, frozen=True, tag="close"):
    units: tuple[CloseUnit, ...]


class CompactRequest(msgspec.Struct, frozen=True, tag="compact"):
    """`paths` are the paths of the inputs, relative to the root."""

    unit: CompactUnit
    paths: tuple[str, ...]


class ScanRequest(msgspec.Struct, frozen=True, tag="scan"):
    """`files` are (path relative to the root, meta); `heavy` selects the worker process."""

    spec: ScanSpec
    files: tuple[tuple[str, FileMeta], ...]
    batches: tuple[MemBatch, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    page: PageSpec = PageSpec()
    heavy: bool = False


class TemporaryFile(msgspec.Struct, frozen=True):
    """A durable temporary file that waits for its name."""

    path: str
    meta: FileMeta
    footer: Footer


class CloseReply(msgspec.Struct, frozen=True, tag="closed"):
    """In the order of the units; None for a unit without rows."""

    made: tuple[TemporaryFile | None, ...]


class ScanReply(msgspec.Struct, frozen=True, tag="scanned"):
    scanned: Scanned


class ErrorReply(msgspec.Struct, frozen=True, tag="error"):
    """`code` is the code of the error (`model.errors`), `file` and `found` are its details.

    `sound`: no native code failed, so the process is not replaced.
    """

    code: str
    what: str
    file: str = ""
    found: str = ""
    sound: bool = False


class Opening(msgspec.Struct, frozen=True, tag="opening"):
    """Sent before the reply: native code is about to read this file."""

    path: str


Request = CloseRequest | CompactRequest | ScanRequest
Reply = CloseReply | ScanReply | ErrorReply | Opening


class Place(Protocol):
    """The file system of a handler; paths are relative to the node's root."""

    def read(self, path: str) -> bytes: ...

    def put(self, name: str, content: bytes) -> str:
        """Write a temporary file (replacing one of that name), sync it, return its path."""
        ...


class Handler:
    """`label` makes temporary names of different processes distinct; scans read from `sources`."""

    def __init__(
        self, file_format: FileFormat, place: Place, label: str, sources: Sources | None = None
    ) -> None:
        self._format = file_format
        self._place = place
        self._sources = sources or ContentSources(place.read, file_format)
        self._label = label
        self._counter = itertools.count()

    def handle(self, request: Request) -> Reply:
        """Handle one request. Our own errors, `OSError` and `MemoryError` become the reply."""
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

    def _put(self, closed: ClosedUnit | None) -> TemporaryFile | None:
        if closed is None:
            return None
        path = self._place.put(f"{self._label}-{next(self._counter)}", closed.content)
        return TemporaryFile(path, closed.meta, closed.footer)
