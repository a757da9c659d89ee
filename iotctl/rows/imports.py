"""Files into tables. A file is read twice: once to check all of it, then to write.

Nothing is written, and no table is created, before the whole file was checked.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iotctl.errors import InputProblem, IotctlError, Partly, Unknown, UsageProblem
from iotctl.humanize import time_text
from iotctl.observe.cluster import Cluster
from iotctl.rows.binary_rows import BinaryFile
from iotctl.rows.blocks import BAD_ROWS_MAX, BadRow, Block
from iotctl.rows.csv_rows import ARROW as CSV_TYPES
from iotctl.rows.csv_rows import infer_types, read_csv
from iotctl.rows.survey import KEYS_MAX, SERIES_MAX, Comparison, Sharing, Survey
from iotctl.rows.tables import CSV, PARQUET, format_of
from iotctl.rows.times import TimeRule, check_unit
from nodeagent.model.errors import InvalidInput, NodeAgentError, OutcomeUnknown, SchemaMismatch
from nodeagent.model.limits import WRITE_BYTES_MAX
from nodeagent.model.schema import TYPES, TableSchema
from nodeagent.table.arrow import ARROW_TYPES, encode, infer_schema, normalise

SHOWN_MAX = 10
WRITE_ROWS = 200_000


class OnProgress(Protocol):
    def __call__(
        self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = ""
    ) -> None: ...


class SkippedRow(msgspec.Struct, frozen=True):
    """`where` is file:line, or of a file without lines its row."""

    where: str
    reason: str


class ImportReport(msgspec.Struct, frozen=True):
    """`rows` were acknowledged; `skipped_rows` were left out, the first of them listed.

    `series` is None when there are too many to count. `naive_times` named no zone and were read in
    `time_zone`. `expired_rows` are older than the table's TTL. `notes` and `warnings` say the same to people,
    and more.
    """

    storage_group: str
    table: str
    rows: int
    skipped_rows: int
    skipped: list[SkippedRow]
    seconds: float
    series: int | None = None
    time_min_ms: int | None = None
    time_max_ms: int | None = None
    time_zone: str = "UTC"
    naive_times: int = 0
    expired_rows: int = 0
    notes: list[str] = []

    @property
    def warnings(self) -> list[str]:
        if not self.expired_rows:
            return []
        return [f"{self.expired_rows} rows are older than the table's TTL and are deleted at once"]


class ImportRequest(msgspec.Struct, frozen=True):
    """`time` names the time column, `types` gives column types by name (as in the file).

    `last_wins`: of rows with one time and the same tags that differ, the last stays.
    """

    file: Path
    storage_group: str
    table: str
    time: str
    tags: tuple[str, ...]
    types: dict[str, str]
    skip_bad: bool
    last_wins: bool = False
    times: TimeRule = TimeRule()


def parse_types(given: Sequence[str]) -> dict[str, str]:
    """`col=DOUBLE` words to a mapping. Raises `UsageProblem`."""
    types: dict[str, str] = {}
    for word in given:
        name, _, kind = word.partition("=")
        if not name or kind.upper() not in TYPES:
            raise UsageProblem(f"--type {word!r} is not COLUMN=TYPE", next=f"use one of {', '.join(TYPES)}")
        if types.setdefault(name, kind.upper()) != kind.upper():
            raise UsageProblem(f"--type: {name} is given two types", next="leave one out")
    return types


@dataclass(slots=True)
class Import:
    """One file and the table it goes to; `schema` is the table as it will be."""

    request: ImportRequest
    types: dict[str, str]
    schema: TableSchema
    known: TableSchema | None
    coded: list[str]
    binary: BinaryFile | None
    version: tuple[int, ...]
    """Of the file when it was opened first, as `_version` gives it."""

    def blocks(self) -> Iterator[Block]:
        """Rows the table takes, and those that it does not.

        Raises:
            InputProblem: the file cannot be read, or is not the one any more that it was.
        """
        r = self.request
        source = (
            read_csv(r.file, self.types, r.time, r.times)
            if self.binary is None
            else self.binary.blocks(self.types, r.time, r.times)
        )
        try:
            for block in source:
                if block.rows.num_rows:
                    self._fit(block)
                self._check_same()
                yield block
            self._check_same()
        except OSError as error:
            raise InputProblem("cannot be read", why=str(error), where=str(r.file)) from None

    def _check_same(self) -> None:
        """What was checked is what is written. Raises `InputProblem` or `OSError`."""
        if _version(self.request.file) != self.version:
            raise InputProblem(
                "the file was changed while it was read",
                next="import it again when it is whole",
                where=str(self.request.file),
            )

    def _fit(self, block: Block) -> None:
        """Leave out what a node would refuse, by the node's own rule."""
        before = block.bad_rows
        while True:
            try:
                rows = normalise(block.rows, self.schema)
                _check_row_bytes(rows)
                return
            except InvalidInput as error:
                row = error.details.get("row")
                if not isinstance(row, int) or block.bad_rows - before > BAD_ROWS_MAX:
                    first, last = int(block.lines[0]), int(block.lines[-1])
                    raise InputProblem(
                        error.what,
                        why=f"between {self.place(first)} and {self.place(last)}",
                        next=f"nothing was written; {error.next_step or 'correct the file'}",
                        where=str(self.request.file),
                    ) from None
                block.drop(
                    row, error.what.replace(f" in row {row}", "").replace(f"row {row} is", "the row is")
                )

    def place(self, line: int) -> str:
        return f"{self.request.file}:{line}" if self.binary is None else f"{self.request.file} row {line}"

    @property
    def tags(self) -> list[str]:
        """Tags of the table that the file has."""
        have = {name.lower() for name in self.types}
        return [t for t in self.schema.tags if t in have]

    def size(self) -> tuple[int, str]:
        """(total, unit) that a block's `at` counts to."""
        return (self.version[2], "B") if self.binary is None else (self.binary.rows, "")


