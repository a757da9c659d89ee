"""`iotctl local`: a fleet of agents on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.option_sets import with_option_sets
from iotctl.cli.options import Confirm, DryRun, Wait, Yes
from iotctl.cli.session import Session, session_of
from iotctl.cli.watching import watch_healthy
from iotctl.playbook.traits import READS, Traits, step

if TYPE_CHECKING:
    from iotctl.fleet.local import LocalFleet
    from iotctl.output.table import Table

app = typer.Typer(help="Run a fleet on this machine.", no_args_is_help=True)

Dir = Annotated[str, typer.Option("--dir", help="Directory of the fleet.")]
DEFAULT_DIR = "./iotctl-local"
UP_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class NewFleet:
    """Settings of a fleet that `local up` creates."""

    nodes: Annotated[int, typer.Option(min=1, max=64, help="Number of nodes of a new fleet.")] = 5
    replicas: Annotated[
        int, typer.Option(min=1, max=9, help="Number of copies of every row in a new fleet.")
    ] = 3
    slots: Annotated[int, typer.Option(min=1, help="Number of hash slots of a new fleet.")] = 10_000
    shards: Annotated[
        int, typer.Option(min=1, help="Number of shards per storage group and week in a new fleet.")
    ] = 8
    name: Annotated[str, typer.Option(help="Name of a new cluster.")] = "local"


@app.command()
@step(Traits(inspect=lambda look, use: look.would(use), undone_by=("local.down",), is_whole=True))
@with_option_sets
def up(
    ctx: typer.Context,
    directory: Dir = DEFAULT_DIR,
    *,
    new: NewFleet,
    wait: Wait = True,
    dry_run: DryRun = False,
) -> None:
    """Create and start a fleet. If it exists, start those of its agents that are down."""
    from iotctl.fleet.local import LocalFleet
    from nodeagent.model.config import ClusterSettings

    session = session_of(ctx)
    fleet = LocalFleet(session.cwd / directory)
    if dry_run:
        return session.output.would(*_missing(fleet, new.nodes))
    if fleet.exists:
        session.output.detail(f"{fleet.directory} exists: its nodes and settings stay as they are")
    else:
        settings = ClusterSettings(name=new.name, replicas=new.replicas, slots=new.slots, shards=new.shards)
        if new.nodes < new.replicas:
            session.output.warn(
                f"{new.nodes} nodes hold {new.nodes} copies of a row;"
                f" --replicas {new.replicas} needs more nodes"
            )
        fleet.create(settings, new.nodes, node_settings={})
    session.use(fleet.source())
    started = fleet.start()
    session.output.note(f"started {', '.join(started)}" if started else "every agent is already running")
    if wait:
        watch_healthy(session, timeout_s=UP_TIMEOUT_S, fleet=fleet)
    _print(session, fleet, "local-up", hints=True)


@app.command()
@step(Traits(inspect=lambda look, use: look.would(use), undone_by=("local.up",), is_whole=True))
def down(ctx: typer.Context, directory: Dir = DEFAULT_DIR, dry_run: DryRun = False) -> None:
    """Stop every agent and keep the data."""
    session, fleet = _existing(ctx, directory)
    if dry_run:
        return session.output.would(*[f"stop {n.name}" for n in fleet.nodes() if n.pid])
    stopped = fleet.stop()
    session.output.note(f"stopped {', '.join(stopped)}" if stopped else "no agent was running")
    _print(session, fleet, "local-down")


@app.command()
@step(READS)
def status(ctx: typer.Context, directory: Dir = DEFAULT_DIR) -> None:
    """Show the fleet's processes. `cluster status` shows the cluster."""
    session, fleet = _existing(ctx, directory)
    _print(session, fleet, "local-status")


@app.command()
@step(Traits(is_whole=True))
def destroy(
    ctx: typer.Context,
    directory: Dir = DEFAULT_DIR,
    dry_run: DryRun = False,
    yes: Yes = False,
    confirm: Confirm = None,
) -> None:
    """Stop every agent and delete the fleet's directory.

    `local up` or `iotctl demo` must have created it.
    """
    from iotctl.fleet.local import LocalFleet

    session = session_of(ctx)
    fleet = LocalFleet(session.cwd / directory)
    fleet.check_marked()
    if dry_run:
        running = [f"stop {n.name}" for n in fleet.nodes() if n.pid]
        return session.output.would(*running, f"delete {fleet.directory}")
    if confirm is not None:
        session.confirm_name("destroy the fleet", name=fleet.name, given=confirm)
    else:
        session.confirm(f"stop the agents and delete {fleet.directory}?", yes=yes)
    fleet.destroy()
    session.output.note(f"deleted {fleet.directory}")


def _missing(fleet: LocalFleet, nodes: int) -> list[str]:
    """The steps that `up` would take."""
    if fleet.exists:
        wanted = fleet.source().node_names
        return [f"start {n.name}" for n in fleet.nodes() if not n.pid and n.name in wanted]
    fleet.check_free()
    return [f"create a fleet in {fleet.directory}", *(f"start node{i}" for i in range(1, nodes + 1))]


def _existing(ctx: typer.Context, directory: str) -> tuple[Session, LocalFleet]:
    from iotctl.fleet.local import LocalFleet

    session = session_of(ctx)
    fleet = LocalFleet(session.cwd / directory)
    session.use(fleet.source())
    return session, fleet


def _print(session: Session, fleet: LocalFleet, kind: str, *, hints: bool = False) -> None:
    from iotctl.output.table import Table

    nodes = fleet.nodes()
    commands = [
        "iotctl cluster status",
        "iotctl data import FILE --storage-group root.plant --table machines --time time --tag device",
        f"iotctl cluster add-node {fleet.free_name()}",
    ]
    body = {
        "directory": str(fleet.directory),
        "cluster": str(fleet.spec_path),
        "nodes": nodes,
        "export": f"export IOTCTL_CLUSTER={fleet.spec_path}",
        "next": commands if hints else [],
    }

    def tables() -> list[Table | str]:
        rows = [
            (n.name, "up" if n.pid else "down", n.pid or "-", f"{n.host}:{n.port}", n.http_port)
            for n in nodes
        ]
        shown: list[Table | str] = [Table(("node", "state", "pid", "address", "http"), rows)]
        if hints and not session.options.quiet:
            shown.append(f"export IOTCTL_CLUSTER={fleet.spec_path}\n" + "\n".join(f"  {c}" for c in commands))
        return shown

    session.output.emit(kind, body, tables)
