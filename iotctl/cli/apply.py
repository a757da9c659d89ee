"""`iotctl apply`: execute a saved plan, or make the cluster match `cluster.yaml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.change_options import ChangeOptions
from iotctl.cli.option_sets import with_option_sets
from iotctl.cli.options import DryRun, Yes
from iotctl.cli.session import Session, session_of
from iotctl.playbook.traits import Traits, step

if TYPE_CHECKING:
    from iotctl.plan.model import Plan
    from nodeagent.model.operation import Operation


def register(app: typer.Typer) -> None:
    app.command("apply")(apply)


@step(Traits(inspect=lambda look, use: look.apply(use)))
@with_option_sets
def apply(
    ctx: typer.Context,
    file: Annotated[str | None, typer.Argument(metavar="[PLAN]", help="A plan saved with --out.")] = None,
    allow_remove: Annotated[
        bool, typer.Option("--allow-remove", help="Remove nodes that cluster.yaml does not list.")
    ] = False,
    *,
    options: ChangeOptions,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Ask, then execute a plan.

    Without PLAN, make the plan from cluster.yaml; a second run plans only what is still missing.
    """
    from iotctl.change.convergence import spec_plan
    from iotctl.cli.changes import execute_plan

    session = session_of(ctx)
    unlisted: list[str] = []
    if file is not None:
        plan = _saved(session, file, allow_remove=allow_remove)
    else:
        plan, unlisted = spec_plan(
            session.cluster, session.source, allow_remove=allow_remove, accept_layout=options.accept_layout
        )
    _warn(session, plan, unlisted)
    if not (plan.has_changes or plan.refusals):
        return _unchanged(session, "no changes")
    if file is not None and (ended := _ended(session, plan)) is not None:
        if ended and dry_run:
            nodes = ", ".join(str(operation.leaving) for operation in ended)
            said = f"{nodes} left the cluster; would stop their agents and remove them from cluster.yaml"
            session.output.emit("plan", plan, lambda: [said])
            return 0
        _finish(session, ended)
        return _unchanged(session, "no changes: the plan was carried out before")
    steps = "; ".join(
        f"{s.node} takes the place of {s.replaces}" if s.replaces else f"{s.kind} {s.node or 'slots'}"
        for s in plan.steps
    )
    question = f"{steps} ({session.source.name})?"
    return execute_plan(session, plan, options.request(session), question=question, yes=yes, dry_run=dry_run)


def _saved(session: Session, file: str, *, allow_remove: bool) -> Plan:
    """Raises `RefusedProblem` for a plan from cluster.yaml that removes nodes without `allow_remove`."""
    from iotctl.cli.plan import load_plan
    from iotctl.errors import RefusedProblem

    plan = load_plan(session.cwd / file)
    if plan.from_spec and plan.leaving and not allow_remove:
        raise RefusedProblem(
            f"the plan removes {', '.join(plan.leaving)}; nothing was changed",
            next=f"iotctl apply {file} --allow-remove",
        )
    return plan


def _warn(session: Session, plan: Plan, unlisted: list[str]) -> None:
    """Name the differences between the cluster and `cluster.yaml` that the plan leaves."""
    if unlisted:
        session.output.warn(
            f"not in cluster.yaml, kept because --allow-remove is not given: {', '.join(unlisted)}"
        )
    for d in plan.differences:
        where = f"{d.node}: " if d.node else ""
        session.output.warn(f"{where}{d.what} stays {d.present}, but cluster.yaml says {d.wanted}; {d.next}")


def _unchanged(session: Session, said: str) -> int:
    session.output.emit("change", {"operations": [], "state": "done", "nodes": []}, lambda: [said])
    return 0


def _ended(session: Session, plan: Plan) -> list[Operation] | None:
    """The removals to finish, if the plan was carried out before; else None.

    No iotctl waited for the end of these removals, so the agents still run and cluster.yaml still lists the
    nodes.
    """
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
