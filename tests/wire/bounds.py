"""Every reply and log entry at its largest, within the limits in `docs/internals/bounds.md`.

`python -m tests.wire.bounds` prints the table's rows. A field that can grow must have its limit in `LIMITS`:
the test fails for a type or a field without a limit.
"""

from collections.abc import Iterable
from typing import Any, get_args

import msgspec
from msgspec import inspect as mi

from nodeagent.data.commands import Command as DataCommand
from nodeagent.host.effect_queue import UNREMOVED_MAX
from nodeagent.meta.audit import AUDIT_CHARS, AUDIT_KEPT
from nodeagent.meta.commands import Command as MetaCommand
from nodeagent.meta.operations import OPERATIONS_KEPT
from nodeagent.meta.schema_changes import CHANGES_KEPT
from nodeagent.model import limits
from nodeagent.model.requests import Reply
from nodeagent.model.runs import Run
from nodeagent.scaling.moving import UNIT_SLOTS

NODES, REPLICAS, SLOTS = 200, 3, 10_000
TABLES, COLUMNS, NAME_CHARS = 1_000, 20, 40
FILES = 20_000
"""Of one group."""

GROUP_SLOTS = SLOTS // REPLICAS + 1
"""Of one group in the smallest cluster; no two of them are adjacent, so that each is a range."""

UNITS = SLOTS // UNIT_SLOTS + NODES
"""Of one change that moves every slot, between all groups."""

SPANS, SEAL_PARTS, TAGS, ORDER = 9, 8, 8, 4
TEXT = limits.TEXT_CHARS_MAX

