"""The logical checksum: it depends on the values of rows, not on their file, encoding, order or batch.

Every non-null value gets two 64-bit hashes (two seeds) of (table, tags, time, field name, field type,
value). For each (series, day), the values are counted and the hashes are added mod 2^64. Addition does not
depend on order and, unlike XOR, does not cancel equal pairs; the mixing is not linear, unlike CRC32, so that
two rows with swapped times or values change the sums.

- A null field or tag adds nothing: a column that is null everywhere does not change the sums.
- Names and types are part of the hash, a tag's name with its value: a value in another column is detected.
- NaN is one value whatever its payload; 0.0 and -0.0 are two.
- Days are UTC days of `time` (milliseconds), floored.

Sums of parts that share no cell add up to those of the whole (`combine`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from nodeagent.model.schema import TableSchema
from nodeagent.table.arrow import TIME, Rows, one_chunk
from nodeagent.table.series import Int64s, TagCodes, series_codes, tag_codes

UInt64s = npt.NDArray[np.uint64]
Sums = tuple[int, int, int]
"""(values, sum 1, sum 2), the sums mod 2^64."""

DAY, COUNT, H1, H2 = "$day", "$count", "$h1", "$h2"
"""Columns beside the tags; the name of a tag must not begin with `$` (`model.names`)."""

DAY_MS = 86_400_000
_MOD = 1 << 64
_SEEDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_MUL_1, _MUL_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_30, _SHIFT_27, _SHIFT_31 = np.uint64(30), np.uint64(27), np.uint64(31)
_TIME_MUL = np.uint64(0xD6E8FEB86659FD93)
_BLOCK = 1 << 14
"""Rows processed at once: the temporaries fit the second-level cache."""


def _mix(x: UInt64s, scratch: UInt64s) -> UInt64s:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014), in place."""
    np.right_shift(x, _SHIFT_30, out=scratch)
    np.bitwise_xor(x, scratch, out=x)
    np.multiply(x, _MUL_1, out=x)
    np.right_shift(x, _SHIFT_27, out=scratch)
    np.bitwise_xor(x, scratch, out=x)
    np.multiply(x, _MUL_2, out=x)
    np.right_shift(x, _SHIFT_31, out=scratch)
    return np.bitwise_xor(x, scratch, out=x)


def _text_hash(*parts: bytes, seed: int) -> int:
    """XXH3-64 of the parts, each prefixed with its length so that different lists of parts differ."""
    return xxhash.xxh3_64_intdigest(b"".join(len(p).to_bytes(4, "little") + p for p in parts), seed)


@dataclass(frozen=True, slots=True)
class _Field:
    """One field: its values as 64 bits each, per seed, and which are not null (None if all are)."""

    names: tuple[np.uint64, np.uint64]
    bits: tuple[UInt64s, UInt64s]
    valid: npt.NDArray[np.bool_] | None


def checksum(rows: Rows, schema: TableSchema) -> pa.Table:
    """Sums per (series, day) in the order of (tags, day): the tags, then `$day $count $h1 $h2`.

    `rows` is in Arrow form (`arrow_schema`); each (tags, time) must occur once, as after `merge`.
    Buckets without any value are left out. Fastest when the rows are sorted.
    """
    columns = {field.name: one_chunk(rows.column(i)) for i, field in enumerate(rows.schema)}
    time = columns[TIME].to_numpy()
    tags = {name: tag_codes(columns[name]) for name in schema.tags}
    series, bound = series_codes(list(tags.values()), len(time))
    segments = _segments(series, time)
    fields = [_field(columns[c.name], c.name, c.type) for c in schema.columns if not c.tag]
    bases = tuple(_row_bases(schema.table, tags, time, seed) for seed in _SEEDS)
    count, h1, h2 = _value_sums(fields, (bases[0], bases[1]))
    if len(segments):
        count, h1, h2 = (np.add.reduceat(x, segments) for x in (count, h1, h2))
    days = np.floor_divide(time[segments], DAY_MS)
    sums = {name: columns[name].take(pa.array(segments)) for name in schema.tags}
    sums |= {DAY: pa.array(days), COUNT: pa.array(count), H1: pa.array(h1), H2: pa.array(h2)}
    table = pa.table(sums)
    table = table.filter(pa.array(count != 0)) if (count == 0).any() else table
    return table if _ascending(series[segments], days) else combine([table], schema)


def _segments(series: Int64s, time: Int64s) -> Int64s:
    """First row of every run of rows of one series and day."""
    if not len(time):
        return np.empty(0, np.int64)
    days = np.floor_divide(time, DAY_MS)
    edges = np.flatnonzero((np.diff(series) != 0) | (np.diff(days) != 0))
    return np.concatenate((np.zeros(1, np.int64), edges + 1))


def _ascending(series: Int64s, days: Int64s) -> bool:
    step = np.diff(series)
    return bool(((step > 0) | ((step == 0) & (np.diff(days) > 0))).all())


