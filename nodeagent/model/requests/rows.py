"""Requests to write, delete and read rows of a data group."""

from typing import ClassVar

import msgspec

from nodeagent.model.bounds import Count, Name, Slot, Slots, Text, Time
from nodeagent.model.files import Cursor, ScanSpec, Tombstone
from nodeagent.model.ids import GroupId, NodeId, PartitionKey
from nodeagent.model.operation import Ranges
from nodeagent.model.requests.base import MEMBERS, READERS, Message, Repeat, Traits

STRONG, BOUNDED, WEAK = "strong", "mid", "weak"
"""Read levels as they are sent; "mid" was the name of bounded reads in 0.1.0."""


class ProbeGroup(Message, frozen=True, tag="ProbeGroup"):
    """Test whether the group has a live quorum: `Accepted` after a read index, else `unavailable`."""

    traits: ClassVar = Traits(READERS)

    group: Name


class OpenSession(Message, frozen=True, tag="OpenSession"):
    """Open a session of the group, for writes to any of its slots. The reply is `SessionOpened`."""

    traits: ClassVar = Traits(MEMBERS)

    group: Name


class SessionOpened(Message, frozen=True, tag="SessionOpened"):
    """The id of the session; it expires if not used for `NodeConfig.session_ttl_ms`."""

    session: str


class Write(Message, frozen=True, tag="Write"):
    """Write rows of one table and one partition, given as an Arrow IPC stream. The reply is `Written`.

    `sequence` counts the session's writes to this slot from 1. `acknowledged_through`: the client
    never retries this sequence or an earlier one, so that the group need not remember them.
    """

    traits: ClassVar = Traits(MEMBERS, Repeat.NEVER)

    group: Name
    slot: Slot
    partition: PartitionKey
    table: Name
    schema_version: Count
    session: Name
    sequence: Count
    acknowledged_through: Count = msgspec.field(name="settled")
    table_version: Count
    ipc: bytes


class Written(Message, frozen=True, tag="Written"):
    """The write is applied at log index `index`; or, with `duplicate`, it was applied before (`index` 0)."""

    index: int
    duplicate: bool = False


class DeleteRows(Message, frozen=True, tag="DeleteRows"):
    """Delete rows of one table and one partition with a time in [time_from, time_to] (ms) that have all of
    `tags`. The other fields are as in `Write`. The reply is `Written`."""

    traits: ClassVar = Traits(MEMBERS, Repeat.NEVER)

    group: Name
    slot: Slot
    partition: PartitionKey
    table: Name
    session: Name
    sequence: Count
    acknowledged_through: Count = msgspec.field(name="settled")
    tags: tuple[tuple[str, str | None], ...]
    time_from: Time
    time_to: Time
    schema_version: Count = 0


class Propose(Message, frozen=True, tag="Propose"):
    """Log payloads that the state ignores, for a benchmark of the log itself."""

    traits: ClassVar = Traits(MEMBERS, Repeat.NEVER)

    group: Name
    payloads: tuple[bytes, ...]


class PendingSlots(msgspec.Struct, frozen=True):
    """Slots whose older rows are still in their previous group `source`, with these `members`."""

    operation: str
    slots: Ranges
    source: GroupId
    members: tuple[NodeId, ...]


class ScanRows(Message, frozen=True, tag="ScanRows"):
    """Read one page of the rows of one table in one group: partition by partition, each sorted by (tags,
    time).

    The page begins after `after` and ends at `until` or when it is full. Readers of earlier releases set
    neither and continue with `cursor`, a place between two partitions. `limit`, unless 0, is the largest
    number of rows to read of each partition and of each page. `read` is the read level: `STRONG`,
    `BOUNDED` or `WEAK`. `operation` reads slots that this operation sealed from a previous holder; it needs
    `slots`.
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
    """One page of rows, as an Arrow IPC stream.

    `handover` lists slots whose older rows are still in their previous group, `tombstones` the deletes to
    apply to those rows. The next page begins at `next`, None if this is the last page; `cursor` is the same
    place if it is between two partitions, else 0.
    """

    ipc: bytes
    rows: int
    cursor: int
    table_version: int
    handover: tuple[PendingSlots, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    age_ms: int = -1
    """Of a bounded or weak read: the page has everything that was acknowledged this long before the read
    began. -1 if no leader has confirmed the replica's state yet, and for a strong read."""
    next: Cursor | None = None
    is_aggregate: bool = False
    """`ipc`, unless it is empty, has the aggregates of the page's `rows` rows, as `ScanSpec.aggregate`
    requested. False if the rows of another group are to be merged with these (`handover`, `operation`), and
    from a node of an earlier release."""


class ListPartitions(Message, frozen=True, tag="ListPartitions"):
    """List the partitions that a group holds.

    With `paged`, list one page, past the (partition, table) `after` that ended the previous page; readers of
    earlier releases request the whole list. The request is refused unless all of `slots` are open, because a
    list does not show what it leaves out; readers of earlier releases name no slots.
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
    """One table of one partition. `rows` is an upper bound unless `exact`; times in ms, inclusive."""

    partition: PartitionKey
    slot: int
    table: str
    rows: int
    exact: bool
    time_min: int
    time_max: int
    bytes: int


class PartitionsListed(Message, frozen=True, tag="PartitionsListed"):
    """The partitions of the group, or one page of them; `handover` as in `RowsScanned`."""

    partitions: tuple[PartitionInfo, ...]
    handover: tuple[PendingSlots, ...] = ()
    table_version: int = 0
    age_ms: int = -1
    """As in `RowsScanned`."""
    next: tuple[PartitionKey, str] | None = None
    """The place after which the next page begins; None if this is the last page."""


class GetWriteRates(Message, frozen=True, tag="GetWriteRates"):
    """Read how fast the group's slots are written, as this member counts; the leader's counts are best."""

    traits: ClassVar = Traits(READERS)

    group: Name


class WriteRatesReply(Message, frozen=True, tag="WriteRatesReply"):
    """(slot, bytes per second). Slots that left the group are listed until their count has decayed: the rate
    of a slot is the sum over all groups."""

    rates: tuple[tuple[int, float], ...]
