"""Compares the copies of one slot on several holders: files, then sums per (series, day), then cells.

Age and number of files come first, then the hash of each file's bytes; a holder that fails one of these steps
is reported and left out of the next. Then the rows, in time windows of about `WINDOW_ROWS` per holder:
buckets are compared only between holders whose files or deletes differ, cells only in buckets that differ.
Last comes the logical sum of each file. The content of the majority of holders is expected; without a
majority, that on which all trusted (previous) holders agree, else every holder is listed.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from iotctl.pipeline import windows
from iotctl.pipeline.cells import CellDifference, differing_cells
from iotctl.pipeline.digest import (
    Bucket,
    BucketSums,
    FileRows,
    RowsByHash,
    buckets,
    merged,
    of_bucket,
    series_of,
)
from iotctl.pipeline.fetch import content_hash
from iotctl.pipeline.holding import FileKey, HeldFile, Holding, UnitKey
from iotctl.pipeline.report import (
    MISMATCHES_MAX,
    MISSING,
    NO_MAJORITY,
    NOT_THERE,
    Mismatch,
    Unread,
    Value,
)
from iotctl.pipeline.tsfile_rows import TIME
from iotctl.pipeline.windows import time_windows
from nodeagent.model.errors import FileCorrupt, NodeAgentError
from nodeagent.model.files import FileMeta
from nodeagent.model.schema import TableSchema
from nodeagent.table.checksum import Sums, add

Schemas = Mapping[tuple[str, str], TableSchema]
"""By (storage group, table)."""

_Usable = tuple[Holding, list[tuple[HeldFile, str]]]
"""A holder with its files and the hash of each file's bytes."""

ZERO: Sums = (0, 0, 0)

Content = Callable[[Holding, HeldFile], bytes | NodeAgentError]


class SlotOutcome(msgspec.Struct):
    """`series` are 64-bit hashes of (storage group, table, tags): one series can be in many slots."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    series: set[int] = set()
    mismatches: list[Mismatch] = []
    mismatches_total: int = 0
    unread: list[Unread] = []

    def add(self, found: Mismatch) -> None:
        """Count the mismatch, and list it unless the list is full."""
        self.mismatches_total += 1
        if len(self.mismatches) < MISMATCHES_MAX:
            self.mismatches.append(found)


@dataclass(slots=True)
class _Version:
    """Holders whose files have the same ages, bytes and deletes and therefore the same rows."""

    holdings: list[Holding]
    parts: list[tuple[HeldFile, FileRows]]
    rows: pa.Table
    sums: dict[Bucket, BucketSums] = field(default_factory=dict)


def compare_slot(holdings: Sequence[Holding], content: Content, schemas: Schemas) -> SlotOutcome:
    """Compare the holders of one slot; `content` returns a file's bytes, not yet checked."""
    outcome = SlotOutcome()
    units: dict[UnitKey, None] = {}
    for holding in holdings:
        for held in holding.files:
            units.setdefault((held.meta.partition, held.meta.table))
    for unit in sorted(units):
        schema = schemas.get((unit[0].storage_group, unit[1]))
        if schema is None:
            reason = f"there is no schema for table {unit[1]} of {unit[0].storage_group}"
            outcome.unread += [Unread(h.node, h.group, h.slot, reason) for h in holdings]
            continue
        _UnitComparison(unit, schema, content, outcome).run(holdings)
    return outcome


