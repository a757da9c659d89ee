"""Rows in and out: import, export, query. Columnar throughout."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from iotctl.errors import InputProblem, UsageProblem
from iotctl.execute.cluster import Cluster
from iotctl.execute.csv_rows import BAD_ROWS_MAX, BadRow, infer_types, read_csv
from nodeagent.model.schema import TYPES, TableSchema

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
    cluster: Cluster, request: ImportRequest, schemas: Sequence[TableSchema], *, on_progress: OnProgress
) -> ImportReport:
    """Write a file's rows; the table is created, or gets its missing columns.

    Without `skip_bad` the whole file is checked before the first row is written, so that a bad one
    leaves nothing behind.

    Raises:
        InputProblem: bad rows (with their lines), missing columns, an unreadable file.
    """
    import time

    started = time.monotonic()
    if not request.file.is_file():
        raise InputProblem(f"no file {request.file}", where=str(request.file))
    if format_of(request.file) == CSV:
        types = _csv_types(request, schemas)
        if not request.skip_bad:
            _check_csv(request, types, on_progress)
        blocks = _csv_blocks(request, types)
    else:
        blocks = ((rows, []) for rows in _binary_blocks(request))
    tags = [t.lower() for t in request.tags]
    written, skipped, count = 0, list[SkippedRow](), 0
    for rows, bad in blocks:
        count += len(bad)
        skipped += [SkippedRow(f"{request.file}:{b.line}", b.reason) for b in bad[: SHOWN_MAX - len(skipped)]]
        for start in range(0, rows.num_rows, WRITE_ROWS):
            piece = pa.Table.from_batches([rows.slice(start, WRITE_ROWS)])
            written += cluster.write(request.storage_group, request.table, piece, tags=tags).rows
            on_progress("rows written", written)
    return ImportReport(
        request.storage_group, request.table, written, count, skipped, round(time.monotonic() - started, 3)
    )


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


def _csv_blocks(
    request: ImportRequest, types: dict[str, str]
) -> Iterator[tuple[pa.RecordBatch, list[BadRow]]]:
    for block in read_csv(request.file, types, request.time):
        yield block.rows, block.bad


def _check_csv(request: ImportRequest, types: dict[str, str], on_progress: OnProgress) -> None:
    bad: list[BadRow] = []
    seen = 0
    for rows, found in _csv_blocks(request, types):
        bad += found
        seen += rows.num_rows
        on_progress("rows checked", seen)
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


def _binary_blocks(request: ImportRequest) -> Iterator[pa.RecordBatch]:
    """Parquet and Arrow files; the time column is renamed, other columns keep their types."""
    try:
        if format_of(request.file) == PARQUET:
            import pyarrow.parquet as pq

            source: Iterator[pa.RecordBatch] = pq.ParquetFile(request.file).iter_batches(WRITE_ROWS)
        else:
            import pyarrow.feather as feather

            source = iter(feather.read_table(request.file).to_batches(WRITE_ROWS))
        for batch in source:
            yield _with_time(batch, request)
    except pa.ArrowInvalid as error:
        raise InputProblem(f"cannot be read: {error}", where=str(request.file)) from None


def _with_time(batch: pa.RecordBatch, request: ImportRequest) -> pa.RecordBatch:
    names = batch.schema.names
    for name in (request.time, *request.tags):
        if name not in names:
            raise InputProblem(
                f"no column {name!r}", why=f"the columns are: {', '.join(names)}", where=str(request.file)
            )
    arrays = []
    for name, column in zip(names, batch.columns, strict=True):
        if name in request.tags and not pa.types.is_string(column.type):
            column = pc.cast(column, pa.string())
        if name == request.time and pa.types.is_string(column.type):
            column = pc.cast(column, pa.timestamp("ms"))
        if name == request.time and pa.types.is_timestamp(column.type):
            column = pc.cast(column, pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=["time" if n == request.time else n for n in names])


def parse_where(given: Sequence[str]) -> dict[str, str | None]:
    """`tag=value` words; an empty value asks for rows without the tag. Raises `UsageProblem`."""
    tags: dict[str, str | None] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise UsageProblem(f"--where {word!r} is not TAG=VALUE", next="for example --where device=d1")
        tags[name.lower()] = value or None
    return tags


def parse_time(text: str | None) -> int | None:
    """Milliseconds, or ISO 8601 (UTC without a zone), as milliseconds. Raises `UsageProblem`."""
    from datetime import UTC, datetime

    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageProblem(
            f"{text!r} is not a time", next="write milliseconds or 2024-05-01T12:00:00Z"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


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
        if kind == CSV:
            import pyarrow.csv as pacsv

            pacsv.write_csv(rows, temporary)
        elif kind == PARQUET:
            import pyarrow.parquet as pq

            pq.write_table(rows, temporary, compression="zstd")
        else:
            import pyarrow.feather as feather

            feather.write_feather(rows, str(temporary), compression="zstd")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputProblem(f"cannot write {path}", why=str(error), where=str(path)) from None
