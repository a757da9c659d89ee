"""`iotctl data`: write, read, import, export and delete rows."""

from __future__ import annotations

from typing import Annotated

import typer

from iotctl.cli import imports
from iotctl.cli.option_sets import with_option_sets
from iotctl.cli.options import Confirm, DryRun, Yes, one_of, text_for
from iotctl.cli.row_options import (
    Fields,
    From,
    MaybeGroup,
    MaybeTable,
    Read,
    TableName,
    Tags,
    Time,
    To,
    Where,
    fields_of,
    note_age,
    selection_of,
)
from iotctl.cli.session import Session, now_ms, session_of
from iotctl.playbook.traits import READS, WORKS, Traits, step

app = typer.Typer(help="Write, read, import, export and delete rows.", no_args_is_help=True)

ROWS_SHOWN = 1000
TABLES_SHOWN = 10


def _ttl(text: str) -> str:
    from iotctl.rows.tables import parse_ttl_ms

    return text_for(parse_ttl_ms)(text)


@app.command("write")
@with_option_sets
def write(
    ctx: typer.Context,
    values: Annotated[list[str], typer.Argument(metavar="FIELD=VALUE…", help="The row's fields.")],
    *,
    name: TableName,
    time: Time = None,
    tag: Tags = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the table or columns if they are missing.")
    ] = False,
) -> None:
    """Write one row; return when it is durable on a majority.

    Without --create, a missing table or column is an error, because the name may be mistyped.
    """
    from time import time as now

    from iotctl.rows.selection import parse_tags, parse_time
    from iotctl.rows.tables import write_one

    session = session_of(ctx)
    name = name.stored(session)
    tags = parse_tags(tag or [])
    moment = parse_time(time)
    at = int(now() * 1000) if moment is None else moment
    rows = write_one(session.cluster, name.storage_group, name.table, at, tags, values, create=create)
    session.output.emit("data-write", {"rows": rows, "time_ms": at}, lambda: [f"{rows} row at {at}"])


imports.register(app)


@app.command("export")
@step(WORKS)
@with_option_sets
def export(
    ctx: typer.Context,
    *,
    name: TableName,
    to_path: Annotated[str, typer.Option("--to", metavar="PATH", help="File to write; - for stdout.")],
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="arrow|csv|parquet",
            parser=one_of("arrow", "csv", "parquet"),
            help="Format; default: by the file's extension.",
        ),
    ] = None,
    fields: Fields = None,
    where: Where = None,
    read: Read = "strong",
    yes: Yes = False,
) -> None:
    """Export a table to a file that `data import` can read.

    Arrow and Parquet files keep all values and types; CSV has no types and no NaN.

    The command asks before it replaces an existing file that is not empty.

    A spreadsheet may interpret text in a CSV file as a formula if the text begins with =, +, - or @.
    """
    from iotctl.rows.export import export_table, shape_of, size_of, write_rows
    from iotctl.rows.selection import Age, rows_of
    from iotctl.rows.tables import CSV, format_of

    session = session_of(ctx)
    to_stdout = to_path == "-"
    path = session.cwd / to_path
    kind = format_ or (CSV if to_stdout else format_of(path))
    schema = name.schema(session)
    chosen = fields_of(fields)
    if not to_stdout and (size := size_of(path)):
        session.confirm(f"replace {path} ({size} bytes)?", yes=yes)
    age = Age()
    batches = rows_of(
        session.cluster, schema, selection_of(where, None, None), fields=chosen, read=read, on_age=age.add
    )
    shape = shape_of(schema, chosen)
    if to_stdout:
        rows = write_rows(batches, schema, shape, session.binary_out(), kind, lambda done: None)
        note_age(session, read, age)
        return session.output.note(f"{rows} rows written to standard output")
    with session.progress() as progress:
        rows = export_table(
            batches, schema, shape, path, kind, lambda done: progress.update("exporting rows", done)
        )
    note_age(session, read, age)
    body = {"read": read, "age_ms": age.ms, "path": str(path), "format": kind, "rows": rows}
    session.output.emit("data-export", body, lambda: [f"{rows} rows in {path}"])
    return None


@app.command("delete")
@with_option_sets
def delete(
    ctx: typer.Context,
    *,
    name: TableName,
    where: Where = None,
    time_from: From = None,
    time_to: To = None,
    dry_run: DryRun = False,
    confirm: Confirm = None,
) -> None:
    """Delete the rows of a table that match tags and a time range.

    Rows that are written while the command runs may be deleted or may remain. The command returns when the
    deletion is durable on a majority of every group.
    """
    from iotctl.rows.selection import count_rows, delete_rows

    session = session_of(ctx)
    selection = selection_of(where, time_from, time_to)
    schema = name.schema(session)
    tags = " and ".join(selection.limits())
    ends = (("with", tags or None), ("from", time_from), ("to", time_to))
    limits = [f"{word} {value}" for word, value in ends if value is not None]
    what = " ".join([f"rows of {schema.storage_group}.{schema.table}", *limits])
    if dry_run:
        there = count_rows(session.cluster, schema, selection)
        return session.output.would(*[f"delete {there} {what}"] if there else [])
    session.confirm_name(f"delete {'' if limits else 'all '}{what}", name=session.source.name, given=confirm)
    partitions = delete_rows(session.cluster, schema, selection)
    body = {"partitions": partitions}
    session.output.emit("data-delete", body, lambda: [f"deleted {what} (partitions: {partitions})"])