@dataclass(slots=True)
class _UnitComparison:
    """Compares one table of one partition."""

    unit: UnitKey
    schema: TableSchema
    content: Content
    outcome: SlotOutcome
    sums: dict[str, Sums] = field(default_factory=dict)
    """By hash of a file's bytes, the sums of the rows read so far."""

    def run(self, holdings: Sequence[Holding]) -> None:
        own = {h.node + h.group: self._files(h) for h in holdings}
        usable = []
        for holding in self._check_sets(holdings, own):
            files = self._check_bytes(holding, own[holding.node + holding.group])
            if files is not None:
                usable.append((holding, files))
        metas = [held.meta for files in own.values() for held in files]
        for times in time_windows(metas, windows.WINDOW_ROWS * len(own)):
            usable = self._compare_window(usable, RowsByHash(times))
        self._check_sums(usable)

    def _compare_window(self, usable: list[_Usable], cache: RowsByHash) -> list[_Usable]:
        """Compare the rows of one window; returns the holders whose files could all be decoded."""
        versions: dict[tuple[Hashable, ...], _Version] = {}
        readable = []
        for holding, files in usable:
            parts = self._decode(holding, files, cache)
            if parts is not None:
                readable.append((holding, files))
                self._add(versions, holding, parts)
        for digest, rows in cache.known.items():
            self.sums[digest] = add(self.sums.get(digest, ZERO), rows.sums)
        self._count(list(versions.values()))
        if len(versions) > 1:
            self._compare(list(versions.values()))
        return readable

    def _check_sums(self, usable: Sequence[_Usable]) -> None:
        """Compare the sum of all rows of each file with its manifest."""
        for holding, files in usable:
            for held, digest in files:
                found = self.sums.get(digest, ZERO)
                if found != tuple(held.meta.logical):
                    self._file(holding, held.meta, _sums_text(held.meta.logical), _sums_text(found))

    def _files(self, holding: Holding) -> list[HeldFile]:
        return [f for f in holding.files if (f.meta.partition, f.meta.table) == self.unit]

    def _check_sets(self, holdings: Sequence[Holding], own: Mapping[str, list[HeldFile]]) -> list[Holding]:
        """Report files that only some holders have; returns the holders that have the expected files."""
        sets = [frozenset(f.key for f in own[h.node + h.group]) for h in holdings]
        if len(set(sets)) <= 1:
            return list(holdings)
        known = {f.key: f.meta for files in own.values() for f in files}
        expected = _expected_set(holdings, sets)
        for holding, keys in zip(holdings, sets, strict=True):
            for key in sorted(expected - keys):
                self._file(holding, known[key], known[key].xxh3, MISSING)
            for key in sorted(keys - expected):
                self._file(holding, known[key], NOT_THERE, known[key].xxh3)
        return [h for h, keys in zip(holdings, sets, strict=True) if keys == expected]

    def _file(self, holding: Holding, meta: FileMeta, expected: str, found: str) -> None:
        self.outcome.add(Mismatch(holding.node, holding.slot, meta.name, "", None, expected, found))

    def _check_bytes(self, holding: Holding, files: list[HeldFile]) -> list[tuple[HeldFile, str]] | None:
        """Hash each file; None if one of them cannot be used."""
        found = [self._hash(holding, held) for held in files]
        if None in found:
            return None
        return [(held, digest) for held, digest in zip(files, found, strict=True) if digest is not None]

    def _hash(self, holding: Holding, held: HeldFile) -> str | None:
        content = self.content(holding, held)
        if isinstance(content, FileCorrupt):
            self._file(holding, held.meta, f"{held.meta.size} bytes", content.what)
            return None
        if isinstance(content, NodeAgentError):
            reason = f"{held.meta.name}: {content.what}"
            self.outcome.unread.append(Unread(holding.node, holding.group, holding.slot, reason))
            return None
        self.outcome.files += 1
        self.outcome.bytes += len(content)
        found = content_hash(content)
        if found != held.meta.xxh3:
            self._file(holding, held.meta, held.meta.xxh3, found)
            return None
        return found

    def _decode(
        self, holding: Holding, files: list[tuple[HeldFile, str]], cache: RowsByHash
    ) -> list[tuple[HeldFile, str, FileRows]] | None:
        """The rows of the window; None if a file is not a TsFile."""
        parts: list[tuple[HeldFile, str, FileRows]] = []
        for held, digest in files:
            content = self.content(holding, held)
            assert isinstance(content, bytes), "the file was hashed before"
            try:
                parts.append((held, digest, cache.read(content, digest, self.schema, held.meta.name)))
            except (FileCorrupt, NodeAgentError) as error:
                self._file(holding, held.meta, "a readable TsFile", error.what)
                return None
        return parts

    def _add(
        self,
        versions: dict[tuple[Hashable, ...], _Version],
        holding: Holding,
        parts: list[tuple[HeldFile, str, FileRows]],
    ) -> None:
        deletes = tuple(t for t in holding.tombstones if (t.partition, t.table) == self.unit)
        key = (deletes, *((held.order, digest) for held, digest, _ in parts))
        version = versions.get(key)
        if version is None:
            rows = merged([(held.order, f.rows) for held, _, f in parts], deletes, self.schema)
            version = versions[key] = _Version([], [(held, f) for held, _, f in parts], rows)
        version.holdings.append(holding)

    def _count(self, versions: Sequence[_Version]) -> None:
        if not versions:
            return
        most = max(versions, key=lambda v: len(v.holdings))
        self.outcome.rows += most.rows.num_rows
        head = (self.unit[0].storage_group, self.unit[1])
        names = (repr((*head, *tags)).encode() for tags in series_of(most.rows, self.schema))
        self.outcome.series.update(xxhash.xxh3_64_intdigest(name) for name in names)

    def _compare(self, versions: list[_Version]) -> None:
        for version in versions:
            version.sums = buckets(version.rows, self.schema)
        keys = {key for version in versions for key in version.sums}
        differ = [k for k in keys if len({v.sums.get(k) for v in versions}) > 1]
        for bucket in sorted(differ, key=repr):
            self._bisect(versions, bucket)

    def _bisect(self, versions: list[_Version], bucket: Bucket) -> None:
        """Report the differing cells of one (series, day)."""
        rows = [of_bucket(v.rows, bucket, self.schema) for v in versions]
        total, cells = differing_cells(rows, self.schema.fields)
        assert total, f"sums of {bucket} differ but no cell does"
        listed = 0
        for cell in itertools.islice(cells, MISMATCHES_MAX):
            listed += 1
            self._cell(versions, bucket, cell)
        self.outcome.mismatches_total += total - listed

    def _cell(self, versions: list[_Version], bucket: Bucket, cell: CellDifference) -> None:
        expected = _expected_cell(versions, cell)
        series = series_name(self.unit, self.schema, bucket, cell.field)
        for version, code, found in zip(versions, cell.codes, cell.values, strict=True):
            if expected is not None and code == expected[0]:
                continue
            value = expected[1] if expected is not None else _others(cell, code)
            for holding in version.holdings:
                file = self._file_of(version, holding, bucket, cell.time_ms)
                self.outcome.add(
                    Mismatch(holding.node, holding.slot, file, series, cell.time_ms, value, found)
                )

    def _file_of(self, version: _Version, holding: Holding, bucket: Bucket, time_ms: int) -> str:
        """The holder's name for the newest file with a row at this time, else for the newest file that covers
        the time."""
        held = _newest_with(version.parts, bucket, time_ms, self.schema)
        names = {f.key: f.meta.name for f in self._files(holding)}
        return names.get(held.key, held.meta.name) if held is not None else ""


