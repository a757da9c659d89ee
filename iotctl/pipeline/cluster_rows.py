"""Reads the rows of one table from a cluster's files, from one holder per group, verified and merged."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from iotctl.pipeline import windows
from iotctl.pipeline.fetch import content_hash, fetch_files
from iotctl.pipeline.link import Cluster, expect
from iotctl.pipeline.tsfile_rows import Wanted, read_table
from iotctl.pipeline.windows import time_windows
from nodeagent.model.errors import FileCorrupt, NodeAgentError, Unavailable
from nodeagent.model.files import FileMeta, Order, PulledSlot, ScanSpec
from nodeagent.model.ids import GroupId, NodeId, PartitionKey
from nodeagent.model.operation import Ranges
from nodeagent.model.requests import ExportFiles, SourceOpened
from nodeagent.model.schema import TableSchema
from nodeagent.partition import ranges
from nodeagent.table.merge import merge

PARTS_PER_GROUP = 4
EXPORT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ClusterPart:
    """Slots of one group, and its members, which are tried in turn."""

    group: GroupId
    nodes: tuple[NodeId, ...]
    slots: Ranges


def cluster_parts(cluster: Cluster, slots: Ranges, node: NodeId) -> list[ClusterPart]:
    """The slots of every group, limited to `slots` if given, and read only from `node` if given."""
    meta = cluster.meta()
    parts: list[ClusterPart] = []
    for record in meta.groups:
        nodes = tuple(n for n in record.members if not node or n == node)
        owned = ranges.union(tuple((a, b) for a, b, h in meta.owners if h == record.owner))
        wanted = ranges.intersect(owned, slots) if slots else owned
        if record.dissolving or not nodes or not wanted:
            continue
        every = ranges.to_array(wanted)
        step = -(-len(every) // PARTS_PER_GROUP)
        pieces = (every[i : i + step] for i in range(0, len(every), step))
        parts += [ClusterPart(record.group, nodes, ranges.from_slots(p)) for p in pieces]
    return parts


def part_rows(cluster: Cluster, part: ClusterPart, schema: TableSchema, wanted: Wanted) -> Iterator[pa.Table]:
    """The part's rows of the table from its holders' files, about `WINDOW_ROWS` at a time.

    Holders are asked in turn, each for the slots that are still missing. The rows of a slot are
    yielded once all of its files are fetched and verified. Rows in a holder's memory are not included: close
    them first if they matter.

    Raises:
        Unavailable: some slots were delivered by no holder: each holder did not answer, lacks a file or has
            it with another hash.
        FileCorrupt: bytes with the recorded hash are not a TsFile.
    """
    left = set(ranges.to_slots(part.slots))
    failures: list[str] = []
    for node in part.nodes:
        slots = _verified_slots(cluster, node, part, left, schema, wanted)
        while left:
            try:
                pulled, files = next(slots)
            except StopIteration:
                return
            except NodeAgentError as error:
                failures.append(f"{node}: {error.what}")
                break
            yield from _slot_rows(pulled, files, schema, wanted)
            left.discard(pulled.slot)
    if left:
        raise Unavailable(
            f"holders of {part.group} did not deliver all of the slots {part.slots}: {'; '.join(failures)}"
        )


_Verified = list[tuple[FileMeta, bytes]]


def _verified_slots(
    cluster: Cluster, node: NodeId, part: ClusterPart, left: set[int], schema: TableSchema, wanted: Wanted
) -> Iterator[tuple[PulledSlot, _Verified]]:
    """The remaining slots as the node holds them, each with the verified bytes of its files."""
    request = ExportFiles(part.group, ranges.from_slots(left))
    opened = expect(cluster.call(node, request, EXPORT_TIMEOUT_S), SourceOpened)
    for pulled in opened.slots:
        metas = [f for f in pulled.files if _is_wanted(f, schema, wanted)]
        contents = fetch_files(cluster, [(node, opened.snapshot, f.name, f.size) for f in metas])
        yield (
            pulled,
            [(meta, _verified(meta, content)) for meta, content in zip(metas, contents, strict=True)],
        )


def _slot_rows(
    pulled: PulledSlot, files: _Verified, schema: TableSchema, wanted: Wanted
) -> Iterator[pa.Table]:
    """The slot's rows, merged per partition and time window."""
    for partition in sorted({meta.partition for meta, _ in files}):
        own = [(meta, content) for meta, content in files if meta.partition == partition]
        for first, last in time_windows([meta for meta, _ in own], windows.WINDOW_ROWS):
            spec = _scan_spec(schema, wanted, first, last)
            if spec.time_from <= spec.time_to:
                yield _merged(partition, own, pulled, schema, spec)


def _scan_spec(schema: TableSchema, wanted: Wanted, first: int, last: int) -> ScanSpec:
    fields = None if wanted.columns is None else tuple(c for c in wanted.columns if c in schema.fields)
    return ScanSpec(schema, fields, max(first, wanted.time_from), min(last, wanted.time_to), wanted.tags)


def _is_wanted(meta: FileMeta, schema: TableSchema, wanted: Wanted) -> bool:
    return (
        meta.table == schema.table
        and meta.partition.storage_group == schema.storage_group
        and meta.time_min <= wanted.time_to
        and meta.time_max >= wanted.time_from
    )


def _verified(meta: FileMeta, content: bytes | NodeAgentError) -> bytes:
    if isinstance(content, NodeAgentError):
        raise content
    found = content_hash(content)
    if found != meta.xxh3:
        raise FileCorrupt(
            f"{meta.name}: its bytes have the hash {found}, its manifest says {meta.xxh3}",
            file=meta.name,
            expected=meta.xxh3,
            found=found,
        )
    return content


def _merged(
    partition: PartitionKey,
    files: Sequence[tuple[FileMeta, bytes]],
    pulled: PulledSlot,
    schema: TableSchema,
    spec: ScanSpec,
) -> pa.Table:
    columns = (*schema.tags, *(spec.fields if spec.fields is not None else schema.fields))
    tags = tuple(t for t in spec.tags if t[1] is None or "\0" not in t[1])
    narrowed = Wanted(columns, spec.time_from, spec.time_to, tags)
    parts: list[tuple[Order, pa.Table]] = []
    for meta, content in files:
        rows = read_table(content, schema.table, narrowed, meta.name)
        if rows is not None:
            parts.append((meta.order, rows))
    deletes = [t for t in pulled.tombstones if (t.partition, t.table) == (partition, schema.table)]
    return merge(parts, deletes, schema, spec)
