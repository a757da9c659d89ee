"""`iotctl cluster`: inspect a cluster, wait, drain nodes, recover."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli import changes, hosts, levels, lifecycle
from iotctl.cli.options import AcceptDataLoss, Confirm, DryRun, Duration, Follow, Node, Nodes, Watch
from iotctl.cli.row_options import parsed_tag, parsed_time
from iotctl.cli.session import Session, now_ms, session_of
from iotctl.playbook.traits import READS, WORKS, Traits, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from iotctl.observe.model import ClusterStatus
    from iotctl.output.table import Table

app = typer.Typer(help="Inspect a cluster and change its nodes.", no_args_is_help=True)
hosts.register(app)
lifecycle.register(app)
levels.register(app)
changes.register(app)


@app.command()
@step(READS)
def status(ctx: typer.Context, watch: Watch = False) -> int:
    """Show the cluster, even if most agents are down.

    The result has nodes, lost groups, operations and problems.

    -o json adds all groups.
    """
    from iotctl.cli import views

    return _show(session_of(ctx), "cluster-status", views.status_tables, watch=watch)


@app.command()
@step(READS)
def nodes(ctx: typer.Context, watch: Watch = False) -> int:
    """List every node."""
    from iotctl.cli import views

    def body(s: ClusterStatus) -> object:
        return {"as_of_ms": s.as_of_ms, "source": s.source, "nodes": s.nodes}

    return _show(session_of(ctx), "cluster-nodes", lambda s: [views.node_table(s)], body=body, watch=watch)


@app.command()
@step(READS)
def groups(ctx: typer.Context, watch: Watch = False) -> int:
    """List every data group with its members, leader and load."""
    from iotctl.cli import views

    def body(s: ClusterStatus) -> object:
        return {"as_of_ms": s.as_of_ms, "source": s.source, "meta": s.meta, "groups": s.groups}

    return _show(session_of(ctx), "cluster-groups", lambda s: [views.group_table(s)], body=body, watch=watch)


@app.command()
@step(READS)
def ring(ctx: typer.Context, watch: Watch = False) -> int:
    """Show the nodes on the ring with their groups and slots."""
    from iotctl.cli import views
    from iotctl.cli.watching import repeated
    from iotctl.observe.layout import ring_of

    session = session_of(ctx)

    def show() -> int:
        found = ring_of(session.known_view(), session.source)
        session.output.emit("cluster-ring", found, lambda: views.ring_tables(found))
        return 0

    return repeated(session, show, watch)


@app.command()
@step(READS)
def slots(
    ctx: typer.Context,
    storage_group: Annotated[
        str | None, typer.Option(help="Show only slots with rows of this storage group.")
    ] = None,
    watch: Watch = False,
) -> int:
    """Show the owners of the slots, and what the slots hold."""
    from iotctl.cli import views
    from iotctl.cli.watching import repeated
    from iotctl.observe.layout import slots_of

    session = session_of(ctx)

    def show() -> int:
        found = slots_of(session.cluster, session.known_view(), storage_group)
        session.output.emit("cluster-slots", found, lambda: views.slot_tables(found))
        return 0

    return repeated(session, show, watch)


@app.command()
@step(READS)
def route(
    ctx: typer.Context,
    storage_group: Annotated[
        str, typer.Argument(metavar="STORAGE_GROUP", help="Storage group, such as root.plant.")
    ],
    time: Annotated[
        str, typer.Argument(metavar="TIME", parser=parsed_time, help="Time of a row (ms or ISO 8601).")
    ],
    table: Annotated[str | None, typer.Option("--table", help="Limit to this table.")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag",
            metavar="TAG=VALUE",
            parser=parsed_tag,
            help="Limit to rows with these tags; repeatable.",
        ),
    ] = None,
) -> None:
    """Show the slots, groups, members and files of rows.

    With --tag, show only the slot of the rows with exactly these tags.
    """
    from iotctl.cli import views
    from iotctl.observe.route import route_of
    from iotctl.rows.selection import parse_tags, parse_time

    session = session_of(ctx)
    moment = parse_time(time)
    assert moment is not None
    found = route_of(session.cluster, storage_group, moment, table, parse_tags(tag or []))
    session.output.emit("cluster-route", found, lambda: views.route_tables(found))


def _goal(text: str) -> str:
    if text != "healthy" and not (text.startswith("op=") and text[3:]):
        raise typer.BadParameter(f"{text!r} is neither healthy nor op=ID")
    return text


@app.command("wait")
@step(WORKS)
def wait_for(
    ctx: typer.Context,
    goal: Annotated[
        str, typer.Option("--for", metavar="healthy|op=ID", parser=_goal, help="State to wait for.")
    ],
) -> None:
    """Wait until the cluster is healthy or an operation stops.

    An operation stops when it ends or waits for the operator.
    """
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
@step(READS)
def events(
    ctx: typer.Context,
    since: Annotated[
        str, typer.Option(metavar="DURATION", parser=Duration, help="Show events that are at most this old.")
    ] = "24h",
    limit: Annotated[int, typer.Option(min=1, help="Show only this many of the newest events.")] = 200,
    watch: Follow = False,
) -> int:
    """Show events, newest last; --watch adds new events. The command needs no leader.

    -o jsonl prints one event per line.
    """
    import msgspec

    from iotctl.cli import views
    from iotctl.cli.watching import repeated
    from iotctl.observe.events import EventRow, events_of
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
                session.output.warn(f"{one.node} did not respond: {one.why}")
        silent = {one.node for one in found.unread}
        shown.update(found.events)
        if len(found.events) == limit:  # older events were left out; do not show them later as new
            since_ms = max(since_ms, found.events[0].time_ms)
            shown = {e for e in shown if e.time_ms >= since_ms}
        return 0

    return repeated(session, show, watch)


@app.command("ok-to-stop")
@step(READS)
def ok_to_stop(ctx: typer.Context, names: Nodes) -> int:
    """Check whether these nodes may stop at the same time.

    If not, list the groups that would lose their quorum and exit with 5.
    """
    from iotctl.cli import views
    from iotctl.errors import Exit
    from iotctl.observe import stopping

    session = session_of(ctx)
    found = stopping.ok_to_stop(session.cluster, names, now_ms=now_ms())
    session.output.emit("cluster-ok-to-stop", found, lambda: views.stop_tables(found))
    return Exit.DONE if found.ok else Exit.REFUSED


@app.command()
@step(
    Traits(
        inspect=lambda look, use: look.drain(use, True),
        undone_by=("cluster.undrain",),
        undo="cluster.undrain",
    )
)
def drain(ctx: typer.Context, name: Node, dry_run: DryRun = False) -> None:
    """Keep a node from leading until `undrain`.

    The node transfers its leaderships. Its slots do not move.
    """
    _drain(session_of(ctx), name, True, dry_run)


@app.command()
@step(
    Traits(
        inspect=lambda look, use: look.drain(use, False), undone_by=("cluster.drain",), undo="cluster.drain"
    )
)
def undrain(ctx: typer.Context, name: Node, dry_run: DryRun = False) -> None:
    """Let a drained node lead again. It leads its own group within seconds."""
    _drain(session_of(ctx), name, False, dry_run)


@app.command("set-zones")
@step(Traits(inspect=lambda look, use: look.would(use), is_whole=True))
def set_zones(ctx: typer.Context, dry_run: DryRun = False) -> None:
    """Set the zones of nodes as in cluster.yaml.

    The voters of the meta group then move to as many zones as possible, one at a time. Replicas of data stay
    where they are: their zones follow from the order of the ring.
    """
    from iotctl.change import zones
    from iotctl.cli import views

    session = session_of(ctx)
    if dry_run:
        return session.output.would(*zones.would_set(session.cluster, session.source))
    found = zones.set_zones(session.cluster, session.source, session.operator, lock=session.check_lock())
    session.output.emit("cluster-zones", found, lambda: views.zone_tables(found))


def _drain(session: Session, name: str, draining: bool, dry_run: bool) -> None:
    from iotctl.change.draining import set_draining, would_drain
    from iotctl.cli import views
    from iotctl.lifecycle.rolling import left_draining

    taken_over = draining and name in left_draining(session.cluster)
    if dry_run:
        stays = [f"keep {name} draining, as an interrupted restart left it"] if taken_over else []
        return session.output.would(*stays, *would_drain(session.cluster, name, draining))
    if taken_over:
        # An interrupted restart left it draining. Now an operator drains it, so no restart ends the drain.
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
    accept_data_loss: AcceptDataLoss = False,
    confirm: Confirm = None,
) -> int:
    """Force the recovery of groups that lost their majority.

    The nodes that you name must be permanently lost.

    Each group continues from its live member with the newest log. Writes that only the lost nodes
    have are lost. Without --accept-data-loss nothing is changed (exit 5).
    """
    from iotctl.change import recover as recovering
    from iotctl.cli import views
    from iotctl.errors import Exit

    session = session_of(ctx)
    found = recovering.look(session.cluster, session.source, names, now_ms=now_ms())
    if accept_data_loss and not found.gone:
        session.output.preview(views.recover_tables(found))
        question = f"force recovery without {', '.join(found.nodes)} ({session.source.name})"
        session.confirm_name(question, name=session.source.name, given=confirm)
        found = recovering.recover(
            session.cluster, found, session.operator, timeout_s=session.options.timeout_s
        )
    session.output.emit("cluster-recover", found, lambda: views.recover_tables(found))
    session.output.note(f"next: {found.next}")
    return Exit.DONE if found.done else Exit.REFUSED


def _show(
    session: Session,
    kind: str,
    tables: Callable[[ClusterStatus], list[Table | str]],
    *,
    body: Callable[[ClusterStatus], object] = lambda s: s,
    watch: bool = False,
) -> int:
    """Print the status, repeatedly with `--watch`; 4 if a quorum is lost."""
    from iotctl.cli.watching import repeated
    from iotctl.errors import Exit
    from iotctl.observe.status import cluster_status

    def show() -> int:
        found = cluster_status(session.cluster, session.source, now_ms=now_ms())
        session.output.emit(kind, body(found), partial(tables, found))
        return Exit.DONE if found.quorum else Exit.UNREACHABLE

    return repeated(session, show, watch)
