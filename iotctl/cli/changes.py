"""`iotctl cluster add-node`, `remove-node`, `replace-node`, and what `apply` shares with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.options import (
    AcceptLayout,
    Confirm,
    Depth,
    DryRun,
    HoldRelease,
    Nodes,
    NoMigrate,
    NoWriteSpec,
    Rate,
    Verify,
    Wait,
    Yes,
)
from iotctl.cli.session import Session, session_of
from iotctl.playbook.traits import Traits, step

if TYPE_CHECKING:
    from iotctl.change.execute import ChangeRequest, Executed
    from iotctl.plan.model import Plan
    from nodeagent.model.operation import Options


def register(app: typer.Typer) -> None:
    app.command("add-node")(add_node)
    app.command("remove-node")(remove_node)
    app.command("replace-node")(replace_node)


@step(
    Traits(
        inspect=lambda look, use: look.add(use),
        undone_by=("cluster.remove-node",),
        undo="cluster.remove-node",
    )
)
def add_node(
    ctx: typer.Context,
    names: Nodes,
    after: Annotated[str | None, typer.Option(help="The ring neighbour to stand behind.")] = None,
    host: Annotated[str, typer.Option(help="Where the node listens, when cluster.yaml does not say.")] = "",
    port: Annotated[int, typer.Option(help="With --host.")] = 0,
    accept_layout: AcceptLayout = False,
    no_migrate: NoMigrate = False,
    verify: Verify = False,
    depth: Depth = None,
    rate: Rate = "auto",
    hold_release: HoldRelease = None,
    wait: Wait = True,
    no_write_spec: NoWriteSpec = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Add nodes: plan, show, ask, then hand the work to the cluster and watch it."""
    from iotctl.change.execute import ChangeRequest
    from iotctl.observe.facts import plan_facts
    from iotctl.plan.make import make_add
    from iotctl.spec.units import parse_rate

    session = session_of(ctx)
    options = change_options(verify, depth, no_migrate, hold_release, rate)
    facts, _ = plan_facts(session.cluster, session.source, rate=parse_rate(rate))
    plan = make_add(facts, names, after, accept_layout=accept_layout)
    request = ChangeRequest(
        by=session.operator,
        options=options,
        wait=wait,
        wait_s=session.options.timeout_s,
        write_spec=not no_write_spec,
        host=host,
        port=port,
    )
    question = f"add {', '.join(names)} to {session.source.name}?"
    return execute_plan(session, plan, request, question=question, yes=yes, dry_run=dry_run)


@step(Traits(inspect=lambda look, use: look.remove(use), undone_by=("cluster.add-node",)))
def remove_node(
    ctx: typer.Context,
    names: Nodes,
    dead: Annotated[bool, typer.Option("--dead", help="The node is gone for ever.")] = False,
    accept_layout: AcceptLayout = False,
    no_migrate: NoMigrate = False,
    verify: Verify = False,
    depth: Depth = None,
    rate: Rate = "auto",
    hold_release: HoldRelease = None,
    wait: Wait = True,
    no_write_spec: NoWriteSpec = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    confirm: Confirm = None,
) -> int:
    """Remove nodes: their slots move first, then they leave."""
    from iotctl.change.execute import ChangeRequest
    from iotctl.observe.facts import plan_facts
    from iotctl.plan.make import make_remove
    from iotctl.spec.units import parse_rate

    session = session_of(ctx)
    options = change_options(verify, depth, no_migrate, hold_release, rate, dead=dead)
    if dead:
        if len(names) > 1:
            raise typer.BadParameter("dead nodes are removed one by one", param_hint="NODE")
        if _bury(
            session, names[0], "remove the dead", confirm, dry_run=dry_run, write_spec=not no_write_spec
        ):
            return 0
    facts, _ = plan_facts(session.cluster, session.source, rate=parse_rate(rate))
    plan = make_remove(facts, names, accept_layout=accept_layout or dead)
    request = ChangeRequest(
        by=session.operator,
        options=options,
        wait=wait,
        wait_s=session.options.timeout_s,
        write_spec=not no_write_spec,
    )
    question = f"remove {', '.join(names)} from {session.source.name}?"
    return execute_plan(session, plan, request, question=question, yes=yes or dead, dry_run=dry_run)


@step(Traits(inspect=lambda look, use: look.replace(use), is_visible=lambda a: a["old"] != a["new"]))
def replace_node(
    ctx: typer.Context,
    old: Annotated[str, typer.Argument(metavar="OLD", help="Who leaves.")],
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="Who takes its place; OLD again after its disk was wiped.")
    ],
    dead: Annotated[bool, typer.Option("--dead", help="OLD is gone for ever.")] = False,
    host: Annotated[str, typer.Option(help="Where NEW listens, when cluster.yaml does not say.")] = "",
    port: Annotated[int, typer.Option(help="With --host.")] = 0,
    accept_layout: AcceptLayout = False,
    no_migrate: NoMigrate = False,
    verify: Verify = False,
    depth: Depth = None,
    rate: Rate = "auto",
    hold_release: HoldRelease = None,
    wait: Wait = True,
    no_write_spec: NoWriteSpec = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    confirm: Confirm = None,
) -> int:
    """Give a node's place on the ring and its slots to a new one."""
    from iotctl.change.execute import ChangeRequest
    from iotctl.observe.facts import plan_facts
    from iotctl.plan.make import make_replace
    from iotctl.spec.units import parse_rate

    session = session_of(ctx)
    options = change_options(verify, depth, no_migrate, hold_release, rate, dead=dead)
    if dead and _bury(
        session, old, "replace the dead", confirm, dry_run=dry_run, write_spec=not no_write_spec, by=new
    ):
        return 0
    facts, _ = plan_facts(session.cluster, session.source, rate=parse_rate(rate))
    plan = make_replace(facts, old, new, accept_layout=accept_layout or dead)
    request = ChangeRequest(
        by=session.operator,
        options=options,
        wait=wait,
        wait_s=session.options.timeout_s,
        write_spec=not no_write_spec,
        host=host,
        port=port,
    )
    question = f"replace {old} by {new} in {session.source.name}?"
    return execute_plan(session, plan, request, question=question, yes=yes or dead, dry_run=dry_run)


