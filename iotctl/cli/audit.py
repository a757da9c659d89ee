"""`iotctl audit`: export the cluster's audit log, and check an exported one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iotctl.cli.session import now_ms, session_of
from iotctl.playbook.traits import READS, WORKS, step

app = typer.Typer(help="Export and check the cluster's audit log.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A file that `audit export --to` wrote.")]


@app.command()
@step(WORKS)
def export(
    ctx: typer.Context,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Omit lines older than this, such as 7d; ignored if FILE has lines."
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Append the lines that FILE lacks, as JSON lines."),
    ] = None,
) -> None:
    """Print the audit log, or append it to a file.

    The audit log says who changed what, and when.

    The cluster retains the newest 4 096 lines. The digest of each line covers all lines before it, so
    `audit check` detects missing or changed lines.
    """
    from iotctl.cli import views
    from iotctl.observe import audit
    from iotctl.spec.units import parse_duration_ms

    session = session_of(ctx)
    since_ms = now_ms() - parse_duration_ms(since) if since is not None else 0
    if to is None:
        log = audit.audit_log(session.cluster, since_ms)
        session.output.emit("audit-log", log, lambda: [views.audit_table(log)])
        return
    found = audit.export(session.cluster, since_ms, session.cwd / to)
    session.output.emit("audit-exported", found, lambda: [f"{found.lines} lines were appended to {to}"])


@app.command()
@step(READS)
def check(ctx: typer.Context, file: File) -> None:
    """Check an exported file for missing or changed lines. Exit with 7 if there are any."""
    from iotctl.observe import audit

    session = session_of(ctx)
    found = audit.check(session.cwd / file)
    numbers = f", numbers {found.first} to {found.last}" if found.lines else ""
    session.output.emit("audit-checked", found, lambda: [f"{found.lines} lines{numbers}: unchanged"])
