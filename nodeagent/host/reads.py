"""Reads of one data group: rows, partitions, manifests, hashes, and files offered to others.

A *strong* read asks Raft for a read index first and waits until this state has applied it. The slots
asked for must all be open here by then; a slot that is sealed, gone or not yet here is an error, never
an empty result. After its seal a group gives rows of a slot only to a reader that names the operation.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from heapq import merge as merge_sorted

import msgspec

from nodeagent.host.cluster import Cluster
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.failing import PASSED
from nodeagent.host.handlers.refusals import job_error, moved, not_leader
from nodeagent.model import limits, requests
from nodeagent.model.errors import InvalidInput
from nodeagent.model.files import Cursor, FileMeta, PageSpec, PulledSlot, ScanSpec, Tombstone
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
from nodeagent.table.paging import row_bytes
from nodeagent.table.scan import check_same_columns, check_scan


def on_scan(cluster: Cluster, replica: DataReplica, token: int, s: requests.ScanRows) -> None:
    """What the table does not have is refused here: the TsFile reader would call the file corrupt."""
    known = cluster.meta.tables.schemas.get((s.storage_group, s.spec.schema.table))
    try:
        check_scan(s.spec)
        if known is not None:
            check_same_columns(s.spec.schema, known)
    except InvalidInput as error:
        return cluster.desk.refuse(token, error.code, error.what, error.next_step)
    if s.operation:
        return _scan_source(cluster, replica, token, s)
    return _with_level(cluster, replica, token, s.read, lambda: _scan_owned(cluster, replica, token, s))


def _with_level(
    cluster: Cluster, replica: DataReplica, token: int, level: str, then: Callable[[], None]
) -> None:
    """strong: read index. mid, weak: what this replica has, if it is whole; mid, if that is no older than
    `staleness_max_ms`. Their answers carry its age.
    """
    then = cluster.desk.guarded(token, "a read", then)
    if level == "strong":
        replica.read(then, lambda why: cluster.desk.refuse(token, "unavailable", why))
    elif not replica.state.rows.recovered:
        cluster.desk.refuse(token, "unavailable", f"group {replica.group} is still recovering on this node")
    elif level == "mid":
        bound_ms = replica.config.staleness_max_ms
        refuse = partial(_refuse_stale, cluster, replica, token)
        replica.freshness.within(bound_ms, lambda: _with_age(cluster, replica, token, then), refuse)
    elif level == "weak":
        _with_age(cluster, replica, token, then)
    else:
        cluster.desk.refuse(token, "invalid_input", f"read level {level!r}", "use strong, mid or weak")


def _refuse_stale(cluster: Cluster, replica: DataReplica, token: int, age_ms: int) -> None:
    bound_ms = replica.config.staleness_max_ms
    age = f"confirmed it {age_ms} ms ago" if age_ms >= 0 else "has not confirmed it since it was started"
    what = f"the replica of {replica.group} on {replica.raft.node} may be stale: a leader {age}; "
    what += f"mid allows {bound_ms} ms"
    helps = "ask another member, or read weak: its answers carry their age"
    cluster.desk.reply(token, ErrorReply("unavailable", what, helps, {"age_ms": age_ms}))


def _with_age(cluster: Cluster, replica: DataReplica, token: int, then: Callable[[], None]) -> None:
    """Whatever `then` answers carries the age of what this replica holds now."""
    age_ms = replica.freshness.age_ms

    def aged(reply: Reply) -> Reply:
        is_answer = isinstance(reply, RowsScanned | PartitionsListed)
        return msgspec.structs.replace(reply, age_ms=age_ms) if is_answer else reply

    cluster.desk.amend(token, aged)
    then()


def _scan_owned(
    cluster: Cluster,
    replica: DataReplica,
    token: int,
    s: requests.ScanRows,
    partitions_max: int = 0,
) -> None:
    wanted = set(to_slots(s.slots))
    refusal = _not_whole(cluster, replica, wanted)
    if refusal is not None:
        return cluster.desk.reply(token, refusal)
    slots = wanted or replica.state.slots.open
    handover, tombstones = _elsewhere(cluster, replica, slots)
    version = cluster.meta.placement.version

    def answer(ipc: bytes, rows: int, end: Cursor | None) -> RowsScanned:
        return RowsScanned(ipc, rows, _place(end), version, handover, tombstones, next=end)

    def again(fewer: int) -> None:
        _scan_owned(cluster, replica, token, s, fewer)

    return _scan(cluster, replica, token, s, slots, answer, again, partitions_max)


def _scan_source(
    cluster: Cluster,
    replica: DataReplica,
    token: int,
    s: requests.ScanRows,
    partitions_max: int = 0,
) -> None:
    wanted = set(to_slots(s.slots))
    if not replica.state.sealed_whole(s.operation, wanted):
        return cluster.desk.refuse(
            token, "moved", f"group {replica.group} holds no sealed slots of {s.operation} here"
        )

    def answer(ipc: bytes, rows: int, end: Cursor | None) -> RowsScanned:
        return RowsScanned(ipc, rows, _place(end), cluster.meta.placement.version, next=end)

    def again(fewer: int) -> None:
        _scan_source(cluster, replica, token, s, fewer)

    return _scan(cluster, replica, token, s, wanted, answer, again, partitions_max)


def _place(end: Cursor | None) -> int:
    """As readers of earlier versions are told of it."""
    return end.position if end is not None and end.key is None else 0


@dataclass(slots=True)
class _Plan:
    """What one page reads: partitions that fit a page together, or one of which it reads a part."""

    files: list[FileMeta] = field(default_factory=list)
    batches: list[MemBatch] = field(default_factory=list)
    tombstones: tuple[Tombstone, ...] = ()
    partitions: int = 0
    position: int = 0
    """Of the last partition."""

    alone: bool = False
    nbytes: int = 0
    """What the rows take in Arrow form, about; not less where texts are short."""

    end: Cursor | None = None
    """Where the page after these partitions begins, None behind the last."""


def _scan(
    cluster: Cluster,
    replica: DataReplica,
    token: int,
    s: requests.ScanRows,
    slots: set[int],
    answer: Callable[[bytes, int, Cursor | None], RowsScanned],
    again: Callable[[int], None],
    partitions_max: int,
) -> None:
    """One page, from the cursor on; `again` reads one of no more partitions than it is told."""
    start = s.after if s.after is not None else Cursor(s.cursor)
    plan = _plan(replica, s, slots, start, partitions_max or limits.PAGE_PARTITIONS)
    if not plan.partitions:
        return cluster.desk.reply(token, answer(b"", 0, plan.end))

    def done(result: JobResult) -> None:
        if not isinstance(result, Scanned):
            return cluster.desk.reply(token, job_error(result))
        if result.over:
            return again(plan.partitions // 2)
        end = plan.end if result.after is None else Cursor(plan.position, result.after)
        if end is not None and s.until is not None and end.position > s.until.position:
            end = None  # it took all up to there
        if s.after is None and end is not None and end.key is not None:
            return cluster.desk.refuse(
                token, "refused", "a partition is larger than a page", "read with this version's iotctl"
            )
        return cluster.desk.reply(token, answer(result.ipc, result.rows, end))

    page = PageSpec(None, None, limits.PAGE_BYTES, s.limit, plan.partitions > 1)
    if plan.alone:
        after = start.key if start.position == plan.position else None
        until = s.until.key if s.until is not None and s.until.position == plan.position else None
        page = PageSpec(after, until, limits.PAGE_BYTES, s.limit)
    job = Scan(
        replica.group,
        s.spec,
        tuple(plan.files),
        tuple(plan.batches),
        plan.tombstones,
        page,
        _is_heavy(plan.files, s),
    )
    return replica.read_files(job, plan.files, cluster.desk.guarded(token, "a scan", done))


def _plan(
    replica: DataReplica, s: requests.ScanRows, slots: set[int], start: Cursor, partitions_max: int
) -> _Plan:
    """As many partitions as fit a page. One that is large, that deletes mask (by age within a partition), or
    that the page begins or ends in, is read alone."""
    plan = _Plan()
    table = s.spec.schema.table
    looked = 0
    for key, slot in held_from(replica, s.storage_group, start.position):
        here = key.position
        if s.until is not None and here >= s.until.position + (s.until.key is not None):
            return plan
        looked += 1
        if looked > limits.PARTITIONS_LOOKED_MAX:
            plan.end = Cursor(here)
            return plan
        if slot not in slots:
            continue
        files, batches = _parts(replica, key, s)
        if not files and not batches:
            continue
        nbytes = _nbytes(s.spec, files, batches)
        cut = (s.until is not None and here == s.until.position) or (
            here == start.position and start.key is not None
        )
        dead = tuple(replica.state.files.tombstones.of(key, table))
        alone = cut or bool(dead) or nbytes > limits.PAGE_BYTES
        is_full = plan.nbytes + nbytes > limits.PAGE_BYTES or plan.partitions >= partitions_max
        if plan.partitions and (alone or is_full):
            plan.end = Cursor(here)
            return plan
        plan.files += files
        plan.batches += batches
        plan.tombstones = dead
        plan.partitions += 1
        plan.position, plan.alone = here, alone or partitions_max == 1
        plan.nbytes += nbytes
        if plan.alone:
            plan.end = Cursor(here + 1)
            return plan
    return plan


def _nbytes(spec: ScanSpec, files: Sequence[FileMeta], batches: Sequence[MemBatch]) -> int:
    width = row_bytes(spec.schema, spec.fields)
    return sum(max(f.rows * width, f.size * 3) for f in files) + sum(b.nbytes for b in batches)


def _is_heavy(files: Sequence[FileMeta], s: requests.ScanRows) -> bool:
    """Whether the page may take long: many bytes are opened, by the share that the times asked for have."""
    if 0 < s.limit <= limits.LIGHT_SCAN_ROWS:
        return False
    return sum(_share(f, s.spec) for f in files) > limits.LIGHT_SCAN_BYTES


def _share(file: FileMeta, spec: ScanSpec) -> int:
    first, last = max(file.time_min, spec.time_from), min(file.time_max, spec.time_to)
    return file.size * max(0, last - first + 1) // (file.time_max - file.time_min + 1)


def held_from(replica: DataReplica, storage_group: str, position: int) -> Iterator[tuple[PartitionKey, int]]:
    """Partitions of a storage group that are in files or memory, with their slots, ascending from a place."""
    state = replica.state
    filed = state.files.manifest.positions(storage_group)
    new = sorted(
        place
        for key in state.rows.slot_of
        if key.storage_group == storage_group
        and (place := key.position) >= position
        and state.files.manifest.slot_of(key) is None
    )
    places = (filed[at] for at in range(bisect_left(filed, position), len(filed)))
    for place in merge_sorted(places, new):
        key = PartitionKey.at(storage_group, place)
        slot = state.files.manifest.slot_of(key)
        yield key, state.rows.slot_of[key] if slot is None else slot


def _parts(
    replica: DataReplica, key: PartitionKey, s: requests.ScanRows
) -> tuple[tuple[FileMeta, ...], tuple[MemBatch, ...]]:
    table, first, last = s.spec.schema.table, s.spec.time_from, s.spec.time_to
    state = replica.state
    return (
        state.files.manifest.overlapping(key, table, first, last),
        state.rows.memtable.batches(key, table, first, last),
    )


def _not_whole(cluster: Cluster, replica: DataReplica, wanted: set[int]) -> ErrorReply | None:
    """Why this replica cannot say what there is of the slots it is asked for; None when it can: all are open,
    and the meta state here says where older rows of arriving ones are."""
    absent = wanted - replica.state.slots.open
    if absent:
        return moved(cluster, min(absent), waiting=True)
    if any(cluster.meta.operations.find(op) is None for op in replica.state.slots.arriving):
        return ErrorReply("unavailable", f"{replica.raft.node} lags behind the meta group")
    return None


def _elsewhere(
    cluster: Cluster, replica: DataReplica, slots: set[int]
) -> tuple[tuple[Handover, ...], tuple[Tombstone, ...]]:
    """Slots of `slots` whose older rows are with previous holders, and our deletes for them: those since they
    were opened here. An older one is of a time when the slot was here before; those rows are newer."""
    out = []
    opened: dict[int, int] = {}
    for operation, arrival in replica.state.slots.arriving.items():
        op = cluster.meta.operations.find(operation)
        here = arrival.slots & slots
        if not here:
            continue
        assert op is not None
        opened |= dict.fromkeys(here, arrival.index)
        for move in op.moves:
            part = here & set(to_slots(move.slots)) if move.target == replica.group else set()
            if part:
                out.append(Handover(operation, from_slots(part), move.source, move.source_members))
    if not opened:
        return (), ()
    mine = tuple(
        t
        for t in replica.state.files.tombstones
        if (index := opened.get(_slot_of(cluster, replica, t.partition))) is not None and (index,) < t.order
    )
    return tuple(out), mine


def _slot_of(cluster: Cluster, replica: DataReplica, partition: PartitionKey) -> int:
    """The slot of a partition, whether it has rows here or not."""
    held = replica.state.files.manifest.slot_of(partition)
    if held is None:
        held = replica.state.rows.slot_of.get(partition)
    return _slot(cluster, partition) if held is None else held


def _slot(cluster: Cluster, partition: PartitionKey) -> int:
    settings = cluster.meta.image.settings
    assert settings is not None
    return slot_of(partition.storage_group, partition.time_partition, partition.shard, settings)


def on_list(cluster: Cluster, replica: DataReplica, token: int, request: requests.ListPartitions) -> None:
    def answer() -> None:
        refusal = _not_whole(cluster, replica, set(to_slots(request.slots)))
        if refusal is not None:
            return cluster.desk.reply(token, refusal)
        infos, end = _list(replica, request)
        if end is not None and not request.paged:
            return cluster.desk.refuse(
                token, "refused", "the list is longer than a page", "read with this version's iotctl"
            )
        handover, _ = _elsewhere(cluster, replica, replica.state.slots.open)
        return cluster.desk.reply(
            token, PartitionsListed(infos, handover, cluster.meta.placement.version, next=end)
        )

    _with_level(cluster, replica, token, request.read, answer)


_ListPlace = tuple[PartitionKey, str]


def _list(
    replica: DataReplica, request: requests.ListPartitions
) -> tuple[tuple[PartitionInfo, ...], _ListPlace | None]:
    """One page of the list, behind `request.after`, and the place it ends with if there is more."""
    slots = replica.state.slots.open
    infos: list[PartitionInfo] = []
    files = looked = 0
    place: _ListPlace | None = None
    for key, slot in _listed(replica, request):
        looked += 1
        if files >= limits.LIST_FILES_MAX or looked > limits.PARTITIONS_LOOKED_MAX:
            return tuple(infos), place
        for table in _tables(replica, key, request.table) if slot in slots else ():
            if request.after is not None and (key, table) <= request.after:
                continue
            if files >= limits.LIST_FILES_MAX:
                return tuple(infos), place
            fs = replica.state.files.manifest.of_partition(key, table)
            infos.append(_info(replica, key, slot, table, fs))
            files += len(fs) + 1
            place = (key, table)
        place = (key, _LAST)
    return tuple(infos), None


_LAST = chr(0x10FFFF)
"""Behind every table's name."""


