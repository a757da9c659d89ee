"""`iotctl data`: rows in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.options import Confirm, DryRun, Yes, one_of, text_for
from iotctl.cli.session import Session, now_ms, session_of
from iotctl.playbook.traits import READS, WORKS, Traits, step

if TYPE_CHECKING:
    import pyarrow as pa

    from iotctl.rows.selection import Age, Selection

app = typer.Typer(help="Rows in and out.", no_args_is_help=True)


def _where(text: str) -> str:
    from iotctl.rows.selection import parse_where

    return text_for(lambda word: parse_where([word]))(text)


def _time(text: str) -> str:
    from iotctl.rows.selection import parse_time

    return text_for(parse_time)(text)


def _zone(text: str) -> str:
    from iotctl.rows.times import check_zone

    return text_for(check_zone)(text)


def _type(text: str) -> str:
    from iotctl.rows.import_job import parse_types

    return text_for(lambda word: parse_types([word]))(text)


def _ttl(text: str) -> str:
    from iotctl.rows.tables import parse_ttl_ms

    return text_for(parse_ttl_ms)(text)


Group = Annotated[str, typer.Option("--storage-group", help="Such as root.plant.")]
TableName = Annotated[str, typer.Option("--table", help="Table name.")]
MaybeGroup = Annotated[str | None, typer.Option("--storage-group", help="Only this storage group.")]
MaybeTable = Annotated[str | None, typer.Option("--table", help="Only this table.")]
Fields = Annotated[str | None, typer.Option("--fields", metavar="A,B", help="Only these fields.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="TAG=VALUE",
        parser=_where,
        help="Rows whose tag has this value; of several values of one tag, any.",
    ),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", parser=_time, help="First time (ms or ISO 8601), included."),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", parser=_time, help="Last time (ms or ISO 8601), included."),
]
Read = Annotated[
    str,
    typer.Option(
        "--read",
        metavar="strong|mid|weak",
        parser=one_of("strong", "mid", "weak"),
        help="How fresh the answer must be.",
    ),
]
ROWS_SHOWN = 1000


@app.command("write")
def write(
    ctx: typer.Context,
    values: Annotated[list[str], typer.Argument(metavar="FIELD=VALUE…", help="The row's fields.")],
    storage_group: Group,
    table: TableName,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="TIME", parser=_time, help="The row's time (now when left out)."),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG=VALUE", parser=_where, help="The row's tags.")
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the table or columns if they are missing.")
    ] = False,
) -> None:
    """Write one row; returns when it is durable on a majority.

    A missing table or column is refused, because its name may be mistyped.
    """
    from time import time as now

    from iotctl.rows.selection import parse_tags, parse_time
    from iotctl.rows.tables import write_one

    session = session_of(ctx)
    storage_group, table = _named(session, storage_group, table)
    tags = parse_tags(tag or [])
    moment = parse_time(time)
    at = int(now() * 1000) if moment is None else moment
    rows = write_one(session.cluster, storage_group, table, at, tags, values, create=create)
    session.output.emit("data-write", {"rows": rows, "time_ms": at}, lambda: [f"{rows} row at {at}"])


@app.command("import")
def import_(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help=".csv, .parquet, .arrow, or example:weather")],
    storage_group: Group,
    table: TableName,
    time: Annotated[str, typer.Option("--time", help="The time column: whole numbers or ISO 8601.")] = "time",
    time_unit: Annotated[
        str,
        typer.Option(
            "--time-unit",
            metavar="auto|s|ms|us|ns",
            parser=one_of("auto", "s", "ms", "us", "ns"),
            help="Unit of whole numbers; auto takes ms and refuses numbers unlikely to be ms.",
        ),
    ] = "auto",
    time_zone: Annotated[
        str,
        typer.Option(
            "--time-zone",
            metavar="ZONE",
            parser=_zone,
            help="Zone of times that name none, such as Europe/Berlin.",
        ),
    ] = "UTC",
    truncate_times: Annotated[
        bool,
        typer.Option("--truncate-times", help="Cut digits below a millisecond instead of refusing them."),
    ] = False,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="COLUMN", help="A tag column.")] = None,
    type_: Annotated[
        list[str] | None, typer.Option("--type", metavar="COLUMN=TYPE", parser=_type, help="A column's type.")
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(
            "--on-error",
            metavar="stop|skip",
            parser=one_of("stop", "skip"),
            help="What to do with a bad row.",
        ),
    ] = "stop",
    on_duplicate: Annotated[
        str,
        typer.Option(
            "--on-duplicate",
            metavar="stop|last",
            parser=one_of("stop", "last"),
            help="What to do with rows that have the same time and tags and differ; last keeps the last.",
        ),
    ] = "stop",
    dry_run: DryRun = False,
) -> None:
    """Import a file; other columns become fields. The table is created when it is not there.

    All of the file is checked before the first row is written; --dry-run shows what is found.
    """
    from iotctl.cli import rows
    from iotctl.rows.examples import named_file
    from iotctl.rows.import_job import ImportRequest, parse_types
    from iotctl.rows.imports import import_file
    from iotctl.rows.tables import format_of
    from iotctl.rows.times import TimeRule

    session = session_of(ctx)
    path = named_file(file, session.cwd)
    format_of(path)
    storage_group, table = _named(session, storage_group, table)
    request = ImportRequest(
        file=path,
        storage_group=storage_group,
        table=table,
        time=time,
        tags=tuple(tag or ()),
        types=parse_types(type_ or []),
        skip_bad=on_error == "skip",
        last_wins=on_duplicate == "last",
        times=TimeRule(time_unit, time_zone, truncate_times),
    )
    written = 0

    def wrote(rows: int) -> None:
        nonlocal written
        written = rows

    session.on_interrupt = lambda: (
        f"{written} rows are in, and perhaps some more",
        "run the same command again; equal rows overwrite",
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
    for bad in report.skipped:
        session.output.warn(f"{bad.where}: {bad.reason}")
    if report.skipped_rows > len(report.skipped):
        session.output.warn(f"and {report.skipped_rows - len(report.skipped)} more rows left out")
    if dry_run:
        what = f"write {report.rows} rows to {report.storage_group}.{report.table}"
        return session.output.would(what, found=[*report.notes, *report.warnings])
    for warning in report.warnings:
        session.output.warn(warning)
    for note in report.notes:
        session.output.note(note)
    session.output.emit("data-import", report, lambda: rows.import_tables(report))


@app.command("export")
@step(WORKS)
def export(
    ctx: typer.Context,
    storage_group: Group,
    table: TableName,
    to_path: Annotated[str, typer.Option("--to", metavar="PATH", help="File to write; - for stdout.")],
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="arrow|csv|parquet",
            parser=one_of("arrow", "csv", "parquet"),
            help="Format; by the file's extension if left out.",
        ),
    ] = None,
    fields: Fields = None,
    where: Where = None,
    read: Read = "strong",
    yes: Yes = False,
) -> None:
    """Export a table to a file, as it is: `data import` reads the same rows from it.

    A file that is there already and is not empty is replaced when that is confirmed.

    A spreadsheet may take text that begins with =, +, - or @ for a formula; CSV cannot prevent that.
    """
    from iotctl.rows.export import export_table, shape_of, size_of, write_rows
    from iotctl.rows.selection import Age, rows_of, table_of
    from iotctl.rows.tables import CSV, format_of

    session = session_of(ctx)
    to_stdout = to_path == "-"
    path = session.cwd / to_path
    kind = format_ or (CSV if to_stdout else format_of(path))
    schema = table_of(session.cluster, storage_group, table)
    chosen = _fields(fields)
    if not to_stdout and (size := size_of(path)):
        session.confirm(f"replace {path} ({size} bytes)?", yes=yes)
    age = Age()
    batches = rows_of(
        session.cluster, schema, _selection(where, None, None), fields=chosen, read=read, on_age=age.add
    )
    shape = shape_of(schema, chosen)
    if to_stdout:
        rows = write_rows(batches, schema, shape, session.binary_out(), kind, lambda done: None)
        _tell_age(session, read, age)
        return session.output.note(f"{rows} rows written to standard output")
    with session.progress() as progress:
        rows = export_table(
            batches, schema, shape, path, kind, lambda done: progress.update("exporting rows", done)
        )
    _tell_age(session, read, age)
    body = {"read": read, "age_ms": age.ms, "path": str(path), "format": kind, "rows": rows}
    session.output.emit("data-export", body, lambda: [f"{rows} rows in {path}"])
    return None


@app.command("delete")
def delete(
    ctx: typer.Context,
    storage_group: Group,
    table: TableName,
    where: Where = None,
    time_from: From = None,
    time_to: To = None,
    dry_run: DryRun = False,
    confirm: Confirm = None,
) -> None:
    """Delete rows by table, tags and time range: those that are there when it begins.

    It is durable on a majority of every group when this returns. The rows' files are rewritten later.
    """
    from iotctl.rows.selection import count_rows, delete_rows, table_of

    session = session_of(ctx)
    selection = _selection(where, time_from, time_to)
    schema = table_of(session.cluster, storage_group, table)
    ends = [f"{word} {time}" for word, time in (("from", time_from), ("to", time_to)) if time is not None]
    limits = [*selection.limits(), *ends]
    what = f"rows of {schema.storage_group}.{schema.table} {' and '.join(limits)}".rstrip()
    if dry_run:
        there = count_rows(session.cluster, schema, selection)
        return session.output.would(*[f"delete {there} {what}"] if there else [])
    session.confirm_name(f"delete {'' if limits else 'all '}{what}", name=session.source.name, given=confirm)
    partitions = delete_rows(session.cluster, schema, selection)
    body = {"partitions": partitions}
    session.output.emit("data-delete", body, lambda: [f"deleted in {partitions} partitions: {what}"])


@app.command("drop")
def drop(
    ctx: typer.Context,
    storage_group: Group,
    table: TableName,
    dry_run: DryRun = False,
    yes: Yes = False,
    confirm: Confirm = None,
) -> None:
    """Drop a table and delete its rows; asks for the cluster's name if there are rows.

    A table of that name made later has the tags and the types of columns that this one had. Every node must
    run this release or a newer one.
    """
    from iotctl.rows.selection import table_of
    from iotctl.rows.tables import drop_table

    session = session_of(ctx)
    schema = table_of(session.cluster, storage_group, table)
    name = f"{schema.storage_group}.{schema.table}"
    counts = session.cluster.count(schema.storage_group, schema.table)
    rows = sum(n for c in counts if isinstance(n := c["rows"], int))
    what = f"drop table {name}" + (f" and delete {rows} rows" if rows else "")
    if dry_run:
        return session.output.would(what)
    if rows:
        session.confirm_name(what, name=session.source.name, given=confirm)
    else:
        session.confirm(f"{what}?", yes=yes)
    partitions = drop_table(session.cluster, schema)
    body = {"storage_group": schema.storage_group, "table": schema.table, "partitions": partitions}
    session.output.emit("data-drop", body, lambda: [f"{name} is dropped"])
    return None


@app.command("query")
@step(READS)
def query(
    ctx: typer.Context,
    storage_group: Group,
    table: TableName,
    fields: Fields = None,
    where: Where = None,
    time_from: From = None,
    time_to: To = None,
    read: Read = "strong",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many rows.")] = None,
) -> None:
    """Rows by table, tags, fields and time range; -o csv writes CSV.

    A read that is not strong says how old it is: what was acknowledged longer ago is in it.
    """
    from iotctl.cli import rows
    from iotctl.rows.selection import Age

    session = session_of(ctx)
    bound = limit
    if limit is None and session.options.format in ("table", "wide"):
        bound = ROWS_SHOWN
    selection = _selection(where, time_from, time_to)
    age = Age()
    found = _scan(session, storage_group, table, selection, fields, read, bound, age)
    rows.print_rows(session, found, read, age.ms)
    _tell_age(session, read, age)
    if limit is None and bound is not None and found.num_rows == bound:
        session.output.note(f"only the first {bound} rows are shown; use --limit, or -o csv for all")


@app.command("count")
@step(READS)
def count(ctx: typer.Context, storage_group: MaybeGroup = None, table: MaybeTable = None) -> None:
    """Rows and time range of every table."""
    from iotctl.cli import rows

    session = session_of(ctx)
    tables = session.cluster.count(storage_group, table)
    session.output.emit("data-count", {"tables": tables}, lambda: rows.count_tables(tables))


@app.command("schema")
@step(Traits(inspect=lambda look, use: look.schema(use), undone_by=("data.schema",)))
def schema(
    ctx: typer.Context,
    storage_group: MaybeGroup = None,
    table: MaybeTable = None,
    set_ttl: Annotated[
        str | None,
        typer.Option(
            "--set-ttl",
            metavar="DURATION|none",
            parser=_ttl,
            help="Delete the table's rows that are older than this, from now on.",
        ),
    ] = None,
    dry_run: DryRun = False,
    confirm: Confirm = None,
) -> None:
    """Tables, their columns and how long rows are kept.

    A TTL that deletes rows at once asks as `data delete` does.
    """
    from iotctl.cli import rows

    session = session_of(ctx)
    if set_ttl is not None:
        if storage_group is None or table is None:
            raise typer.BadParameter("name the table: --storage-group and --table", param_hint="--set-ttl")
        todo = _set_ttl(session, storage_group, table, set_ttl, confirm, dry_run=dry_run)
        if dry_run:
            return session.output.would(*todo)
    found = [
        s
        for s in session.cluster.schemas()
        if _lower(storage_group) in (None, s.storage_group) and _lower(table) in (None, s.table)
    ]
    session.output.emit("data-schema", rows.schema_body(found), lambda: rows.schema_tables(found))


def _set_ttl(
    session: Session, storage_group: str, table: str, given: str, confirm: str | None, *, dry_run: bool
) -> list[str]:
    """Set it, or (`dry_run`) only look; what it does."""
    from iotctl.humanize import time_text
    from iotctl.rows.selection import table_of
    from iotctl.rows.tables import expiring, parse_ttl_ms, set_ttl_of

    ttl_ms = parse_ttl_ms(given)
    schema = table_of(session.cluster, storage_group, table)
    if schema.ttl_ms == ttl_ms:
        return []
    name = f"{schema.storage_group}.{schema.table}"
    rows, before = expiring(session.cluster, schema, ttl_ms, now_ms())
    todo = [f"keep rows of {name} for {given}"]
    if rows:
        todo.append(f"delete {rows} rows of {name} older than {time_text(before)}")
    if not dry_run:
        if rows:
            session.confirm_name(" and ".join(todo), name=session.source.name, given=confirm)
        set_ttl_of(session.cluster, schema, ttl_ms)
    return todo


def _named(session: Session, storage_group: str, table: str) -> tuple[str, str]:
    """As they are stored."""
    names = storage_group.lower(), table.lower()
    if names != (storage_group, table):
        session.output.note(f"names are lower case: {'.'.join(names)}")
    return names


def _lower(name: str | None) -> str | None:
    return None if name is None else name.lower()


def _selection(where: list[str] | None, time_from: str | None, time_to: str | None) -> Selection:
    from iotctl.rows.selection import Selection, parse_time, parse_where

    first, last = parse_time(time_from), parse_time(time_to)
    if first is not None and last is not None and first > last:
        raise typer.BadParameter(f"{time_from} is after --to {time_to}", param_hint="--from")
    return Selection(parse_where(where or []), first, last)


def _scan(
    session: Session,
    storage_group: str,
    table: str,
    selection: Selection,
    fields: str | None,
    read: str,
    limit: int | None,
    age: Age,
) -> pa.Table:
    from iotctl.rows.selection import scan

    return scan(
        session.cluster,
        storage_group,
        table,
        selection,
        fields=_fields(fields),
        read=read,
        limit=limit,
        on_age=age.add,
    )


def _tell_age(session: Session, read: str, age: Age) -> None:
    from iotctl.humanize import span_text

    if read == "strong":
        return
    if age.ms is None:
        session.output.warn(f"read {read}: no leader has confirmed how old this is")
    else:
        session.output.note(f"read {read}: rows of the last {span_text(age.ms / 1000)} may be missing")


def _fields(given: str | None) -> list[str] | None:
    return [f.strip().lower() for f in given.split(",")] if given else None
