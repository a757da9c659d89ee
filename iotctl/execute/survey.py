"""What the rows of a file come to, before the first is written.

Memory is bounded: series and keys are counted by 64-bit hashes up to a limit, and past it that is said.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from iotctl.execute.blocks import BAD_ROWS_MAX, BadRow, Block
from iotctl.execute.times import Seen

SERIES_MAX = 1_000_000
"""More series than this are not counted."""

KEYS_MAX = 10_000_000
"""Rows among which such are looked for that have one time and the same tags."""

SAMPLE_ROWS = 3

UInt64s = npt.NDArray[np.uint64]


@dataclass(slots=True)
class Survey:
    """`tags` are those of the file; rows before `cut` (ms) are past the table's TTL."""

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
    series: UInt64s = field(default_factory=lambda: np.empty(0, np.uint64))
    keys: list[UInt64s] = field(default_factory=list)

    def add(self, block: Block) -> None:
        self.bad_rows += block.bad_rows
        self.bad += block.bad[: BAD_ROWS_MAX - len(self.bad)]
        self.seen.add(block.seen)
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
        """Whether every row was looked at for others of the same key."""
        return self.rows == sum(map(len, self.keys))

    def shared_keys(self) -> UInt64s:
        """Sorted hashes of (tags, time) that several rows have."""
        keys = np.sort(np.concatenate([np.empty(0, np.uint64), *self.keys]))
        return np.unique(keys[1:][keys[1:] == keys[:-1]])


@dataclass(slots=True)
class Sharing:
    """Rows of one key that differ, of which only the last would stay, and those that are equal."""

    differ: int = 0
    equal: int = 0
    example: str = ""


def sharing_of(rows: pa.Table, tags: list[str]) -> Sharing:
    """Of rows that share their keys. Cells of one key differ when two of them have unlike values."""
    keys = [*tags, "time"]
    fields = [n for n in rows.column_names if n not in keys]
    wanted = [("time", "count"), *((n, "count_distinct") for n in fields)]
    groups = rows.group_by(keys).aggregate(wanted)
    several = groups.filter(pc.greater(groups.column("time_count"), 1))
    differs = np.zeros(several.num_rows, np.bool_)
    for name in fields:
        differs |= several.column(f"{name}_count_distinct").to_numpy() > 1
    sizes = several.column("time_count").to_numpy()
    example = ""
    if differs.any():
        first = several.slice(int(np.flatnonzero(differs)[0]), 1).to_pylist()[0]
        example = ", ".join(f"{n}={first[n]}" for n in keys)
    return Sharing(int(sizes[differs].sum()), int(sizes[~differs].sum()), example)


def series_of(rows: pa.RecordBatch, tags: list[str]) -> UInt64s:
    """A hash of the tags of each row."""
    series = np.zeros(rows.num_rows, np.uint64)
    for tag in tags:
        encoded = rows.column(tag).dictionary_encode()
        hashes = [xxhash.xxh3_64_intdigest(v.encode()) for v in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(len(hashes)).to_numpy()
        series = _mixed(series ^ np.array([*hashes, 0], np.uint64)[codes])
    return series


def keys_of(series: UInt64s, times: npt.NDArray[np.int64]) -> UInt64s:
    """A hash of the tags and the time of each row."""
    return _mixed(series ^ _mixed(times.view(np.uint64)))


def _mixed(x: UInt64s) -> UInt64s:
    """splitmix64; 0 is not its own image."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
