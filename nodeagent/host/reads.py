"""Reads of one data group: rows, partitions, manifests, hashes, and files offered to others.

A *strong* read asks Raft for a read index first and waits until this state has applied it. The slots
asked for must all be open here by then; a slot that is sealed, gone or not yet here is an error, never
an empty result. After its seal a group gives rows of a slot only to a reader that names the operation.
"""

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from nodeagent.host.data_replica import DataReplica
from nodeagent.host.writes import Cluster, moved, not_leader
from nodeagent.model import limits, requests
from nodeagent.model.errors import InvalidInput
from nodeagent.model.files import FileMeta, PulledSlot, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import (
    Failed,
    FilesHashed,
    HashFiles,
    JobResult,
    MakeSnapshot,
    MemBatch,
    Scan,
    Scanned,
)
from nodeagent.model.operation import Ranges
from nodeagent.model.requests import (
    ErrorReply,
    FilesChecked,
    Handover,
    ManifestReply,
    PartitionInfo,
    PartitionsListed,
    Reply,
    RowsScanned,
    SourceOpened,
)
from nodeagent.partition.hash import slot_of
from nodeagent.partition.ranges import from_slots, to_slots
from nodeagent.table.scan import check_same_columns, check_scan

PAGE_BYTES = 8 * limits.MIB
PAGE_PARTITIONS = 256


def on_scan(host: Cluster, replica: DataReplica, token: int, s: requests.ScanRows) -> None:
    """What the table does not have is refused here: the TsFile reader would call the file corrupt."""
    known = host.meta.schemas.get((s.storage_group, s.spec.schema.table))
    try:
        check_scan(s.spec)
        if known is not None:
            check_same_columns(s.spec.schema, known)
    except InvalidInput as error:
        return host.desk.refuse(token, error.code, error.what, error.next_step)
    if s.operation:
        return _scan_source(host, replica, token, s)
    return _with_level(host, replica, token, s.read, lambda: _scan_owned(host, replica, token, s))


def _with_level(
    host: Cluster, replica: DataReplica, token: int, level: str, then: Callable[[], None]
) -> None:
    """strong: read index. mid, weak: what this replica has, if it is whole; mid, if that is no older than
    `staleness_max_ms`. Their answers carry its age.
    """
    then = host.desk.guarded(token, "a read", then)
    if level == "strong":
        replica.read(then, lambda why: host.desk.refuse(token, "unavailable", why))
    elif not replica.state.recovered:
        host.desk.refuse(token, "unavailable", f"group {replica.group} is still recovering on this node")
    elif level == "mid":
        bound_ms = replica.config.staleness_max_ms
        refuse = partial(_refuse_stale, host, replica, token)
        replica.freshness.within(bound_ms, lambda: _with_age(host, replica, token, then), refuse)
    elif level == "weak":
        _with_age(host, replica, token, then)
    else:
        host.desk.refuse(token, "invalid_input", f"read level {level!r}", "use strong, mid or weak")


def _refuse_stale(host: Cluster, replica: DataReplica, token: int, age_ms: int) -> None:
    bound_ms = replica.config.staleness_max_ms
    age = f"confirmed it {age_ms} ms ago" if age_ms >= 0 else "has not confirmed it since it was started"
    what = f"the replica of {replica.group} on {replica.raft.node} may be stale: a leader {age}; "
    what += f"mid allows {bound_ms} ms"
    helps = "ask another member, or read weak: its answers carry their age"
    host.desk.reply(token, ErrorReply("unavailable", what, helps, {"age_ms": age_ms}))


def _with_age(host: Cluster, replica: DataReplica, token: int, then: Callable[[], None]) -> None:
    """Whatever `then` answers carries the age of what this replica holds now."""
    age_ms = replica.freshness.age_ms

    def aged(reply: Reply) -> Reply:
        is_answer = isinstance(reply, RowsScanned | PartitionsListed)
        return msgspec.structs.replace(reply, age_ms=age_ms) if is_answer else reply

    host.desk.amend(token, aged)
    then()


