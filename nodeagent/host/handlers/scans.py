"""Reads of the rows of one data group, page by page.

A *strong* read first asks Raft for a read index and waits until this state has applied it. All requested
slots must be open here by then: a slot that is sealed, released or not yet here is an error, never an empty
result. After the seal of a slot the group returns its rows only to a reader that names the operation.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge as merge_sorted

from msgspec.structs import replace

from nodeagent.host.cluster import Cluster
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.handlers.read_levels import with_level
from nodeagent.host.handlers.refusals import job_error
from nodeagent.host.handlers.whole import elsewhere, why_incomplete
from nodeagent.model import limits, requests
from nodeagent.model.errors import InvalidInput
from nodeagent.model.files import Cursor, FileMeta, PageSpec, ScanSpec, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import JobResult, MemBatch, Scan, Scanned
from nodeagent.model.requests import RowsScanned
from nodeagent.partition.ranges import to_slots
from nodeagent.table.paging import row_bytes
from nodeagent.table.scan import check_same_columns, check_scan


def on_scan(cluster: Cluster, replica: DataReplica, token: int, s: requests.ScanRows) -> None:
    """Columns that the table lacks are refused here, because the TsFile reader would call the file
    corrupt."""
    known = cluster.meta.tables.schemas.get((s.storage_group, s.spec.schema.table))
    try:
        check_scan(s.spec)
        if known is not None:
            check_same_columns(s.spec.schema, known)
    except InvalidInput as error:
        return cluster.effects.refuse(token, error.code, error.what, error.next_step)
    if s.operation:
        return _scan_source(cluster, replica, token, _without_aggregate(s))
    return with_level(
        cluster.effects, replica, token, s.read, lambda: _scan_owned(cluster, replica, token, s)
    )


def _scan_owned(
    cluster: Cluster,
    replica: DataReplica,
    token: int,
    s: requests.ScanRows,
    partitions_max: int = 0,
) -> None:
    wanted = set(to_slots(s.slots))
    refusal = why_incomplete(cluster, replica, wanted)
    if refusal is not None:
        return cluster.effects.reply(token, refusal)
    slots = wanted or replica.state.slots.open
    handover, tombstones = elsewhere(cluster, replica, slots)
    version = cluster.meta.placement.version
    if handover:
        s = _without_aggregate(s)

    def answer(ipc: bytes, rows: int, end: Cursor | None) -> RowsScanned:
        return RowsScanned(
            ipc, rows, _place(end), version, handover, tombstones, next=end, is_aggregate=s.spec.aggregate
        )

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
    if not replica.state.is_source_whole(s.operation, wanted):
        return cluster.effects.refuse(
            token, "moved", f"group {replica.group} holds no sealed slots of {s.operation} here"
        )

    def answer(ipc: bytes, rows: int, end: Cursor | None) -> RowsScanned:
        return RowsScanned(ipc, rows, _place(end), cluster.meta.placement.version, next=end)

    def again(fewer: int) -> None:
        _scan_source(cluster, replica, token, s, fewer)

    return _scan(cluster, replica, token, s, wanted, answer, again, partitions_max)


def _without_aggregate(s: requests.ScanRows) -> requests.ScanRows:
    """The reader merges these rows with those of another group: an older value counts only if no newer value
    of the cell is there."""
    return replace(s, spec=replace(s.spec, aggregate=False))


def _place(end: Cursor | None) -> int:
    """The end of a page in the form that readers of earlier versions know."""
    return end.position if end is not None and end.key is None else 0


@dataclass(slots=True)
class _Plan:
    """What one page reads: partitions that fit into a page together, or a part of one partition."""

    files: list[FileMeta] = field(default_factory=list)
    batches: list[MemBatch] = field(default_factory=list)
    tombstones: tuple[Tombstone, ...] = ()
    partitions: int = 0
    position: int = 0
    """Position of the last partition."""

    alone: bool = False
    nbytes: int = 0
    """Approximate size of the rows in Arrow form; never too small if texts are short."""

    end: Cursor | None = None
    """Where the page after these partitions begins, None after the last."""


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
    """Read one page from the cursor on.

    Args:
        again: reads a page with at most the given number of partitions.
    """
    start = s.after if s.after is not None else Cursor(s.cursor)
    plan = _plan(replica, s, slots, start, partitions_max or limits.PAGE_PARTITIONS)
    if not plan.partitions:
        return cluster.effects.reply(token, answer(b"", 0, plan.end))

    def done(result: JobResult) -> None:
        if not isinstance(result, Scanned):
            return cluster.effects.reply(token, job_error(result))
        if result.over:
            return again(plan.partitions // 2)
        end = plan.end if result.after is None else Cursor(plan.position, result.after)
        if end is not None and s.until is not None and end.position > s.until.position:
            end = None  # the page holds everything up to there
        if s.after is None and end is not None and end.key is not None:
            return cluster.effects.refuse(
                token, "refused", "a partition is larger than a page", "use a newer iotctl"
            )
        return cluster.effects.reply(token, answer(result.ipc, result.rows, end))

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
    return replica.files.read(job, plan.files, cluster.effects.guarded(token, "a scan", done))


def _plan(
    replica: DataReplica, s: requests.ScanRows, slots: set[int], start: Cursor, partitions_max: int
) -> _Plan:
    """As many partitions as fit into a page. A partition that is large, that has deletes (which mask by age
    within a partition), or in which the page begins or ends, is read alone."""
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
    """Whether the page may take long, by how many bytes of the files fall into the requested times."""
    if 0 < s.limit <= limits.LIGHT_SCAN_ROWS:
        return False
    return sum(_share(f, s.spec) for f in files) > limits.LIGHT_SCAN_BYTES


def _share(file: FileMeta, spec: ScanSpec) -> int:
    first, last = max(file.time_min, spec.time_from), min(file.time_max, spec.time_to)
    return file.size * max(0, last - first + 1) // (file.time_max - file.time_min + 1)


def held_from(replica: DataReplica, storage_group: str, position: int) -> Iterator[tuple[PartitionKey, int]]:
    """Partitions of a storage group in files or memory, with their slots, ascending from `position`."""
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
