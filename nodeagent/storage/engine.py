"""The engine that closes, compacts and scans: worker processes, or this process in the simulator."""

from typing import Protocol

from nodeagent.model.disk import Disk
from nodeagent.model.errors import BY_CODE, NodeAgentError
from nodeagent.model.jobs import CloseUnit, Scanned
from nodeagent.storage import layout
from nodeagent.storage.format import FileFormat
from nodeagent.storage.handler import (
    CLOSE,
    COMPACT,
    SCAN,
    CloseReply,
    CloseRequest,
    CompactRequest,
    ErrorReply,
    Handler,
    Reply,
    ScanReply,
    ScanRequest,
    TemporaryFile,
)


class Engine(Protocol):
    """All calls block, may be made from several threads, and raise errors of `model.errors`, or `OSError` if
    a worker process cannot be started."""

    def close_units(self, units: tuple[CloseUnit, ...]) -> tuple[TemporaryFile | None, ...]:
        """Durable temporary files for the units, in their order."""
        ...

    def compact(self, request: CompactRequest) -> TemporaryFile | None:
        """A durable temporary file for the unit; None if no row is left."""
        ...

    def scan(self, request: ScanRequest) -> Scanned: ...

    def stop(self) -> None: ...


def made_of(reply: Reply) -> tuple[TemporaryFile | None, ...]:
    if isinstance(reply, ErrorReply):
        raise error_of(reply)
    assert isinstance(reply, CloseReply)
    return reply.made


def scanned_of(reply: Reply) -> Scanned:
    if isinstance(reply, ErrorReply):
        raise error_of(reply)
    assert isinstance(reply, ScanReply)
    return reply.scanned


def error_of(reply: ErrorReply) -> NodeAgentError:
    details = {"file": reply.file, "found": reply.found} if reply.file else {}
    return BY_CODE.get(reply.code, NodeAgentError)(reply.what, **details)


class DiskPlace:
    """`handler.Place` over a `Disk`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def read(self, path: str) -> bytes:
        return self._disk.read(path)

    def put(self, name: str, content: bytes) -> str:
        self._disk.mkdirs(layout.TMP)
        path = layout.tmp_path(name)
        with self._disk.open(path, create=True) as file:
            file.truncate(0)
            file.pwrite(0, content)
            file.sync()
        return path


class InlineEngine:
    """Does the work in the caller's thread. Only for the simulator, and never with the TsFile format: its
    native code may crash or stall the process that sends Raft's heartbeats."""

    def __init__(self, disk: Disk, file_format: FileFormat) -> None:
        self._handlers = {
            work: Handler(file_format, DiskPlace(disk), work) for work in (CLOSE, COMPACT, SCAN)
        }

    def close_units(self, units: tuple[CloseUnit, ...]) -> tuple[TemporaryFile | None, ...]:
        return made_of(self._handlers[CLOSE].handle(CloseRequest(units)))

    def compact(self, request: CompactRequest) -> TemporaryFile | None:
        return made_of(self._handlers[COMPACT].handle(request))[0]

    def scan(self, request: ScanRequest) -> Scanned:
        return scanned_of(self._handlers[SCAN].handle(request))

    def stop(self) -> None:
        pass
