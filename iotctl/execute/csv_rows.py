"""CSV to Arrow, column by column, with every bad row known by its line.

Everything is first read as text, so that a bad value is a mark in a column and not an exception of a
whole block. A quoted value must not contain a line break (lines would not be countable).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from iotctl.errors import InputProblem
from iotctl.execute.blocks import BAD_ROWS_MAX, BadRow, Block, Columns, Int64s, Mask, a_type, cast, nulls
from iotctl.execute.times import TimeRule

BLOCK_BYTES = 8 * 1024 * 1024
NULLS = ("", "NA", "N/A", "NULL", "null", "None", "nan", "NaN", "NAN", "-")
"""Spellings of "no value" in number, boolean and time columns. In text columns nothing at all is one, and two
quotes are text without letters, as `data export` writes them."""

INFINITE = r"^[+-]?(?i:inf|infinity)$"

_MS = TimeRule("ms")

ARROW = {
    "BOOLEAN": pa.bool_(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "STRING": pa.string(),
    "TIMESTAMP": pa.timestamp("ns"),
    "DATE": pa.date32(),
}


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
                        quoted_strings_can_be_null=False,
                        null_values=[""],
                    ),
                )
                for block in reader:
                    self.at = file.tell()
                    yield block
            except pa.ArrowInvalid as error:
                raise InputProblem(f"not a CSV file: {error}", where=str(self.path)) from None

    def header(self) -> list[str]:
        import csv

        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file)
                names = next(reader, [])
        except UnicodeDecodeError as error:
            raise InputProblem(
                "cannot be read as text",
                why=str(error),
                next="write the file in UTF-8, for example with iconv -f LATIN1 -t UTF-8",
                where=str(self.path),
            ) from None
        except (OSError, csv.Error) as error:
            raise InputProblem("cannot be read as text", why=str(error), where=str(self.path)) from None
        if not any(n.strip() for n in names):
            raise InputProblem("the file has no header line", where=f"{self.path}:1")
        if reader.line_num > 1:
            raise InputProblem(
                "the header has a line break within quotes",
                why="or a quote that is not closed",
                next="write the names of the columns in one line",
                where=f"{self.path}:1",
            )
        return names

    def _on_ragged(self, row: pacsv.InvalidRow) -> str:
        reason = f"{row.actual_columns} values, the header has {row.expected_columns}"
        self.ragged.append(BadRow(row.number or 0, reason))
        return "skip"


class Inferred(msgspec.Struct, frozen=True):
    """A type for every column but the time, and the columns that look like numbers and are text."""

    types: dict[str, str]
    coded: list[str]


def infer_types(path: Path, given: dict[str, str], time: str) -> Inferred:
    """As given, else by what most values are: INT64 where no number has a fraction or exponent, DOUBLE,
    BOOLEAN, else STRING. Numbers with leading zeros (`007`) are codes: the column is STRING."""
    source = _Source(path)
    header = source.header()
    check_columns(header, time, given, where=f"{path}:1")
    votes = {n: _Votes() for n in header if n != time and n not in given}
    for block in source.blocks():
        for name in votes:
            votes[name].add(block.column(name))
    types = {n: given[n] if n in given else votes[n].type for n in header if n != time}
    return Inferred(types, [n for n, v in votes.items() if v.is_coded])


@dataclass(slots=True)
class _Votes:
    """How many values of a column look like what."""

    valid: int = 0
    numbers: int = 0
    whole: int = 0
    zeros: int = 0
    booleans: int = 0

    def add(self, column: pa.Array) -> None:
        text = _blank_nulls(pc.utf8_trim_whitespace(column))
        self.valid += len(text) - text.null_count
        self.numbers += _matches(text, rf"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|{INFINITE}")
        self.whole += _matches(text, r"^[+-]?\d+$")
        self.zeros += _matches(text, r"^[+-]?0\d+$")
        self.booleans += _matches(text, r"^(?i:true|false)$")

    @property
    def is_numeric(self) -> bool:
        return self.numbers * 2 > self.valid

    @property
    def is_coded(self) -> bool:
        return self.is_numeric and self.zeros > 0 and self.whole == self.numbers

    @property
    def type(self) -> str:
        if self.is_coded:
            return "STRING"
        if self.is_numeric:
            return "INT64" if self.whole == self.numbers else "DOUBLE"
        return "BOOLEAN" if self.booleans * 2 > self.valid else "STRING"


def read_csv(path: Path, types: dict[str, str], time: str, rule: TimeRule = _MS) -> Iterator[Block]:
    """The file's rows with `time` and the columns of `types`.

    Raises:
        InputProblem: unreadable, no `time` column, a column of `types` that is not there.
    """
    source = _Source(path)
    check_columns(source.header(), time, types, where=f"{path}:1")
    for name, kind in types.items():
        if kind not in ARROW:
            raise InputProblem(f"{name}: a {kind} cannot be written in a CSV file", where=f"{path}:1")
    done = 0
    for batch in source.blocks():
        lines = _lines(done, batch.num_rows, source.ragged)
        done += batch.num_rows
        yield _convert(batch, lines, types, time, rule, source.at)
    if source.ragged:
        ragged = source.ragged[:BAD_ROWS_MAX]
        none = pa.RecordBatch.from_pylist([], pa.schema([]))
        yield Block(none, np.empty(0, np.int64), ragged, len(source.ragged), source.at)


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


def _matches(text: pa.Array, pattern: str) -> int:
    return int(pc.sum(pc.match_substring_regex(text, pattern)).as_py() or 0)


def _blank_nulls(text: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_in(text, value_set=pa.array(NULLS)), pa.scalar(None, pa.string()), text)


def _lines(done: int, count: int, ragged: list[BadRow]) -> Int64s:
    """Line of each row of a block: rows before it, the header, and the lines the parser left out."""
    lines = np.arange(done, done + count, dtype=np.int64) + 2
    for bad in sorted(ragged, key=lambda b: b.line):
        lines[lines >= bad.line] += 1
    return lines


def _convert(
    batch: pa.RecordBatch, lines: Int64s, types: dict[str, str], time: str, rule: TimeRule, at: int
) -> Block:
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = Columns(batch.num_rows)
    seen = columns.add_times(time, given[time], rule)
    for name, kind in types.items():
        array, bad = _typed(given[name], kind)
        columns.add(name.lower(), array, bad, f"{name}: not {a_type(kind)}", given[name])
        if kind == "DOUBLE":
            columns.also(
                _rounded(given[name]),
                f"{name}: a DOUBLE cannot hold it exactly (--type {name}=INT64 can)",
                given[name],
            )
    empty = np.logical_and.reduce([nulls(c) for c in given.values()])
    return columns.block(lines, empty, at, seen)


def _typed(text: pa.Array, kind: str) -> tuple[pa.Array, Mask]:
    if kind in ("STRING", "TEXT"):
        return text, np.zeros(len(text), np.bool_)
    given = _blank_nulls(pc.utf8_trim_whitespace(text))
    values, bad = cast(given, ARROW[kind])
    return values, bad | _overflowed(given, values) if kind in ("FLOAT", "DOUBLE") else bad


def _overflowed(text: pa.Array, values: pa.Array) -> Mask:
    """Numbers too large for the type, which the cast takes for infinite."""
    said = pc.match_substring_regex(text, INFINITE)
    found: Mask = pc.fill_null(pc.and_not(pc.is_inf(values), said), False).to_numpy(zero_copy_only=False)
    return found


def _rounded(text: pa.Array) -> Mask:
    """Whole numbers that are another number as a DOUBLE; only those of 16 digits and more can be."""
    trimmed = pc.utf8_trim_whitespace(text)
    long = pc.fill_null(pc.match_substring_regex(trimmed, r"^[+-]?\d{16,}$"), False)
    numbers, beyond = cast(pc.if_else(long, trimmed, pa.scalar(None, pa.string())), pa.int64())
    values = numbers.fill_null(0).to_numpy()
    with np.errstate(invalid="ignore"):  # the largest come back as something else, which is what is asked
        changed: Mask = values.astype(np.float64).astype(np.int64) != values
    return changed | beyond
