"""Surveys the rows of a file before the first row is written.

Memory is bounded: series and keys are counted by 64-bit hashes up to a limit, and the report says if it
was exceeded.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from iotctl.rows.blocks import BAD_ROWS_MAX, BadRow, Block
from iotctl.rows.times import Seen

SERIES_MAX = 1_000_000
"""More series than this are not counted."""

KEYS_MAX = 10_000_000
"""How many rows are searched for rows with the same time and tags."""

CELLS_MAX = 20_000_000
"""Number of (key, field) pairs whose first value is kept for comparison."""

SAMPLE_ROWS = 3

UInt64s = npt.NDArray[np.uint64]


@dataclass(slots=True)
class Survey:
    """`tags` are the tags in the file; rows before `cut` (ms) are older than the table's TTL."""

    tags: list[str]
    cut: int | None
    rows: int = 0
    bad: list[BadRow] = field(default_factory=list)
    bad_rows: int = 0
    first: int | None = None
    last: int | None = None
    expired: int = 0
    seen: Seen = field(default_factory=Seen)
    sample: list[dict[str, object]] = field(default_factory=list)
    broken: int = 0
    """Rows that span several lines."""

    series: UInt64s = field(default_factory=lambda: np.empty(0, np.uint64))
    keys: list[UInt64s] = field(default_factory=list)

    def add(self, block: Block) -> None:
        self.bad_rows += block.bad_rows
        self.bad += block.bad[: BAD_ROWS_MAX - len(self.bad)]
        self.seen.add(block.seen)
        self.broken += block.broken
        if not block.rows.num_rows:
            return
        rows = block.rows
        times = rows.column("time").to_numpy()
        self.sample += rows.slice(0, SAMPLE_ROWS - len(self.sample)).to_pylist()
        low, high = int(times.min()), int(times.max())
        self.first = low if self.first is None else min(self.first, low)
        self.last = high if self.last is None else max(self.last, high)
        if self.cut is not None:
            self.expired += int(np.count_nonzero(times < self.cut))
        series = series_of(rows, self.tags)
        if len(self.series) <= SERIES_MAX:
            self.series = np.union1d(self.series, series)
        if self.rows < KEYS_MAX:
            self.keys.append(keys_of(series, times))
        self.rows += rows.num_rows

    @property
    def is_complete(self) -> bool:
        """Whether every row was checked for other rows with the same key."""
        return self.rows == sum(map(len, self.keys))

    def shared_keys(self) -> UInt64s:
        """Sorted hashes of the keys (tags, time) that several rows share."""
        keys = np.sort(np.concatenate([np.empty(0, np.uint64), *self.keys]))
        return np.unique(keys[1:][keys[1:] == keys[:-1]])


@dataclass(slots=True)
class DuplicateRows:
    """Rows that share a key: `differ` have different values, so only the last is kept; `equal` have the same
    values or fill different fields. `unseen` keys are shared, but their rows were not compared."""

    differ: int = 0
    equal: int = 0
    example: str = ""
    unseen: int = 0


class Comparison:
    """Compares rows that share a key, block by block. Two rows differ if a field has different values in
    them; a row without the field matches any value."""

    def __init__(self, shared: UInt64s, tags: list[str], fields: list[str]) -> None:
        """`shared`: sorted hashes of the keys that several rows share."""
        most = CELLS_MAX // max(1, len(fields))
        self._keys = shared[:most]
        self._unseen = len(shared) - len(self._keys)
        self._tags = tags
        self._first = {name: np.zeros(len(self._keys), np.uint64) for name in fields}
        """By field, the hash of each key's first value; 0 while there is none."""

        self._counts = np.zeros(len(self._keys), np.int64)
        self._differs = np.zeros(len(self._keys), np.bool_)
        self._example = ""

    def add(self, rows: pa.RecordBatch) -> None:
        keys = keys_of(series_of(rows, self._tags), rows.column("time").to_numpy())
        places = np.minimum(np.searchsorted(self._keys, keys), max(0, len(self._keys) - 1))
        ours = self._keys[places] == keys if len(self._keys) else np.zeros(len(keys), np.bool_)
        if not ours.any():
            return
        rows, at = rows.filter(pa.array(ours)), places[ours]
        np.add.at(self._counts, at, 1)
        differs = np.zeros(len(at), np.bool_)
        for name, first in self._first.items():
            values = _value_hashes(rows.column(name))
            given = np.flatnonzero((values != 0) & (first[at] == 0))
            fresh, index = np.unique(at[given], return_index=True)
            first[fresh] = values[given[index]]
            differs |= (values != 0) & (values != first[at])
        self._differs[at[differs]] = True
        if differs.any() and not self._example:
            row = rows.select([*self._tags, "time"]).slice(int(np.flatnonzero(differs)[0]), 1).to_pylist()[0]
            self._example = ", ".join(f"{n}={v}" for n, v in row.items())

    def result(self) -> DuplicateRows:
        differ = int(self._counts[self._differs].sum())
        return DuplicateRows(differ, int(self._counts.sum()) - differ, self._example, self._unseen)


def _value_hashes(column: pa.Array) -> UInt64s:
    """A hash of each value; 0 only for null."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        found = _text_hashes(column)
    else:
        if pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        elif pa.types.is_timestamp(kind):
            column = column.cast(pa.int64())
        elif pa.types.is_date32(kind):
            column = column.cast(pa.int32())
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        if numbers.dtype.kind == "f":
            numbers = numbers.astype(np.float64) + 0.0  # -0.0 becomes 0.0
            numbers[np.isnan(numbers)] = np.nan
            numbers = numbers.view(np.uint64)
        found = _mixed(numbers.astype(np.uint64))
    found = np.where(found == 0, np.uint64(1), found)
    found[pc.is_null(column).to_numpy(zero_copy_only=False)] = 0
    return found


def _text_hashes(column: pa.Array) -> UInt64s:
    """A hash of each text; 0 for null."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary.cast(pa.binary()).to_pylist()
    hashes = [xxhash.xxh3_64_intdigest(v) for v in values]
    codes = encoded.indices.fill_null(len(hashes)).to_numpy()
    found: UInt64s = np.array([*hashes, 0], np.uint64)[codes]
    return found


def series_of(rows: pa.RecordBatch, tags: list[str]) -> UInt64s:
    """A hash of the tags of each row."""
    series = np.zeros(rows.num_rows, np.uint64)
    for tag in tags:
        series = _mixed(series ^ _text_hashes(rows.column(tag)))
    return series


def keys_of(series: UInt64s, times: npt.NDArray[np.int64]) -> UInt64s:
    """A hash of the tags and the time of each row."""
    return _mixed(series ^ _mixed(times.view(np.uint64)))


def _mixed(x: UInt64s) -> UInt64s:
    """splitmix64; does not map 0 to 0."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
