"""`iotctl apply`: execute a saved plan, or bring the cluster to what `cluster.yaml` says."""

from __future__ import annotations

from typing import Annotated

import typer

from iotctl.cli.cluster import HoldRelease, NoMigrate
from iotctl.cli.options import AcceptLayout, Depth, DryRun, Rate, Verify, Wait, Yes
from iotctl.cli.session import session_of


def register(app: typer.Typer) -> None:
    app.command("apply")(apply)


def apply(
    ctx: typer.Context,
    file: Annotated[str | None, typer.Argument(metavar="[PLAN]", help="A plan saved with --out.")] = None,
    allow_remove: Annotated[
        bool, typer.Option("--allow-remove", help="Remove nodes that cluster.yaml does not list.")
    ] = False,
    accept_layout: AcceptLayout = False,
    no_migrate: NoMigrate = False,
    verify: Verify = False,
    depth: Depth = None,
    rate: Rate = "auto",
    hold_release: HoldRelease = None,
    wait: Wait = True,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Execute a plan; without one: plan from cluster.yaml, show, ask. Applying twice changes nothing."""
    from iotctl.cli.cluster import change_options, execute_plan
    from iotctl.cli.plan import load_plan
    from iotctl.errors import RefusedProblem
    from iotctl.execute.change import ChangeRequest
    from iotctl.execute.convergence import spec_plan
    from iotctl.execute.layout import table_of
    from iotctl.execute.operations import open_operations
    from iotctl.plan.apply import is_carried_out

    session = session_of(ctx)
    left: list[str] = []
    if file is not None:
        plan = load_plan(session.cwd / file)
        if plan.from_spec and plan.leaving and not allow_remove:
            raise RefusedProblem(
                f"the plan removes {', '.join(plan.leaving)}; nothing was changed",
                next=f"iotctl apply {file} --allow-remove",
            )
    else:
        plan, left = spec_plan(
            session.cluster, session.source, allow_remove=allow_remove, accept_layout=accept_layout
        )
    if left:
        session.output.warn(f"not in cluster.yaml, left alone without --allow-remove: {', '.join(left)}")
    for d in plan.differences:
        where = f"{d.node}: " if d.node else ""
        session.output.warn(f"{where}{d.what} stays {d.present}, cluster.yaml says {d.wanted}; {d.next}")
    done = not (plan.has_changes or plan.refusals)
    if file is not None and not done:
        view = session.cluster.meta(strong=True)
        done = not open_operations(view) and is_carried_out(plan, table_of(view))
    if done:
        said = "no changes: the plan was carried out before" if plan.has_changes else "no changes"
        session.output.emit("change", {"operations": [], "state": "done", "nodes": []}, lambda: [said])
        return 0
    request = ChangeRequest(
        by=session.operator,
        options=change_options(verify, depth, no_migrate, hold_release, rate),
        wait=wait,
        wait_s=session.options.timeout_s,
    )
    steps = "; ".join(
        f"{s.node} takes the place of {s.replaces}" if s.replaces else f"{s.kind} {s.node or 'slots'}"
        for s in plan.steps
    )
    question = f"{steps} ({session.source.name})?"
    return execute_plan(session, plan, request, question=question, yes=yes, dry_run=dry_run)