def _bury(
    session: Session,
    node: str,
    what: str,
    confirm: str | None,
    *,
    dry_run: bool,
    write_spec: bool,
    by: str = "",
) -> bool:
    """Before a change without `node`: it must be silent, and an open operation must go on without it.

    Returns whether the cluster is then as it was asked for: the operation was the one by which the node came
    or left (`by`: and another took its place), so that nothing is left to do.

    Raises:
        RefusedProblem: the node is gone, and the one that was to take its place is not there.
    """
    from iotctl.change.execute import Executed, check_silent, forget_node
    from iotctl.cli.provisioning import provisioning
    from iotctl.errors import RefusedProblem
    from iotctl.observe.model import DEAD
    from iotctl.observe.operations import open_operations, wait_operation
    from nodeagent.model.requests import Steer

    known = next((n for n in session.cluster.meta().nodes if n.node == node), None)
    if known is None or known.state != DEAD:  # one that was given up before may still answer us
        check_silent(session.cluster.statuses(), node, known.incarnation if known else "")
    if dry_run:
        return False
    session.confirm_name(f"{what} {node} ({session.source.name})", name=session.source.name, given=confirm)
    for operation in open_operations(session.cluster.meta(strong=True)):
        if node not in operation.dead:
            session.cluster.steer(Steer(operation.id, "dead", session.operator, node=node))
        session.output.note(f"{operation.id} ({operation.title}) goes on without {node}")
        with session.progress() as progress:
            found = wait_operation(
                session.cluster,
                operation.id,
                on_update=lambda op: progress.update(f"{op.id} {op.stage}", note=op.state()),
                timeout_s=session.options.timeout_s,
            )
        if node in (there := [n.node for n in session.cluster.meta(strong=True).nodes]):
            continue
        with session.progress() as progress, provisioning(session, progress) as provisioner:
            forget_node(session.source, provisioner, node, session.output.note, write_spec=write_spec)
        if by and by not in there:
            raise RefusedProblem(
                f"{node} left the cluster with {found.id} ({found.title}), and {by} is not in its place",
                next=f"iotctl cluster add-node {by}",
            )
        _emit_change(session, Executed([found.id], found.state(), [node]), [found.title])
        return True
    return False


def execute_plan(
    session: Session, plan: Plan, request: ChangeRequest, *, question: str, yes: bool, dry_run: bool
) -> int:
    """Show, ask, execute, watch: what add-node, remove-node and apply share."""
    from iotctl.change.execute import check_plan, execute
    from iotctl.cli import views
    from iotctl.cli.provisioning import provisioning
    from iotctl.cli.watching import operation_progress
    from iotctl.observe.facts import spec_hash
    from iotctl.plan.apply import check_fresh

    if plan.has_changes:
        # A stale plan is known before anything is shown or asked.
        check_fresh(plan, session.cluster.meta(strong=True).table_version, spec_hash(session.source))
    if dry_run or plan.refusals:
        if dry_run:
            session.output.emit("plan", plan, lambda: views.plan_tables(plan))
        check_plan(plan)
        return 0
    for table in views.plan_tables(plan):
        session.output.note(table.render(wide=session.options.format == "wide"))
    if request.options.hold_release_ms:
        session.output.note("the previous copies are held: no other change can begin until they are released")
    if session.fleet is None and any(s.kind in ("add", "replace") for s in plan.steps):
        session.output.note("a newcomer whose agent does not answer is deployed over SSH first")
    session.confirm(question, yes=yes)
    with session.progress() as progress, provisioning(session, progress) as provisioner:
        done = execute(
            lambda: session.cluster,
            session.source,
            plan,
            request,
            provisioner=provisioner,
            on_note=session.output.note,
            on_update=operation_progress(progress),
            locked=session.locked,
            check=session.check_lock,
        )
    _emit_change(session, done, [s.node or "-" for s in plan.steps])
    if done.state not in ("done", "running") or not request.wait:
        operation = done.operations[-1]
        following = {
            "waiting_migrate": f"iotctl migrate{' --verify' if request.options.verify else ''}",
            "waiting_signoff": "iotctl migrate --verify",
            "waiting_release": f"iotctl ops release {operation}",
        }.get(done.state, f"iotctl cluster wait --for op={operation}")
        session.output.note(f"next: {following}")
    return 0


def _emit_change(session: Session, done: Executed, nodes: list[str]) -> None:
    """`nodes` stand beside the operations."""
    from iotctl.output.table import Table

    rows = list(zip(done.operations, nodes, strict=True))
    session.output.emit("change", done, lambda: [Table(("operation", "node"), rows), f"state: {done.state}"])


def change_options(
    verify: bool, depth: str | None, no_migrate: bool, hold: str | None, rate: str, *, dead: bool = False
) -> Options:
    from iotctl.spec.units import parse_duration_ms, parse_rate
    from nodeagent.model.operation import Options

    return Options(
        verify=verify or depth is not None,
        depth=depth or "content",
        no_migrate=no_migrate,
        hold_release_ms=parse_duration_ms(hold) if hold else 0,
        rate_bytes_per_s=parse_rate(rate),
        dead=dead,
    )
