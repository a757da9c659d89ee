"""Rows in and out: import, export, query. Columnar throughout."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from iotctl.errors import InputProblem, UsageProblem
from iotctl.execute.cluster import Cluster
from iotctl.execute.csv_rows import BAD_ROWS_MAX, BadRow, check_columns, infer_types, read_csv
from iotctl.execute.selection import Selection, count_rows
from iotctl.spec.units import parse_duration_ms
from nodeagent.model.limits import TTL_MS_MAX
from nodeagent.model.requests import NodeStatus
from nodeagent.model.schema import TYPES, TableSchema
from nodeagent.table.arrow import ARROW_TYPES

SHOWN_MAX = 10
WRITE_ROWS = 200_000
CSV, PARQUET, ARROW = "csv", "parquet", "arrow"
FORMAT_OF = {".csv": CSV, ".parquet": PARQUET, ".arrow": ARROW, ".feather": ARROW, ".ipc": ARROW}


class OnProgress(Protocol):
    def __call__(
        self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = ""
    ) -> None: ...


class SkippedRow(msgspec.Struct, frozen=True):
    """`where` is file:line."""

    where: str
    reason: str


class ImportReport(msgspec.Struct, frozen=True):
    """`rows` were acknowledged; `skipped_rows` were left out, the first of them listed."""

    storage_group: str
    table: str
    rows: int
    skipped_rows: int
    skipped: list[SkippedRow]
    seconds: float


class ImportRequest(msgspec.Struct, frozen=True):
    """`time` names the time column, `types` gives column types by name (as in the file)."""

    file: Path
    storage_group: str
    table: str
    time: str
    tags: tuple[str, ...]
    types: dict[str, str]
    skip_bad: bool


def parse_types(given: Sequence[str]) -> dict[str, str]:
    """`col=DOUBLE` words to a mapping. Raises `UsageProblem`."""
    types = {}
    for word in given:
        name, _, kind = word.partition("=")
        if not name or kind.upper() not in TYPES:
            raise UsageProblem(f"--type {word!r} is not COLUMN=TYPE", next=f"use one of {', '.join(TYPES)}")
        types[name] = kind.upper()
    return types


def format_of(path: Path) -> str:
    """By the extension. Raises `UsageProblem`."""
    known = FORMAT_OF.get(path.suffix.lower())
    if known is None:
        raise UsageProblem(
            f"{path.name}: the extension names no known format", next="use .csv, .parquet or .arrow"
        )
    return known


def import_file(
    cluster: Cluster,
    request: ImportRequest,
    schemas: Sequence[TableSchema],
    *,
    on_progress: OnProgress,
    on_written: Callable[[int], None] = lambda rows: None,
    dry_run: bool = False,
) -> ImportReport:
    """Write a file's rows; the table is created, or gets its missing columns.

    Without `skip_bad` the whole file is checked before the first row is written, so that a bad one
    leaves nothing behind.

    Args:
        on_progress: told how much of the file is done, bytes of a CSV file and rows of another.
        on_written: told the rows acknowledged so far.
        dry_run: read and check the whole file, write nothing; `rows` are those that would be written.

    Raises:
        InputProblem: bad rows (with their lines), missing columns, an unreadable file.
    """
    import time

    started = time.monotonic()
    _check_file(request.file)
    for name in request.tags:
        if request.types.get(name, "STRING") != "STRING":
            raise UsageProblem(f"--type {name}={request.types[name]}: a tag is a STRING", next="leave it out")
    if format_of(request.file) == CSV:
        types = _csv_types(request, schemas)
        if not request.skip_bad:
            _check_csv(request, types, on_progress)
        blocks = _csv_blocks(request, types)
    else:
        if request.types:
            for _ in _binary_blocks(request):
                pass  # a value that does not fit its type is found before the first row is written
        blocks = _binary_blocks(request)
    tags = [t.lower() for t in request.tags]
    written, skipped, count = 0, list[SkippedRow](), 0
    for block in blocks:
        bad = block.bad
        count += len(bad)
        skipped += [SkippedRow(f"{request.file}:{b.line}", b.reason) for b in bad[: SHOWN_MAX - len(skipped)]]
        if dry_run:
            written += block.rows.num_rows
            on_progress("reading rows", block.at, block.of, unit=block.unit)
            continue
        for start in range(0, block.rows.num_rows, WRITE_ROWS):
            piece = pa.Table.from_batches([block.rows.slice(start, WRITE_ROWS)])
            written += cluster.write(request.storage_group, request.table, piece, tags=tags).rows
            on_written(written)
        on_progress("writing rows", block.at, block.of, unit=block.unit)
    return ImportReport(
        request.storage_group, request.table, written, count, skipped, round(time.monotonic() - started, 3)
    )


def _check_file(path: Path) -> None:
    if path.is_file():
        return
    what = "is a directory, not a file" if path.is_dir() else "no such file"
    raise InputProblem(what, next="name a .csv, .parquet or .arrow file, or example:weather", where=str(path))


def _csv_types(request: ImportRequest, schemas: Sequence[TableSchema]) -> dict[str, str]:
    """Types as given, else as the table has them, else as most values look; tags are text."""
    known = next(
        (
            s
            for s in schemas
            if (s.storage_group, s.table) == (request.storage_group.lower(), request.table.lower())
        ),
        None,
    )
    of_table = {c.name: c.type for c in known.columns} if known else {}
    inferred = infer_types(
        request.file, {**request.types, **dict.fromkeys(request.tags, "STRING")}, request.time
    )
    return {n: request.types.get(n) or of_table.get(n.lower()) or t for n, t in inferred.items()}


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows to write, and `at` of `of` (bytes where `unit` is "B", else rows) of the file that are read."""

    rows: pa.RecordBatch
    bad: list[BadRow]
    at: int
    of: int
    unit: str


