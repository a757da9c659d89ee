"""Reads CSV into Arrow, column by column, and reports every bad row by its line.

All columns are first read as text, so that a bad value is marked in its column and does not fail the block.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from iotctl.errors import InputProblem
from iotctl.rows.blocks import BAD_ROWS_MAX, BadRow, Block, Columns, Int64s
from iotctl.rows.exact import INFINITE
from iotctl.rows.masks import nulls
from iotctl.rows.times import TimeRule
from nodeagent.table.arrow import ARROW_TYPES

BLOCK_BYTES = 8 * 1024 * 1024
NULLS = ("", "NA", "N/A", "NULL", "null", "None", "nan", "NaN", "NAN", "-")
"""Spellings of "no value" in number, BOOLEAN, TIMESTAMP and DATE columns, but not in the file's time column.
In text columns an empty value is null, and a pair of quotes is the empty string, as `data export` writes
them."""

_MS = TimeRule("ms")

ARROW = {kind: arrow for kind, arrow in ARROW_TYPES.items() if kind != "BLOB"}
"""CSV has no notation for bytes."""


class _Ended(io.FileIO):
    """A file followed by an extra row, which has too many values and so reaches no table. If a quote is not
    closed, the extra row becomes part of the last value and is not reported as ragged."""

    def __init__(self, path: Path, columns: int) -> None:
        super().__init__(path)
        self._end = _END + b"," * (columns + 1) + b"\n"
        self._last = b"\n"
        self.has_quotes = False

    def read(self, size: int | None = -1) -> bytes:
        """Returns the extra row with the last bytes of the file, so that it is never a block of its own."""
        wanted = -1 if size is None or size < 0 else max(1, size - len(self._end) - 1)
        data = super().read(wanted) or b""
        self.has_quotes = self.has_quotes or b'"' in data
        if self._end and (wanted < 0 or len(data) < wanted):
            last = data[-1:] or self._last
            data += (b"" if last in b"\r\n" else b"\n") + self._end
            self._end = b""
        self._last = data[-1:]
        return data


_END = b"\x01the end of the file\x01"


@dataclass(slots=True)
class _Ragged:
    """A row with the wrong number of values. `number` counts rows; the header is 1."""

    number: int
    reason: str
    text: str


@dataclass(slots=True)
class _Text:
    """Rows as text with their lines, and the rows that the parser left out. `breaks`: rows that span several
    lines."""

    rows: pa.RecordBatch
    lines: Int64s
    ragged: list[BadRow]
    breaks: int
    at: int


@dataclass(slots=True)
class _Source:
    """A CSV file read as text."""

    path: Path
    _ragged: list[_Ragged] = field(default_factory=list)
    _next: int = 2
    """Number of the next row; `_breaks` counts the line breaks within the rows before it."""

    _breaks: int = 0
    _last: int = 1
    """Line of the last row."""

    _ended: bool = False
    """Whether the parser reported the extra row at the end."""

    def blocks(self) -> Iterator[_Text]:
        self._ragged, self._next, self._breaks, self._last, self._ended = [], 2, 0, 1, False
        header = self.header()
        with _Ended(self.path, len(header)) as file:
            try:
                reader = pacsv.open_csv(
                    file,
                    read_options=pacsv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
                    parse_options=pacsv.ParseOptions(
                        invalid_row_handler=self._on_ragged, ignore_empty_lines=False, newlines_in_values=True
                    ),
                    convert_options=pacsv.ConvertOptions(
                        column_types={name: pa.string() for name in header},
                        strings_can_be_null=True,
                        quoted_strings_can_be_null=False,
                        null_values=[""],
                    ),
                )
                for block in reader:
                    yield self._placed(block, file)
            except pa.ArrowInvalid as error:
                raise self._no_csv(error) from None
            if self._ragged:
                yield self._placed(pa.RecordBatch.from_pylist([], schema=reader.schema), file)
            if not self._ended:
                raise InputProblem(
                    "a quote is not closed",
                    why="the last value extends to the end of the file",
                    next="nothing was written; close the quote, or double it if it is part of the text",
                    where=f"{self.path}:{self._last}",
                )

    def _no_csv(self, error: pa.ArrowInvalid) -> InputProblem:
        if "straddling" in str(error):
            return InputProblem(
                f"a row is longer than {BLOCK_BYTES // 1024 // 1024} MiB, or a quote is not closed",
                next="nothing was written; close the quote, or double it if it is part of the text",
                where=f"{self.path}:{self._next + self._breaks}",
            )
        return InputProblem(f"not a CSV file: {error}", where=str(self.path))

    def _placed(self, rows: pa.RecordBatch, file: _Ended) -> _Text:
        count, ragged = rows.num_rows, sorted(self._ragged, key=lambda r: r.number)
        candidates = np.arange(self._next, self._next + count + len(ragged), dtype=np.int64)
        numbers = candidates[~np.isin(candidates, [r.number for r in ragged])][:count]
        if count:
            self._next = int(numbers[-1]) + 1
            self._ragged = [r for r in ragged if r.number >= self._next]
            ragged = [r for r in ragged if r.number < self._next]
        else:
            self._ragged = []
        own = _line_breaks(rows) if file.has_quotes else np.zeros(count, np.int64)
        texts = _line_breaks(pa.record_batch({"text": [r.text for r in ragged]})) if ragged else own[:0]
        at = np.concatenate([numbers, np.array([r.number for r in ragged], np.int64)])
        breaks = np.concatenate([own, texts])
        order = np.argsort(at)
        before = np.empty(len(at), np.int64)
        before[order] = self._breaks + np.cumsum(breaks[order]) - breaks[order]
        lines = at + before
        self._breaks += int(breaks.sum())
        if len(at):
            self._last = int(lines[order[-1]])
        bad = [BadRow(int(line), r.reason) for line, r in zip(lines[count:], ragged, strict=True)]
        return _Text(rows, lines[:count], bad, int(np.count_nonzero(own)), file.tell())

    def header(self) -> list[str]:
        import csv

        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file)
                names = next(reader, [])
        except UnicodeDecodeError as error:
            raise InputProblem(
                "the file cannot be read as text",
                why=str(error),
                next=f"convert it to UTF-8, for example with iconv -f {self._encoding()} -t UTF-8",
                where=str(self.path),
            ) from None
        except (OSError, csv.Error) as error:
            raise InputProblem(
                "the file cannot be read as text", why=str(error), where=str(self.path)
            ) from None
        if not any(n.strip() for n in names):
            raise InputProblem("the file has no header line", where=f"{self.path}:1")
        if reader.line_num > 1:
            raise InputProblem(
                "the header continues on a second line",
                why="a name has a line break within quotes, or a quote is not closed",
                next="write the column names in one line",
                where=f"{self.path}:1",
            )
        return names

    def _encoding(self) -> str:
        """The file's probable encoding, if not UTF-8."""
        with self.path.open("rb") as file:
            return "UTF-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "LATIN1"

    def _on_ragged(self, row: pacsv.InvalidRow) -> str:
        if (row.text or "").startswith(_END.decode()):
            self._ended = True
            return "skip"
        reason = f"{row.actual_columns} values, the header has {row.expected_columns}"
        self._ragged.append(_Ragged(row.number or 0, reason, row.text or ""))
        return "skip"


