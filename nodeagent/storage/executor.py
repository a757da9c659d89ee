"""`Storage`: runs the jobs that the pure packages request. Blocking; call it from a disk thread.

A job may run twice, and both runs end in the same state. Jobs of one group must not run at the same time if
one of them changes the other's files; jobs of different groups may, except two closes or two compactions
(see `_cleared_up`).
"""

import contextlib
import errno
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

from nodeagent.model.disk import Disk
from nodeagent.model.errors import Busy, Damaged, NodeAgentError, NotFound, Overloaded, Unavailable
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import GroupId
from nodeagent.model.image_format import ImageBytes, encode_image, is_image
from nodeagent.model.jobs import (
    REPAIR,
    AdoptFiles,
    Adoption,
    CheckpointSaved,
    CloseFiles,
    CloseUnit,
    CompactFiles,
    DeleteFiles,
    Done,
    DropSnapshot,
    DropStaging,
    Failed,
    FileChanges,
    FileReplaced,
    FilesClosed,
    FilesHashed,
    FilesStaged,
    HashFiles,
    Installed,
    InstallSnapshot,
    Job,
    JobResult,
    MakeSnapshot,
    ReadStaged,
    RemoveGroup,
    ReplaceFile,
    SaveCheckpoint,
    SaveImage,
    Scan,
    Scanned,
    StagedRead,
    StageFiles,
    install_area,
    repair_area,
)
from nodeagent.model.limits import KIB, MIB
from nodeagent.storage import layout
from nodeagent.storage.checkpoint import drop_unfinished, save_checkpoint, with_files
from nodeagent.storage.engine import Engine
from nodeagent.storage.files import SlotFiles
from nodeagent.storage.format import scan_rows
from nodeagent.storage.handler import CLOSE, COMPACT, CompactRequest, ScanRequest, TemporaryFile
from nodeagent.storage.images import Images, Load, image_indexes
from nodeagent.storage.pull import (
    Fetch,
    Fetched,
    Pull,
    PullStats,
    drive,
    fetch_snapshot,
    stage_files,
)
from nodeagent.storage.quarantine import replace_file
from nodeagent.storage.saved_state import load_state
from nodeagent.storage.snapshot import Snapshots
from nodeagent.storage.staging import Staging

UNITS_PER_CALL_MAX = 256
UNIT_BYTES_PER_CALL_MAX = 32 * MIB
"""Most work in one call of the engine, so that a fixed timeout fits every call; a larger unit has its own
call."""

INLINE_SCAN_BYTES_MAX = 256 * KIB
"""A scan that reads only memory, up to this size, runs in the caller's thread instead of the worker."""


