"""`iotctl cluster add-node`, `remove-node`, `replace-node`, and what `apply` shares with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.change_options import NodeChangeOptions
from iotctl.cli.option_sets import with_option_sets
from iotctl.cli.options import Confirm, Nodes
from iotctl.cli.session import Session, session_of
from iotctl.playbook.traits import Traits, step

if TYPE_CHECKING:
    from iotctl.change.execute import ChangeRequest, Executed
    from iotctl.plan.model import Plan


def register(app: typer.Typer) -> None:
    app.command("add-node")(add_node)
    app.command("remove-node")(remove_node)
    app.command("replace-node")(replace_node)


@dataclass(frozen=True)
class NewAddress:
    """The address of a node that `cluster.yaml` does not list."""

    host: Annotated[str, typer.Option(help="Address of the new node, if cluster.yaml does not list it.")] = ""
    port: Annotated[
        int,
        typer.Option(
            help="Port of the new node, with --host; default: `defaults` in cluster.yaml.",
            show_default=False,
        ),
    ] = 0


@step(
    Traits(
        inspect=lambda look, use: look.add(use),
        undone_by=("cluster.remove-node",),
        undo="cluster.remove-node",
    )
)
@with_option_sets
def add_node(
    ctx: typer.Context,
    names: Nodes,
    after: Annotated[
        str | None, typer.Option(help="Place the new nodes after this node on the ring.")
    ] = None,
    *,
    address: NewAddress,
    options: NodeChangeOptions,
) -> int:
    """Plan new nodes, ask, then execute the plan and watch it."""
    from iotctl.observe.facts import plan_facts
    from iotctl.plan.make import make_add

    session = session_of(ctx)
    facts, _ = plan_facts(session.cluster, session.source, rate=options.rate_bytes_per_s)
    plan = make_add(facts, names, after, accept_layout=options.accept_layout)
    request = options.request(
        session, write_spec=not options.no_write_spec, host=address.host, port=address.port
    )
    question = f"add {', '.join(names)} to {session.source.name}?"
    return execute_plan(session, plan, request, question=question, yes=options.yes, dry_run=options.dry_run)


@step(Traits(inspect=lambda look, use: look.remove(use), undone_by=("cluster.add-node",)))
@with_option_sets
def remove_node(
    ctx: typer.Context,
    names: Nodes,
    dead: Annotated[bool, typer.Option("--dead", help="The node is permanently lost.")] = False,
    *,
    options: NodeChangeOptions,
    confirm: Confirm = None,
) -> int:
    """Remove nodes: their slots move first, then they leave."""
    from iotctl.observe.facts import plan_facts
    from iotctl.plan.make import make_remove

    session = session_of(ctx)
    if dead:
        if len(names) > 1:
            raise typer.BadParameter("remove dead nodes in separate commands", param_hint="NODE")
        if _fence_dead(session, names[0], "remove the dead node", confirm, options):
            return 0
    facts, _ = plan_facts(session.cluster, session.source, rate=options.rate_bytes_per_s)
    plan = make_remove(facts, names, accept_layout=options.accept_layout or dead)
    request = options.request(session, dead=dead, write_spec=not options.no_write_spec)
    question = f"remove {', '.join(names)} from {session.source.name}?"
    return execute_plan(
        session, plan, request, question=question, yes=options.yes or dead, dry_run=options.dry_run
    )


@step(Traits(inspect=lambda look, use: look.replace(use), is_visible=lambda a: a["old"] != a["new"]))
@with_option_sets
def replace_node(
    ctx: typer.Context,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The node that leaves.")],
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW", help="The node that takes its place; OLD itself if its disk was wiped."
        ),
    ],
    dead: Annotated[bool, typer.Option("--dead", help="OLD is permanently lost.")] = False,
    *,
    address: NewAddress,
    options: NodeChangeOptions,
    confirm: Confirm = None,
) -> int:
    """Replace a node. The new node takes over its slots and its place on the ring."""
    from iotctl.observe.facts import plan_facts
    from iotctl.plan.make import make_replace

    session = session_of(ctx)
    if dead and _fence_dead(session, old, "replace the dead node", confirm, options, by=new):
        return 0
    facts, _ = plan_facts(session.cluster, session.source, rate=options.rate_bytes_per_s)
    plan = make_replace(facts, old, new, accept_layout=options.accept_layout or dead)
    request = options.request(
        session, dead=dead, write_spec=not options.no_write_spec, host=address.host, port=address.port
    )
    question = f"replace {old} with {new} in {session.source.name}?"
    return execute_plan(
        session, plan, request, question=question, yes=options.yes or dead, dry_run=options.dry_run
    )


def _fence_dead(
    session: Session,
    node: str,
    what: str,
    confirm: str | None,
    options: NodeChangeOptions,
    by: str = "",
) -> bool:
    """Check that the dead `node` does not answer, and let every open operation continue without it.

    Returns whether nothing is left to do: an operation that was open has removed the node (and, with `by`,
    put the node `by` in its place).

    Raises:
        RefusedProblem: the node answers, or it left the cluster and `by` is not in its place.
    """
    from iotctl.change.execute import Executed, check_silent, forget_node
    from iotctl.cli.provisioning import provisioning
    from iotctl.errors import RefusedProblem
    from iotctl.observe.model import DEAD
    from iotctl.observe.operations import open_operations, wait_operation
    from nodeagent.model.requests import ControlOperation

    known = next((n for n in session.cluster.meta().nodes if n.node == node), None)
    if known is None or known.state != DEAD:  # a fenced node may still answer us
        check_silent(session.cluster.statuses(), node, known.incarnation if known else "")
    if options.dry_run:
        return False
    session.confirm_name(f"{what} {node} ({session.source.name})", name=session.source.name, given=confirm)
    for operation in open_operations(session.cluster.meta(strong=True)):
        if node not in operation.dead:
            session.cluster.control(ControlOperation(operation.id, "dead", session.operator, node=node))
        session.output.note(f"{operation.id} ({operation.title}) continues without {node}")
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
            forget_node(
                session.source,
                provisioner,
                node,
                session.output.note,
                write_spec=not options.no_write_spec,
            )
        if by and by not in there:
            raise RefusedProblem(
                f"{node} left the cluster during {found.id} ({found.title}), but {by} did not take its place",
                next=f"iotctl cluster add-node {by}",
            )
        _emit_change(session, Executed([found.id], found.state(), [by or node]), [found.title])
        return True
    return False


def execute_plan(
    session: Session, plan: Plan, request: ChangeRequest, *, question: str, yes: bool, dry_run: bool
) -> int:
    """Show a plan, ask, execute it and watch it."""
    from iotctl.change.execute import check_plan
    from iotctl.cli import views
    from iotctl.observe.facts import spec_hash
    from iotctl.plan.apply import check_fresh

    if plan.has_changes:
        # Refuse a stale plan before anything is shown or asked.
        check_fresh(plan, session.cluster.meta(strong=True).table_version, spec_hash(session.source))
    if dry_run or plan.refusals:
        if dry_run:
            session.output.emit("plan", plan, lambda: views.plan_tables(plan))
        check_plan(plan)
        return 0
    for table in views.plan_tables(plan):
        session.output.note(table.render(wide=session.options.format == "wide"))
    if request.options.hold_release_ms:
        session.output.note("the old copies are retained: no other change can start until they are released")
    if session.fleet is None and any(s.kind in ("add", "replace") for s in plan.steps):
        session.output.note("a new node whose agent does not answer is deployed over SSH first")
    session.confirm(question, yes=yes)
    done = run_plan(session, plan, request)
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


def run_plan(session: Session, plan: Plan, request: ChangeRequest) -> Executed:
    """Execute a plan and watch it; see `iotctl.change.execute.execute`."""
    from iotctl.change.execute import ClusterLock, execute
    from iotctl.cli.provisioning import provisioning
    from iotctl.cli.watching import operation_progress

    with session.progress() as progress, provisioning(session, progress) as provisioner:
        return execute(
            lambda: session.cluster,
            session.source,
            plan,
            request,
            provisioner=provisioner,
            on_note=session.output.note,
            on_update=operation_progress(progress),
            lock=ClusterLock(session.locked, session.check_lock),
        )


def _emit_change(session: Session, done: Executed, nodes: list[str]) -> None:
    """Print each operation with its node: `nodes` has one entry per operation."""
    from iotctl.output.table import Table

    rows = list(zip(done.operations, nodes, strict=True))
    session.output.emit("change", done, lambda: [Table(("operation", "node"), rows), f"state: {done.state}"])
