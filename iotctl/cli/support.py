"""`iotctl support`: what to send along with a question."""

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
        typer.Option("--out", metavar="FILE.tar.gz", help="Where to; else support-NAME-TIME here."),
    ] = None,
) -> None:
    """Write one archive: spec, status, events, operations, logs of a local fleet, versions.

    Works with nodes down, which it names. Never holds private keys or rows; values that look secret are
    taken out of cluster.yaml.
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
