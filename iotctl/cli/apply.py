"""`iotctl apply`: execute a saved plan, or bring the cluster to what `cluster.yaml` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.cluster import HoldRelease, NoMigrate
from iotctl.cli.options import Depth, DryRun, Rate, Verify, Wait, Yes
from iotctl.cli.session import Session, session_of

if TYPE_CHECKING:
    from iotctl.plan.model import Plan


def register(app: typer.Typer) -> None:
    app.command("apply")(apply)


def apply(
    ctx: typer.Context,
    file: Annotated[str | None, typer.Argument(metavar="[PLAN]", help="A plan saved with --out.")] = None,
    allow_remove: Annotated[
        bool, typer.Option("--allow-remove", help="Remove nodes that cluster.yaml does not list.")
    ] = False,
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
    from iotctl.execute.change import ChangeRequest

    session = session_of(ctx)
    extra: list[str] = []
    if file is not None:
        plans = [load_plan(session.cwd / file)]
    else:
        plans, extra = spec_plans(session, allow_remove=allow_remove)
    if extra and not allow_remove:
        session.output.warn(f"not in cluster.yaml, left alone without --allow-remove: {', '.join(extra)}")
    if not any(p.has_changes or p.refusals for p in plans):
        session.output.emit(
            "change", {"operations": [], "state": "done", "nodes": []}, lambda: ["no changes"]
        )
        return 0
    plan = plans[0]
    request = ChangeRequest(
        by=session.operator,
        options=change_options(verify, depth, no_migrate, hold_release, rate),
        wait=wait,
        wait_s=session.options.timeout_s,
    )
    names = ", ".join(s.node for s in plan.steps if s.node)
    question = f"{f'{plan.kind} {names}'.rstrip()} in {session.source.name}?"
    code = execute_plan(session, plan, request, question=question, yes=yes, dry_run=dry_run)
    if len(plans) > 1:
        session.output.note("next: iotctl apply  (the removals are planned once the adds are done)")
    return code


def spec_plans(session: Session, *, allow_remove: bool) -> tuple[list[Plan], list[str]]:
    """Plans that lead from the cluster to `cluster.yaml` (adds first), and the nodes it does not list."""
    from iotctl.execute.change import wanted_changes
    from iotctl.execute.facts import plan_facts
    from iotctl.plan.make import make_add, make_remove

    facts, view = plan_facts(session.cluster, session.source)
    adds, removes = wanted_changes(session.source, view.ring)
    weights = {n.name: n.weight for n in session.source.file.nodes}
    plans = [make_add(facts, adds, None, weights)] if adds else []
    if removes and allow_remove:
        plans.append(make_remove(facts, removes))
    return plans, removes