def _csv_blocks(request: ImportRequest, types: dict[str, str]) -> Iterator[_Piece]:
    size = request.file.stat().st_size
    for block in read_csv(request.file, types, request.time):
        yield _Piece(block.rows, block.bad, block.at, size, "B")


def _check_csv(request: ImportRequest, types: dict[str, str], on_progress: OnProgress) -> None:
    bad: list[BadRow] = []
    for block in _csv_blocks(request, types):
        bad += block.bad
        on_progress("checking rows", block.at, block.of, unit=block.unit)
        if len(bad) > BAD_ROWS_MAX:
            break
    if not bad:
        return
    bad.sort(key=lambda b: b.line)
    first, *rest = bad
    more = "; ".join(f"line {b.line}: {b.reason}" for b in rest[: SHOWN_MAX - 1])
    if len(rest) >= SHOWN_MAX:
        more += f"; and {len(rest) - SHOWN_MAX + 1} more"
    raise InputProblem(
        first.reason,
        why=more,
        next="nothing was written; mend the file, give the column's type with --type, or use --on-error skip",
        where=f"{request.file}:{first.line}",
    )


def _binary_blocks(request: ImportRequest) -> Iterator[_Piece]:
    """Parquet and Arrow files; the time column is renamed, other columns keep their types unless `types`
    gives one."""
    try:
        if format_of(request.file) == PARQUET:
            import pyarrow.parquet as pq

            file = pq.ParquetFile(request.file)
            total, names = file.metadata.num_rows, file.schema_arrow.names
            source: Iterator[pa.RecordBatch] = file.iter_batches(WRITE_ROWS)
        else:
            import pyarrow.feather as feather

            table = feather.read_table(request.file)
            total, names = table.num_rows, table.column_names
            source = iter(table.to_batches(WRITE_ROWS))
        check_columns(names, request.time, (*request.tags, *request.types), where=str(request.file))
        done = 0
        for batch in source:
            done += batch.num_rows
            yield _Piece(_as_asked(batch, request), [], done, total, "")
    except pa.ArrowInvalid as error:
        raise InputProblem(f"cannot be read: {error}", where=str(request.file)) from None


