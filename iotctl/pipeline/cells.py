"""Finds the cells that differ between versions of the same rows, column by column.

Values are equal if their bits are equal, except that all NaNs are one value, as in the checksum.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from iotctl.pipeline.report import Value
from iotctl.pipeline.tsfile_rows import TIME
from nodeagent.table.arrow import one_chunk

Int64s = npt.NDArray[np.int64]

ROW = ""
"""`field` of a difference in the row itself: the row exists, with or without values, or it does not."""


@dataclass(frozen=True, slots=True)
class CellDifference:
    """One cell; versions i and j agree if `codes[i] == codes[j]`; -1 is null or no row."""

    time_ms: int
    field: str
    codes: tuple[int, ...]
    values: tuple[Value, ...]


def differing_cells(
    versions: Sequence[pa.Table], fields: Sequence[str]
) -> tuple[int, Iterator[CellDifference]]:
    """Compare versions of the rows of one series, each sorted by distinct times.

    Returns:
        How many cells differ, and an iterator over these cells.
    """
    own = [np.asarray(v.column(TIME).to_numpy(), np.int64) for v in versions]
    times = np.unique(np.concatenate(own))
    places = [_places(times, t) for t in own]
    columns = {ROW: _rows_there(places)}
    found: list[tuple[str, Int64s, Int64s]] = []
    for name in (*fields, ROW):
        codes = columns[ROW] if name == ROW else _codes([v.column(name) for v in versions], places)
        differ = np.flatnonzero((codes != codes[0]).any(axis=0))
        if name == ROW and found:
            differ = np.setdiff1d(differ, np.concatenate([d for _, _, d in found]))
        if len(differ):
            found.append((name, codes, differ))
    return sum(len(d) for _, _, d in found), _cells(versions, times, places, found)


def _places(times: Int64s, own: Int64s) -> Int64s:
    """For each time of the union, the index of the row in this version, or -1."""
    if not len(own):
        return np.full(len(times), -1, np.int64)
    place = np.minimum(np.searchsorted(own, times), len(own) - 1)
    return np.where(own[place] == times, place, -1)


def _rows_there(places: Sequence[Int64s]) -> Int64s:
    return np.stack([np.where(place < 0, np.int64(-1), np.int64(0)) for place in places])


def _codes(columns: Sequence[pa.ChunkedArray], places: Sequence[Int64s]) -> Int64s:
    """Shape (versions, times): equal numbers for equal values, -1 for null and for no row."""
    plain = [_comparable(one_chunk(column)) for column in columns]
    encoded = pa.concat_arrays(plain).dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
    ends = np.cumsum([len(p) for p in plain])
    split = np.split(encoded, ends[:-1])
    return np.stack(
        [
            np.where(place < 0, -1, np.append(codes, -1)[place])
            for codes, place in zip(split, places, strict=True)
        ]
    )


def _comparable(array: pa.Array) -> pa.Array:
    """Floats as their bits, with one bit pattern for NaN."""
    if not pa.types.is_floating(array.type):
        return array
    nan = pa.scalar(math.nan, array.type)
    canonical = pc.if_else(pc.is_nan(array), nan, array)
    return canonical.view(pa.int32() if pa.types.is_float32(array.type) else pa.int64())


def _cells(
    versions: Sequence[pa.Table],
    times: Int64s,
    places: Sequence[Int64s],
    found: Sequence[tuple[str, Int64s, Int64s]],
) -> Iterator[CellDifference]:
    for name, codes, differ in found:
        for at in differ.tolist():
            rows = [int(place[at]) for place in places]
            values = tuple(
                (row >= 0) if name == ROW else _value(version, name, row)
                for version, row in zip(versions, rows, strict=True)
            )
            yield CellDifference(int(times[at]), name, tuple(codes[:, at].tolist()), values)


def _value(version: pa.Table, name: str, row: int) -> Value:
    """The value in a form that JSON can represent."""
    if row < 0:
        return None
    column = version.column(name)
    if pa.types.is_temporal(column.type):
        column = column.slice(row, 1).cast(pa.string())
        row = 0
    value = column[row].as_py()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    assert value is None or isinstance(value, str | int | float | bool)
    return value