def open_import(request: ImportRequest, schemas: Sequence[TableSchema]) -> Import:
    """Read the file's columns and decide their types.

    Raises:
        UsageProblem, InputProblem: options or columns that do not fit the file or the table.
        InvalidInput, InvalidName: a name or type that no table has.
    """
    _check_file(request.file)
    version = _version(request.file)
    for name in request.tags:
        if request.types.get(name, "STRING") != "STRING":
            raise UsageProblem(f"--type {name}={request.types[name]}: a tag is a STRING", next="leave it out")
    wanted = request.storage_group.lower(), request.table.lower()
    known = next((s for s in schemas if (s.storage_group, s.table) == wanted), None)
    late = [t for t in request.tags if known is not None and t.lower() not in {c.name for c in known.columns}]
    if late:
        raise InputProblem(
            f"tag {late[0]} cannot be added to a table that is there",
            why=f"{'.'.join(wanted)} has the tags: {', '.join(known.tags if known else ()) or 'none'}",
            next="nothing was written; leave the --tag out, or import into another table",
            where=str(request.file),
        )
    given = {**request.types, **dict.fromkeys(request.tags, "STRING")}
    of_table = {c.name: c.type for c in known.columns} if known else {}
    if format_of(request.file) == CSV:
        inferred = infer_types(request.file, given, request.time)
        types = {n: given.get(n) or of_table.get(n.lower()) or t for n, t in inferred.types.items()}
        kinds = {n: CSV_TYPES.get(t, ARROW_TYPES[t]) for n, t in types.items()}
        coded = [n for n in inferred.coded if types[n] == "STRING"]
        return Import(request, types, _schema(request, kinds, known), known, coded, None, version)
    binary = BinaryFile(request.file, parquet=format_of(request.file) == PARQUET)
    binary.check(request.time, (*request.tags, *request.types))
    own = {n: t for n, t in binary.kinds.items() if n != request.time}
    kinds = {n: ARROW_TYPES[given[n]] if n in given else kind for n, kind in own.items()}
    schema = _schema(request, kinds, known)
    by_name = {c.name: c.type for c in schema.columns}
    return Import(request, {n: by_name[n.lower()] for n in own}, schema, known, [], binary, version)


