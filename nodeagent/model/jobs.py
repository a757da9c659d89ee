"""Jobs: slow work that pure code requests, and the results of that work.

`host` emits a numbered job; the shell runs it (disk thread, worker process, network) and feeds the result
back as an event. A job may run twice (crash, retry), so each job is idempotent.
"""

import msgspec

from nodeagent.model.files import (
    CloseSpec,
    FileMeta,
    FileRef,
    Order,
    PageSpec,
    RowKey,
    ScanSpec,
    StagedUnit,
    Tombstone,
)
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.image_format import Header, Section


class MemBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The rows of one write entry as an Arrow IPC stream, with their age.

    The stream is `data[start:end]`, where `data` is the log entry or the message that brought the rows. A
    stored `memoryview` would add two objects per batch to each full garbage collection, and a node has a
    hundred thousand batches in memory.
    """

    order: Order
    data: bytes
    start: int = 0
    end: int | None = None
    """None for the end of `data`."""

    @property
    def ipc(self) -> memoryview:
        return memoryview(self.data)[self.start : self.end]

    @property
    def nbytes(self) -> int:
        return (len(self.data) if self.end is None else self.end) - self.start


class CloseUnit(msgspec.Struct, frozen=True):
    """One TsFile to make from rows: the batches in log order, and the range deletes logged between them."""

    spec: CloseSpec
    batches: tuple[MemBatch, ...]
    tombstones: tuple[Tombstone, ...] = ()


class CloseFiles(msgspec.Struct, frozen=True):
    """Make the file of each unit durable under its name in the group. The result is `FilesClosed`."""

    group: GroupId
    units: tuple[CloseUnit, ...]


class CompactUnit(msgspec.Struct, frozen=True):
    """One TsFile to make from `inputs`, oldest first; each input is checked against its hash before use.

    `tombstones`: the deletes to apply; `clean`: the `FileMeta.clean` of the output.
    """

    spec: CloseSpec
    clean: Order
    inputs: tuple[FileMeta, ...]
    tombstones: tuple[Tombstone, ...] = ()


class CompactFiles(msgspec.Struct, frozen=True):
    """Make the unit's file durable under its name in the group; the inputs stay. The result is `FilesClosed`.

    `is_trial`: only test whether the file can be made; discard it.
    """

    group: GroupId
    unit: CompactUnit
    is_trial: bool = False


class FilesClosed(msgspec.Struct, frozen=True):
    """The files in the order of the units; None for a unit without a row left after deletes."""

    files: tuple[FileMeta | None, ...]


class FileChanges(msgspec.Struct, frozen=True):
    """The files of a checkpoint whose payload names none."""

    base: str
    """Name (`CheckpointSaved.base`) of the whole checkpoint that this one differs from; "" if `files` are all
    files."""

    files: tuple[FileMeta, ...]
    """Files that `base` does not have."""

    gone: tuple[str, ...] = ()
    """Names of files that only `base` has."""


class SaveCheckpoint(msgspec.Struct, frozen=True):
    """Replace the group's checkpoint atomically; without `changes` the payload is the whole checkpoint. The
    result is `CheckpointSaved`."""

    group: GroupId
    payload: bytes
    changes: FileChanges | None = None


class SaveImage(msgspec.Struct, frozen=True):
    """Make an image of the group's state durable and validate it. The result is `ImageSaved`."""

    header: Header
    sections: tuple[Section, ...]


class Scan(msgspec.Struct, frozen=True):
    """Read one page: merge files and batches, apply deletes, take the newest value of each cell. The result
    is `Scanned`."""

    group: GroupId
    spec: ScanSpec
    files: tuple[FileMeta, ...]
    batches: tuple[MemBatch, ...]
    tombstones: tuple[Tombstone, ...]
    page: PageSpec = PageSpec()
    heavy: bool = False
    """The scan may take long: other scans do not wait for it."""


class Scanned(msgspec.Struct, frozen=True):
    """One page of rows, as an Arrow IPC stream sorted by (tags, time).

    The next page begins at `after`; None if there is none, or if the page has `PageSpec.rows_max` rows.
    `over`: the page spans several partitions and is too large as a whole; it has no rows.
    """

    ipc: bytes
    rows: int
    after: RowKey | None = None
    over: bool = False


class MakeSnapshot(msgspec.Struct, frozen=True):
    """Hard-link the files, all or none, under an opaque id; `payload` is stored beside them."""

    snapshot: str
    group: GroupId
    files: tuple[FileMeta, ...]
    payload: bytes = b""
    is_state: bool = False
    """The payload is a checkpoint without files; add `files` to it."""

    image: SaveImage | None = None
    """Store this image as the payload."""


class DropSnapshot(msgspec.Struct, frozen=True):
    """Remove the snapshot with its links."""

    snapshot: str


class InstallSnapshot(msgspec.Struct, frozen=True):
    """Pull the checkpoint and the files of `snapshot` from `source`, verify them, and put them in place. The
    result is `Installed`."""

    group: GroupId
    source: NodeId
    snapshot: str


class Installed(msgspec.Struct, frozen=True):
    payload: bytes
    bytes_received: int


