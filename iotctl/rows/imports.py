"""Imports files into tables. A file is read several times: to infer types (CSV), to check all of it, to
compare rows with the same key (if there are any), and last to write its rows.

Nothing is written and no table is created before the whole file was checked.
"""

import time
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from iotctl.errors import InputProblem, IotctlError, Partly, Unknown
from iotctl.observe.cluster import Cluster
from iotctl.rows.blocks import BAD_ROWS_MAX, BadRow
from iotctl.rows.import_job import Import, ImportRequest, open_import
from iotctl.rows.import_report import SHOWN_MAX, ImportReport, SkippedRow, notes_on, samples
from iotctl.rows.survey import SERIES_MAX, Comparison, DuplicateRows, Survey
from iotctl.rows.times import check_unit
from nodeagent.model.errors import NodeAgentError, OutcomeUnknown

WRITE_ROWS = 200_000


class OnProgress(Protocol):
    def __call__(
        self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = ""
    ) -> None: ...


def import_file(
    cluster: Cluster,
    request: ImportRequest,
    *,
    now_ms: int,
    on_progress: OnProgress,
    on_written: Callable[[int], None] = lambda rows: None,
    dry_run: bool = False,
) -> ImportReport:
    """Write a file's rows. The table is created if missing, and gets the columns it lacks.

    Args:
        on_progress: called with how much of the file is done: bytes of a CSV file, rows of a binary file.
        on_written: called with the number of rows acknowledged so far.
        dry_run: read and check the whole file, write nothing; `rows` are those that would be written.

    Raises:
        UsageProblem: an option or the file's extension is not accepted; nothing was written.
        InputProblem: bad rows (with their lines), rows that contradict each other, missing columns, an
            unreadable file; nothing was written.
        NodeAgentError: nothing was written.
        Partly, Unknown: some rows were written, or may be; the error says how many.
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
        notes=[*notes_on(job, survey, sharing), *(samples(survey) if dry_run else ())],
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


def _check(job: Import, survey: Survey) -> DuplicateRows:
    """Raises `InputProblem` for everything that the operator must decide or correct."""
    request = job.request
    check_unit(survey.seen, request.times, name=request.time, where=str(request.file))
    if survey.bad and not (request.skip_bad and survey.rows):
        raise _bad_rows(job, sorted(survey.bad, key=_line), survey.bad_rows)
    sharing = _sharing(job, survey)
    if sharing.differ and not request.last_wins:
        following = "--on-duplicate last keeps the last of such rows"
        if not job.tags:
            following = f"name the columns that identify a series with --tag; or {following}"
        raise InputProblem(
            f"{sharing.differ} rows have the same time{' and tags' if job.tags else ''} as another row"
            " but different values",
            why=f"they would overwrite each other, for example the rows with {sharing.example}",
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


def _sharing(job: Import, survey: Survey) -> DuplicateRows:
    """How rows with the same key compare; reads the file once more if there are such rows."""
    shared = survey.shared_keys()
    if not len(shared):
        return DuplicateRows()
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
        raise _partly_written(error, written, rows) from error
    return written


def _partly_written(
    error: NodeAgentError | InputProblem, written: int, rows: int
) -> IotctlError | NodeAgentError:
    is_unknown = isinstance(error, OutcomeUnknown)
    more = error.details.get("rows_acknowledged", 0) if isinstance(error, OutcomeUnknown) else 0
    written += more if isinstance(more, int) else 0
    if not written and not is_unknown:
        return error
    kind, rest = (Unknown, "others may be") if is_unknown else (Partly, "the others were not")
    return kind(
        f"{written} of {rows} rows were written, {rest}",
        why=error.what,
        next="repeat the command: writing the same rows again is safe",
    )


def _line(bad: BadRow) -> int:
    return bad.line
