"""`iotctl playbook runs` and `abandon`: the recorded runs, and those that will not be resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.options import DryRun, Yes
from iotctl.cli.session import Session, session_of

if TYPE_CHECKING:
    from pathlib import Path

    from iotctl.playbook.records import RecordedRuns
    from nodeagent.model.runs import Run


def register(app: typer.Typer) -> None:
    app.command()(runs)
    app.command()(abandon)


def runs(ctx: typer.Context) -> None:
    """List the recorded runs of playbooks.

    The cluster records up to 32 unfinished runs and retains the last 32 that ended. Unfinished runs that only
    this machine has recorded are listed, too.
    """
    from iotctl.change.lock import kept
    from iotctl.errors import IotctlError
    from iotctl.playbook.records import recorded
    from nodeagent.model.errors import NodeAgentError

    session = session_of(ctx)
    in_cluster = None
    try:
        in_cluster = kept(session.cluster)[1]
    except (IotctlError, NodeAgentError) as error:
        session.output.warn(f"only the unfinished runs recorded on this machine are listed: {error.what}")
    _print(session, recorded(in_cluster, _directory(session)))


def abandon(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="Id of the run, as in `playbook runs`.")],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """End an unfinished run that will not be resumed.

    This undoes nothing that the run did, and the run can no longer be resumed.
    """
    from msgspec.structs import replace

    from iotctl.errors import RefusedProblem, Unreachable
    from iotctl.playbook import records

    session = session_of(ctx)
    directory = _directory(session)
    row = records.row_of(run_id, _in_cluster(session, run_id), directory)
    if dry_run:
        return session.output.would(*[] if row.ended else [f"abandon run {run_id}"])
    if not row.ended:
        session.confirm(f"abandon run {run_id}?", yes=yes)
    with session.locked(f"abandon run {run_id}"):  # the program that executes a run holds the lock
        if session.lock is None:
            raise Unreachable(f"run {run_id} was not abandoned: the cluster does not respond")
        run = _in_cluster(session, run_id)
        row = records.row_of(run_id, run, directory)
        records.end(run_id, run, directory, session.operator, session.lock)
    if row.ended:
        raise RefusedProblem(f"run {run_id} was not abandoned: it has ended", next="iotctl playbook runs")
    _print(session, records.RecordedRuns([replace(row, ended=True)]))


def _in_cluster(session: Session, run_id: str) -> Run | None:
    """The cluster's record of the run, with its entries."""
    from iotctl.change.lock import kept

    return next((run for run in kept(session.cluster, run_id)[1] if run.id == run_id), None)


def _directory(session: Session) -> Path:
    from iotctl.spec.find import runs_dir

    return runs_dir(session.options.cluster, session.env, session.cwd)


def _print(session: Session, found: RecordedRuns) -> None:
    from iotctl.humanize import time_text
    from iotctl.output.table import Table

    rows = [
        (
            run.run_id,
            run.playbook or "-",
            "ended" if run.ended else "unfinished",
            run.by or "-",
            {True: "yes", False: "no", None: "?"}[run.in_cluster],
            "yes" if run.here else "no",
            time_text(run.began_ms),
        )
        for run in found.runs
    ]
    headers = ("run", "playbook", "state", "by", "cluster", "here", "began")
    session.output.emit("playbook-runs", found, lambda: [Table(headers, rows, title="runs", wide=1)])
    if any(not run.ended for run in found.runs):
        session.output.note("next: iotctl playbook run FILE --resume RUN_ID")
        session.output.note("or:   iotctl playbook abandon RUN_ID")