LIMITS: dict[str, int] = {
    "StatusChecked.conflicts": 20,
    "StatusChecked.members": NODES,
    "Config.voters": 5,
    "Config.learners": NODES,
    "NodeStatus.groups": 2 * REPLICAS + 2,
    "GroupStatus.voters": 5,
    "GroupStatus.learners": NODES,
    "GroupStatus.lag": NODES,
    "NodeStatus.heard_ms": NODES,
    "NodeStatus.received_bytes": OPERATIONS_KEPT,
    "NodeStatus.clock_skew_ms": NODES,
    "NodeStatus.unremoved": UNREMOVED_MAX,
    "EventsReply.events": limits.EVENTS_REPLY_MAX,
    "EventsReply.audit": AUDIT_KEPT,
    "AuditReply.lines": AUDIT_KEPT,
    "MetaView.nodes": NODES,
    "MetaView.ring": NODES,
    "MetaView.owners": SLOTS,
    "MetaView.groups": NODES,
    "MetaView.schemas": TABLES,
    "MetaView.dropped": CHANGES_KEPT,
    "MetaView.operations": OPERATIONS_KEPT,
    "MetaView.voters": 5,
    "MetaView.learners": NODES,
    "GroupRecord.members": REPLICAS,
    "GroupRecord.initial_members": REPLICAS,
    "GroupRecord.initial_slots": SLOTS // NODES,
    "TableSchema.columns": COLUMNS,
    "Operation.moves": NODES,
    "Operation.changes": 2 * REPLICAS,
    "Operation.created_members": REPLICAS,
    "Operation.dead": REPLICAS,
    "Operation.fenced": REPLICAS,
    "Operation.sealed": NODES,
    "Operation.unsealed": NODES,
    "Operation.sources_ready": NODES * REPLICAS,
    "Operation.joined": 2 * REPLICAS,
    "Operation.opened": NODES,
    "Operation.formed": NODES,
    "Operation.copies": UNITS * REPLICAS,
    "Operation.adopted": NODES,
    "Operation.released": NODES,
    "Operation.recovered": NODES,
    "Operation.stages": SPANS,
    "StageSpan.reports": 1,
    "SlotMove.slots": SLOTS // NODES,
    "SlotMove.source_members": REPLICAS,
    "SlotMove.target_members": REPLICAS,
    "GroupChange.before": REPLICAS,
    "GroupChange.after": REPLICAS,
    "SealResult.sessions": 0,
    "SealResult.parts": SEAL_PARTS,
    "CopyRecord.slots": UNIT_SLOTS,
    "RunsReply.runs": 2 * limits.RUNS_KEPT,
    "Run.entries": 0,
    "Run.entries[]": 0,
    "RowsScanned.ipc": limits.PAGE_BYTES,
    "RowsScanned.handover": NODES,
    "RowsScanned.tombstones": limits.DELETES_KEPT_MAX * limits.PAGE_PARTITIONS,
    "PendingSlots.slots": SLOTS // NODES,
    "PendingSlots.members": REPLICAS,
    "Tombstone.order": ORDER,
    "Tombstone.tags": TAGS,
    "RowKey.tags": TAGS,
    "PartitionsListed.partitions": limits.LIST_FILES_MAX,
    "PartitionsListed.handover": NODES,
    "ManifestReply.files": FILES,
    "ManifestReply.damaged": limits.DAMAGED_KEPT_MAX,
    "DamagedFile.inputs": limits.COMPACT_INPUTS_MAX,
    "FileMeta.order": ORDER,
    "FileMeta.clean": ORDER,
    "WriteRatesReply.rates": limits.WRITE_RATES_MAX,
    "FilesChecked.files": FILES,
    "FilesChecked.found": FILES,
    "SourceOpened.slots": GROUP_SLOTS,
    "PulledSlot.files": FILES // GROUP_SLOTS + 1,
    "PulledSlot.tombstones": 1,
    "SealedSessions.data": limits.SESSIONS_PART_BYTES,
    "Chunk.data": limits.CHUNK_BYTES,
    "ErrorReply.details": 10,
    "WriteRows.ipc": limits.WRITE_BYTES_MAX,
    "ExpireSessions.sessions": limits.EXPIRED_PER_ENTRY_MAX,
    "CloseFile.partitions": 256,
    "DeleteRange.tags": TAGS,
    "Seal.slots": GROUP_SLOTS,
    "Open.slots": GROUP_SLOTS,
    "Open.results": NODES,
    "Adopt.slots": UNIT_SLOTS,
    "Adopt.files": FILES // GROUP_SLOTS * UNIT_SLOTS,
    "Adopt.tombstones": limits.DELETES_KEPT_MAX * UNIT_SLOTS,
    "Opaque.payload": limits.WRITE_BYTES_MAX,
    "Compact.inputs": limits.COMPACT_INPUTS_MAX,
    "OpenSessions.data": limits.SESSIONS_PART_BYTES,
    "Bootstrap.nodes": NODES,
    "TableWire.nodes": NODES,
    "TableWire.owned": NODES,
    "TableWire.owned[]": SLOTS // NODES,
    "SetZones.zones": NODES,
    "ForceRecover.nodes": NODES,
    "ForceRecover.leaders": NODES,
    "RecoverMeta.nodes": NODES,
    "RecordRun.entry": limits.RUN_BYTES_MAX + limits.RUN_END_BYTES,
    "Begin.moves": NODES,
    "Begin.members": 2 * REPLICAS,
    "Begin.created": REPLICAS,
    "PlannedMove.slots": SLOTS // NODES,
    "PlannedMembers.before": REPLICAS,
    "PlannedMembers.after": REPLICAS,
    "FormedBy.members": REPLICAS,
}
"""Elements of a collection, bytes of a blob."""

CHARS: dict[str, int] = {
    "EventsReply.audit[]": AUDIT_CHARS,
    "AuditReply.lines[]": AUDIT_CHARS,
    "NodeEvent.message": AUDIT_CHARS,
    "StageSpan.reports[]": NODES * NAME_CHARS,
    "Operation.last_error": TEXT,
    "ErrorReply.what": TEXT,
    "ErrorReply.next_step": TEXT,
    "ErrorReply.details": TEXT,
    "ReportError.what": TEXT,
    "Park.why": TEXT,
    **{
        f"{kind}.by": TEXT
        for kind in (
            "SetDraining",
            "SetZones",
            "RaiseLevel",
            "ForceRecover",
            "RecoverMeta",
            "TakeLock",
            "DropLock",
            "RecordRun",
            "Begin",
        )
    },
    **{f"{kind}.by": TEXT for kind in ("Lock", "Run", "Operation", "ControlOperation")},
    **{name: TEXT for name in ("TakeLock.what", "Lock.what", "DropLock.outcome", "ControlOperation.report")},
}
"""Characters of a string; `NAME_CHARS` of any other."""