def _schema(request: ImportRequest, kinds: dict[str, pa.DataType], known: TableSchema | None) -> TableSchema:
    """The table as it will be, checked against the columns' Arrow types."""
    source = pa.schema([("time", pa.int64()), *((n.lower(), kind) for n, kind in kinds.items())])
    tags = [t.lower() for t in request.tags]
    if known is not None:
        fields = [t for t in tags if t in known.fields]
        if fields:
            raise InputProblem(
                f"--tag {fields[0]}: it is a field of {known.storage_group}.{known.table}",
                next="leave it out, or import into another table",
                where=str(request.file),
            )
        tags += [t for t in known.tags if t in source.names and t not in tags]
    try:
        schema = infer_schema(
            source, storage_group=request.storage_group, table=request.table, tags=tags, known=known
        )
    except InvalidInput as error:
        if "type" not in error.details:
            raise
        raise InputProblem(
            error.what,
            next=f"nothing was written; name a type: --type {error.details['column']}=DOUBLE, or leave the"
            " column out of the file",
            where=str(request.file),
        ) from None
    if known is not None:
        have = {c.name for c in known.columns}
        added = tuple(c for c in schema.columns if c.name not in have)
        schema = msgspec.structs.replace(known, columns=known.columns + added)
    # Tags become text, whatever they are.
    plain = pa.schema([pa.field(f.name, pa.string()) if f.name in tags else f for f in source])
    try:
        normalise(plain.empty_table(), schema)
    except SchemaMismatch as error:
        column = error.details.get("column")
        kind = next((c.type for c in schema.columns if c.name == column), "")
        raise InputProblem(
            error.what,
            next=f"nothing was written; to convert it, say so: --type {column}={kind}",
            where=str(request.file),
        ) from None
    return schema


def import_file(
    cluster: Cluster,
    request: ImportRequest,
    *,
    now_ms: int,
    on_progress: OnProgress,
    on_written: Callable[[int], None] = lambda rows: None,
    dry_run: bool = False,
) -> ImportReport:
    """Write a file's rows; the table is created, or gets its missing columns.

    Args:
        on_progress: told how much of the file is done, bytes of a CSV file and rows of another.
        on_written: told the rows acknowledged so far.
        dry_run: read and check the whole file, write nothing; `rows` are those that would be written.

    Raises:
        InputProblem: bad rows (with their places), missing columns, an unreadable file; nothing was written.
        NodeAgentError: nothing was written.
        Partly, Unknown: some of it was, and how much.
    """
    started = time.monotonic()
    job = open_import(request, cluster.schemas())
    survey = _survey(job, now_ms, on_progress)
    sharing = _check(job, survey)
    rows = survey.rows if dry_run else _write(cluster, job, survey.rows, on_progress, on_written)
    return ImportReport(
        job.schema.storage_group,
        job.schema.table,
        rows,
        survey.bad_rows,
        [SkippedRow(job.place(b.line), b.reason) for b in sorted(survey.bad, key=_line)[:SHOWN_MAX]],
        round(time.monotonic() - started, 3),
        series=len(survey.series) if len(survey.series) <= SERIES_MAX else None,
        time_min_ms=survey.first,
        time_max_ms=survey.last,
        time_zone=request.times.zone,
        naive_times=survey.seen.naive,
        expired_rows=survey.expired,
        notes=[*_notes(job, survey, sharing), *(_samples(survey) if dry_run else ())],
    )