class Storage:
    """All files of one node. `files`, `snapshots` and `staging` are its parts, for reading and sweeps."""

    def __init__(
        self,
        disk: Disk,
        engine: Engine,
        load_image: Load = ImageBytes.verified,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk = disk
        self._images = Images(disk, load_image, pause)
        self.faults: dict[GroupId, str] = {}
        """Why the newest image of a group was not read (`checkpoint`); the one before it was."""

        self.imageless: set[GroupId] = set()
        """Groups with images of which none verifies."""

        self._engine = engine
        self._saving = threading.Lock()
        self.files = SlotFiles(disk)
        self.snapshots = Snapshots(disk)
        self.staging = Staging(disk)

    def prepare(self) -> None:
        """At start, before any job: create the directories, delete temporary files and the files fetched by
        unfinished repairs (the group requests those repairs once more)."""
        self._disk.rmtree(layout.TMP)
        for directory in (layout.GROUPS, layout.STAGING, layout.SNAPSHOTS, layout.TMP):
            self._disk.mkdirs(directory)
        for operation in self.staging.operations():
            if operation.startswith(REPAIR):
                self.staging.drop(operation)
        for group in self._disk.listdir(layout.GROUPS):
            drop_unfinished(self._disk, group)

    def stop(self) -> None:
        self._engine.stop()

    # Jobs.

    def run(self, job: Job) -> JobResult:
        """Run a local job to its end. A `NodeAgentError` or `OSError` is the result `Failed`, with a code; so
        is any other error of a `Scan` or `HashFiles`, but not of other jobs: they raise it."""
        try:
            return self._run(job)
        except NodeAgentError as error:
            file, found = (str(error.details.get(name, "")) for name in ("file", "found"))
            return Failed(error.code, error.what, file, found)
        except OSError as error:
            return failed_by_system(error)
        except Exception as error:
            if not isinstance(job, Scan | HashFiles):
                raise  # it was changing something
            return Failed("error", f"{type(job).__name__} failed in the node: {error!r}")

    def _run(self, job: Job) -> JobResult:
        match job:
            case CloseFiles():
                return self._close_files(job)
            case CompactFiles():
                return self._compact(job)
            case SaveCheckpoint():
                return CheckpointSaved(self._save_checkpoint(job.group, job.payload, job.changes))
            case SaveImage():
                with self._saving:
                    return self._images.save(job.header, job.sections)
            case Scan():
                return self._scan(job)
            case MakeSnapshot():
                self.snapshots.make(job.snapshot, job.group, job.files, _payload_of(job))
            case DropSnapshot():
                self.snapshots.drop(job.snapshot)
            case ReadStaged():
                return StagedRead(self.staging.units(job.operation, job.group))
            case AdoptFiles():
                self.staging.adopt(job.operation, job.group, job.files)
            case DeleteFiles():
                self.files.delete(job.group, job.files)
            case DropStaging():
                self.staging.drop(job.operation)
            case RemoveGroup():
                self.files.remove_group(job.group)
            case HashFiles():
                return FilesHashed(tuple((m.name, self.files.hash(job.group, m)) for m in job.files))
            case ReplaceFile():
                kept = replace_file(self._disk, self.files, job.group, job.meta)
                return FileReplaced(kept, self._try_drop(repair_area(job.group)))
            case InstallSnapshot() | StageFiles():
                raise AssertionError("this job needs other nodes: use `pull` or `run_pull`")
        return Done()

    def _try_drop(self, operation: str) -> str:
        """Drop the area of completed work; returns why that failed, "" if it succeeded."""
        try:
            self.staging.drop(operation)
        except (Busy, OSError) as error:
            return str(error)
        return ""

    def _save_checkpoint(self, group: GroupId, payload: bytes, changes: FileChanges | None = None) -> str:
        """Save one checkpoint at a time: an install and a save of one group would share a temporary file."""
        with self._saving:
            return save_checkpoint(self._disk, group, payload, changes)

    def _close_files(self, job: CloseFiles) -> FilesClosed:
        """Publish the files only when all units are closed; a crash before leaves temporary files."""
        made: list[TemporaryFile | None] = []
        with self._cleared_up(CLOSE):
            for units in _calls(job.units):
                made += self._engine.close_units(units)
            self.files.publish(job.group, [(m.path, m.meta) for m in made if m is not None])
        return FilesClosed(tuple(None if m is None else m.meta for m in made))

    def _compact(self, job: CompactFiles) -> FilesClosed:
        """Make the compacted file. The inputs stay, because the manifest still names them."""
        inputs = job.unit.inputs
        paths = tuple(layout.file_path(job.group, meta.slot, meta.name) for meta in inputs)
        with self._cleared_up(COMPACT):
            made = self._engine.compact(CompactRequest(job.unit, paths))
            if job.is_trial:
                if made is not None:
                    self._disk.unlink(made.path)
                return FilesClosed((None,))
            self.files.publish(job.group, [(made.path, made.meta)] if made is not None else [])
        return FilesClosed((made.meta if made is not None else None,))

    @contextlib.contextmanager
    def _cleared_up(self, work: str) -> Iterator[None]:
        """Delete temporary files after a failure: those of many retries would fill the disk.

        Only one call of each kind of work runs at a time, so all files in `tmp/` with its name are its own.
        """
        try:
            yield
        except (NodeAgentError, OSError):
            for name in self._disk.listdir(layout.TMP):
                if name.startswith(f"{work}-"):
                    self._disk.unlink(f"{layout.TMP}/{name}")
            raise

    def _scan(self, job: Scan) -> Scanned:
        paths = tuple((layout.file_path(job.group, meta.slot, meta.name), meta) for meta in job.files)
        if not paths and sum(b.nbytes for b in job.batches) <= INLINE_SCAN_BYTES_MAX:
            return scan_rows(job.spec, job.page, (), job.batches, job.tombstones)
        return self._engine.scan(
            ScanRequest(job.spec, paths, job.batches, job.tombstones, job.page, job.heavy)
        )

    # Jobs that need other nodes.

    def pull(self, job: StageFiles | InstallSnapshot) -> Pull[JobResult]:
        """The job as a generator (`nodeagent.storage.pull`), whose return value is the result."""
        try:
            if isinstance(job, StageFiles):
                return (yield from stage_files(self.staging, job))
            return (yield from self._install(job))
        except NodeAgentError as error:
            return Failed(error.code, error.what, str(error.details.get("file", "")))
        except OSError as error:
            return failed_by_system(error)

    def run_pull(self, job: StageFiles | InstallSnapshot, fetch: Fetch) -> JobResult:
        """`pull` in one blocking call."""
        return drive(self.pull(job), fetch)

    def plan_pull(self, job: StageFiles) -> FilesStaged:
        """Which files of the job are staged already; `failed` lists the files to be fetched."""
        have, missing = [], []
        for wanted in job.files:
            if self.staging.has(job.operation, job.group, wanted.meta):
                have.append(wanted.meta.name)
            else:
                missing.append((wanted.meta.name, "not staged"))
        return FilesStaged(tuple(have), tuple(missing), 0)

    def _install(self, job: InstallSnapshot) -> Pull[Installed]:
        tally = PullStats()
        with self.staging.pulling(install_area(job.snapshot)):
            fetched: Fetched = yield from fetch_snapshot(self.staging, job, tally)
            self.install(job.group, job.snapshot, fetched.payload, fetched.index.files)
        return Installed(fetched.payload, tally.bytes_received)

    def install(self, group: GroupId, snapshot: str, payload: bytes, files: Collection[FileMeta]) -> None:
        """Put a fetched snapshot in place: its files, then its payload as the group's checkpoint. A crash
        leaves either the whole old state or the whole new state.

        Files that the new state does not name stay: the group decides whether the new state takes effect,
        and needs them if its own state is newer. The group or a later `sweep` deletes them. The staged names
        stay too: the caller drops them, and retries if the disk refuses.
        """
        self.staging.adopt(install_area(snapshot), group, [Adoption(meta.name, meta) for meta in files])
        self._save_received(group, snapshot, payload)

    def _save_received(self, group: GroupId, snapshot: str, payload: bytes) -> None:
        if is_image(payload):
            with self._saving:
                self._images.install(ImageBytes(payload, f"snapshot {snapshot}"))
        else:
            self._save_checkpoint(group, payload)

    # Reading and upkeep.

    def checkpoint(self, group: GroupId) -> bytes | None:
        """The newest saved state of the group that verifies: an image or the payload of its checkpoint; None
        if none was saved. Raises `Damaged` if none verifies."""
        try:
            loaded = load_state(self._disk, group)
        except Damaged:
            if image_indexes(self._disk, group):
                self.imageless.add(group)
            raise
        if loaded.faults:
            self.faults[group] = "; ".join(loaded.faults)
        return loaded.content

    def groups(self) -> tuple[GroupId, ...]:
        """Groups with a directory; a group without a checkpoint is new or is leaving."""
        return self.files.groups()

    def read_chunk(self, snapshot: str, name: str, offset: int, length: int) -> bytes:
        """Serve another node's `FetchChunk` (`Snapshots.read_chunk`)."""
        return self.snapshots.read_chunk(snapshot, name, offset, length)

    def expire_snapshots(self, now_ms: int, ttl_ms: int) -> list[str]:
        return self.snapshots.expire(now_ms, ttl_ms)

    def sweep(self, known: Mapping[GroupId, Mapping[int, Collection[str]]]) -> list[str]:
        """Remove files that the manifests (group -> slot -> names) do not name. These groups must not have a
        running job, because a file just closed is not in a manifest yet."""
        return self.files.sweep(known)


def _payload_of(job: MakeSnapshot) -> bytes:
    if job.image is not None:
        return b"".join(encode_image(job.image.header, job.image.sections))
    return with_files(job.payload, job.files) if job.is_state else job.payload


def _calls(units: tuple[CloseUnit, ...]) -> Iterator[tuple[CloseUnit, ...]]:
    """The units in runs that fit one call; a larger unit gets a call of its own."""
    run: list[CloseUnit] = []
    nbytes = 0
    for unit in units:
        size = sum(batch.nbytes for batch in unit.batches)
        if run and (len(run) == UNITS_PER_CALL_MAX or nbytes + size > UNIT_BYTES_PER_CALL_MAX):
            yield tuple(run)
            run, nbytes = [], 0
        run.append(unit)
        nbytes += size
    if run:
        yield tuple(run)


def failed_by_system(error: OSError) -> Failed:
    """Map an errno to an error code: a full disk can be retried later, a missing file is final."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failed(Overloaded.code, f"no space left: {error}")
    if error.errno == errno.ENOENT:
        return Failed(NotFound.code, str(error))
    return Failed(Unavailable.code, str(error))