@app.command("drop")
def drop(
    ctx: typer.Context,
    storage_group: Annotated[str, typer.Option("--storage-group", help="Storage group, such as root.plant.")],
    table: Annotated[str | None, typer.Option("--table", help="Table name.")] = None,
    all_tables: Annotated[
        bool, typer.Option("--all-tables", help="Drop every table of the storage group.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    confirm: Confirm = None,
) -> None:
    """Drop a table, or a whole storage group, with its rows.

    The command asks for the cluster's name if there are rows.

    A later table with the same name gets the tags and column types of this table. Every node must run this
    release or a newer one.
    """
    from iotctl.rows.tables import drop_tables, tables_to_drop

    session = session_of(ctx)
    schemas = tables_to_drop(session.cluster, storage_group, table, all_tables=all_tables)
    group = schemas[0].storage_group
    names = [s.table for s in schemas]
    counts = session.cluster.count(group, None if all_tables else names[0])
    rows = sum(n for c in counts if isinstance(n := c["rows"], int))
    what = f"drop table {group}.{names[0]}"
    if all_tables:
        more = len(names) - TABLES_SHOWN
        listed = ", ".join(names[:TABLES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        what = f"drop all {len(names)} tables of {group} ({listed})"
    what += f" and delete {rows} rows" if rows else ""
    if dry_run:
        return session.output.would(what)
    if rows:
        session.confirm_name(what, name=session.source.name, given=confirm)
    else:
        session.confirm(f"{what}?", yes=yes)
    with session.progress() as progress:
        partitions = drop_tables(
            session.cluster, schemas, lambda done: progress.update("dropping tables", done, len(names))
        )
    body = {
        "storage_group": group,
        "table": "" if all_tables else names[0],
        "partitions": partitions,
        "tables": names,
    }
    session.output.emit("data-drop", body, lambda: [f"{group}.{name} is dropped" for name in names])
    return None


@app.command("query")
@step(READS)
@with_option_sets
def query(
    ctx: typer.Context,
    *,
    name: TableName,
    fields: Fields = None,
    where: Where = None,
    time_from: From = None,
    time_to: To = None,
    read: Read = "strong",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, help="Print at most this many rows; default: 1000 in a table, else all."
        ),
    ] = None,
) -> None:
    """Print the rows of a table that match tags and a time range.

    Use -o csv to print CSV.

    A bounded or weak read reports its age, if it is known: its rows include every write
    that was acknowledged at least that long ago.
    """
    from iotctl.cli import rows
    from iotctl.rows.selection import Age, scan

    session = session_of(ctx)
    is_cut = limit is None and session.options.format in ("table", "wide")
    selection = selection_of(where, time_from, time_to)
    age = Age()
    found = scan(
        session.cluster,
        name.storage_group,
        name.table,
        selection,
        fields=fields_of(fields),
        read=read,
        limit=ROWS_SHOWN + 1 if is_cut else limit,
        on_age=age.add,
    )
    shown = found.slice(0, ROWS_SHOWN) if is_cut else found
    rows.print_rows(session, shown, read, age.ms)
    note_age(session, read, age)
    if found.num_rows > shown.num_rows:
        session.output.note(f"only the first {ROWS_SHOWN} rows are shown; use --limit, or -o csv for all")


@app.command("count")
@step(READS)
def count(ctx: typer.Context, storage_group: MaybeGroup = None, table: MaybeTable = None) -> None:
    """Show the number of rows and the time range of every table."""
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
            help="Delete rows of the table once they are older than this; none: retain them.",
        ),
    ] = None,
    dry_run: DryRun = False,
    confirm: Confirm = None,
) -> None:
    """Show tables with their columns and TTL, or change a TTL.

    --set-ttl changes the TTL of one table.

    The command asks for the cluster's name if the TTL would delete rows at once.
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
    """Set the TTL, unless `dry_run`. Returns the changes."""
    from iotctl.humanize import time_text
    from iotctl.rows.selection import table_of
    from iotctl.rows.tables import expiring, parse_ttl_ms, set_ttl_of

    ttl_ms = parse_ttl_ms(given)
    schema = table_of(session.cluster, storage_group, table)
    if schema.ttl_ms == ttl_ms:
        return []
    name = f"{schema.storage_group}.{schema.table}"
    rows, before = expiring(session.cluster, schema, ttl_ms, now_ms())
    todo = [f"retain rows of {name} {f'for {given}' if ttl_ms else 'indefinitely'}"]
    if rows:
        todo.append(f"delete {rows} rows of {name} older than {time_text(before)}")
    if not dry_run:
        if rows:
            session.confirm_name(" and ".join(todo), name=session.source.name, given=confirm)
        set_ttl_of(session.cluster, schema, ttl_ms)
    return todo


def _lower(name: str | None) -> str | None:
    return None if name is None else name.lower()