def _scan_owned(host: Cluster, replica: DataReplica, token: int, s: requests.ScanRows) -> None:
    state = replica.state
    wanted = set(to_slots(s.slots))
    absent = wanted - state.slots.open
    if absent:
        return host.desk.reply(token, moved(host, min(absent), waiting=True))
    slots = wanted or state.slots.open
    if not _knows_arrivals(host, replica):
        return host.desk.refuse(token, "unavailable", f"{replica.raft.node} lags behind the meta group")
    handover, tombstones = _elsewhere(host, replica, slots)
    return _scan(
        host,
        replica,
        token,
        s,
        slots,
        lambda ipc, rows, cursor: RowsScanned(
            ipc, rows, cursor, host.meta.table_version, handover, tombstones
        ),
    )


def _scan_source(host: Cluster, replica: DataReplica, token: int, s: requests.ScanRows) -> None:
    wanted = set(to_slots(s.slots))
    if not replica.state.sealed_whole(s.operation, wanted):
        return host.desk.refuse(
            token, "moved", f"group {replica.group} holds no sealed slots of {s.operation} here"
        )
    return _scan(
        host,
        replica,
        token,
        s,
        wanted,
        lambda ipc, rows, cursor: RowsScanned(ipc, rows, cursor, host.meta.table_version),
    )


def _scan(
    host: Cluster,
    replica: DataReplica,
    token: int,
    s: requests.ScanRows,
    slots: set[int],
    answer: Callable[[bytes, int, int], RowsScanned],
) -> None:
    """One page: as many partitions as fit, from the cursor on.

    The cursor is a place in the order of partitions, not a count: partitions come and go between pages.
    """
    keys = sorted(key for key, slot in held_partitions(replica, s.storage_group).items() if slot in slots)
    files: list[FileMeta] = []
    batches: list[MemBatch] = []
    tombstones: tuple[Tombstone, ...] = ()
    size = 0
    start = at = sum(1 for key in keys if _position(key) < s.cursor)
    while at < len(keys) and at - start < PAGE_PARTITIONS and size < PAGE_BYTES:
        mine = tuple(t for t in replica.state.tombstones if t.partition == keys[at])
        if mine and at > start:
            break  # deletes mask by age within a partition: such a page holds it alone
        fs, bs = _parts(replica, keys[at], s)
        files += fs
        batches += bs
        size += sum(f.size for f in fs) * 3 + sum(len(b.ipc) for b in bs)
        tombstones = mine
        at += 1
        if mine:
            break
    cursor = _position(keys[at]) if at < len(keys) else 0

    def done(result: JobResult) -> None:
        if isinstance(result, Scanned):
            host.desk.reply(token, answer(result.ipc, result.rows, cursor))
        else:
            host.desk.reply(token, job_error(result))

    job = Scan(replica.group, s.spec, tuple(files), tuple(batches), tombstones)
    replica.read_files(job, files, host.desk.guarded(token, "a scan", done))


def _position(key: PartitionKey) -> int:
    """Ascending with the partitions of one storage group, positive, within 63 bits."""
    return (((key.time_partition + (1 << 40)) << 20) | key.shard) + 1


def _parts(
    replica: DataReplica, key: PartitionKey, s: requests.ScanRows
) -> tuple[tuple[FileMeta, ...], tuple[MemBatch, ...]]:
    table, first, last = s.spec.schema.table, s.spec.time_from, s.spec.time_to
    state = replica.state
    return (
        state.manifest.overlapping(key, table, first, last),
        state.memtable.batches(key, table, first, last),
    )


def held_partitions(replica: DataReplica, storage_group: str | None = None) -> dict[PartitionKey, int]:
    """Partitions of a storage group, or all, that are in files or memory, with their slots; in no order."""
    state = replica.state
    held = state.manifest.partitions(storage_group)
    held.update((k, s) for k, s in state.slot_of.items() if storage_group in (None, k.storage_group))
    return held


def _knows_arrivals(host: Cluster, replica: DataReplica) -> bool:
    """Whether the meta state here says where older rows of arriving slots are."""
    return all(host.meta.operation(op) is not None for op in replica.state.slots.arriving)


