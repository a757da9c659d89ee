"""Files of a data group, compared, repaired, and moved between nodes."""

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
    """The replica's files at its materialised index: whole slots from `first` on, as many as make
    `limits.MANIFEST_FILES` files. None: all at once, as earlier versions ask."""

    traits: ClassVar = Traits(READERS)

    group: Name
    slots: Slots = ()
    first: Annotated[int, Meta(ge=0, le=limits.SLOTS_MAX)] | None = None


class DamagedFile(msgspec.Struct, frozen=True):
    """A file of this replica that a read, a compaction or a check found to be other than its manifest says.

    `found` is what its bytes hash to, `missing` or `unreadable`. A compaction that cannot be done for it is
    named by the file it was to make, `output`, and all that it was to merge, `inputs`: the other members may
    have only the output.
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
    """What is logged and not in files yet: closes, adoptions and compactions, plus unclosed batches."""

    files: tuple[FileMeta, ...]
    damaged: tuple[DamagedFile, ...] = ()
    next: int | None = None
    """The slot at which the next page begins, None behind the last. A merge stays within a slot, so pages
    that were read one after the other have every row once."""

    at_work: bool = False
    """Whether files of what is pending are being made, or wait for a worker that makes others, and none
    fails. Earlier versions do not tell."""


class CloseAll(Message, frozen=True, tag="CloseAll"):
    """The leader closes every open partition (of the given slots); answered when it applied that."""

    traits: ClassVar = Traits(MEMBERS, is_long=True)

    group: Name
    slots: Slots = ()


class CheckFiles(Message, frozen=True, tag="CheckFiles"):
    """Re-read and hash the replica's files of these slots; of them only `names`, when given. With names alone
    those of slots that left the group are hashed too, as long as it keeps them."""

    traits: ClassVar = Traits(READERS, is_queued=True)

    group: Name
    slots: Slots = ()
    names: tuple[str, ...] = ()


class FilesChecked(Message, frozen=True, tag="FilesChecked"):
    files: tuple[FileMeta, ...]
    found: tuple[tuple[str, str], ...]


class RepairFile(Message, frozen=True, tag="RepairFile"):
    """Admins only: make this replica hold `wanted`, which a majority of the group holds; `sources` are copies
    in snapshots those replicas offer (`ExportFiles`).

    Name, slot, partition, table and order must be those of a file in the replica's manifest. What lay there
    goes to quarantine, never away. Repeating it changes nothing.
    """

    traits: ClassVar = Traits(ADMINS)

    group: Name
    wanted: FileMeta
    sources: tuple[FileRef, ...]


class FileRepaired(Message, frozen=True, tag="FileRepaired"):
    """`quarantined`: where the damaged file is kept, below the node's data directory; "" when there was none.

    The file is in place and the manifest that names it saved.
    """

    quarantined: str


class ExportFiles(Message, frozen=True, tag="ExportFiles"):
    """Make a hard-link snapshot of the replica's files of these slots, or of those called `names`, to be
    fetched by chunks."""

    traits: ClassVar = Traits(MEMBERS)

    group: Name
    slots: Slots
    names: tuple[str, ...] = ()


class OpenSource(Message, frozen=True, tag="OpenSource"):
    """A new member asks a previous holder for sealed slots of an operation."""

    traits: ClassVar = Traits(MEMBERS, is_long=True)

    operation: Name
    group: Name
    slots: Slots


class SourceOpened(Message, frozen=True, tag="SourceOpened"):
    node: NodeId
    snapshot: str
    slots: tuple[PulledSlot, ...]


class GetSealedSessions(Message, frozen=True, tag="GetSealedSessions"):
    """A gaining group's leader asks any member of a sealed group for a part of the sessions that go with the
    slots; `not_found` from one that has not applied the seal, with `wait` only after `SEAL_WAIT_MS`."""

    traits: ClassVar = Traits(NODES)

    operation: str
    group: GroupId
    part: int
    wait: bool = False


class SealedSessions(Message, frozen=True, tag="SealedSessions"):
    data: bytes


class FetchChunk(Message, frozen=True, tag="FetchChunk"):
    """Bytes of a file of a snapshot. A missing file is `not_found`, never an empty chunk."""

    traits: ClassVar = Traits(MEMBERS, is_bulk=True)

    snapshot: Name
    name: Name
    offset: Count
    length: ChunkBytes


class Chunk(Message, frozen=True, tag="Chunk"):
    data: bytes
    size: int


class PullUnit(Message, frozen=True, tag="PullUnit"):
    """Whoever holds the operation's lease orders a target node to pull some slots now."""

    traits: ClassVar = Traits(MEMBERS, is_long=True)

    operation: Name
    group: Name
    slots: Slots


class UnitPulled(Message, frozen=True, tag="UnitPulled"):
    copy: CopyRecord