def _survey(job: Import, now_ms: int, on_progress: OnProgress) -> Survey:
    ttl_ms = job.known.ttl_ms if job.known else 0
    survey = Survey(job.tags, now_ms - ttl_ms if ttl_ms else None)
    total, unit = job.size()
    for block in job.blocks():
        survey.add(block)
        on_progress("checking rows", block.at, total, unit=unit)
        if survey.bad_rows > BAD_ROWS_MAX and not job.request.skip_bad:
            break
    return survey


def _check(job: Import, survey: Survey) -> Sharing:
    """Raises `InputProblem` for what must be decided by a person."""
    request = job.request
    check_unit(survey.seen, request.times, name=request.time, where=str(request.file))
    if survey.bad and not (request.skip_bad and survey.rows):
        raise _bad_rows(job, sorted(survey.bad, key=_line), survey.bad_rows)
    sharing = _sharing(job, survey)
    if sharing.differ and not request.last_wins:
        following = "--on-duplicate last keeps the last of each"
        if not job.tags:
            following = f"name the columns that tell series apart with --tag; or {following}"
        raise InputProblem(
            f"{sharing.differ} rows have the time{' and the tags' if job.tags else ''} of another row"
            " and other values",
            why=f"they would overwrite each other, such as {sharing.example}",
            next=f"nothing was written; {following}",
            where=str(request.file),
        )
    return sharing


def _bad_rows(job: Import, bad: list[BadRow], count: int) -> InputProblem:
    first, *rest = bad
    word = "line" if job.binary is None else "row"
    more = "; ".join(f"{word} {b.line}: {b.reason}" for b in rest[: SHOWN_MAX - 1])
    unnamed = count - len({b.line for b in bad[:SHOWN_MAX]})
    if more and unnamed > 0:
        more += f"; and {unnamed} more"
    skipping = job.request.skip_bad
    following = "nothing was written; correct the file" + ("" if skipping else ",") + " "
    following += (
        "or give the column a --type" if skipping else "give the column a --type, or use --on-error skip"
    )
    return InputProblem(
        f"no row can be written: {first.reason}" if skipping else first.reason,
        why=more,
        next=following,
        where=job.place(first.line),
    )


def _sharing(job: Import, survey: Survey) -> Sharing:
    """Whether rows of one key say different things; the file is read once more if there are such."""
    shared = survey.shared_keys()
    if not len(shared):
        return Sharing()
    fields = [c.name for c in job.schema.columns if not c.tag and c.name in {n.lower() for n in job.types}]
    comparison = Comparison(shared, job.tags, fields)
    for block in job.blocks():
        if block.rows.num_rows:
            comparison.add(block.rows)
    return comparison.result()


def _write(
    cluster: Cluster,
    job: Import,
    rows: int,
    on_progress: OnProgress,
    on_written: Callable[[int], None],
) -> int:
    written = 0
    total, unit = job.size()
    tags = [t.lower() for t in job.request.tags]
    try:
        for block in job.blocks():
            for start in range(0, block.rows.num_rows, WRITE_ROWS):
                piece = pa.Table.from_batches([block.rows.slice(start, WRITE_ROWS)])
                report = cluster.write(job.request.storage_group, job.request.table, piece, tags=tags)
                written += report.rows
                on_written(written)
            on_progress("writing rows", block.at, total, unit=unit)
    except (NodeAgentError, InputProblem) as error:
        raise _halfway(error, written, rows) from error
    return written


def _halfway(error: NodeAgentError | InputProblem, written: int, rows: int) -> IotctlError | NodeAgentError:
    is_unknown = isinstance(error, OutcomeUnknown)
    more = error.details.get("rows_acknowledged", 0) if isinstance(error, OutcomeUnknown) else 0
    written += more if isinstance(more, int) else 0
    if not written and not is_unknown:
        return error
    kind, rest = (Unknown, "others may be") if is_unknown else (Partly, "the others are not")
    return kind(
        f"{written} of {rows} rows are written, {rest}",
        why=error.what,
        next="run the same command again; equal rows overwrite",
    )