def _listed(replica: DataReplica, request: requests.ListPartitions) -> Iterator[tuple[PartitionKey, int]]:
    state, after = replica.state, request.after
    groups = {*state.files.manifest.storage_groups(), *(key.storage_group for key in state.rows.slot_of)}
    for group in sorted(groups & {request.storage_group} if request.storage_group else groups):
        first = 0
        if after is not None and group <= after[0].storage_group:
            if group < after[0].storage_group:
                continue
            first = after[0].position + (after[1] == _LAST)
        yield from held_from(replica, group, first)


def _tables(replica: DataReplica, key: PartitionKey, table: str) -> list[str]:
    """Tables with rows in the partition; `table` alone where that is given."""
    memory = replica.state.rows.memtable.partition(key)
    names = {*replica.state.files.manifest.tables_of(key), *(memory.tables() if memory is not None else ())}
    return sorted(names & {table} if table else names)


def _info(
    replica: DataReplica, key: PartitionKey, slot: int, table: str, files: Sequence[FileMeta]
) -> PartitionInfo:
    memory = replica.state.rows.memtable.partition(key)
    fs = sorted(files, key=lambda f: f.time_min)
    hs = list(memory.runs(table)) if memory is not None else []
    apart = all(a.time_max < b.time_min for a, b in zip(fs, fs[1:], strict=False))
    dead = bool(replica.state.files.tombstones.of(key, table))
    return PartitionInfo(
        key,
        slot,
        table,
        sum(f.rows for f in fs) + sum(h.rows for h in hs),
        apart and not hs and not dead and replica.state.slots.arriving_by(slot) is None,
        min([f.time_min for f in fs] + [h.time_min for h in hs]),
        max([f.time_max for f in fs] + [h.time_max for h in hs]),
        sum(f.size for f in fs) + sum(h.nbytes for h in hs),
    )


