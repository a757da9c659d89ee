"""Pull files from other nodes, without network code: a generator requests chunks and is sent the bytes.

    pull = storage.pull(job)
    request = next(pull)
    request = pull.send(chunk)        # or pull.throw(error) if the source does not respond
    ...StopIteration.value is the result

`drive` does this in one thread with a blocking fetch function; the simulator steps it by events. Between
two steps the generator touches only the disk. Closing it early retains the bytes received: the next pull of
the same job continues at the byte where this pull stopped.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import xxhash

from nodeagent.model.errors import Busy, Damaged, FileCorrupt, NodeAgentError, NotFound
from nodeagent.model.files import FileMeta, FileRef
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.jobs import FilesStaged, InstallSnapshot, StagedFile, StageFiles, install_area
from nodeagent.model.limits import CHUNK_BYTES, MIB
from nodeagent.storage import layout
from nodeagent.storage.snapshot import SnapshotIndex, decode_index
from nodeagent.storage.staging import Staging

DOCUMENT_BYTES_MAX = 1024 * MIB
"""A larger index or payload is refused."""


@dataclass(frozen=True, slots=True)
class FetchChunk:
    """Requests `Snapshots.read_chunk(snapshot, name, offset, length)` of that node."""

    node: NodeId
    snapshot: str
    name: str
    offset: int
    length: int


_Result = TypeVar("_Result")
Pull = Generator[FetchChunk, bytes, _Result]
Fetch = Callable[[NodeId, str, str, int, int], bytes]


def drive(pull: Pull[_Result], fetch: Fetch) -> _Result:
    """Run a pull to its end; `fetch` blocks and raises a `NodeAgentError` or `OSError` on failure."""
    try:
        want = next(pull)
        while True:
            try:
                chunk = fetch(want.node, want.snapshot, want.name, want.offset, want.length)
            except (NodeAgentError, OSError) as error:
                want = pull.throw(error)
            else:
                want = pull.send(chunk)
    except StopIteration as stop:
        result: _Result = stop.value
        return result


@dataclass(slots=True)
class PullStats:
    """Costs of a pull so far. `refetched` counts attempts whose bytes did not verify; one file
    may need several."""

    bytes_received: int = 0
    refetched: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    suspects: list[tuple[NodeId, str]] = field(default_factory=list)
    """As `FilesStaged.suspects`."""


def stage_files(staging: Staging, job: StageFiles) -> Pull[FilesStaged]:
    """Stage every file of the job; the names in the result are durable and verified."""
    tally = PullStats()
    names = []
    with staging.pulling(job.operation):
        staging.prepare(job.operation, job.group)
        for wanted in job.files:
            staged = yield from _stage(staging, job.operation, job.group, wanted, tally)
            if staged:
                names.append(wanted.meta.name)
        staging.sync(job.operation, job.group)
        if job.unit is not None and not tally.failed:
            staging.describe(job.operation, job.group, job.unit)
    suspects = tuple(dict.fromkeys(tally.suspects))
    return FilesStaged(tuple(names), tuple(tally.failed), tally.bytes_received, tally.refetched, suspects)


def _stage(
    staging: Staging, operation: str, group: GroupId, wanted: StagedFile, tally: PullStats
) -> Pull[bool]:
    """Stage one file. Returns whether it is staged now; if not, the reasons are in the tally.

    Raises:
        Busy: the staging area is being dropped.
    """
    meta, reasons = wanted.meta, []
    staging.check_open(operation)
    try:
        if staging.has(operation, group, meta):
            return True
    except (NodeAgentError, OSError) as error:
        tally.failed.append((meta.name, _reason("staging", error)))
        return False
    if wanted.local is not None:
        try:
            staging.link_local(operation, group, meta, wanted.local)
            return True
        except (NodeAgentError, OSError) as error:
            reasons.append(_reason(f"own copy in {wanted.local}", error))
            if isinstance(error, FileCorrupt):
                tally.suspects.append(("", meta.name))
    for source in _attempts(wanted.sources):
        try:
            yield from _fetch_file(staging, operation, group, meta, source, tally)
            return True
        except Busy:
            raise
        except FileCorrupt as error:
            tally.refetched += 1
            reasons.append(_reason(source.node, error))
        except (NodeAgentError, OSError) as error:
            reasons.append(_reason(source.node, error))
    tally.failed.append((meta.name, "; ".join(reasons) or "no source"))
    return False


def _attempts(sources: Sequence[FileRef]) -> Sequence[FileRef]:
    """Each source once, and the first once more, because a part of an earlier pull may have been corrupt."""
    return (*sources, *sources[:1])


def _reason(where: str, error: Exception) -> str:
    return f"{where}: {error}"


def _fetch_file(
    staging: Staging, operation: str, group: GroupId, meta: FileMeta, source: FileRef, tally: PullStats
) -> Pull[None]:
    writer = staging.writer(operation, group, meta)
    is_resumed = writer.offset > 0
    try:
        while writer.missing:
            length = min(CHUNK_BYTES, writer.missing)
            staging.check_open(operation)
            chunk = yield FetchChunk(source.node, source.snapshot, source.name, writer.offset, length)
            if not chunk:
                raise NotFound(f"{source.name} ends at byte {writer.offset} of {meta.size}")
            tally.bytes_received += len(chunk)
            writer.append(chunk)
        writer.finish()
    except FileCorrupt as error:
        if error.details and not is_resumed:  # all its bytes came from this source
            tally.suspects.append((source.node, source.name))
        raise
    finally:
        writer.close()


@dataclass(frozen=True, slots=True)
class Fetched:
    """A snapshot whose files are all staged and durable."""

    index: SnapshotIndex
    payload: bytes
    operation: str


def fetch_snapshot(staging: Staging, job: InstallSnapshot, tally: PullStats) -> Pull[Fetched]:
    """Stage all files of a snapshot and read its payload.

    Raises:
        Damaged: the index or the payload does not verify.
        NodeAgentError: the source's own error, or `NotFound` with the files that were not received.
    """
    operation = install_area(layout.check_snapshot(job.snapshot))
    sealed = yield from _fetch_whole(job, layout.INDEX, tally)
    index = decode_index(sealed, f"index of snapshot {job.snapshot}")
    payload = yield from _fetch_whole(job, layout.PAYLOAD, tally)
    if len(payload) != index.payload_size or xxhash.xxh3_128_hexdigest(payload) != index.payload_xxh3:
        raise Damaged(f"payload of snapshot {job.snapshot} from {job.source}: checksum mismatch")
    staging.prepare(operation, job.group)
    for meta in index.files:
        source = FileRef(job.source, job.snapshot, meta.name, meta.size, meta.xxh3)
        yield from _stage(staging, operation, job.group, StagedFile(meta, (source,), job.group), tally)
    staging.sync(operation, job.group)
    if tally.failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in tally.failed)
        damaged = tally.suspects[0][1] if tally.suspects else ""
        raise NotFound(f"snapshot {job.snapshot} from {job.source}: {reasons}", file=damaged)
    return Fetched(index, payload, operation)


def _fetch_whole(job: InstallSnapshot, name: str, tally: PullStats) -> Pull[bytes]:
    content = bytearray()
    while True:
        chunk = yield FetchChunk(job.source, job.snapshot, name, len(content), CHUNK_BYTES)
        tally.bytes_received += len(chunk)
        content += chunk
        if len(chunk) < CHUNK_BYTES:
            return bytes(content)
        if len(content) > DOCUMENT_BYTES_MAX:
            raise Damaged(f"{name} of snapshot {job.snapshot}: more than {DOCUMENT_BYTES_MAX} bytes")