def _elsewhere(
    host: Cluster, replica: DataReplica, slots: set[int]
) -> tuple[tuple[Handover, ...], tuple[Tombstone, ...]]:
    """Slots of `slots` whose older rows are with previous holders, and our deletes for them."""
    out = []
    arriving: set[int] = set()
    for operation, arrival in replica.state.slots.arriving.items():
        op = host.meta.operation(operation)
        here = arrival.slots & slots
        if not here:
            continue
        assert op is not None
        arriving |= here
        for move in op.moves:
            part = here & set(to_slots(move.slots)) if move.target == replica.group else set()
            if part:
                out.append(Handover(operation, from_slots(part), move.source, move.source_members))
    if not arriving:
        return (), ()
    keys = held_partitions(replica) if replica.state.tombstones else {}
    mine = tuple(
        t for t in replica.state.tombstones if keys.get(t.partition, _slot(host, t.partition)) in arriving
    )
    return tuple(out), mine


def _slot(host: Cluster, partition: PartitionKey) -> int:
    settings = host.meta.image.settings
    assert settings is not None
    return slot_of(partition.storage_group, partition.time_partition, partition.shard, settings)


def on_list(host: Cluster, replica: DataReplica, token: int, request: requests.ListPartitions) -> None:
    def answer() -> None:
        if not _knows_arrivals(host, replica):
            return host.desk.refuse(token, "unavailable", f"{replica.raft.node} lags behind the meta group")
        slots = replica.state.slots.open
        infos = [
            info
            for key, slot in sorted(held_partitions(replica, request.storage_group or None).items())
            if slot in slots
            for info in _infos(replica, key, slot, request.table)
        ]
        handover, _ = _elsewhere(host, replica, slots)
        return host.desk.reply(token, PartitionsListed(tuple(infos), handover, host.meta.table_version))

    _with_level(host, replica, token, request.read, answer)


def _infos(replica: DataReplica, key: PartitionKey, slot: int, table: str) -> Iterator[PartitionInfo]:
    state = replica.state
    files = state.manifest.of_partition(key)
    memory = state.memtable.partition(key)
    held = memory.held if memory is not None else []
    deletes = any(t.partition == key for t in state.tombstones)
    for name in sorted({f.table for f in files} | {h.table for h in held}):
        if table in ("", name):
            fs = sorted((f for f in files if f.table == name), key=lambda f: f.time_min)
            hs = [h for h in held if h.table == name]
            apart = all(a.time_max < b.time_min for a, b in zip(fs, fs[1:], strict=False))
            yield PartitionInfo(
                key,
                slot,
                name,
                sum(f.rows for f in fs) + sum(h.rows for h in hs),
                apart and not hs and not deletes and replica.state.slots.arriving_by(slot) is None,
                min([f.time_min for f in fs] + [h.time_min for h in hs]),
                max([f.time_max for f in fs] + [h.time_max for h in hs]),
                sum(f.size for f in fs) + sum(h.nbytes for h in hs),
            )


# --- files -----------------------------------------------------------------------------------------


def files_of(replica: DataReplica, slots: Ranges) -> tuple[FileMeta, ...]:
    """Files of open slots (of `slots`, when given)."""
    wanted = set(to_slots(slots)) if slots else replica.state.slots.open
    wanted = wanted & replica.state.slots.open
    return tuple(f for f in replica.state.manifest.files() if f.slot in wanted)


def on_manifest(host: Cluster, replica: DataReplica, token: int, request: requests.GetManifest) -> None:
    state = replica.state
    pending = sum(len(h.held) for h in state.memtable.partitions().values()) + len(state.adopting)
    pending += len(state.compacting)
    host.desk.reply(
        token,
        ManifestReply(
            replica.group,
            replica.raft.node,
            state.delivered,
            state.materialised,
            pending,
            files_of(replica, request.slots),
        ),
    )


