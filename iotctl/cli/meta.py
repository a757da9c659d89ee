"""`iotctl meta`: inspect the meta group, which holds the cluster's metadata."""

from __future__ import annotations

import typer

from iotctl.cli.options import Watch
from iotctl.cli.session import session_of
from iotctl.playbook.traits import READS, step

app = typer.Typer(help="Inspect the meta group, which holds the cluster's metadata.", no_args_is_help=True)


@app.command()
@step(READS)
def status(ctx: typer.Context, watch: Watch = False) -> int:
    """Show each node's role, journal and images, even if most agents are down.

    `first` and `last` are the journal entries that a node has, `applied` the last one in its state, `age` how
    long ago a leader confirmed the state. Exit with 4 if no majority of the voters answers.
    """
    from iotctl.cli import views
    from iotctl.cli.watching import repeated
    from iotctl.errors import Exit
    from iotctl.observe.collect import collect
    from iotctl.observe.meta import meta_group

    session = session_of(ctx)

    def show() -> int:
        found = meta_group(collect(session.cluster))
        session.output.emit("meta-status", found, lambda: views.meta_tables(found))
        return Exit.DONE if found.quorum else Exit.UNREACHABLE

    return repeated(session, show, watch)
