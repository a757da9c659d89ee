"""One TsFile as a manifest describes it, and the parameters of file jobs and scans."""

from typing import Annotated

import msgspec
from msgspec import Meta

from nodeagent.model.bounds import INT64_MAX, INT64_MIN, Time
from nodeagent.model.ids import GroupId, NodeId, PartitionKey
from nodeagent.model.limits import PAGE_BYTES
from nodeagent.model.operation import Ranges
from nodeagent.model.schema import TableSchema

Order = tuple[int, ...]
"""Age of rows, compared as a tuple; larger is newer. For a file it is (log index of its `CloseFile`,), for an
adopted file (log index of the `Open`, *its order in the old group), for a batch in memory (log index of its
entry,)."""


TSFILE, PARKED = ".tsfile", ".arrow"
"""Endings of file names. Rows that cannot become a TsFile are parked as Arrow."""


class FileMeta(msgspec.Struct, frozen=True, gc=False):
    """One file in a manifest: rows of one table of one partition."""

    name: str
    slot: int
    partition: PartitionKey
    table: str
    order: Order
    size: int
    """Bytes."""

    xxh3: str
    """XXH3-128 of the bytes, 32 hex digits."""

    rows: int
    time_min: int
    time_max: int
    """First and last time of the rows (ms, inclusive)."""

    logical: tuple[int, int, int]
    """(non-null values, sum 1, sum 2) of the value hashes, sums mod 2^64 (`table.checksum`)."""

    clean: Order = ()
    """Of a compacted file: no delete up to this order masks a row of the file."""

    parked: str = ""
    """Why the rows are not a TsFile, in the words of the leader that parked them; "" for a TsFile."""

    @property
    def place(self) -> tuple[int, PartitionKey, str, Order]:
        """What the log determines about the file of this name, whatever its bytes are."""
        return self.slot, self.partition, self.table, self.order


def parked_name(name: str) -> str:
    """Name of the Arrow file that holds the rows of the TsFile `name` once they are parked."""
    return name.removesuffix(TSFILE) + PARKED


def tsfile_name(name: str) -> str:
    """Name of the TsFile whose rows are parked as `name`."""
    return name.removesuffix(PARKED) + TSFILE


def logged_at(name: str) -> int:
    """Log index in a file's name: of the entry that made it or, for an adopted file, of its group's `Open`;
    -1 if the name has none."""
    _, _, rest = name.partition("-")
    index = rest.partition("-")[0]
    return int(index) if index.isascii() and index.isdigit() else -1


class Tombstone(msgspec.Struct, frozen=True, gc=False):
    """A range delete: it masks rows of `table` with an older order and a time in [time_from, time_to] (ms)
    that have all of `tags`."""

    order: Order
    partition: PartitionKey
    table: str
    tags: tuple[tuple[str, str | None], ...]
    time_from: int
    time_to: int
    expiry: bool = False
    """A TTL cut-off, not a client's delete: a file wholly before it is removed at once."""

    def masks(self, file: FileMeta) -> bool:
        """Whether the file may have rows that this delete masks."""
        return (
            file.order < self.order
            and file.clean < self.order
            and file.partition == self.partition
            and file.table == self.table
            and file.time_min <= self.time_to
            and self.time_from <= file.time_max
        )


class CloseSpec(msgspec.Struct, frozen=True):
    """Everything that the bytes of one TsFile depend on, besides the rows (law 6)."""

    name: str
    slot: int
    partition: PartitionKey
    order: Order
    schema: TableSchema
    compression: str = "ZSTD"
    memory_threshold: int = 1 << 40
    """Bytes that the TsFile library may buffer before it flushes a chunk group."""

    format_version: int = 1
    writer: str = ""
    """The TsFile library that must make it; "" for any library, and for Arrow."""

    parked: str = ""
    """See `FileMeta.parked`; the name ends with `PARKED` if it is set."""


class ScanSpec(msgspec.Struct, frozen=True):
    """The rows of one table to read: those with a time in [time_from, time_to] (ms) that have all of `tags`.

    `fields` None reads all fields. `aggregate` requests the aggregates of each page instead of its rows
    (`table.aggregate`); a node may return the rows nevertheless.
    """

    schema: TableSchema
    fields: tuple[str, ...] | None = None
    time_from: Time = INT64_MIN
    time_to: Time = INT64_MAX
    tags: tuple[tuple[str, str | None], ...] = ()
    aggregate: bool = False


Tags = tuple[str | None, ...]
"""One value per tag of the table, in schema order; together they identify a device."""


class RowKey(msgspec.Struct, array_like=True, frozen=True):
    """A place in the rows of one table and one partition, sorted by (tags, time): right after the row with
    this key, whether or not there is such a row."""

    tags: Tags
    time: Time


class Cursor(msgspec.Struct, array_like=True, frozen=True):
    """A place in the rows of one table that a group holds, partition by partition.

    Partitions before `position` (`PartitionKey.position`) are read. In the partition at `position`, rows up
    to `key` are read; None: no row. The place is the same on every replica, whichever files are added,
    removed or merged.
    """

    position: Annotated[int, Meta(ge=0, le=INT64_MAX)] = 0
    key: RowKey | None = None


class PageSpec(msgspec.Struct, array_like=True, frozen=True):
    """One page of a scan: the rows past `after` up to and including `until`, as many as fit `bytes_max` (in
    Arrow form) and, unless it is 0, `rows_max`.

    `whole`: the page spans several partitions, which `after` cannot tell apart: return all rows or none.
    """

    after: RowKey | None = None
    until: RowKey | None = None
    bytes_max: int = PAGE_BYTES
    rows_max: int = 0
    whole: bool = False


class FileRef(msgspec.Struct, frozen=True):
    """A file that `node` offers under an opaque snapshot id; `name` is its name inside that snapshot."""

    node: NodeId
    snapshot: str
    name: str
    size: int
    xxh3: str


class PulledSlot(msgspec.Struct, frozen=True):
    """One slot as a copy source describes it, as of its seal."""

    slot: int
    files: tuple[FileMeta, ...]
    tombstones: tuple[Tombstone, ...]


class StagedUnit(msgspec.Struct, frozen=True):
    """What a source said of the slots that were staged together; stored beside the staged files."""

    slots: Ranges
    pulled: tuple[PulledSlot, ...]


class Place(msgspec.Struct, frozen=True):
    """Where a file is stored on this node."""

    group: GroupId
    slot: int
    name: str