# --- files -----------------------------------------------------------------------------------------


def files_of(replica: DataReplica, slots: Ranges) -> tuple[FileMeta, ...]:
    """Files of open slots (of `slots`, when given), by slot and name."""
    state = replica.state
    return tuple(f for slot in sorted(_open(replica, slots)) for f in state.files.manifest.of_slot(slot))


def _named(replica: DataReplica, slots: Ranges, names: Iterable[str]) -> tuple[FileMeta, ...]:
    """Those of `files_of` with these names: every compaction asks for a few, of perhaps very many. Without
    slots they may be of any: a copy for which a pull suspects this replica is of slots that left."""
    get = replica.state.files.manifest.get
    found = [f for name in sorted(set(names)) if (f := get(name)) is not None]
    if not slots:
        return tuple(found)
    wanted = _open(replica, slots)
    return tuple(f for f in found if f.slot in wanted)


def _open(replica: DataReplica, slots: Ranges) -> Set[int]:
    """The open slots (of `slots`, when given)."""
    open_ = replica.state.slots.open
    return open_ & set(to_slots(slots)) if slots else open_


def on_manifest(cluster: Cluster, replica: DataReplica, token: int, request: requests.GetManifest) -> None:
    state = replica.state
    pending = sum(p.count for p in state.rows.memtable.partitions().values()) + len(state.adoptions.waiting)
    pending += len(state.compactions.under_way)
    files, following = _page_of_files(replica, request)
    cluster.desk.reply(
        token,
        ManifestReply(
            replica.group,
            replica.raft.node,
            state.rows.delivered,
            state.materialised,
            pending,
            files,
            damaged=replica.damaged_files(),
            next=following,
            at_work=replica.at_work,
        ),
    )


