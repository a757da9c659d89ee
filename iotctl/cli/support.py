"""`iotctl support`: collect diagnostics for a support request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iotctl.cli.session import now_ms, session_of
from iotctl.playbook.traits import WORKS, step

app = typer.Typer(help="Collect support diagnostics.", no_args_is_help=True)


@app.command()
@step(WORKS)
def bundle(
    ctx: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE.tar.gz", help="Output file; default: ./support-NAME-TIME.tar.gz."
        ),
    ] = None,
) -> None:
    """Write an archive of support diagnostics.

    It has cluster.yaml, status, events, operations, versions and, for a local fleet, logs.

    The command works while nodes are down, and names them. The archive holds no private keys and no rows;
    values in cluster.yaml that look like secrets are redacted.
    """
    from iotctl.cli import views
    from iotctl.observe.bundle import default_name, write_bundle
    from iotctl.output.document import document, to_json

    def encode(kind: str, body: object) -> bytes:
        return to_json(document(kind, body)).encode()

    session = session_of(ctx)
    at = now_ms()
    path = session.cwd / (out or default_name(session.source, at))
    with session.progress() as progress:
        progress.update("asking every node")
        found = write_bundle(session.cluster, session.source, session.fleet, path, encode=encode, now_ms=at)
    session.output.emit("support-bundle", found, lambda: views.bundle_tables(found))
