"""`iotctl meta`: inspect and recover the meta group, which holds the cluster's metadata."""

from __future__ import annotations

import typer

from iotctl.cli.options import AcceptDataLoss, Confirm, Nodes, Watch
from iotctl.cli.session import now_ms, session_of
from iotctl.playbook.traits import READS, step

app = typer.Typer(
    help="Inspect and recover the meta group, which holds the cluster's metadata.", no_args_is_help=True
)


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


@app.command()
def recover(
    ctx: typer.Context, names: Nodes, accept_data_loss: AcceptDataLoss = False, confirm: Confirm = None
) -> int:
    """Force the recovery of the meta group, which lost its majority because these nodes are permanently lost.

    The group continues from the living node with the newest journal. Metadata that only the lost nodes have
    is lost. If they come back, they are refused. Without --accept-data-loss nothing is changed (exit 5).
    """
    from iotctl.change import recover_meta as recovering
    from iotctl.cli import views
    from iotctl.errors import Exit

    session = session_of(ctx)
    found = recovering.look(session.cluster, session.source, names, now_ms=now_ms())
    if accept_data_loss:
        session.output.preview(views.meta_recovery_tables(found))
        question = (
            f"force recovery of the meta group without {', '.join(found.nodes)} ({session.source.name})"
        )
        session.confirm_name(question, name=session.source.name, given=confirm)
        found = recovering.recover(
            session.cluster,
            session.source,
            found,
            session.operator,
            timeout_s=session.options.timeout_s,
        )
    session.output.emit("meta-recover", found, lambda: views.meta_recovery_tables(found))
    session.output.note(f"next: {found.next}")
    return Exit.DONE if found.done else Exit.REFUSED
