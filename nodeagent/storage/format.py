"""The protocol of file formats, and three operations: close a unit, compact files, scan files.

All are functions of their arguments alone, so a file's bytes depend only on the entry and the rows (law 6),
not on a path, node, clock or process.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa
import xxhash

from nodeagent.model.errors import FileCorrupt, Refused
from nodeagent.model.files import PARKED, CloseSpec, FileMeta, Order, PageSpec, RowKey, ScanSpec, Tombstone
from nodeagent.model.jobs import CloseUnit, CompactUnit, MemBatch, Scanned
from nodeagent.storage.arrow_format import ArrowFormat
from nodeagent.storage.files import read_checked
from nodeagent.table import paging
from nodeagent.table.aggregate import aggregate
from nodeagent.table.arrow import TIME, decode, encode, one_chunk
from nodeagent.table.checksum import Sums, by_day, checksum, total
from nodeagent.table.memory_source import TableSource
from nodeagent.table.merge import Part, merge
from nodeagent.table.paging import Source

PROPERTY = "nodeagent"
"""Name of the footer property with the `Footer`."""

FORMAT_VERSIONS = (1,)
"""Versions of files that this release writes and reads, oldest first. An entry names the version to write:
the newest that the cluster's feature level allows."""


class FileFormat(Protocol):
    """Rows to bytes and back. Both may raise if memory or space runs out; neither leaves a file behind."""

    def encode(self, table: pa.Table, spec: CloseSpec, properties: Mapping[str, bytes]) -> bytes:
        """A file of the rows, which are in Arrow form, sorted by (tags, time), each cell once.

        Equal arguments give equal bytes in every process, directory and year.
        """
        ...

    def decode(self, content: bytes, spec: ScanSpec) -> pa.Table:
        """At least the rows that `spec` requests, with those of its columns that the file has.

        `content` must be verified: damaged bytes may crash the process.
        """
        ...

    def properties(self, content: bytes) -> dict[str, bytes]:
        """At least the properties passed to `encode`."""
        ...


class Footer(msgspec.Struct, frozen=True):
    """A file's description of its own content, so that it can be verified without the manifest."""

    format_version: int
    slot: int
    partition: tuple[str, int, int]
    table: str
    order: tuple[int, ...]
    rows: int
    logical: Sums
    days: tuple[tuple[int, int, int, int], ...]
    """Per UTC day, over all series: (day, values, sum 1, sum 2)."""


class ClosedUnit(msgspec.Struct, frozen=True):
    meta: FileMeta
    content: bytes
    footer: Footer


def close_unit(unit: CloseUnit, file_format: FileFormat) -> ClosedUnit | None:
    """Make the file of one close; None if no row is left after the deletes."""
    spec = unit.spec
    return _make(merge(_parts(unit.batches), unit.tombstones, spec.schema), spec, (), file_format)


def compact_unit(
    unit: CompactUnit, paths: Sequence[str], read: Callable[[str], bytes], file_format: FileFormat
) -> ClosedUnit | None:
    """Make one file of many; None if no row is left after the deletes.

    Raises:
        NotFound: an input is missing.
        FileCorrupt: the bytes of an input, which are checked before they are parsed, or the values read from
            them do not match its meta.
    """
    parts: list[Part] = []
    schema = unit.spec.schema
    for path, meta in zip(paths, unit.inputs, strict=True):
        content = read_checked(read, path, meta)
        rows = format_of(meta.name, file_format).decode(content, ScanSpec(schema))
        part = merge([(meta.order, rows)], (), schema)
        if total(checksum(part, schema)) != meta.logical:
            raise FileCorrupt(f"{path}: the values read do not match the logical checksum", file=meta.name)
        parts.append((meta.order, part))
    return _make(merge(parts, unit.tombstones, schema), unit.spec, unit.clean, file_format)


def _make(table: pa.Table, spec: CloseSpec, clean: Order, file_format: FileFormat) -> ClosedUnit | None:
    if spec.format_version not in FORMAT_VERSIONS:
        made, wanted = ", ".join(map(str, FORMAT_VERSIONS)), spec.format_version
        raise Refused(
            f"{spec.name} was not made: it needs format version {wanted}, but this agent writes {made}",
            next_step="iotctl cluster upgrade",
        )
    if table.num_rows == 0:
        return None
    sums = checksum(table, spec.schema)
    footer = Footer(
        spec.format_version,
        spec.slot,
        (spec.partition.storage_group, spec.partition.time_partition, spec.partition.shard),
        spec.schema.table,
        spec.order,
        table.num_rows,
        total(sums),
        tuple(by_day(sums)),
    )
    properties = {PROPERTY: msgspec.msgpack.encode(footer)}
    content = format_of(spec.name, file_format).encode(table, spec, properties)
    times = one_chunk(table.column(TIME)).to_numpy()
    meta = FileMeta(
        name=spec.name,
        slot=spec.slot,
        partition=spec.partition,
        table=spec.schema.table,
        order=spec.order,
        size=len(content),
        xxh3=xxhash.xxh3_128_hexdigest(content),
        rows=table.num_rows,
        time_min=int(times.min()),
        time_max=int(times.max()),
        logical=footer.logical,
        clean=clean,
        parked=spec.parked,
    )
    return ClosedUnit(meta, content, footer)


def read_footer(content: bytes, file_format: FileFormat) -> Footer | None:
    """The footer of a verified file; None if another program wrote it."""
    found = file_format.properties(content).get(PROPERTY)
    return None if found is None else msgspec.msgpack.decode(found, type=Footer)


def scan_rows(
    spec: ScanSpec,
    page: PageSpec,
    sources: Sequence[Source],
    batches: Sequence[MemBatch],
    tombstones: Sequence[Tombstone],
) -> Scanned:
    """One page of the rows in files and batches, or its aggregates.

    Raises:
        FileCorrupt: a file's bytes do not match its meta, or cannot be decoded.
        FileNotFoundError, OSError: see `Sources.of`.
    """
    memory = [TableSource(_parts(batches), spec)] if batches else []
    if page.whole:
        rows = paging.read_whole([*sources, *memory], tombstones, spec, page)
        return Scanned(b"", 0, over=True) if rows is None else _scanned(rows, spec, None)
    found = paging.page([*sources, *memory], tombstones, spec, page)
    return _scanned(found.rows, spec, found.after)


def _scanned(rows: pa.Table, spec: ScanSpec, after: RowKey | None) -> Scanned:
    return Scanned(encode(aggregate(rows, spec.schema) if spec.aggregate else rows), rows.num_rows, after)


def format_of(name: str, file_format: FileFormat) -> FileFormat:
    """The format that reads and writes a file of that name."""
    return _PARKED if name.endswith(PARKED) else file_format


_PARKED = ArrowFormat()


def _parts(batches: Sequence[MemBatch]) -> list[Part]:
    return [(batch.order, decode(batch.ipc, trusted=True)) for batch in batches]
