"""`iotctl cluster`: look at a cluster, add and remove nodes, wait."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli import hosts, levels, lifecycle
from iotctl.cli.options import AcceptLayout, Confirm, Depth, DryRun, Duration, Rate, Verify, Wait, Watch, Yes
from iotctl.cli.session import Session, now_ms, session_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from iotctl.execute.change import ChangeRequest, Executed
    from iotctl.execute.status import ClusterStatus
    from iotctl.output.table import Table
    from iotctl.plan.model import Plan
    from nodeagent.model.operation import Options

app = typer.Typer(help="Look at a cluster, change its nodes.", no_args_is_help=True)
hosts.register(app)
lifecycle.register(app)
levels.register(app)

Nodes = Annotated[list[str], typer.Argument(metavar="NODE…", help="Node names.")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="Node name.")]
NoMigrate = Annotated[
    bool, typer.Option("--no-migrate", help="Stop before data moves; `iotctl migrate` goes on.")
]
HoldRelease = Annotated[
    str | None,
    typer.Option(
        "--hold-release",
        metavar="24h",
        parser=Duration,
        help="Keep the previous copies this long; no other change can begin until they are released.",
    ),
]
NoWriteSpec = Annotated[
    bool, typer.Option("--no-write-spec", help="Show the edit of cluster.yaml, do not make it.")
]


@app.command()
def status(ctx: typer.Context, watch: Watch = False) -> int:
    """The whole cluster: nodes, groups, operations, problems. Works with most agents dead."""
    from iotctl.cli import views

    return _show(session_of(ctx), "cluster-status", views.status_tables, watch=watch)


@app.command()
def nodes(ctx: typer.Context, watch: Watch = False) -> int:
    """Every node."""
    from iotctl.cli import views

    def body(s: ClusterStatus) -> object:
        return {"as_of_ms": s.as_of_ms, "source": s.source, "nodes": s.nodes}

    return _show(session_of(ctx), "cluster-nodes", lambda s: [views.node_table(s)], body=body, watch=watch)


@app.command()
def groups(ctx: typer.Context, watch: Watch = False) -> int:
    """Every data group with its members, leader and load."""
    from iotctl.cli import views

    def body(s: ClusterStatus) -> object:
        return {"as_of_ms": s.as_of_ms, "source": s.source, "meta": s.meta, "groups": s.groups}

    return _show(session_of(ctx), "cluster-groups", lambda s: [views.group_table(s)], body=body, watch=watch)


@app.command()
def ring(ctx: typer.Context, watch: Watch = False) -> int:
    """The ring: nodes in order, each with its group and slots."""
    from iotctl.cli import views
    from iotctl.cli.watching import repeated
    from iotctl.execute.layout import ring_of

    session = session_of(ctx)

    def show() -> int:
        found = ring_of(session.cluster, session.source)
        session.output.emit("cluster-ring", found, lambda: views.ring_tables(found))
        return 0

    return repeated(session, show, watch)


@app.command()
def slots(
    ctx: typer.Context,
    storage_group: Annotated[
        str | None, typer.Option(help="Only slots with rows of this storage group.")
    ] = None,
    watch: Watch = False,
) -> int:
    """Which group owns which slots, and what they hold."""
    from iotctl.cli import views
    from iotctl.cli.watching import repeated
    from iotctl.execute.layout import slots_of

    session = session_of(ctx)

    def show() -> int:
        found = slots_of(session.cluster, storage_group)
        session.output.emit("cluster-slots", found, lambda: views.slot_tables(found))
        return 0

    return repeated(session, show, watch)


def _goal(text: str) -> str:
    if text != "healthy" and not (text.startswith("op=") and text[3:]):
        raise typer.BadParameter(f"{text!r} is neither healthy nor op=ID")
    return text


@app.command("wait")
def wait_for(
    ctx: typer.Context,
    goal: Annotated[
        str, typer.Option("--for", metavar="healthy|op=ID", parser=_goal, help="What to wait for.")
    ],
) -> None:
    """Wait until the cluster is healthy, or an operation is over (or waits for you)."""
    from iotctl.cli.watching import watch_healthy, watch_operation
    from iotctl.output.table import Table

    session = session_of(ctx)
    if goal == "healthy":
        found = watch_healthy(session)
        session.output.emit(
            "cluster-status", found, lambda: [Table(("cluster", "healthy"), [(found.name, "yes")])]
        )
        return
    watch_operation(session, goal[3:])


@app.command()
def events(
    ctx: typer.Context,
    since: Annotated[str, typer.Option(metavar="1h", parser=Duration, help="How far back.")] = "24h",
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 200,
    watch: Watch = False,
) -> int:
    """What happened, newest last. Needs no leader; -o jsonl is one event a line; --watch goes on with what is
    new."""
    import msgspec

    from iotctl.cli import views
    from iotctl.cli.watching import repeated
    from iotctl.execute.events import EventRow, events_of
    from iotctl.output.document import to_json_line
    from iotctl.spec.units import parse_duration_ms

    session = session_of(ctx)
    since_ms = now_ms() - parse_duration_ms(since)
    shown, silent = set[EventRow](), set[str]()

    def show() -> int:
        nonlocal since_ms, shown, silent
        found = events_of(session.cluster, since_ms=since_ms, limit=limit, now_ms=now_ms())
        new = msgspec.structs.replace(found, events=[e for e in found.events if e not in shown])
        if session.options.format == "jsonl":
            session.out.write("".join(to_json_line(e) for e in new.events))
            session.out.flush()
        elif new.events or not shown:
            session.output.emit("cluster-events", new, lambda: [views.event_table(new)])
        for one in found.unread:
            if one.node not in silent:
                session.output.warn(f"{one.node} did not tell: {one.why}")
        silent = {one.node for one in found.unread}
        shown.update(found.events)
        if len(found.events) == limit:  # what is older was left out, and is not new when there is room for it
            since_ms = max(since_ms, found.events[0].time_ms)
            shown = {e for e in shown if e.time_ms >= since_ms}
        return 0

    return repeated(session, show, watch)


@app.command("ok-to-stop")
def ok_to_stop(ctx: typer.Context, names: Nodes) -> int:
    """Whether these nodes may stop at the same time: 0, or 5 with the groups that would lose their quorum."""
    from iotctl.cli import views
    from iotctl.errors import Exit
    from iotctl.execute import stopping

    session = session_of(ctx)
    found = stopping.ok_to_stop(session.cluster, names, now_ms=now_ms())
    session.output.emit("cluster-ok-to-stop", found, lambda: views.stop_tables(found))
    return Exit.DONE if found.ok else Exit.REFUSED


@app.command()
def drain(ctx: typer.Context, name: Node, dry_run: DryRun = False) -> None:
    """Hand over what the node leads and keep it from leading until `undrain`. Its slots stay."""
    _drain(session_of(ctx), name, True, dry_run)


@app.command()
def undrain(ctx: typer.Context, name: Node, dry_run: DryRun = False) -> None:
    """Let a drained node lead again; its own group comes back to it within seconds."""
    _drain(session_of(ctx), name, False, dry_run)


def _drain(session: Session, name: str, draining: bool, dry_run: bool) -> None:
    from iotctl.cli import views
    from iotctl.execute.draining import set_draining, would_drain
    from iotctl.execute.rolling import left_draining

    taken_over = draining and name in left_draining(session.cluster)
    if dry_run:
        stays = [f"keep {name} draining, as a restart that was killed has left it"] if taken_over else []
        return session.output.would(*stays, *would_drain(session.cluster, name, draining))
    if taken_over:
        # It drains because a roll was killed: from here on because a person wants it, and no roll ends that.
        set_draining(session.cluster, name, False, session.operator, lock=session.check_lock())
    found = set_draining(
        session.cluster,
        name,
        draining,
        session.operator,
        lock=session.check_lock(),
        timeout_s=session.options.timeout_s,
    )
    session.output.emit("cluster-drain", found, lambda: views.drain_tables(found))
    if draining:
        session.output.note(f"next: iotctl cluster undrain {name}")


@app.command()
def recover(
    ctx: typer.Context,
    names: Nodes,
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="Do it; without this only show what is lost.")
    ] = False,
    confirm: Confirm = None,
) -> int:
    """Go on without nodes that are gone for ever and took the majority of groups with them.

    Each such group goes on from the living member with the newest entries. What the lost nodes alone had
    acknowledged is lost. Without --accept-data-loss nothing is changed (exit 5).
    """
    from iotctl.cli import views
    from iotctl.errors import Exit
    from iotctl.execute import recover as recovering

    session = session_of(ctx)
    found = recovering.look(session.cluster, session.source, names, now_ms=now_ms())
    if accept_data_loss and not found.gone:
        for part in views.recover_tables(found):
            wide = session.options.format == "wide"
            session.output.note(part if isinstance(part, str) else part.render(wide=wide))
        question = f"give up {', '.join(found.nodes)} and what they alone held ({session.source.name})"
        session.confirm_name(question, name=session.source.name, given=confirm)
        found = recovering.recover(
            session.cluster, found, session.operator, timeout_s=session.options.timeout_s
        )
    session.output.emit("cluster-recover", found, lambda: views.recover_tables(found))
    session.output.note(f"next: {found.next}")
    return Exit.DONE if found.done else Exit.REFUSED


@app.command("add-node")
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
    from iotctl.execute.change import ChangeRequest
    from iotctl.execute.facts import plan_facts
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


@app.command("remove-node")
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
    from iotctl.execute.change import ChangeRequest
    from iotctl.execute.facts import plan_facts
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


@app.command("replace-node")
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
    from iotctl.execute.change import ChangeRequest
    from iotctl.execute.facts import plan_facts
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
    from iotctl.cli.provisioning import provisioning
    from iotctl.errors import RefusedProblem
    from iotctl.execute.change import Executed, check_silent, forget_node
    from iotctl.execute.operations import open_operations, wait_operation
    from iotctl.execute.status import DEAD
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
    from iotctl.cli import views
    from iotctl.cli.provisioning import provisioning
    from iotctl.cli.watching import operation_progress
    from iotctl.execute.change import check_plan, execute
    from iotctl.execute.facts import spec_hash
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


def _show(
    session: Session,
    kind: str,
    tables: Callable[[ClusterStatus], list[Table | str]],
    *,
    body: Callable[[ClusterStatus], object] = lambda s: s,
    watch: bool = False,
) -> int:
    """Print the status, again and again with `--watch`; 4 when a quorum is lost."""
    from iotctl.cli.watching import repeated
    from iotctl.errors import Exit
    from iotctl.execute.status import cluster_status

    def show() -> int:
        found = cluster_status(session.cluster, session.source, now_ms=now_ms())
        session.output.emit(kind, body(found), partial(tables, found))
        return Exit.DONE if found.quorum else Exit.UNREACHABLE

    return repeated(session, show, watch)