def series_name(unit: UnitKey, schema: TableSchema, bucket: Bucket, field_name: str) -> str:
    """`storage group.table{tag=value,…}.field`; a null tag is written without a value."""
    tags = ",".join(
        f"{name}={value}" if value is not None else name
        for name, value in zip(schema.tags, bucket, strict=False)
    )
    return f"{unit[0].storage_group}.{unit[1]}{{{tags}}}" + (f".{field_name}" if field_name else "")


def _sums_text(sums: Sums) -> str:
    return f"{sums[0]} values, sums {sums[1]:016x} {sums[2]:016x}"


def _majority(holdings: Iterable[Holding], keys: Iterable[Hashable]) -> Hashable | None:
    """The key of more than half of the holders; else the key that all trusted holders agree on."""
    pairs = list(zip(holdings, keys, strict=True))
    (key, votes), *_ = Counter(k for _, k in pairs).most_common(1)
    if 2 * votes > len(pairs):
        return key
    trusted = {k for h, k in pairs if h.trusted}
    return trusted.pop() if len(trusted) == 1 else None


def _expected_set(holdings: Sequence[Holding], sets: Sequence[frozenset[FileKey]]) -> frozenset[FileKey]:
    """The files of the majority, else those on which all trusted holders agree, else those of any holder."""
    found = _majority(holdings, sets)
    if found is None:
        return frozenset().union(*sets)
    assert isinstance(found, frozenset)
    return found


def _expected_cell(versions: Sequence[_Version], cell: CellDifference) -> tuple[int, Value] | None:
    """(code, value) of the majority, else that on which all trusted holders agree, else None."""
    holders = [h for v in versions for h in v.holdings]
    codes = [code for v, code in zip(versions, cell.codes, strict=True) for _ in v.holdings]
    code = _majority(holders, codes)
    if code is None:
        return None
    assert isinstance(code, int)
    return code, cell.values[cell.codes.index(code)]


def _others(cell: CellDifference, code: int) -> Value:
    """The value of the other versions if they agree, else `NO_MAJORITY`."""
    values = {c: v for c, v in zip(cell.codes, cell.values, strict=True) if c != code}
    return next(iter(values.values())) if len(values) == 1 else NO_MAJORITY


def _newest_with(
    parts: Sequence[tuple[HeldFile, FileRows]], bucket: Bucket, time_ms: int, schema: TableSchema
) -> HeldFile | None:
    newest = sorted(parts, key=lambda part: part[0].order, reverse=True)
    for held, file_rows in newest:
        times = file_rows.rows.column(TIME)
        near = file_rows.rows.filter(pc.equal(times, pa.scalar(time_ms, pa.int64())))
        if of_bucket(near, bucket, schema).num_rows:
            return held
    covering = [held for held, _ in newest if held.meta.time_min <= time_ms <= held.meta.time_max]
    return covering[0] if covering else newest[0][0] if newest else None


def series_count(outcomes: Iterable[SlotOutcome]) -> int:
    """The number of distinct series in all slots."""
    names = [np.fromiter(o.series, np.uint64, len(o.series)) for o in outcomes]
    return len(np.unique(np.concatenate(names))) if names else 0
