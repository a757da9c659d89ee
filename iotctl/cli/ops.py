"""`iotctl ops`: the cluster's operations, which continue whether or not iotctl runs."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.options import Confirm, DryRun, Yes, rate_option
from iotctl.cli.session import Session, now_ms, session_of
from iotctl.playbook.traits import READS, WORKS, Traits, step
from iotctl.spec.units import parse_rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model.errors import NodeAgentError
    from nodeagent.model.operation import Operation
    from nodeagent.model.requests import NodeStatus

app = typer.Typer(help="List, watch and control operations.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="Operation id, as in `ops list`.")]
MaybeId = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="Operation id; default: the only open operation.")
]


@app.command("list")
@step(READS)
def list_operations(
    ctx: typer.Context,
    open_only: Annotated[
        bool, typer.Option("--open", help="List only operations that have not ended.")
    ] = False,
) -> None:
    """List the cluster's operations, and the holder of its lock."""
    from iotctl.change.lock import described, kept
    from iotctl.observe.operations import open_operations
    from nodeagent.model.errors import NodeAgentError

    session = session_of(ctx)
    view = session.known_view()
    _print(session, open_operations(view) if open_only else list(view.operations), session.cluster.statuses())
    if view.leader is None:
        return  # without a meta leader the lock is unknown, and asking would time out
    with suppress(NodeAgentError):
        held, _ = kept(session.cluster)
        if held is not None:
            session.output.note(f"lock {held.serial} is held by {described(held, now_ms())}")


@app.command()
@step(READS)
def show(ctx: typer.Context, operation: MaybeId = None) -> None:
    """Show an operation with its stages and their progress reports."""
    from iotctl.observe.operations import pick, whole
    from nodeagent.model.errors import NodeAgentError

    session = session_of(ctx)
    found = pick(session.known_view(), operation)
    with suppress(NodeAgentError):  # without a meta quorum, show the short record
        found = whole(session.cluster, found)
    _print(session, [found], session.cluster.statuses(), stages=True)


@app.command()
@step(WORKS)
def wait(ctx: typer.Context, operation: MaybeId = None) -> None:
    """Wait until an operation ends or waits for the operator."""
    from iotctl.cli.watching import watch_operation
    from iotctl.observe.operations import pick

    session = session_of(ctx)
    watch_operation(session, operation or pick(session.cluster.meta(), None).id)


@app.command()
@step(Traits(inspect=lambda look, use: look.would(use), undone_by=("ops.resume",)))
def pause(ctx: typer.Context, operation: MaybeId = None, dry_run: DryRun = False) -> None:
    """Pause an operation until `ops resume`.

    A paused operation starts no copies and releases nothing.

    Copies in progress finish. The stages before COPYING continue, so that every slot accepts
    writes again.
    """
    from iotctl.errors import RefusedProblem
    from iotctl.observe.operations import control, pick
    from nodeagent.model.operation import PAUSABLE

    session = session_of(ctx)
    found = pick(session.cluster.meta(strong=True), operation)
    if dry_run:
        _check_open(found)
        if found.stage not in PAUSABLE:
            raise RefusedProblem(f"{found.id} is in stage {found.stage}: nothing is left to pause")
        return session.output.would(*[] if found.paused else [f"pause {found.id} ({found.title})"])
    _print(
        session, [control(session.cluster, found.id, "pause", session.operator)], session.cluster.statuses()
    )
    session.output.note(f"next: iotctl ops resume {found.id}")


@app.command()
def resume(ctx: typer.Context, operation: MaybeId = None, dry_run: DryRun = False) -> None:
    """Resume a paused or waiting operation, then watch it.

    Repeating this is safe.

    If an operation is paused and also waits, this ends only the pause. To end a wait for a sign-off or for
    the release of old copies, run the command that the last line of the output names.
    """
    from iotctl.cli.watching import watch_operation
    from iotctl.observe.operations import control, pick

    session = session_of(ctx)
    found = pick(session.cluster.meta(strong=True), operation)
    if dry_run:
        goes = found.paused or found.state() == "waiting_migrate"
        return session.output.would(*[f"resume {found.id} ({found.title})"] if goes else [])
    if found.paused:
        control(session.cluster, found.id, "resume", session.operator)
    elif found.state() == "waiting_migrate":
        control(session.cluster, found.id, "go", session.operator)
    watch_operation(session, found.id)


