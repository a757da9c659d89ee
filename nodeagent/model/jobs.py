"""Slow work a pure room asks for, and what came of it.

`host` emits a job with a number; the shell runs it (disk thread, worker process, network) and feeds
the matching result back as an event. A job may run twice (crash, retry): each is idempotent.
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
    Tombstone,
)
from nodeagent.model.ids import GroupId, NodeId


class MemBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One write entry's rows of one table as an Arrow IPC stream, with its age.

    They lie in what brought them: the log's entry, or a message. A `memoryview` of them would be two objects
    more for each full garbage collection to visit, and a node has a hundred thousand batches in memory.
    """

    order: Order
    data: bytes
    start: int = 0
    end: int | None = None

    @property
    def ipc(self) -> memoryview:
        return memoryview(self.data)[self.start : self.end]

    @property
    def nbytes(self) -> int:
        return (len(self.data) if self.end is None else self.end) - self.start


class CloseUnit(msgspec.Struct, frozen=True):
    """One TsFile to make: the batches in log order, and the range deletes that fell between them."""

    spec: CloseSpec
    batches: tuple[MemBatch, ...]
    tombstones: tuple[Tombstone, ...] = ()


class CloseFiles(msgspec.Struct, frozen=True):
    """Make each unit's file durable under its name in the group."""

    group: GroupId
    units: tuple[CloseUnit, ...]


class CompactUnit(msgspec.Struct, frozen=True):
    """One TsFile to make from files, oldest first, each checked against its meta before it is opened."""

    spec: CloseSpec
    clean: Order
    inputs: tuple[FileMeta, ...]
    tombstones: tuple[Tombstone, ...] = ()


class CompactFiles(msgspec.Struct, frozen=True):
    """Make the unit's file durable under its name in the group; the inputs stay. Answered `FilesClosed`.

    `is_trial`: only to see whether it can be made; nothing is kept.
    """

    group: GroupId
    unit: CompactUnit
    is_trial: bool = False


class FilesClosed(msgspec.Struct, frozen=True):
    """In the order of the units; None where no row was left after deletes."""

    files: tuple[FileMeta | None, ...]


class FileChanges(msgspec.Struct, frozen=True):
    """The files of a checkpoint, whose payload names none."""

    base: str
    """The whole checkpoint that `files` and `gone` go on from, as `CheckpointSaved` named it; "" when `files`
    are all."""

    files: tuple[FileMeta, ...]
    gone: tuple[str, ...] = ()


class SaveCheckpoint(msgspec.Struct, frozen=True):
    """Replace the group's checkpoint atomically. Without `changes` the payload is all of it."""

    group: GroupId
    payload: bytes
    changes: FileChanges | None = None


class Scan(msgspec.Struct, frozen=True):
    """One page: merge files and memory batches, apply deletes, keep the newest value per cell."""

    group: GroupId
    spec: ScanSpec
    files: tuple[FileMeta, ...]
    batches: tuple[MemBatch, ...]
    tombstones: tuple[Tombstone, ...]
    page: PageSpec = PageSpec()
    heavy: bool = False
    """It may take long: others do not wait for it."""


class Scanned(msgspec.Struct, frozen=True):
    """An Arrow IPC stream sorted by (tags, time); the next page begins at `after`, None behind the last.
    `over`: a page of several partitions that is too large as a whole; it has no rows."""

    ipc: bytes
    rows: int
    after: RowKey | None = None
    over: bool = False


class MakeSnapshot(msgspec.Struct, frozen=True):
    """Hard-link the files all-or-nothing under an opaque id; `payload` is kept beside them."""

    snapshot: str
    group: GroupId
    files: tuple[FileMeta, ...]
    payload: bytes = b""
    is_state: bool = False
    """The payload is that of a checkpoint without files: these go into it."""


class DropSnapshot(msgspec.Struct, frozen=True):
    snapshot: str


class InstallSnapshot(msgspec.Struct, frozen=True):
    """Pull checkpoint and files of `snapshot` from `source`, verify, and put them in place."""

    group: GroupId
    source: NodeId
    snapshot: str