def _page_of_files(
    replica: DataReplica, request: requests.GetManifest
) -> tuple[tuple[FileMeta, ...], int | None]:
    """(the files, the slot at which the next page begins)"""
    if request.first is None:
        return files_of(replica, request.slots), None
    files: list[FileMeta] = []
    for slot in sorted(s for s in _open(replica, request.slots) if s >= request.first):
        if len(files) >= limits.MANIFEST_FILES:
            return tuple(files), slot
        files += replica.state.files.manifest.of_slot(slot)
    return tuple(files), None


def on_close_all(cluster: Cluster, replica: DataReplica, token: int, request: requests.CloseAll) -> None:
    if not replica.leads:
        return cluster.desk.reply(token, not_leader(replica))
    wanted = set(to_slots(request.slots)) if request.slots else replica.state.slots.open
    keys = sorted(k for k, slot in replica.state.rows.slot_of.items() if slot in wanted)
    replica.compared_at = cluster.desk.now  # who pins a cut compares what was closed up to it
    return replica.close(keys, token)


def on_check(cluster: Cluster, replica: DataReplica, token: int, request: requests.CheckFiles) -> None:
    if request.names:
        files = _named(replica, request.slots, request.names)
    else:
        replica.compared_at = cluster.desk.now
        files = files_of(replica, request.slots)

    def done(result: JobResult) -> None:
        if isinstance(result, FilesHashed):
            cluster.desk.reply(token, FilesChecked(files, result.found))
        else:
            cluster.desk.reply(token, job_error(result))

    replica.read_files(HashFiles(replica.group, files), files, cluster.desk.guarded(token, "a check", done))


