"""`iotctl data import`: write the rows of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.option_sets import with_option_sets
from iotctl.cli.options import DryRun, one_of, text_for
from iotctl.cli.row_options import TableName
from iotctl.cli.session import Session, now_ms, session_of

if TYPE_CHECKING:
    from iotctl.rows.import_job import ImportRequest
    from iotctl.rows.import_report import ImportReport


def register(app: typer.Typer) -> None:
    app.command("import")(import_)


def _zone(text: str) -> str:
    from iotctl.rows.times import check_zone

    return text_for(check_zone)(text)


def _type(text: str) -> str:
    from iotctl.rows.import_job import parse_types

    return text_for(lambda word: parse_types([word]))(text)


@dataclass(frozen=True)
class ImportOptions:
    """How the columns and rows of a file are read."""

    time: Annotated[str, typer.Option("--time", help="Column of times, whole numbers or ISO 8601 text.")] = (
        "time"
    )
    time_unit: Annotated[
        str,
        typer.Option(
            "--time-unit",
            metavar="auto|s|ms|us|ns",
            parser=one_of("auto", "s", "ms", "us", "ns"),
            help="Unit of whole numbers; auto assumes ms and refuses numbers unlikely to be ms.",
        ),
    ] = "auto"
    time_zone: Annotated[
        str,
        typer.Option(
            "--time-zone",
            metavar="ZONE",
            parser=_zone,
            help="Zone of times without a zone, such as Europe/Berlin.",
        ),
    ] = "UTC"
    truncate_times: Annotated[
        bool,
        typer.Option(
            "--truncate-times", help="Truncate times to milliseconds instead of refusing finer ones."
        ),
    ] = False
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="COLUMN", help="A tag column; repeatable.")
    ] = None
    type_: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="COLUMN=TYPE", parser=_type, help="Type of a column; repeatable."),
    ] = None
    on_error: Annotated[
        str,
        typer.Option(
            "--on-error",
            metavar="stop|skip",
            parser=one_of("stop", "skip"),
            help="Stop at an invalid row, or skip it.",
        ),
    ] = "stop"
    on_duplicate: Annotated[
        str,
        typer.Option(
            "--on-duplicate",
            metavar="stop|last",
            parser=one_of("stop", "last"),
            help="Stop at rows with the same time and tags but different values, or use the last of them.",
        ),
    ] = "stop"

    def request(self, path: Path, name: TableName) -> ImportRequest:
        from iotctl.rows.import_job import ImportRequest, parse_types
        from iotctl.rows.times import TimeRule

        return ImportRequest(
            file=path,
            storage_group=name.storage_group,
            table=name.table,
            time=self.time,
            tags=tuple(self.tag or ()),
            types=parse_types(self.type_ or []),
            skip_bad=self.on_error == "skip",
            last_wins=self.on_duplicate == "last",
            times=TimeRule(self.time_unit, self.time_zone, self.truncate_times),
        )


@with_option_sets
def import_(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help=".csv, .parquet, .arrow, or example:weather")],
    *,
    name: TableName,
    options: ImportOptions,
    dry_run: DryRun = False,
) -> None:
    """Import a file.

    Columns that are neither the time nor tags become fields.

    The table is created if it is missing.

    The whole file is checked before the first row is written; --dry-run shows the result of the check.
    """
    from iotctl.cli import rows
    from iotctl.rows.examples import named_file
    from iotctl.rows.imports import import_file
    from iotctl.rows.tables import format_of

    session = session_of(ctx)
    path = named_file(file, session.cwd)
    format_of(path)
    request = options.request(path, name.stored(session))
    written = 0

    def wrote(rows: int) -> None:
        nonlocal written
        written = rows

    session.on_interrupt = lambda: (
        f"{written} rows were written, perhaps more",
        "run the same command again; equal rows overwrite each other",
    )
    with session.progress() as progress:
        report = import_file(
            session.cluster,
            request,
            now_ms=now_ms(),
            on_progress=progress.update,
            on_written=wrote,
            dry_run=dry_run,
        )
    _warn_skipped(session, report)
    if dry_run:
        what = f"write {report.rows} rows to {report.storage_group}.{report.table}"
        return session.output.would(what, found=[*report.notes, *report.warnings])
    for warning in report.warnings:
        session.output.warn(warning)
    for note in report.notes:
        session.output.note(note)
    session.output.emit("data-import", report, lambda: rows.import_tables(report))


def _warn_skipped(session: Session, report: ImportReport) -> None:
    for bad in report.skipped:
        session.output.warn(f"{bad.where}: {bad.reason}")
    if report.skipped_rows > len(report.skipped):
        session.output.warn(f"and {report.skipped_rows - len(report.skipped)} more rows left out")