def _notes(job: Import, survey: Survey, sharing: Sharing) -> list[str]:
    """What a person should know of the file, one line each."""
    schema, times = job.schema, job.request.times
    table = f"{schema.storage_group}.{schema.table}"
    have = {c.name for c in job.known.columns} if job.known else set()
    columns = [f"{c.name} {c.type}{' tag' if c.tag else ''}" for c in schema.columns if c.name not in have]
    if not survey.rows:
        return ["the file has no rows; nothing is written and no table is made"]
    notes = []
    if job.known is None:
        notes.append(f"{table} is a new table: {', '.join(columns)}")
    elif columns:
        notes.append(f"{table} gets columns: {', '.join(columns)}")
    notes.append(_series_note(job, survey))
    if survey.seen.naive:
        notes.append(f"{survey.seen.naive} times name no zone and are read in {times.zone} (--time-zone)")
    notes += [
        f"{n} is a STRING, because it has leading zeros (--type {n}=INT64 drops them)" for n in job.coded
    ]
    absent = [t for t in schema.tags if t not in job.tags]
    notes += [f"the file has no column for tag {t}: it is empty in every row" for t in absent]
    if times.zone != "UTC" and any(kind == "TIMESTAMP" for kind in job.types.values()):
        notes.append("--time-zone is for the time column; other timestamps without a zone are read in UTC")
    if survey.broken:
        notes.append(f"{survey.broken} rows have a line break within quotes")
    if sharing.unseen:
        notes.append(f"{sharing.unseen} times are given more than once and were not compared")
    if sharing.equal:
        notes.append(f"{sharing.equal} rows are given more than once, with the same values")
    if sharing.differ:
        notes.append(f"of {sharing.differ} rows with one time and the same tags the last stays")
    if not survey.is_complete:
        notes.append(f"only the first {KEYS_MAX} rows were checked for rows that overwrite each other")
    return notes


def _series_note(job: Import, survey: Survey) -> str:
    count = f"{len(survey.series)}" if len(survey.series) <= SERIES_MAX else f"more than {SERIES_MAX}"
    why = "" if job.tags else ", because no column is a tag (--tag)"
    span = f" from {time_text(survey.first)} to {time_text(survey.last)}" if survey.rows else ""
    return f"{survey.rows} rows of {count} series{why}{span}"


def _samples(survey: Survey) -> list[str]:
    """The first rows as lines."""
    rows = [", ".join(f"{k}={v}" for k, v in row.items() if v is not None) for row in survey.sample]
    return [f"such as {row}" for row in rows]


def _line(bad: BadRow) -> int:
    return bad.line


def _check_row_bytes(rows: pa.RecordBatch | pa.Table) -> None:
    """Raises `InvalidInput` for the first row that no entry of a log can carry."""
    if rows.nbytes <= WRITE_BYTES_MAX // 2:
        return
    sizes = sum(
        pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
        for column in rows.columns
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    )
    for row in np.flatnonzero(sizes > WRITE_BYTES_MAX // 2):
        size = len(encode(rows.slice(row, 1)))
        if size > WRITE_BYTES_MAX:
            what = f"row {row} is {size} bytes; at most {WRITE_BYTES_MAX} are taken"
            raise InvalidInput(what, row=int(row))


def _version(path: Path) -> tuple[int, ...]:
    """(device, inode, bytes, time of the last change in ns)"""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _check_file(path: Path) -> None:
    try:
        if path.is_file():
            return
    except OSError as error:
        raise InputProblem("cannot be read", why=error.strerror or "", where=str(path)) from None
    what = "is no file that can be read twice" if path.exists() else "no such file"
    what = "is a directory, not a file" if path.is_dir() else what
    raise InputProblem(what, next="name a .csv, .parquet or .arrow file, or example:weather", where=str(path))