class StagedFile(msgspec.Struct, frozen=True):
    """A file to stage; its sources are tried in turn."""

    meta: FileMeta
    sources: tuple[FileRef, ...]
    local: GroupId | None = None
    """A group of which this node is a member and holds the file under `meta.name`: check its hash and link it
    instead of pulling it."""


class StageFiles(msgspec.Struct, frozen=True):
    """Fetch files from their sources into the staging area of `group` under `operation`, which may be a
    `repair_area`. The result is `FilesStaged`.

    `unit` is the description to store once all files are staged, None for none.
    """

    operation: str
    group: GroupId
    files: tuple[StagedFile, ...]
    unit: StagedUnit | None = None


class ReadStaged(msgspec.Struct, frozen=True):
    """Read the stored descriptions of what is staged; the result is `StagedRead`."""

    operation: str
    group: GroupId


class StagedRead(msgspec.Struct, frozen=True):
    """Descriptions that verify; what they describe is staged."""

    units: tuple[StagedUnit, ...]


REPAIR, INSTALL = "repair-", "install-"
"""Prefixes of the staging areas of repairs and of snapshots; no operation id begins with them."""


def install_area(snapshot: str) -> str:
    """The staging area for the files of a snapshot."""
    return f"{INSTALL}{snapshot}"


def repair_area(group: GroupId) -> str:
    """The staging area for the file of a repair of the group; one repair runs at a time."""
    return f"{REPAIR}{group}"


class FilesStaged(msgspec.Struct, frozen=True):
    """The files that are durable and verified (`names`), and those that are not (`failed`)."""

    names: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    """(name, reason)"""

    bytes_received: int
    refetched: int = 0
    """Files that arrived damaged and were fetched from another source."""

    suspects: tuple[tuple[NodeId, str], ...] = ()
    """(holder, file name) of copies that arrived whole but differ from the manifest; holder "" is this
    node."""


class Adoption(msgspec.Struct, array_like=True, frozen=True):
    """A staged file (`staged` is its name there) and its entry in the new manifest."""

    staged: str
    meta: FileMeta


class AdoptFiles(msgspec.Struct, frozen=True):
    """Move staged files into the group under their new names."""

    operation: str
    group: GroupId
    files: tuple[Adoption, ...]


class DeleteFiles(msgspec.Struct, frozen=True):
    """Unlink these files of the group."""

    group: GroupId
    files: tuple[FileMeta, ...]


class DropStaging(msgspec.Struct, frozen=True):
    """Remove the staging area of the operation (or repair, or snapshot)."""

    operation: str


class RemoveGroup(msgspec.Struct, frozen=True):
    """Remove the directory of the group."""

    group: GroupId


Removal = DropSnapshot | DropStaging | RemoveGroup
"""Jobs that remove a directory. A job that fails may have removed a part of it."""


class HashFiles(msgspec.Struct, frozen=True):
    """Read every byte of these files and hash it. The result is `FilesHashed`."""

    group: GroupId
    files: tuple[FileMeta, ...]


class FilesHashed(msgspec.Struct, frozen=True):
    """(file name, hash) of each file; the hash is 32 hex digits, "missing", or "unreadable" if the disk
    returns no bytes."""

    found: tuple[tuple[str, str], ...]


class ReplaceFile(msgspec.Struct, frozen=True):
    """Replace a damaged or missing file by the file of its name in the group's `repair_area`. The result is
    `FileReplaced`."""

    group: GroupId
    meta: FileMeta


class FileReplaced(msgspec.Struct, frozen=True):
    """Where the damaged file was moved; "" if there was none or the right bytes were already in place.

    `left`: why the group's `repair_area` could not be removed; "" if it was removed.
    """

    quarantined: str
    left: str = ""


class Done(msgspec.Struct, frozen=True):
    """The job has no other result."""


class CheckpointSaved(msgspec.Struct, frozen=True):
    """`base` names the whole checkpoint that is on disk."""

    base: str


class ImageSaved(msgspec.Struct, frozen=True):
    """`fallback` is the log index of the older image that a start uses if the new one is damaged; 0 if there
    is none. The log is needed from there on."""

    fallback: int
    nbytes: int = 0
    """Of the new image."""


class Failed(msgspec.Struct, frozen=True):
    """The job failed with the error `code` (`model.errors`).

    `file` is the file that was damaged, if that was the reason (for an install: a file of the source), and
    `found` the hash of its bytes, "missing" or "unreadable"; "" if that is not known.
    """

    code: str
    what: str
    file: str = ""
    found: str = ""


Job = (
    CloseFiles
    | CompactFiles
    | SaveCheckpoint
    | SaveImage
    | Scan
    | MakeSnapshot
    | DropSnapshot
    | InstallSnapshot
    | StageFiles
    | ReadStaged
    | AdoptFiles
    | DeleteFiles
    | DropStaging
    | RemoveGroup
    | HashFiles
    | ReplaceFile
)
JobResult = (
    CheckpointSaved
    | ImageSaved
    | FilesClosed
    | Scanned
    | Installed
    | FilesStaged
    | StagedRead
    | FilesHashed
    | FileReplaced
    | Done
    | Failed
)