class Inferred(msgspec.Struct, frozen=True):
    """The type of every column except the time column, and the columns that become text because their numbers
    are codes."""

    types: dict[str, str]
    coded: list[str]


def infer_types(path: Path, given: dict[str, str], time: str) -> Inferred:
    """The given types. The type of any other column follows from the majority of its values: INT64 if no
    number has a fraction or exponent, DOUBLE, BOOLEAN, else STRING. Whole numbers, some of them with leading
    zeros (`007`), are codes and make the column STRING."""
    source = _Source(path)
    header = source.header()
    check_columns(header, time, given, where=f"{path}:1")
    votes = {n: _Votes() for n in header if n != time and n not in given}
    for block in source.blocks():
        for name in votes:
            votes[name].add(block.rows.column(name))
    types = {n: given[n] if n in given else votes[n].type for n in header if n != time}
    return Inferred(types, [n for n, v in votes.items() if v.is_coded])


@dataclass(slots=True)
class _Votes:
    """How many values of a column look like each kind."""

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
        InputProblem: the file is unreadable, or lacks the `time` column or a column of `types`, or a type has
            no notation in CSV.
    """
    source = _Source(path)
    check_columns(source.header(), time, types, where=f"{path}:1")
    for name, kind in types.items():
        if kind not in ARROW:
            raise InputProblem(f"{name}: a {kind} cannot be read from a CSV file", where=f"{path}:1")
    for text in source.blocks():
        block = _convert(text, types, time, rule)
        block.bad = sorted([*block.bad, *text.ragged], key=lambda b: b.line)[:BAD_ROWS_MAX]
        block.bad_rows += len(text.ragged)
        block.broken = text.breaks
        yield block


def check_columns(names: Sequence[str], time: str, wanted: Iterable[str], *, where: str) -> None:
    """Check that the file has the columns that the command names.

    Raises:
        InputProblem: a column is missing, two columns have the same name in lower case, or a column other
            than the time column is named `time`.
    """
    for name in (time, *wanted):
        if name not in names:
            raise _no_column(name, names, "--time" if name == time else "--tag and --type", where)
    seen: dict[str, str] = {}
    for name in names:
        twin = seen.setdefault(name.lower(), name)
        if name != time and name.lower() == "time":
            raise InputProblem(
                f"column {name!r} has the name of the time column, which is {time!r}",
                next="rename it in the file, or name it with --time",
                where=where,
            )
        if names.count(name) > 1:
            raise InputProblem(f"two columns are named {name!r}", next="rename one in the file", where=where)
        if twin != name:
            raise InputProblem(
                f"columns {twin!r} and {name!r} have the same name",
                why="column names are stored in lower case",
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
        following = "separate the columns with commas"
    return InputProblem(f"the file has no column {name!r}", why=why, next=following, where=where)


def _matches(text: pa.Array, pattern: str) -> int:
    return int(pc.sum(pc.match_substring_regex(text, pattern)).as_py() or 0)


def _blank_nulls(text: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_in(text, value_set=pa.array(NULLS)), pa.scalar(None, pa.string()), text)


def _line_breaks(rows: pa.RecordBatch) -> Int64s:
    """The number of line breaks in each row."""
    found = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        found += pc.count_substring_regex(column, r"\r\n|\r|\n").fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _convert(text: _Text, types: dict[str, str], time: str, rule: TimeRule) -> Block:
    given = dict(zip(text.rows.schema.names, text.rows.columns, strict=True))
    columns = Columns(text.rows.num_rows)
    seen = columns.add_times(time, given[time], rule)
    for name, kind in types.items():
        if kind in ("STRING", "TEXT"):
            columns.add(name.lower(), given[name], np.zeros(len(given[name]), np.bool_), "", given[name])
        else:
            plain = _blank_nulls(pc.utf8_trim_whitespace(given[name]))
            columns.convert(name, plain, kind, ARROW[kind], given[name])
    empty = np.logical_and.reduce([nulls(c) for c in given.values()])
    return columns.block(text.lines, empty, text.at, seen)