@app.command()
def cancel(
    ctx: typer.Context, operation: Id, dry_run: DryRun = False, yes: Yes = False, confirm: Confirm = None
) -> None:
    """Cancel an operation. This is possible up to stage SEALED and refused from OPEN on."""
    from iotctl.cli.watching import watch_operation
    from iotctl.errors import RefusedProblem
    from iotctl.observe.operations import cancel_cost, control, describe_operation, pick, received_bytes

    session = session_of(ctx)
    found = pick(session.cluster.meta(strong=True), operation)
    row = describe_operation(found, now_ms=now_ms())
    _check_open(found)
    is_cancelling = found.stage == "CANCELLING"
    if not row.cancellable and not is_cancelling:
        if confirm is not None:
            session.confirm_name("cancel", name=session.source.name, given=confirm)
        reverse = {
            "add-node": f"plan remove-node {found.node}",
            "remove-node": f"plan add-node {found.node}",
            "replace-node": f"cluster replace-node {found.node} {found.replaces}",
        }.get(found.kind, "plan rebalance")
        raise RefusedProblem(
            f"{found.id} is in stage {found.stage} and can no longer be cancelled",
            why="since OPEN, the new owners may have accepted writes",
            next=f"wait until it ends, then run: iotctl {reverse}",
        )
    cost = cancel_cost(found, received_bytes(session.cluster.statuses(), found.id))
    if dry_run:
        return session.output.would(f"cancel {found.id} ({found.title}): {cost}")
    session.output.note(f"{found.id}: {cost}")
    if not is_cancelling:
        session.confirm(f"cancel {found.id} ({found.title})?", yes=yes)
        control(session.cluster, found.id, "cancel", session.operator)
    try:
        watch_operation(session, found.id)
    except RefusedProblem:  # it was cancelled, as requested
        session.output.note(f"{found.id} is cancelled: {cost}")


@app.command()
def release(ctx: typer.Context, operation: Id, dry_run: DryRun = False) -> None:
    """Release the old copies that --hold-release retains.

    If the change removes a node, the command returns once the node has left.
    """
    from iotctl.cli.watching import watch_operation
    from iotctl.observe.operations import control, pick

    session = session_of(ctx)
    if dry_run:
        held = pick(session.cluster.meta(strong=True), operation)
        _check_open(held)
        frees = not held.release_go and held.options.hold_release_ms
        return session.output.would(*[f"release the old copies of {held.id} ({held.title})"] if frees else [])
    found = control(session.cluster, operation, "release", session.operator)
    if found.leaving is not None:
        return watch_operation(session, found.id)
    _print(session, [found], session.cluster.statuses())


@app.command()
def unlock(
    ctx: typer.Context,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", help="Number of the lock, as `ops list` shows it.")
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Take the cluster lock from a program that hangs.

    The program's next step is then refused.
    """
    from iotctl.change.lock import described, drop, kept
    from iotctl.errors import RefusedProblem

    session = session_of(ctx)
    held, _ = kept(session.cluster)
    if held is None or held.serial != number:
        now = f"lock {held.serial} is held by {described(held, now_ms())}" if held else "no lock is held"
        raise RefusedProblem(f"lock {number} is not held", why=now)
    if dry_run:
        return session.output.would(f"take the lock from {described(held, now_ms())}")
    session.confirm(f"take the lock from {described(held, now_ms())}?", yes=yes)
    done = drop(session.cluster, held, session.operator)
    session.output.emit("ops-unlock", done, lambda: [f"{done.owner} no longer holds the lock"])


@app.command("set")
@step(Traits(inspect=lambda look, use: look.would(use), undone_by=("ops.set",)))
def set_option(
    ctx: typer.Context,
    operation: Id,
    rate: Annotated[str, rate_option("New cluster-wide copy rate, such as 200MB/s, or auto.")],
    dry_run: DryRun = False,
) -> None:
    """Change the copy rate of a running operation."""
    from iotctl.observe.operations import control, pick

    session = session_of(ctx)
    bytes_per_s = parse_rate(rate)
    if dry_run:
        found = pick(session.cluster.meta(strong=True), operation)
        _check_open(found)
        changes = found.options.rate_bytes_per_s != bytes_per_s
        return session.output.would(
            *[f"set the rate of {found.id} ({found.title}) to {rate}"] if changes else []
        )
    changed = control(session.cluster, operation, "set", session.operator, rate=bytes_per_s)
    _print(session, [changed], session.cluster.statuses())


def _check_open(found: Operation) -> None:
    from iotctl.errors import RefusedProblem

    if found.ended:
        raise RefusedProblem(
            f"{found.id} ended ({found.state()}): nothing is left to do", next="iotctl ops list"
        )


def _print(
    session: Session,
    operations: list[Operation],
    statuses: Mapping[str, NodeStatus | NodeAgentError],
    *,
    stages: bool = False,
) -> None:
    """Print operations; bytes that nodes received but have not recorded yet count too."""
    from iotctl.cli import views
    from iotctl.observe.operations import Operations, describe_operation, received_bytes

    rows = [
        describe_operation(o, now_ms=now_ms(), received=received_bytes(statuses, o.id)) for o in operations
    ]
    session.output.emit("operations", Operations(rows), lambda: views.operation_tables(rows, stages=stages))