def _as_asked(batch: pa.RecordBatch, request: ImportRequest) -> pa.RecordBatch:
    """The columns with the types and the name of the time column that the command line gives."""
    names = batch.schema.names
    arrays = []
    for name, column in zip(names, batch.columns, strict=True):
        if name == request.time and pa.types.is_string(column.type):
            column = pc.cast(column, pa.timestamp("ms"))
        if name == request.time and pa.types.is_timestamp(column.type):
            column = pc.cast(column, pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        elif name in request.tags and not pa.types.is_string(column.type):
            column = pc.cast(column, pa.string())
        elif name in request.types:
            column = _cast(name, column, request)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=["time" if n == request.time else n for n in names])


def _cast(name: str, column: pa.Array, request: ImportRequest) -> pa.Array:
    """Raises `InputProblem` for a value that is none of the type."""
    kind = request.types[name]
    try:
        return pc.cast(column, ARROW_TYPES[kind])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputProblem(
            f"{name}: not all values are a {kind}",
            why=str(error).splitlines()[0],
            next="nothing was written; give another --type, or leave it out",
            where=str(request.file),
        ) from None


def parse_ttl_ms(text: str) -> int:
    """Milliseconds of a duration, 0 for `none`.

    Raises:
        UsageProblem: neither, or not a positive duration.
    """
    if text.strip() == "none":
        return 0
    found = parse_duration_ms(text)
    if not 0 < found <= TTL_MS_MAX:
        raise UsageProblem(
            f"a TTL of {text} keeps nothing", next="write it like 30d; none keeps rows for ever"
        )
    return found


def set_ttl_of(cluster: Cluster, schema: TableSchema, ttl_ms: int) -> TableSchema:
    """Keep the table's rows for so long, 0 for ever; the schema in force."""
    return cluster.put_schema(schema, ttl_ms)


def expiring(cluster: Cluster, schema: TableSchema, ttl_ms: int, now_ms: int) -> tuple[int, int]:
    """(rows, ms) that a new TTL would delete at once: so many, older than that.

    Nodes go by their own clocks: the latest of all counts.
    """
    if not ttl_ms or 0 < schema.ttl_ms <= ttl_ms:
        return 0, 0
    answers = cluster.statuses().values()
    latest = max([now_ms, *(a.now_ms for a in answers if isinstance(a, NodeStatus))])
    return count_rows(cluster, schema, Selection(time_to=latest - ttl_ms - 1)), latest - ttl_ms


def write_one(
    cluster: Cluster,
    storage_group: str,
    table: str,
    time_ms: int,
    tags: Mapping[str, str],
    values: Sequence[str],
) -> int:
    """Write one row given as `field=value` words; numbers become DOUBLE. Raises `UsageProblem`."""
    row: dict[str, object] = {"time": time_ms, **tags}
    for word in values:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise UsageProblem(f"{word!r} is not FIELD=VALUE", next="for example temperature=21.5")
        row[name] = _value(text)
    return cluster.write(storage_group, table, pa.Table.from_pylist([row]), tags=list(tags)).rows


def _value(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text


def export_table(rows: pa.Table, path: Path, kind: str) -> None:
    """Write rows to `path` aside, then rename. Raises `InputProblem` when it cannot be written."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            write_rows(rows, file, kind)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        why = error.strerror or str(error)
        raise InputProblem("cannot be written", why=why, next="name another file", where=str(path)) from None


def write_rows(rows: pa.Table, file: BinaryIO, kind: str) -> None:
    if kind == CSV:
        import pyarrow.csv as pacsv

        pacsv.write_csv(rows, file)
    elif kind == PARQUET:
        import pyarrow.parquet as pq

        pq.write_table(rows, file, compression="zstd")
    else:
        import pyarrow.feather as feather

        feather.write_feather(rows, file, compression="zstd")