class Installed(msgspec.Struct, frozen=True):
    payload: bytes
    bytes_received: int


class StagedFile(msgspec.Struct, frozen=True):
    """A file wanted in staging; sources are tried in turn."""

    meta: FileMeta
    sources: tuple[FileRef, ...]
    local: GroupId | None = None
    """This node holds it as a member of that group under `meta.name`: link it, after a hash check."""


class StageFiles(msgspec.Struct, frozen=True):
    """Fetch previous-holder files into the staging area of `group` under `operation`."""

    operation: str
    group: GroupId
    files: tuple[StagedFile, ...]


REPAIR, INSTALL = "repair-", "install-"
"""How staging areas of repairs and of snapshots begin; no operation is called so."""


def install_area(snapshot: str) -> str:
    """Where the files of a snapshot arrive."""
    return f"{INSTALL}{snapshot}"


def repair_area(group: GroupId) -> str:
    """Where a repair of the group stages its file; there is one at a time."""
    return f"{REPAIR}{group}"


class FilesStaged(msgspec.Struct, frozen=True):
    """Names that are durable and verified, and those that are not with the reason."""

    names: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    bytes_received: int
    refetched: int = 0
    suspects: tuple[tuple[NodeId, str], ...] = ()
    """Copies that came whole and are other than the manifest says: who holds it ("": this node), its name."""


class Adoption(msgspec.Struct, array_like=True, frozen=True):
    """A staged file (`staged` is its name there) and its entry in the new manifest."""

    staged: str
    meta: FileMeta


class AdoptFiles(msgspec.Struct, frozen=True):
    """Move staged files under their new names into the group."""

    operation: str
    group: GroupId
    files: tuple[Adoption, ...]


class DeleteFiles(msgspec.Struct, frozen=True):
    group: GroupId
    files: tuple[FileMeta, ...]


class DropStaging(msgspec.Struct, frozen=True):
    operation: str


class RemoveGroup(msgspec.Struct, frozen=True):
    group: GroupId


Removal = DropSnapshot | DropStaging | RemoveGroup
"""Jobs after which a directory is gone. One that fails may have removed a part of it."""


class HashFiles(msgspec.Struct, frozen=True):
    """Re-read every byte."""

    group: GroupId
    files: tuple[FileMeta, ...]


class FilesHashed(msgspec.Struct, frozen=True):
    """Per file what was found: 32 hex digits, "missing", or "unreadable" where the disk gives no bytes."""

    found: tuple[tuple[str, str], ...]


class ReplaceFile(msgspec.Struct, frozen=True):
    """Put the file in the group's `repair_area` in the place of a damaged or missing one of its name."""

    group: GroupId
    meta: FileMeta


class FileReplaced(msgspec.Struct, frozen=True):
    """Where the damaged file is now, "" when there was none or the place holds the right bytes already.
    `left`: why the group's `repair_area` is still there, "" when it is gone."""

    quarantined: str
    left: str = ""


class Done(msgspec.Struct, frozen=True):
    """The job has no other result."""


class CheckpointSaved(msgspec.Struct, frozen=True):
    """`base` names the whole checkpoint that is on disk now."""

    base: str


class Failed(msgspec.Struct, frozen=True):
    """`code` is that of the error (`model.errors`). `file` is the one that was found damaged (of an install:
    one of the source's), `found` what its bytes hash to, where it was that."""

    code: str
    what: str
    file: str = ""
    found: str = ""


Job = (
    CloseFiles
    | CompactFiles
    | SaveCheckpoint
    | Scan
    | MakeSnapshot
    | DropSnapshot
    | InstallSnapshot
    | StageFiles
    | AdoptFiles
    | DeleteFiles
    | DropStaging
    | RemoveGroup
    | HashFiles
    | ReplaceFile
)
JobResult = (
    CheckpointSaved
    | FilesClosed
    | Scanned
    | Installed
    | FilesStaged
    | FilesHashed
    | FileReplaced
    | Done
    | Failed
)
