"""The commands of a data group, as its log stores them.

Fields and tags are the stored format: they never change (`tests/compat`). Times are in milliseconds. The
group's leader proposes every command. `operation` is the id of a change (`model.operation`) and
`table_version` the version of the partition table that this change was planned to produce.
"""

import msgspec

from nodeagent.model.files import Tombstone
from nodeagent.model.ids import GroupId, PartitionKey
from nodeagent.model.jobs import Adoption, MemBatch
from nodeagent.model.operation import Ranges, SealResult
from nodeagent.model.schema import TableSchema


class WriteRows(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Rows of one table and one partition, which the leader validated before it proposed them."""

    session: str
    sequence: int
    """Number of the write among those of the session to this slot, from 1."""

    acknowledged_through: int = msgspec.field(name="settled")
    """The client never retries this sequence or an earlier one."""

    slot: int
    partition: PartitionKey
    table: str
    schema_version: int
    rows: int
    """The number of rows."""

    time_min: int
    time_max: int
    ipc: memoryview
    """The rows as an Arrow IPC stream. Once decoded, it is a view of the entry's bytes: rows in
    memory take no extra space while their entry is still in the log."""


class OpenSession(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Open a session. Its id consists of the group and this entry's index and term, so it is never reused."""


class ExpireSessions(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """Forget sessions that were not used for `NodeConfig.session_ttl_ms`."""

    sessions: tuple[str, ...]


class UseSchema(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """From this entry on the group may hold rows of this version of the table."""

    schema: TableSchema


class CloseFile(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """Store every row of these partitions that precedes this entry in files.

    There is one file per partition and table; names and column lists follow from this entry's index and the
    schemas in use, so they are the same on every member.
    """

    partitions: tuple[tuple[int, PartitionKey], ...]
    """(slot, partition)"""

    compression: str = "ZSTD"
    memory_threshold: int = 1 << 40
    """Bytes that the TsFile library may buffer before it flushes a chunk group."""

    format_version: int = 1
    writer: str = ""
    """TsFile library, with its version, that makes the files. Another library may write other bytes, so a
    member that has another library copies the files from a member that made them. "" from a leader below the
    level of `Feature.FILE_WRITER`."""


class DeleteRange(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """Delete the rows in [time_from, time_to] whose tags equal `tags`; () matches every row.

    `session`, `sequence` and `acknowledged_through` as in `WriteRows`.
    """

    session: str
    sequence: int
    acknowledged_through: int = msgspec.field(name="settled")
    slot: int
    partition: PartitionKey
    table: str
    tags: tuple[tuple[str, str | None], ...]
    time_from: int
    time_to: int


class Seal(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """From this entry on the group accepts no write for these slots; they move to other groups."""

    operation: str
    table_version: int
    slots: Ranges
    writer: str = ""
    """As in `CloseFile`."""


class Unseal(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """The operation was cancelled: reopen the slots it sealed. Its `Seal` has no effect after this entry."""

    operation: str
    table_version: int


class Open(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """From this entry on the group owns these slots. `results` has the seal of every group that loses them.

    It has no effect unless all session parts that `results` names precede it in the log (`OpenSessions`).
    """

    operation: str
    table_version: int
    slots: Ranges
    results: tuple[SealResult, ...]


class Adopt(msgspec.Struct, array_like=True, frozen=True, tag=10):
    """Put staged files of the previous group into the manifest, as older than everything since `Open`."""

    operation: str
    slots: Ranges
    files: tuple[Adoption, ...]
    tombstones: tuple[Tombstone, ...]


class Release(msgspec.Struct, array_like=True, frozen=True, tag=11):
    """The copies are verified: forget the slots that this operation sealed, and their files."""

    operation: str
    table_version: int


class Opaque(msgspec.Struct, array_like=True, frozen=True, tag=12):
    """Bytes that the state ignores (`requests.Propose`)."""

    payload: bytes


class Compact(msgspec.Struct, array_like=True, frozen=True, tag=13):
    """Merge files of one table and one partition, neighbours in age, into one (`data.compaction`).

    It has no effect unless, at this entry, the slot is open here with all of its older files adopted, and,
    when the turn of the compaction comes, all inputs are neighbours in the manifest.
    """

    slot: int
    partition: PartitionKey
    table: str
    inputs: tuple[tuple[str, str], ...]
    """(file name, XXH3-128 as 32 hex digits), oldest first."""

    compression: str = "ZSTD"
    memory_threshold: int = 1 << 40
    format_version: int = 1
    parked: str = ""
    """Why the output is Arrow; "" for a TsFile."""

    writer: str = ""
    """As in `CloseFile`."""


class Expire(msgspec.Struct, array_like=True, frozen=True, tag=14):
    """Delete the rows of the table in this partition that precede this entry and have a time before `before`:
    their TTL ended. No effect if the slot is not open.

    Applying the entry reads no clock: a `before` that is later than `passed` has no effect.
    """

    slot: int
    partition: PartitionKey
    table: str
    before: int
    passed: int = 0
    """A time that the clocks of a majority of the voters had passed when the leader proposed the entry; 0
    from a leader of a release that does not set it: not checked."""


class OpenSessions(msgspec.Struct, array_like=True, frozen=True, tag=15):
    """Part `part` (from 0) of the session table that `source` sealed for `operation`; the `Open` follows."""

    operation: str
    source: GroupId
    part: int
    data: bytes


class Park(msgspec.Struct, array_like=True, frozen=True, tag=16):
    """Store rows of a close or a compaction as Arrow, after they repeatedly failed to become a TsFile.

    It has no effect if a compaction logged before it merged the file `name`.
    """

    slot: int
    partition: PartitionKey
    schema: TableSchema
    """The schema in use at the close or the compaction."""

    close: int
    """Log index of the close or the compaction."""

    name: str
    """Name of the TsFile that must not be made."""

    why: str
    """The error that the leader got."""

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
"""The first byte of an encoded `WriteRows`: a msgpack array of the tag and all fields."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode(command: Command) -> bytes:
    return _encoder.encode(command)


def batch_of(index: int, w: WriteRows) -> MemBatch:
    """The rows of the entry at `index`, as a part of the entry's bytes."""
    entry = w.ipc.obj
    if isinstance(entry, bytes) and entry[0] == _FIELDS_OF_ROWS:
        return MemBatch((index,), entry, len(entry) - len(w.ipc))  # `ipc` is the last field
    return MemBatch((index,), bytes(w.ipc))  # from a release with more fields after `ipc`


def decode(data: bytes) -> Command:
    return _decoder.decode(data)
