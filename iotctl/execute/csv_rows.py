"""CSV to Arrow, column by column, with every bad row known by its line.

Everything is first read as text, so that a bad value is a mark in a column and not an exception of a
whole block. A value that cannot be cast is found by halving the column: its cost is k * log n casts for
k bad values. A quoted value must not contain a line break (lines would not be countable).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from iotctl.errors import InputProblem

BLOCK_BYTES = 8 * 1024 * 1024
BAD_ROWS_MAX = 1000
"""More bad rows than this in a file mean the file or its types are wrong as a whole."""

NULLS = ("NA", "N/A", "NULL", "null", "None", "nan", "NaN", "NAN", "-")
"""Spellings of "no value" in number, boolean and time columns; in text columns only "" is one."""

Mask = npt.NDArray[np.bool_]

ARROW = {
    "BOOLEAN": pa.bool_(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "STRING": pa.string(),
    "TIMESTAMP": pa.timestamp("ms"),
    "DATE": pa.date32(),
}


@dataclass(frozen=True, slots=True)
class BadRow:
    """`line` counts from 1, the header included."""

    line: int
    reason: str


@dataclass(slots=True)
class Block:
    """Rows that are good, and those of the same block that are not. `at`: bytes of the file read so far."""

    rows: pa.RecordBatch
    bad: list[BadRow]
    at: int


@dataclass(slots=True)
class _Source:
    """A CSV file read as text. `ragged` are lines with a wrong number of values, found by the parser."""

    path: Path
    ragged: list[BadRow] = field(default_factory=list)
    at: int = 0

    def blocks(self) -> Iterator[pa.RecordBatch]:
        self.ragged.clear()
        header = self.header()
        with self.path.open("rb") as file:
            try:
                reader = pacsv.open_csv(
                    file,
                    read_options=pacsv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
                    parse_options=pacsv.ParseOptions(
                        invalid_row_handler=self._on_ragged, ignore_empty_lines=False
                    ),
                    convert_options=pacsv.ConvertOptions(
                        column_types={name: pa.string() for name in header},
                        strings_can_be_null=True,
                        null_values=[""],
                    ),
                )
                for block in reader:
                    self.at = file.tell()
                    yield block
            except pa.ArrowInvalid as error:
                raise InputProblem(f"not a CSV file: {error}", where=str(self.path)) from None

    def header(self) -> list[str]:
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                line = file.readline()
        except (OSError, UnicodeDecodeError) as error:
            raise InputProblem("cannot be read as text", why=str(error), where=str(self.path)) from None
        if not line.strip():
            raise InputProblem("the file has no header line", where=f"{self.path}:1")
        import csv

        return next(csv.reader([line]))

    def _on_ragged(self, row: pacsv.InvalidRow) -> str:
        reason = f"{row.actual_columns} values, the header has {row.expected_columns}"
        self.ragged.append(BadRow(row.number or 0, reason))
        return "skip"


def infer_types(path: Path, given: dict[str, str], time: str) -> dict[str, str]:
    """A type for every column but `time`: as given, else DOUBLE or BOOLEAN when most values are, else STRING.

    Whole numbers become DOUBLE too: a sensor that reads 20 today reads 20.5 tomorrow.
    """
    counts: dict[str, list[int]] = {}
    source = _Source(path)
    check_columns(source.header(), time, given, where=f"{path}:1")
    for block in source.blocks():
        for name, column in zip(block.schema.names, block.columns, strict=True):
            if name == time or name in given:
                continue
            count = counts.setdefault(name, [0, 0, 0])
            text = _blank_nulls(pc.utf8_trim_whitespace(column))
            valid = len(text) - text.null_count
            count[0] += valid
            count[1] += _matches(text, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:inf|infinity)$")
            count[2] += _matches(text, r"^(?i:true|false)$")
    return {**{n: _vote(*c) for n, c in counts.items()}, **given}


def read_csv(path: Path, types: dict[str, str], time: str) -> Iterator[Block]:
    """The file's rows with `time` as int64 milliseconds (named `time`) and the columns of `types`.

    Raises:
        InputProblem: unreadable, no `time` column, a column of `types` that is not there.
    """
    source = _Source(path)
    check_columns(source.header(), time, types, where=f"{path}:1")
    for name, kind in types.items():
        if kind not in ARROW:
            raise InputProblem(f"{name}: a {kind} cannot be written in a CSV file", where=f"{path}:1")
    done = 0
    for block in source.blocks():
        lines = _lines(done, block.num_rows, source.ragged)
        done += block.num_rows
        rows, bad = _convert(block, lines, types, time)
        yield Block(rows, bad, source.at)
    if source.ragged:
        yield Block(pa.RecordBatch.from_pylist([], pa.schema([])), list(source.ragged), source.at)


def check_columns(names: Sequence[str], time: str, wanted: Iterable[str], *, where: str) -> None:
    """The columns of a file against what the command line says of them.

    Raises:
        InputProblem: a column that is not there, or two that would have one name (names are lower case).
    """
    for name in (time, *wanted):
        if name not in names:
            raise _no_column(name, names, "--time" if name == time else "--tag and --type", where)
    seen: dict[str, str] = {}
    for name in names:
        twin = seen.setdefault(name.lower(), name)
        if name != time and name.lower() == "time":
            raise InputProblem(
                f"column {name!r} is not the time column ({time!r} is)",
                next="rename it in the file, or name it with --time",
                where=where,
            )
        if names.count(name) > 1:
            raise InputProblem(f"two columns are named {name!r}", next="rename one in the file", where=where)
        if twin != name:
            raise InputProblem(
                f"columns {twin!r} and {name!r} are one",
                why="names of columns are lower case",
                next="rename one in the file",
                where=where,
            )


def _no_column(name: str, names: Sequence[str], option: str, where: str) -> InputProblem:
    why = f"the columns are: {', '.join(names)}"
    following = f"name columns of the file with {option}"
    twin = next((n for n in names if n.strip().lower() == name.lower()), None)
    if twin is not None:
        following = f"did you mean {twin!r}? {following}"
    elif len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        why = f"the header has no comma: {names[0]!r}"
        following = "separate the columns by commas"
    return InputProblem(f"no column {name!r}", why=why, next=following, where=where)


def _vote(valid: int, numbers: int, booleans: int) -> str:
    if valid and numbers * 2 > valid:
        return "DOUBLE"
    return "BOOLEAN" if valid and booleans * 2 > valid else "STRING"


def _matches(text: pa.Array, pattern: str) -> int:
    return int(pc.sum(pc.match_substring_regex(text, pattern)).as_py() or 0)


def _blank_nulls(text: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_in(text, value_set=pa.array(NULLS)), pa.scalar(None, pa.string()), text)


def _lines(done: int, count: int, ragged: list[BadRow]) -> npt.NDArray[np.int64]:
    """Line of each row of a block: rows before it, the header, and the lines the parser left out."""
    lines = np.arange(done, done + count, dtype=np.int64) + 2
    for bad in sorted(ragged, key=lambda b: b.line):
        lines[lines >= bad.line] += 1
    return lines


def _convert(
    block: pa.RecordBatch, lines: npt.NDArray[np.int64], types: dict[str, str], time: str
) -> tuple[pa.RecordBatch, list[BadRow]]:
    columns = dict(zip(block.schema.names, block.columns, strict=True))
    empty = np.logical_and.reduce([_nulls(c) for c in columns.values()])
    reasons: list[tuple[Mask, str, pa.Array]] = []
    times, bad = _times(columns[time])
    reasons.append((bad & ~empty, f"{time}: not a time in milliseconds or ISO 8601", columns[time]))
    arrays = [times]
    for name, kind in types.items():
        array, bad = _typed(columns[name], kind)
        arrays.append(array)
        reasons.append((bad & ~empty, f"{name}: not a {kind}", columns[name]))
    good = ~empty & ~np.logical_or.reduce([mask for mask, _, _ in reasons])
    found = [
        BadRow(int(lines[i]), f"{text}: {values[int(i)].as_py()!r}")
        for mask, text, values in reasons
        for i in np.flatnonzero(mask)[:BAD_ROWS_MAX]
    ]
    rows = pa.RecordBatch.from_arrays(arrays, names=["time", *(n.lower() for n in types)])
    return rows.filter(pa.array(good)), sorted(found, key=lambda b: b.line)


def _nulls(array: pa.Array) -> Mask:
    mask: Mask = pc.is_null(array).to_numpy(zero_copy_only=False)
    return mask


def _typed(text: pa.Array, kind: str) -> tuple[pa.Array, Mask]:
    if kind in ("STRING", "TEXT"):
        return text, np.zeros(len(text), np.bool_)
    return _cast(_blank_nulls(pc.utf8_trim_whitespace(text)), ARROW[kind])


def _times(text: pa.Array) -> tuple[pa.Array, Mask]:
    """int64 milliseconds; a missing time is bad. Whole numbers are milliseconds, else ISO 8601 (UTC when
    no zone is given)."""
    trimmed = pc.utf8_trim_whitespace(text)
    whole = pc.match_substring_regex(trimmed, r"^[+-]?\d+$")
    none = pa.scalar(None, pa.string())
    numbers, bad_numbers = _cast(pc.if_else(whole, trimmed, none), pa.int64())
    zoned = pc.match_substring_regex(trimmed, r"\d[ T]?\d\d:?\d\d.*([zZ]|[+-]\d\d(:?\d\d)?)$")
    iso = pc.invert(whole)
    plain, bad_plain = _cast(pc.if_else(pc.and_(iso, pc.invert(zoned)), trimmed, none), pa.timestamp("ms"))
    aware, bad_aware = _cast(pc.if_else(pc.and_(iso, zoned), trimmed, none), pa.timestamp("ms", "UTC"))
    values = pc.coalesce(numbers, plain.cast(pa.int64()), aware.cast(pa.int64()))
    return values, bad_numbers | bad_plain | bad_aware | _nulls(values)


def _cast(text: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """The cast column and which values refused; those become null."""
    bad = np.zeros(len(text), np.bool_)
    parts: list[pa.Array] = []
    _cast_part(text, kind, 0, bad, parts)
    if len(parts) == 1:
        return parts[0], bad
    return (pa.concat_arrays(parts) if parts else pa.nulls(0, kind)), bad


def _cast_part(text: pa.Array, kind: pa.DataType, at: int, bad: Mask, parts: list[pa.Array]) -> None:
    try:
        parts.append(text.cast(kind))
        return
    except pa.ArrowInvalid:
        pass
    if len(text) == 1 or int(bad.sum()) > BAD_ROWS_MAX:
        bad[at : at + len(text)] = ~_nulls(text)
        parts.append(pa.nulls(len(text), kind))
        return
    half = len(text) // 2
    _cast_part(text.slice(0, half), kind, at, bad, parts)
    _cast_part(text.slice(half), kind, at + half, bad, parts)