def on_export(
    cluster: Cluster, replica: DataReplica, token: int, request: requests.ExportFiles, snapshot: str
) -> None:
    """Offer the replica's files of open slots, or any by name; the snapshot ends by age."""
    if request.names:
        found = {n: f for n in request.names if (f := replica.state.files.manifest.get(n)) is not None}
        if len(found) < len(request.names):
            has_passed = all(replica.state.has_passed(n) for n in request.names if n not in found)
            what = "not all of these files are in this manifest"
            return cluster.desk.reply(token, ErrorReply("not_found", what, details={PASSED: has_passed}))
        files = tuple(found.values())
    else:
        replica.compared_at = cluster.desk.now
        files = files_of(replica, request.slots)
    _offer(cluster, replica, token, snapshot, files, _by_slot(replica, files, set(to_slots(request.slots))))


def on_open_source(
    cluster: Cluster, replica: DataReplica, token: int, request: requests.OpenSource, snapshot: str
) -> None:
    """Offer sealed slots to a new member, once every file of them is made here."""
    state = replica.state
    sealed = state.slots.sealed.get(request.operation)
    wanted = set(to_slots(request.slots))
    if sealed is None or sealed.hollow or not wanted <= sealed.slots:
        return cluster.desk.refuse(
            token, "moved", f"group {replica.group} has not sealed these slots for {request.operation} here"
        )
    if not state.sealed_ready(request.operation):
        return cluster.desk.refuse(token, "overloaded", "files of the sealed slots are still being made")
    pulled = source_slots(replica, wanted)
    files = tuple(f for s in pulled for f in s.files)
    return _offer(cluster, replica, token, snapshot, files, pulled)


def source_slots(replica: DataReplica, slots: set[int]) -> tuple[PulledSlot, ...]:
    """The given slots as this member can hand them over."""
    files = tuple(f for slot in sorted(slots) for f in replica.state.files.manifest.of_slot(slot))
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
                for t in replica.state.files.tombstones
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
    cluster: Cluster,
    replica: DataReplica,
    token: int,
    snapshot: str,
    files: tuple[FileMeta, ...],
    slots: tuple[PulledSlot, ...],
) -> None:
    node = replica.raft.node

    def done(result: JobResult) -> None:
        if isinstance(result, Failed):
            cluster.desk.reply(token, job_error(result))
        else:
            cluster.desk.reply(token, SourceOpened(node, snapshot, slots))

    job = MakeSnapshot(snapshot, replica.group, files)
    replica.read_files(job, files, cluster.desk.guarded(token, "an offer", done))
