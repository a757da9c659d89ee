"""`iotctl meta`: inspect and recover the meta group, which holds the cluster's metadata."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.options import AcceptDataLoss, Confirm, DryRun, Nodes, Watch, Yes
from iotctl.cli.session import Session, now_ms, session_of
from iotctl.playbook.traits import READS, WORKS, Traits, step

if TYPE_CHECKING:
    from iotctl.change.restore_meta import MetaRestore
    from iotctl.observe.backup import Backup

app = typer.Typer(
    help="Inspect, back up and recover the cluster's metadata.",
    no_args_is_help=True,
)

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="A file that `meta backup` wrote.")]


@app.command()
@step(READS)
def status(ctx: typer.Context, watch: Watch = False) -> int:
    """Show each node's role, journal and images.

    This works even if most agents are down.

    `first` and `last` are the first and last journal entries of a node, `applied` is the last one in its
    state, and `age` is how long ago a leader confirmed the state. Exit with 4 if no majority of the voters
    answers.
    """
    from iotctl.cli import meta_views
    from iotctl.cli.watching import repeated
    from iotctl.errors import Exit
    from iotctl.observe.collect import collect
    from iotctl.observe.meta import meta_group

    session = session_of(ctx)

    def show() -> int:
        found = meta_group(collect(session.cluster))
        session.output.emit("meta-status", found, lambda: meta_views.status_tables(found))
        return Exit.DONE if found.quorum else Exit.UNREACHABLE

    return repeated(session, show, watch)


@app.command()
def recover(
    ctx: typer.Context, names: Nodes, accept_data_loss: AcceptDataLoss = False, confirm: Confirm = None
) -> int:
    """Force the recovery of a meta group that lost its majority.

    The nodes that you name must be permanently lost.

    The group continues from the living node with the newest journal. Metadata that only the lost nodes have
    is lost. Lost nodes that come back are refused. Without --accept-data-loss nothing is changed (exit 5).
    """
    from iotctl.change import recover_meta as recovering
    from iotctl.cli import meta_views
    from iotctl.errors import Exit

    session = session_of(ctx)
    found = recovering.look(session.cluster, session.source, names, now_ms=now_ms())
    if accept_data_loss:
        session.output.preview(meta_views.recovery_tables(found))
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
    session.output.emit("meta-recover", found, lambda: meta_views.recovery_tables(found))
    session.output.note(f"next: {found.next}")
    return Exit.DONE if found.done else Exit.REFUSED


@app.command()
@step(WORKS)
def backup(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    yes: Yes = False,
) -> None:
    """Write the cluster's metadata to a file, while the cluster runs.

    The file has everything that was acknowledged before the command; rows are not in it. It is verified
    before it is written. The command asks before it replaces an existing file. `nodeagent image dump FILE`
    shows what is in it.
    """
    from iotctl.cli import meta_views
    from iotctl.observe.backup import back_up
    from iotctl.rows.export import size_of

    session = session_of(ctx)
    path = session.cwd / file
    if size := size_of(path):
        session.confirm(f"replace {path} ({size} bytes)?", yes=yes)
    found = back_up(session.cluster, path)
    session.output.emit("meta-backup", found, lambda: meta_views.backup_lines(found))


@app.command()
@step(Traits(inspect=lambda look, use: look.would(use)))
def restore(
    ctx: typer.Context,
    file: BackupFile,
    tables_only: Annotated[
        bool, typer.Option("--tables-only", help="Restore the tables, and leave every slot in its group.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Restore tables, TTLs and the placement of slots from a backup.

    Tables that are missing are created; existing tables get missing columns and retain their rows and TTLs.
    To restore the placement of slots, the cluster must have the same nodes in the same ring order; otherwise
    use --tables-only. Run the command again to complete an interrupted restore.
    """
    from iotctl.change.restore_meta import look
    from iotctl.cli import meta_views
    from iotctl.observe.backup import read_backup

    session = session_of(ctx)
    backup = read_backup(session.cwd / file)
    found, _ = look(session.cluster, session.source, backup, tables_only=tables_only)
    due, kept = meta_views.changes(found), meta_views.unchanged(found)
    if dry_run:
        return session.output.would(*due, found=kept)
    if due:
        session.output.preview(meta_views.first_of([*due, *kept]))
        session.confirm(f"restore {file} in {session.source.name}?", yes=yes)
        session.on_interrupt = lambda: ("a part may be restored", "run the same command again: it continues")
        with session.locked(f"meta restore {file}"):
            found = _restored(session, backup, found, tables_only=tables_only)
    session.output.emit("meta-restore", found, lambda: meta_views.restored(found))
    return None


def _restored(session: Session, backup: Backup, shown: MetaRestore, *, tables_only: bool) -> MetaRestore:
    """Place the slots, then restore the tables."""
    from msgspec.structs import replace

    from iotctl.change.execute import ChangeRequest
    from iotctl.change.restore_meta import look, restore_tables
    from iotctl.cli.changes import run_plan
    from iotctl.errors import RefusedProblem

    found, plan = look(session.cluster, session.source, backup, tables_only=tables_only)
    if found != shown:
        raise RefusedProblem(
            "the cluster has changed since the changes were shown; nothing was changed",
            next="repeat the command",
        )
    if plan is not None:
        request = ChangeRequest(by=session.operator, wait_s=session.options.timeout_s)
        found = replace(found, operation=run_plan(session, plan, request).operations[-1])
    with session.progress() as progress:
        restore_tables(
            session.cluster,
            backup,
            found.tables,
            lambda done, total: progress.update("restoring tables", done, total),
        )
    return found
