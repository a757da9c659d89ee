"""Commands of a data group, as its log carries them."""

import msgspec

from nodeagent.model.files import Tombstone
from nodeagent.model.ids import GroupId, PartitionKey
from nodeagent.model.jobs import Adoption, MemBatch
from nodeagent.model.operation import Ranges, SealResult
from nodeagent.model.schema import TableSchema


class WriteRows(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Rows of one table of one partition, validated by the leader before it proposed them."""

    session: str
    sequence: int
    settled: int
    slot: int
    partition: PartitionKey
    table: str
    schema_version: int
    rows: int
    time_min: int
    time_max: int
    ipc: memoryview
    """Once decoded it lies in the entry: rows in memory, whose entry the log still has, are held once."""


class OpenSession(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """The session's id is made of the group and this entry's index and term, so it is never used twice."""


class ExpireSessions(msgspec.Struct, array_like=True, frozen=True, tag=3):
    sessions: tuple[str, ...]


class UseSchema(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """From here on the group may hold rows of this version of the table."""

    schema: TableSchema


class CloseFile(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """Every row of these partitions that precedes this entry goes into files.

    One file per table; names and column lists follow from this entry's index and the schemas in
    use, so they are the same on every member.
    """

    partitions: tuple[tuple[int, PartitionKey], ...]
    """(slot, partition)"""

    compression: str = "ZSTD"
    memory_threshold: int = 1 << 40
    format_version: int = 1
    writer: str = ""
    """Library and version that make the files: another may make other bytes, so a member that has another
    takes them from one that made them. "" from a leader below level `FILE_WRITER`."""


class DeleteRange(msgspec.Struct, array_like=True, frozen=True, tag=6):
    session: str
    sequence: int
    settled: int
    slot: int
    partition: PartitionKey
    table: str
    tags: tuple[tuple[str, str | None], ...]
    time_from: int
    time_to: int


class Seal(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """From here on the group accepts no write for these slots."""

    operation: str
    table_version: int
    slots: Ranges
    writer: str = ""
    """As in `CloseFile`."""


class Unseal(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """The operation was cancelled; a later `Seal` of it has no effect."""

    operation: str
    table_version: int


class Open(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """The group owns these slots now. `results` are those of every losing group of the slots.

    Without effect unless all their parts precede it in the log (`OpenSessions`).
    """

    operation: str
    table_version: int
    slots: Ranges
    results: tuple[SealResult, ...]


class Adopt(msgspec.Struct, array_like=True, frozen=True, tag=10):
    """Staged files of previous holders enter the manifest, older than everything since `Open`."""

    operation: str
    slots: Ranges
    files: tuple[Adoption, ...]
    tombstones: tuple[Tombstone, ...]


class Release(msgspec.Struct, array_like=True, frozen=True, tag=11):
    """The copies are proved: forget the sealed slots of this operation and their files."""

    operation: str
    table_version: int


class Opaque(msgspec.Struct, array_like=True, frozen=True, tag=12):
    """Bytes that only the log sees."""

    payload: bytes


class Compact(msgspec.Struct, array_like=True, frozen=True, tag=13):
    """Files of one table of one partition, neighbours in age, become one (`data.compaction`).

    It has no effect unless the slot is open and settled here, and all inputs are in the manifest when
    everything logged before this entry is.
    """

    slot: int
    partition: PartitionKey
    table: str
    inputs: tuple[tuple[str, str], ...]
    """(name, XXH3-128), oldest first."""

    compression: str = "ZSTD"
    memory_threshold: int = 1 << 40
    format_version: int = 1
    parked: str = ""
    """Why the output is Arrow; "" for a TsFile."""

    writer: str = ""
    """As in `CloseFile`."""


class Expire(msgspec.Struct, array_like=True, frozen=True, tag=14):
    """Rows of the table logged before this entry with a time before `before` (ms) are gone.

    `passed` is the time that the clocks of a majority of the voters had passed when it was proposed (ms;
    0 from a leader that did not say). A cut-off after it has no effect; nobody looks at a clock again.
    """

    slot: int
    partition: PartitionKey
    table: str
    before: int
    passed: int = 0


class OpenSessions(msgspec.Struct, array_like=True, frozen=True, tag=15):
    """Part `part` of the sessions that `source` sealed for `operation`, for the `Open` that follows."""

    operation: str
    source: GroupId
    part: int
    data: bytes


class Park(msgspec.Struct, array_like=True, frozen=True, tag=16):
    """Rows of a close or a merge that fail to become a TsFile again and again are filed as Arrow instead.

    It has no effect where a compaction logged before it took the file `name` as an input.
    """

    slot: int
    partition: PartitionKey
    schema: TableSchema
    """As of the close or the compaction."""

    close: int
    """Index of that entry."""

    name: str
    """Of the TsFile that is not made."""

    why: str
    """The error on the leader."""

    @property
    def table(self) -> str:
        return self.schema.table


Command = (
    WriteRows
    | OpenSession
    | ExpireSessions
    | UseSchema
    | CloseFile
    | DeleteRange
    | Seal
    | Unseal
    | Open
    | Adopt
    | Release
    | Opaque
    | Compact
    | Expire
    | OpenSessions
    | Park
)

_FIELDS_OF_ROWS = 0x90 + 1 + len(WriteRows.__struct_fields__)
"""The first byte of `WriteRows`, as msgpack: an array of its tag and so many fields."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode(command: Command) -> bytes:
    return _encoder.encode(command)


def batch_of(index: int, w: WriteRows) -> MemBatch:
    """The rows of the entry with that index, where they lie in it."""
    entry = w.ipc.obj
    if isinstance(entry, bytes) and entry[0] == _FIELDS_OF_ROWS:
        return MemBatch((index,), entry, len(entry) - len(w.ipc))  # the last field
    return MemBatch((index,), bytes(w.ipc))  # a release that puts more behind them


def decode(data: bytes) -> Command:
    return _decoder.decode(data)