def _row_bases(table: str, tags: dict[str, TagCodes], time: Int64s, seed: int) -> UInt64s:
    """Hash of (table, tags, time) per row. Tags are hashed in the order of their names, without nulls."""
    base = np.full(len(time), _text_hash(table.encode(), seed=seed), np.uint64)
    scratch = np.empty_like(base)
    for name in sorted(tags):
        texts = [text.encode() for text in tags[name].values.to_pylist()]
        hashes = [_text_hash(name.encode(), text, seed=seed) for text in texts]
        value = np.array([0, *hashes], np.uint64)[tags[name].codes]
        mixed = _mix(base ^ value, scratch)
        base = np.where(tags[name].codes == 0, base, mixed)
    base += time.view(np.uint64) * _TIME_MUL
    return _mix(base, scratch)


def _field(array: pa.Array, name: str, kind: str) -> _Field:
    names = [np.uint64(_text_hash(name.encode(), kind.encode(), seed=seed)) for seed in _SEEDS]
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        bits = _text_bits(array)
    else:
        one = _number_bits(array)
        bits = (one, one)
    return _Field((names[0], names[1]), bits, valid)


def _text_bits(array: pa.Array) -> tuple[UInt64s, UInt64s]:
    encoded = array.cast(pa.binary()).dictionary_encode()
    distinct: list[bytes] = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(0).to_numpy()
    if not distinct:
        none = np.zeros(len(array), np.uint64)
        return none, none
    first, second = (
        np.array([xxhash.xxh3_64_intdigest(value, seed) for value in distinct], np.uint64)[codes]
        for seed in _SEEDS
    )
    return first, second


def _number_bits(array: pa.Array) -> UInt64s:
    kind = array.type
    if pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    if pa.types.is_temporal(kind):
        array = array.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    values: npt.NDArray[Any] = (array.fill_null(0) if array.null_count else array).to_numpy()
    if not pa.types.is_floating(kind):
        return values.astype(np.int64).view(np.uint64)
    nan = np.isnan(values)
    if nan.any():
        values = np.where(nan, values.dtype.type(np.nan), values)
    unsigned = np.uint32 if values.dtype == np.float32 else np.uint64
    return np.ascontiguousarray(values).view(unsigned).astype(np.uint64)


def _value_sums(fields: list[_Field], bases: tuple[UInt64s, UInt64s]) -> tuple[UInt64s, UInt64s, UInt64s]:
    """Per row: the number of non-null values, and the sums of their hashes."""
    rows = len(bases[0])
    count, h1, h2 = (np.zeros(rows, np.uint64) for _ in range(3))
    for start in range(0, rows, _BLOCK):
        block = slice(start, min(start + _BLOCK, rows))
        x, scratch = np.empty((2, block.stop - start), np.uint64)
        for field in fields:
            valid = None if field.valid is None else field.valid[block]
            count[block] += np.uint64(1) if valid is None else valid
            for i, sums in enumerate((h1, h2)):
                np.add(field.bits[i][block], field.names[i], out=x)
                np.bitwise_xor(_mix(x, scratch), bases[i][block], out=x)
                _mix(x, scratch)
                if valid is not None:
                    np.multiply(x, valid, out=x)
                sums[block] += x
    return count, h1, h2


def combine(parts: Sequence[pa.Table], schema: TableSchema) -> pa.Table:
    """Add up checksum tables of rows that share no cell; equal (series, day) become one bucket."""
    joined = pa.concat_tables(parts)
    columns = {name: one_chunk(joined.column(name)) for name in joined.column_names}
    days = columns[DAY].to_numpy()
    series, _ = series_codes([tag_codes(columns[name]) for name in schema.tags], len(days))
    order = np.lexsort((days, series))
    series, days = series[order], days[order]
    edges = np.flatnonzero((np.diff(series) != 0) | (np.diff(days) != 0)) + 1
    starts = np.concatenate((np.zeros(min(1, len(days)), np.int64), edges))
    taken = pa.array(order[starts])
    result = {name: columns[name].take(taken) for name in (*schema.tags, DAY)}
    for name in (COUNT, H1, H2):
        values = columns[name].to_numpy()[order]
        result[name] = pa.array(np.add.reduceat(values, starts) if len(starts) else values)
    return pa.table(result)


def total(sums: pa.Table) -> Sums:
    """Fold a checksum table into one triple (`FileMeta.logical`)."""
    count, h1, h2 = (int(one_chunk(sums.column(n)).to_numpy().sum(dtype=np.uint64)) for n in (COUNT, H1, H2))
    return count, h1, h2


def add(*sums: Sums) -> Sums:
    """The total of a whole from the totals of its parts, which share no cell."""
    return (
        sum(s[0] for s in sums) % _MOD,
        sum(s[1] for s in sums) % _MOD,
        sum(s[2] for s in sums) % _MOD,
    )


def by_day(sums: pa.Table) -> list[tuple[int, int, int, int]]:
    """Fold over the series: (day, values, sum 1, sum 2), days ascending."""
    days = one_chunk(sums.column(DAY)).to_numpy()
    distinct, place = np.unique(days, return_inverse=True)
    folded = np.zeros((3, len(distinct)), np.uint64)
    for row, name in zip(folded, (COUNT, H1, H2), strict=True):
        np.add.at(row, place, one_chunk(sums.column(name)).to_numpy())
    return list(zip(distinct.tolist(), *folded.tolist(), strict=True))
