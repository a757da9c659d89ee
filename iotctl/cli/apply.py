"""`iotctl apply`: execute a saved plan, or bring the cluster to what `cluster.yaml` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.options import AcceptLayout, Depth, DryRun, HoldRelease, NoMigrate, Rate, Verify, Wait, Yes
from iotctl.cli.session import Session, session_of
from iotctl.playbook.traits import Traits, step

if TYPE_CHECKING:
    from iotctl.plan.model import Plan
    from nodeagent.model.operation import Operation


def register(app: typer.Typer) -> None:
    app.command("apply")(apply)


@step(Traits(inspect=lambda look, use: look.apply(use)))
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
    from iotctl.change.convergence import spec_plan
    from iotctl.change.execute import ChangeRequest
    from iotctl.cli.changes import change_options, execute_plan
    from iotctl.cli.plan import load_plan
    from iotctl.errors import RefusedProblem

    session = session_of(ctx)
    unlisted: list[str] = []
    if file is not None:
        plan = load_plan(session.cwd / file)
        if plan.from_spec and plan.leaving and not allow_remove:
            raise RefusedProblem(
                f"the plan removes {', '.join(plan.leaving)}; nothing was changed",
                next=f"iotctl apply {file} --allow-remove",
            )
    else:
        plan, unlisted = spec_plan(
            session.cluster, session.source, allow_remove=allow_remove, accept_layout=accept_layout
        )
    if unlisted:
        session.output.warn(f"not in cluster.yaml, left alone without --allow-remove: {', '.join(unlisted)}")
    for d in plan.differences:
        where = f"{d.node}: " if d.node else ""
        session.output.warn(f"{where}{d.what} stays {d.present}, cluster.yaml says {d.wanted}; {d.next}")
    if not (plan.has_changes or plan.refusals):
        return _unchanged(session, "no changes")
    if file is not None and (ended := _ended(session, plan)) is not None:
        if ended and dry_run:
            session.output.emit(
                "plan", plan, lambda: [f"{', '.join(plan.leaving)} left; their agents go too"]
            )
            return 0
        _finish(session, ended)
        return _unchanged(session, "no changes: the plan was carried out before")
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


def _unchanged(session: Session, said: str) -> int:
    session.output.emit("change", {"operations": [], "state": "done", "nodes": []}, lambda: [said])
    return 0


def _ended(session: Session, plan: Plan) -> list[Operation] | None:
    """None unless the plan was carried out before; else the removals of nodes whose agents and lines in
    cluster.yaml are there still, for nobody waited for their end."""
    from iotctl.observe.layout import table_of
    from iotctl.observe.operations import open_operations, removed_by
    from iotctl.plan.apply import is_carried_out
    from nodeagent.model.operation import Stage

    view = session.cluster.meta(strong=True)
    changed_at = [o.base_version for o in view.operations if o.stage is Stage.DONE]
    if open_operations(view) or not is_carried_out(plan, table_of(view), changed_at):
        return None
    listed = [n for n in plan.leaving if n in session.source.node_names]
    return [operation for n in listed if (operation := removed_by(view, n))]


def _finish(session: Session, removals: list[Operation]) -> None:
    from iotctl.change.execute import finish_removal
    from iotctl.cli.provisioning import provisioning

    if not removals:
        return
    with session.progress() as progress, provisioning(session, progress) as provisioner:
        for operation in removals:
            finish_removal(session.cluster, session.source, provisioner, operation, session.output.note)
