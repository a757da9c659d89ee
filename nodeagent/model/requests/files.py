"""Requests about the files of a data group: compare, repair, and move them between nodes."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from nodeagent.model import limits
from nodeagent.model.bounds import ChunkBytes, Count, Name, Slots
from nodeagent.model.files import FileMeta, FileRef, PulledSlot
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import CopyRecord
from nodeagent.model.requests.base import ADMINS, MEMBERS, NODES, READERS, Message, Traits


class GetManifest(Message, frozen=True, tag="GetManifest"):
    """List the replica's files of open slots, a page at a time; () as `slots` lists all open slots.

    A page has whole slots from slot `first` on, until it has `limits.MANIFEST_FILES` files. If `first` is
    None, all files are listed at once, as earlier releases request them.
    """

    traits: ClassVar = Traits(READERS)

    group: Name
    slots: Slots = ()
    first: Annotated[int, Meta(ge=0, le=limits.SLOTS_MAX)] | None = None


class DamagedFile(msgspec.Struct, frozen=True):
    """A file of the replica that differs from its manifest, as a read, a compaction or a check noticed.

    `expected` is the hash in the manifest; `found` is the hash of the bytes, `missing` or `unreadable`. If
    the file blocks a compaction, `output` names the file it should make and `inputs` all files it should
    merge: the other members may have only the output.
    """

    file: str
    slot: int
    expected: str
    found: str
    output: str = ""
    inputs: tuple[str, ...] = ()


class ManifestReply(Message, frozen=True, tag="ManifestReply"):
    group: GroupId
    node: NodeId
    applied: int
    materialised: int
    pending: int
    """Number of batches in memory, closed or not, plus adoptions and compactions that are logged but not done
    here."""

    files: tuple[FileMeta, ...]
    damaged: tuple[DamagedFile, ...] = ()
    next: int | None = None
    """The slot at which the next page begins; None if this is the last page. A compaction stays within a
    slot, so that consecutive pages have every row exactly once."""

    at_work: bool = False
    """Whether pending files are being made, or wait for a worker that makes other files, and none fails.
    Earlier releases do not set it."""


class CloseAll(Message, frozen=True, tag="CloseAll"):
    """Let the leader close every open partition of `slots` (() for all); the reply comes once it applied the
    close."""

    traits: ClassVar = Traits(MEMBERS, is_long=True)

    group: Name
    slots: Slots = ()


class CheckFiles(Message, frozen=True, tag="CheckFiles"):
    """Read and hash the replica's files of the open slots among `slots` (() for all open), or only those
    in `names`, if given.

    Given only names, it also hashes files of slots that left the group, as long as the replica retains them.
    With `lists_only`, it hashes nothing and replies which of the files the replica has (`found` is then
    empty). Earlier releases ignore this and hash.
    """

    traits: ClassVar = Traits(READERS, is_queued=True)

    group: Name
    slots: Slots = ()
    names: tuple[str, ...] = ()
    lists_only: bool = False


class FilesChecked(Message, frozen=True, tag="FilesChecked"):
    """The files as the manifest has them, and what their bytes hash to (`jobs.FilesHashed`), or `()` if
    only the files were requested."""

    files: tuple[FileMeta, ...]
    found: tuple[tuple[str, str], ...]


class RepairFile(Message, frozen=True, tag="RepairFile"):
    """Make this replica hold the file `wanted`, which a majority of the group holds.

    `sources` are copies in snapshots that those replicas offer (`ExportFiles`). Name, slot, partition, table
    and order must be those of a file in the replica's manifest, or of the output of a compaction that is not
    done here. The file that was in its place is quarantined, never deleted. A repeat changes nothing.
    """

    traits: ClassVar = Traits(ADMINS)

    group: Name
    wanted: FileMeta
    sources: tuple[FileRef, ...]


class FileRepaired(Message, frozen=True, tag="FileRepaired"):
    """The file is in place, and the manifest that names it is saved.

    `quarantined`: path of the damaged file below the node's data directory; "" if there was none.
    """

    quarantined: str


class ExportFiles(Message, frozen=True, tag="ExportFiles"):
    """Make a hard-link snapshot of the replica's files of these slots, or of those in `names`, to fetch them
    by chunks (`FetchChunk`). The reply is `SourceOpened`."""

    traits: ClassVar = Traits(MEMBERS)

    group: Name
    slots: Slots
    names: tuple[str, ...] = ()


class OpenSource(Message, frozen=True, tag="OpenSource"):
    """Offer the sealed slots of an operation as a snapshot; a member of the gaining group sends it to a
    previous holder."""

    traits: ClassVar = Traits(MEMBERS, is_long=True)

    operation: Name
    group: Name
    slots: Slots


class SourceOpened(Message, frozen=True, tag="SourceOpened"):
    """`node` offers the files of these slots under the id `snapshot`, until it is not read for
    `NodeConfig.snapshot_ttl_ms`."""

    node: NodeId
    snapshot: str
    slots: tuple[PulledSlot, ...]


class GetSealedSessions(Message, frozen=True, tag="GetSealedSessions"):
    """Fetch part `part` (from 0) of the session table that `group` sealed for the operation.

    The leader of the gaining group sends it to any member of the sealed group. A member that has not applied
    the seal replies `not_found`: at once, or with `wait` after `SEAL_WAIT_MS`.
    """

    traits: ClassVar = Traits(NODES)

    operation: str
    group: GroupId
    part: int
    wait: bool = False


class SealedSessions(Message, frozen=True, tag="SealedSessions"):
    data: bytes


PAYLOAD = "payload"
"""The file of a snapshot that holds the state of the group."""


class FetchChunk(Message, frozen=True, tag="FetchChunk"):
    """Read `length` bytes at `offset` of a file of a snapshot. `not_found` if there is no such file; the
    reply is never an empty chunk instead."""

    traits: ClassVar = Traits(MEMBERS, is_bulk=True)

    snapshot: Name
    name: Name
    offset: Count
    length: ChunkBytes


class Chunk(Message, frozen=True, tag="Chunk"):
    """Bytes of a file, whose whole size is `size`."""

    data: bytes
    size: int


class PullUnit(Message, frozen=True, tag="PullUnit"):
    """Let a member of the gaining group `group` pull these slots now; the holder of the operation's lease
    sends it. The reply comes once the slots are copied."""

    traits: ClassVar = Traits(MEMBERS, is_long=True)

    operation: Name
    group: Name
    slots: Slots


class UnitPulled(Message, frozen=True, tag="UnitPulled"):
    """The record of the copy, which is verified and durable."""

    copy: CopyRecord
