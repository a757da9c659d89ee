"""What a manifest says of one TsFile, and what is asked of the storage room."""

from typing import Annotated

import msgspec
from msgspec import Meta

from nodeagent.model.bounds import INT64_MAX, INT64_MIN, Time
from nodeagent.model.ids import GroupId, NodeId, PartitionKey
from nodeagent.model.limits import PAGE_BYTES
from nodeagent.model.schema import TableSchema

Order = tuple[int, ...]
"""Age of rows, compared like a tuple: a file's is the log index of its `CloseFile`; an adopted file's
is (index of the `Open`, *its order in the old group); a memtable batch's is (its entry's index,).
Larger is newer."""


TSFILE, PARKED = ".tsfile", ".arrow"
"""How names of files end. Rows are parked as Arrow where they cannot become a TsFile."""


class FileMeta(msgspec.Struct, frozen=True, gc=False):
    """One file in a manifest: rows of one table of one partition."""

    name: str
    slot: int
    partition: PartitionKey
    table: str
    order: Order
    size: int
    xxh3: str
    """XXH3-128 of the bytes, 32 hex digits."""

    rows: int
    time_min: int
    time_max: int
    logical: tuple[int, int, int]
    """(non-null values, sum 1, sum 2) of the value hashes, sums mod 2^64 (`table.checksum`)."""

    clean: Order = ()
    """Of a compacted file: rows that deletes of an older order mask are not in it any more."""

    parked: str = ""
    """Why the rows are no TsFile, in the words of the leader that found it. "" for a TsFile."""

    @property
    def place(self) -> tuple[int, PartitionKey, str, Order]:
        """What the log says of the file of this name, whatever its bytes are."""
        return self.slot, self.partition, self.table, self.order


def parked_name(name: str) -> str:
    """What the file is called that holds the rows of the TsFile `name` when they are parked."""
    return name.removesuffix(TSFILE) + PARKED


def tsfile_name(name: str) -> str:
    """What the TsFile is called whose rows are parked as `name`."""
    return name.removesuffix(PARKED) + TSFILE


def logged_at(name: str) -> int:
    """Index in a file's name: of the entry that made it, or of the `Open` before it was adopted; -1 if there
    is none."""
    _, _, rest = name.partition("-")
    index = rest.partition("-")[0]
    return int(index) if index.isascii() and index.isdigit() else -1


class Tombstone(msgspec.Struct, frozen=True, gc=False):
    """A range delete: masks rows of `table` with an older order, in [time_from, time_to], whose tags
    equal `tags` where given."""

    order: Order
    partition: PartitionKey
    table: str
    tags: tuple[tuple[str, str | None], ...]
    time_from: int
    time_to: int
    expiry: bool = False
    """By TTL and not by a client: a file wholly behind it goes at once."""

    def masks(self, file: FileMeta) -> bool:
        """Whether rows it deletes may be in the file."""
        return (
            file.order < self.order
            and file.clean < self.order
            and file.partition == self.partition
            and file.table == self.table
            and file.time_min <= self.time_to
            and self.time_from <= file.time_max
        )


class CloseSpec(msgspec.Struct, frozen=True):
    """Everything the bytes of one TsFile depend on, besides the rows (law 6)."""

    name: str
    slot: int
    partition: PartitionKey
    order: Order
    schema: TableSchema
    compression: str = "ZSTD"
    memory_threshold: int = 1 << 40
    format_version: int = 1
    writer: str = ""
    """The library that makes it; "" for any, and for Arrow."""
    parked: str = ""
    """As `FileMeta.parked`; the name ends accordingly."""


class ScanSpec(msgspec.Struct, frozen=True):
    """Which rows of one table of one partition are wanted.

    `fields` None means all; times are inclusive; `tags` are equalities.
    """

    schema: TableSchema
    fields: tuple[str, ...] | None = None
    time_from: Time = INT64_MIN
    time_to: Time = INT64_MAX
    tags: tuple[tuple[str, str | None], ...] = ()


Tags = tuple[str | None, ...]
"""One value per tag of the table, in schema order: they name a device."""


class RowKey(msgspec.Struct, array_like=True, frozen=True):
    """A place in the rows of one table of one partition, sorted by (tags, time): behind the row of that key,
    whether there is one or not."""

    tags: Tags
    time: Time


class Cursor(msgspec.Struct, array_like=True, frozen=True):
    """A place in the rows of one table that a group holds, partition by partition.

    `position` orders the partitions; those before it are read. In the one at it rows up to `key` are read, no
    row where that is None. It means the same on every replica, whatever files come, go or are merged.
    """

    position: Annotated[int, Meta(ge=0, le=INT64_MAX)] = 0
    key: RowKey | None = None


class PageSpec(msgspec.Struct, array_like=True, frozen=True):
    """Which page of a scan is wanted: the rows behind `after` up to `until`, included, as many as fit
    `bytes_max` in Arrow form. With `rows_max` no rows are wanted behind the first so many.

    `whole`: the rows are those of several partitions, which `after` cannot tell apart: all, or none.
    """

    after: RowKey | None = None
    until: RowKey | None = None
    bytes_max: int = PAGE_BYTES
    rows_max: int = 0
    whole: bool = False


class FileRef(msgspec.Struct, frozen=True):
    """A file some node offers under an opaque snapshot id; `name` is inside that snapshot."""

    node: NodeId
    snapshot: str
    name: str
    size: int
    xxh3: str


class PulledSlot(msgspec.Struct, frozen=True):
    """One slot as a source describes it at its seal."""

    slot: int
    files: tuple[FileMeta, ...]
    tombstones: tuple[Tombstone, ...]


class Place(msgspec.Struct, frozen=True):
    """Where a file lives on this node."""

    group: GroupId
    slot: int
    name: str
