"""A file's rows block by block: valid rows in columns, bad rows as their line and the reason."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from iotctl.rows import exact
from iotctl.rows.masks import Mask, mask
from iotctl.rows.times import Seen, TimeRule, read_times

BAD_ROWS_MAX = 1000
"""The most bad rows that are listed; if there are more, the whole file or its types are wrong."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BadRow:
    """`line` counts from 1: lines of a CSV file, header included, or rows of a binary file."""

    line: int
    reason: str


@dataclass(slots=True)
class Block:
    """`lines` has the line of each row of `rows`; `bad` lists the first bad rows, once per bad value.

    `rows` has `time` (int64 ms) and the other columns in lower case. `bad_rows`: the number of bad rows
    (empty rows are left out too, but not counted). `at`: how much of the file was read.
    """

    rows: pa.RecordBatch
    lines: Int64s
    bad: list[BadRow] = field(default_factory=list)
    bad_rows: int = 0
    at: int = 0
    seen: Seen = field(default_factory=Seen)
    broken: int = 0
    """Rows that span several lines."""

    def drop(self, row: int, reason: str) -> None:
        """Move row number `row` to the bad rows."""
        self.bad.append(BadRow(int(self.lines[row]), reason))
        self.bad_rows += 1
        kept = np.arange(self.rows.num_rows) != row
        self.rows, self.lines = self.rows.filter(pa.array(kept)), self.lines[kept]


@dataclass(slots=True)
class Columns:
    """Collects the converted columns of one block and the reasons for bad values."""

    count: int
    names: list[str] = field(default_factory=list)
    arrays: list[pa.Array] = field(default_factory=list)
    reasons: list[tuple[Mask, str, pa.Array]] = field(default_factory=list)

    def add(self, name: str, array: pa.Array, bad: Mask, reason: str, given: pa.Array) -> None:
        self.names.append(name)
        self.arrays.append(array)
        self.also(bad, reason, given)

    def also(self, bad: Mask, reason: str, given: pa.Array) -> None:
        if bad.any():
            self.reasons.append((bad, reason, given))

    def convert(self, name: str, plain: pa.Array, kind: str, type_: pa.DataType, given: pa.Array) -> None:
        """Add the column converted to the table's type `kind`; reasons show values of `given`.

        Raises:
            pa.ArrowNotImplementedError: there is no cast from the column's type.
        """
        array, bad = cast(plain, type_)
        if kind in exact.WHOLE:
            bad |= exact.overflowed(plain, array)
        self.add(name.lower(), array, bad, f"{name}: not {a_type(kind)}", given)
        if kind in exact.WHOLE:
            other = exact.changed(plain, array, kind) & ~bad
            fits = other & ~cast(plain, pa.int64())[1] if other.any() else other
            what = f"{name}: a {kind} cannot hold it exactly"
            self.also(fits, f"{what} (--type {name}=INT64 can)", given)
            self.also(other & ~fits, what, given)

    def add_times(self, name: str, column: pa.Array, rule: TimeRule) -> Seen:
        """Add the time column under the name `time`; returns the kinds of times in it."""
        times = read_times(column, rule, cast)
        self.names.append("time")
        self.arrays.append(times.values)
        for bad, reason in times.bad:
            self.also(bad, f"{name}: {reason}", column)
        return times.seen

    def block(self, lines: Int64s, empty: Mask, at: int, seen: Seen) -> Block:
        """The rows that are neither empty nor bad."""
        bad = np.logical_or.reduce([np.zeros(self.count, np.bool_), *(m for m, _, _ in self.reasons)])
        found = [
            BadRow(int(lines[i]), _with_value(text, values[int(i)]))
            for bad_here, text, values in self.reasons
            for i in np.flatnonzero(bad_here & ~empty)[:BAD_ROWS_MAX]
        ]
        rows = pa.RecordBatch.from_arrays(self.arrays, names=self.names)
        good = ~empty & ~bad
        found.sort(key=lambda b: b.line)
        return Block(
            rows.filter(pa.array(good)),
            lines[good],
            found[:BAD_ROWS_MAX],
            int(np.count_nonzero(bad & ~empty)),
            at,
            seen,
        )


def _with_value(reason: str, value: pa.Scalar) -> str:
    try:
        plain = value.as_py()
    except (OverflowError, ValueError):  # a time after the year 9999, which Python cannot represent
        plain = value.value
    return reason if plain is None else f"{reason}: {plain!r}"


def cast(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """The cast column, and a mask of the values that could not be cast and became null.

    A pattern first excludes values that cannot be cast. The few remaining bad values are located by halving
    the column: k bad values cost k * log n casts.
    """
    bad = np.zeros(len(array), np.bool_)
    parts: list[pa.Array] = []
    fits: pa.Array | None = None
    if pa.types.is_string(array.type) and (look := _looks_like(kind)):
        fits = pc.match_substring_regex(array, look)
    elif pa.types.is_floating(array.type) and pa.types.is_integer(kind):
        fits = pc.and_(pc.equal(pc.floor(array), array), pc.is_finite(array))
    if fits is not None:
        bad |= mask(pc.invert(fits))
        array = pc.if_else(fits, array, pa.scalar(None, array.type))
    _cast_part(array, kind, 0, bad, parts)
    if len(parts) == 1:
        return parts[0], bad
    return (pa.concat_arrays(parts) if parts else pa.nulls(0, kind)), bad


def _looks_like(kind: pa.DataType) -> str:
    """A pattern that every text castable to the type matches; "" for none."""
    if pa.types.is_integer(kind):
        return r"^[+-]?[0-9]+$|^0[xX][0-9a-fA-F]+$"
    if pa.types.is_floating(kind):
        return r"^[+-]?[0-9.][0-9.eE+-]*$|^[+-]?(?i:inf|infinity|nan)$"
    if pa.types.is_boolean(kind):
        return r"^(?i:true|false|0|1)$"
    return r"^[0-9]" if pa.types.is_temporal(kind) else ""


def _cast_part(array: pa.Array, kind: pa.DataType, at: int, bad: Mask, parts: list[pa.Array]) -> None:
    try:
        parts.append(array.cast(kind))
        return
    except pa.ArrowInvalid:
        pass
    if len(array) == 1:
        bad[at] = True
        parts.append(pa.nulls(1, kind))
        return
    half = len(array) // 2
    _cast_part(array.slice(0, half), kind, at, bad, parts)
    _cast_part(array.slice(half), kind, at + half, bad, parts)


def a_type(kind: str) -> str:
    return f"an {kind}" if kind.startswith("INT") else f"a {kind}"