class Unbounded(Exception):
    """A field that can grow has no limit."""


def largest(kind: Any) -> Any:
    """An instance of a struct with every field at its limit."""
    return _made(mi.type_info(kind), kind.__name__)


def _made(t: mi.Type, at: str) -> Any:
    match t:
        case mi.StructType():
            return _struct(t)
        case mi.VarTupleType() | mi.ListType():
            items = [_made(t.item_type, f"{at}[]")] * _limit(at)
            return tuple(items) if isinstance(t, mi.VarTupleType) else items
        case mi.DictType():
            value = _made(t.value_type, at)
            return {_text(at, f"{i:06d}"): value for i in range(_limit(at))}
        case mi.TupleType():
            return tuple(_made(item, at) for item in t.item_types)
        case mi.UnionType():
            return _made(max(t.types, key=_weight), at)
        case mi.BytesType() | mi.MemoryViewType():
            return bytes(_limit(at))
        case mi.StrType():
            return _text(at)
        case mi.EnumType():
            return max(t.cls, key=lambda member: len(str(member.value)))
        case mi.IntType():
            return SLOTS if _is_slot(at) else 1 << 50  # as long as any value; sums of them still fit
        case mi.FloatType():
            return 1.5
        case mi.BoolType():
            return True
        case _:
            raise Unbounded(f"{at}: {t}")


def _weight(t: mi.Type) -> int:
    """The largest of several types."""
    order = (mi.NoneType, mi.BoolType, mi.IntType, mi.FloatType, mi.StrType)
    return order.index(type(t)) if type(t) in order else len(order)


def _struct(t: mi.StructType) -> Any:
    name = t.cls.__name__
    made = {f.name: _made(f.type, f"{name}.{f.name}") for f in t.fields}
    if name == "MetaView":
        made["schemas"] = made["schemas"][: TABLES - CHANGES_KEPT]  # a table is among one of the two
        open_one = made["operations"][0]
        made["operations"] = (open_one, *[open_one.shortened()] * (OPERATIONS_KEPT - 1))
    if name == "RunsReply":  # the entries of one run alone
        whole = Run("r", "r", "r", 1, True, [bytes(limits.RUN_BYTES_MAX + limits.RUN_END_BYTES)])
        made["runs"] = (whole, *made["runs"][1:])
    return t.cls(**made)


def _is_slot(at: str) -> bool:
    return at.rstrip("[]").rpartition(".")[2] in (
        "slot",
        "slots",
        "initial_slots",
        "owners",
        "owned",
        "rates",
    )


def _limit(at: str) -> int:
    if at not in LIMITS:
        raise Unbounded(f"{at} has no limit in {__name__}.LIMITS")
    return LIMITS[at]


def _text(at: str, unlike: str = "") -> str:
    return unlike + "x" * (CHARS.get(at, NAME_CHARS) - len(unlike))


def kinds() -> dict[str, type]:
    """`reply Name`, `entry Name` of a data group, `meta entry Name` -> the type."""
    groups: list[tuple[str, Iterable[type]]] = [
        ("reply", get_args(Reply)),
        ("entry", get_args(DataCommand)),
        ("meta entry", get_args(MetaCommand)),
    ]
    return {f"{what} {kind.__name__}": kind for what, types in groups for kind in types}


def size(kind: type) -> int:
    return len(msgspec.msgpack.encode(largest(kind)))


def rounded(size_bytes: int) -> str:
    """Rounded up to a power of two, at least 1 KiB."""
    power = max(10, (size_bytes - 1).bit_length())
    return f"{1 << (power - 20)} MiB" if power >= 20 else f"{1 << (power - 10)} KiB"


if __name__ == "__main__":
    for name, kind in kinds().items():
        what, _, title = name.rpartition(" ")
        print(f"| `{title}` | {what} | {rounded(size(kind))} |")