def on_close_all(host: Cluster, replica: DataReplica, token: int, request: requests.CloseAll) -> None:
    if not replica.leads:
        return host.desk.reply(token, not_leader(replica))
    wanted = set(to_slots(request.slots)) if request.slots else replica.state.slots.open
    keys = sorted(k for k, slot in replica.state.slot_of.items() if slot in wanted)
    replica.compared_at = host.desk.now  # who pins a cut compares what was closed up to it
    return replica.close(keys, token)


def on_check(host: Cluster, replica: DataReplica, token: int, request: requests.CheckFiles) -> None:
    files = files_of(replica, request.slots)
    if not request.names:
        replica.compared_at = host.desk.now
    else:
        names = set(request.names)
        files = tuple(f for f in files if f.name in names)

    def done(result: JobResult) -> None:
        if isinstance(result, FilesHashed):
            host.desk.reply(token, FilesChecked(files, result.found))
        else:
            host.desk.reply(token, job_error(result))

    replica.read_files(HashFiles(replica.group, files), files, host.desk.guarded(token, "a check", done))


def on_export(
    host: Cluster, replica: DataReplica, token: int, request: requests.ExportFiles, snapshot: str
) -> None:
    """Offer the replica's files of open slots; the snapshot ends by age."""
    replica.compared_at = host.desk.now
    files = files_of(replica, request.slots)
    _offer(host, replica, token, snapshot, files, _by_slot(replica, files, set(to_slots(request.slots))))


def on_open_source(
    host: Cluster, replica: DataReplica, token: int, request: requests.OpenSource, snapshot: str
) -> None:
    """Offer sealed slots to a new member, once every file of them is made here."""
    state = replica.state
    sealed = state.slots.sealed.get(request.operation)
    wanted = set(to_slots(request.slots))
    if sealed is None or sealed.hollow or not wanted <= sealed.slots:
        return host.desk.refuse(
            token, "moved", f"group {replica.group} has not sealed these slots for {request.operation} here"
        )
    if not state.sealed_ready(request.operation):
        return host.desk.refuse(token, "overloaded", "files of the sealed slots are still being made")
    pulled = source_slots(replica, wanted)
    files = tuple(f for s in pulled for f in s.files)
    return _offer(host, replica, token, snapshot, files, pulled)


def source_slots(replica: DataReplica, slots: set[int]) -> tuple[PulledSlot, ...]:
    """The given slots as this member can hand them over."""
    files = tuple(f for slot in sorted(slots) for f in replica.state.manifest.of_slot(slot))
    return _by_slot(replica, files, slots)


def _by_slot(replica: DataReplica, files: tuple[FileMeta, ...], slots: set[int]) -> tuple[PulledSlot, ...]:
    by_slot: dict[int, list[FileMeta]] = {slot: [] for slot in slots}
    owner: dict[PartitionKey, int] = {}
    for f in files:
        by_slot.setdefault(f.slot, []).append(f)
        owner[f.partition] = f.slot
    return tuple(
        PulledSlot(
            slot,
            tuple(by_slot[slot]),
            tuple(
                t
                for t in replica.state.tombstones
                if owner.get(t.partition) == slot and masks(t, by_slot[slot])
            ),
        )
        for slot in sorted(by_slot)
    )


def masks(delete: Tombstone, files: list[FileMeta]) -> bool:
    """Whether an older file is there to be masked. When other deletes are forgotten differs from member
    to member, and copies of one slot must not."""
    return any(delete.masks(f) for f in files)


def _offer(
    host: Cluster,
    replica: DataReplica,
    token: int,
    snapshot: str,
    files: tuple[FileMeta, ...],
    slots: tuple[PulledSlot, ...],
) -> None:
    node = replica.raft.node

    def done(result: JobResult) -> None:
        if isinstance(result, Failed):
            host.desk.reply(token, job_error(result))
        else:
            host.desk.reply(token, SourceOpened(node, snapshot, slots))

    job = MakeSnapshot(snapshot, replica.group, files)
    replica.read_files(job, files, host.desk.guarded(token, "an offer", done))


def job_error(result: JobResult) -> ErrorReply:
    if isinstance(result, Failed):
        return ErrorReply(result.code, result.what)
    return ErrorReply("error", f"unexpected result {type(result).__name__}")
