"""Rows of a data group, written, deleted, and read."""

from typing import ClassVar

import msgspec

from nodeagent.model.bounds import Count, Name, Slot, Slots, Text, Time
from nodeagent.model.files import Cursor, ScanSpec, Tombstone
from nodeagent.model.ids import GroupId, NodeId, PartitionKey
from nodeagent.model.operation import Ranges
from nodeagent.model.requests.base import MEMBERS, READERS, Message, Repeat, Traits


class ProbeGroup(Message, frozen=True, tag="ProbeGroup"):
    """Does the group have a live quorum? `Accepted` after a read index, else `unavailable`."""

    traits: ClassVar = Traits(READERS)

    group: Name


class OpenSession(Message, frozen=True, tag="OpenSession"):
    traits: ClassVar = Traits(MEMBERS)

    group: Name


class SessionOpened(Message, frozen=True, tag="SessionOpened"):
    session: str


class Write(Message, frozen=True, tag="Write"):
    """Rows of one table of one partition, as an Arrow IPC stream.

    `sequence` counts the session's writes to this slot from 1; all sequences <= `settled` are over
    for the client and need not be remembered.
    """

    traits: ClassVar = Traits(MEMBERS, Repeat.NEVER)

    group: Name
    slot: Slot
    partition: PartitionKey
    table: Name
    schema_version: Count
    session: Name
    sequence: Count
    settled: Count
    table_version: Count
    ipc: bytes


class Written(Message, frozen=True, tag="Written"):
    index: int
    duplicate: bool = False


class DeleteRows(Message, frozen=True, tag="DeleteRows"):
    """Range delete in one partition; session, sequence and schema version as in `Write`."""

    traits: ClassVar = Traits(MEMBERS, Repeat.NEVER)

    group: Name
    slot: Slot
    partition: PartitionKey
    table: Name
    session: Name
    sequence: Count
    settled: Count
    tags: tuple[tuple[str, str | None], ...]
    time_from: Time
    time_to: Time
    schema_version: Count = 0


class Propose(Message, frozen=True, tag="Propose"):
    """Bare proposals that only the log sees: what a benchmark of the log itself needs."""

    traits: ClassVar = Traits(MEMBERS, Repeat.NEVER)

    group: Name
    payloads: tuple[bytes, ...]


class Handover(msgspec.Struct, frozen=True):
    """These slots' older rows are still with their previous holders."""

    operation: str
    slots: Ranges
    source: GroupId
    members: tuple[NodeId, ...]


class ScanRows(Message, frozen=True, tag="ScanRows"):
    """One page of the rows of one table in one group, partition by partition, each in the order (tags, time).

    The page begins at `after` and ends at `until`, or where it is full. Readers of earlier versions give
    none, and continue with `cursor`, a place between two partitions. With `limit` only the first so many rows
    of each partition are wanted, and of each page. `operation` reads sealed slots of that operation from a
    previous holder (`slots` is required).
    """

    traits: ClassVar = Traits(READERS, is_queued=True, is_bulk=True)

    group: Name
    storage_group: Name
    spec: ScanSpec
    read: Name = "strong"
    cursor: Time = 0
    slots: Slots = ()
    operation: Name = ""
    after: Cursor | None = None
    until: Cursor | None = None
    limit: Count = 0


class RowsScanned(Message, frozen=True, tag="RowsScanned"):
    """`tombstones` and `handover` concern slots whose older rows are elsewhere. The next page begins at
    `next`, None behind the last; `cursor` is the same place where it is between two partitions, else 0.
    """

    ipc: bytes
    rows: int
    cursor: int
    table_version: int
    handover: tuple[Handover, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    age_ms: int = -1
    """Of a mid or weak read: everything acknowledged so long before it began is in the answer. -1 when no
    leader confirmed it yet, and with a strong read, which has no age."""
    next: Cursor | None = None


class ListPartitions(Message, frozen=True, tag="ListPartitions"):
    """What a group holds; rows are exact where `exact`, else an upper bound.

    With `paged` one page of it, behind `after`, a (partition, table) that the page before ended with. Readers
    of earlier versions ask for all of it. A list does not say what it leaves out: it is refused unless all of
    `slots` are open. Readers of earlier versions name none.
    """

    traits: ClassVar = Traits(READERS, is_queued=True)

    group: Name
    storage_group: Name = ""
    table: Name = ""
    read: Name = "strong"
    paged: bool = False
    after: tuple[PartitionKey, Text] | None = None
    slots: Slots = ()


class PartitionInfo(msgspec.Struct, frozen=True):
    partition: PartitionKey
    slot: int
    table: str
    rows: int
    exact: bool
    time_min: int
    time_max: int
    bytes: int


class PartitionsListed(Message, frozen=True, tag="PartitionsListed"):
    partitions: tuple[PartitionInfo, ...]
    handover: tuple[Handover, ...] = ()
    table_version: int = 0
    age_ms: int = -1
    """As in `RowsScanned`."""
    next: tuple[PartitionKey, str] | None = None
    """Where the next page begins, None behind the last."""


class GetWriteRates(Message, frozen=True, tag="GetWriteRates"):
    """How fast the group's slots are written, as this member counted it; the leader's count is the best."""

    traits: ClassVar = Traits(READERS)

    group: Name


class WriteRatesReply(Message, frozen=True, tag="WriteRatesReply"):
    """(slot, bytes per second). Slots that left the group are named too, until their count has faded: the
    rate of a slot is the sum over all groups."""

    rates: tuple[tuple[int, float], ...]
