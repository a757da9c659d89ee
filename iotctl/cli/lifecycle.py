"""`iotctl cluster init`, `start`, `stop`, `restart`, `logs`, `destroy`: agents on machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.deploying import deploy, upgrade
from iotctl.cli.hosts import Names
from iotctl.cli.options import Confirm, DryRun, Follow, Yes
from iotctl.cli.rolls import (
    AtOnce,
    OlderThan,
    emit_rolled,
    emit_waves,
    long_running,
    open_machines,
    roll,
    undrain_leftovers,
)
from iotctl.cli.session import Session, now_ms, session_of
from iotctl.playbook.traits import READS, Traits, never, step

if TYPE_CHECKING:
    from iotctl.lifecycle.destroy import DestroyTarget
    from iotctl.output.table import Table


def register(app: typer.Typer) -> None:
    for command in (init, schema, deploy, start, stop, restart, upgrade, logs, destroy):
        app.command()(command)


@step(Traits(inspect=lambda look, use: look.file("cluster.yaml")))
def init(
    ctx: typer.Context,
    hosts: Annotated[
        list[str], typer.Argument(metavar="HOST…", help="[user@]host[:ssh-port], one per node.")
    ],
    name: Annotated[str, typer.Option(help="Name of the cluster.")] = "plant",
    replicas: Annotated[int, typer.Option(min=1, max=9, help="Number of copies of every row.")] = 3,
    dry_run: DryRun = False,
) -> None:
    """Write cluster.yaml and create the certificate authority."""
    from iotctl.lifecycle.initialise import initialise

    session = session_of(ctx)
    made = initialise(session.cwd, hosts, name=name, replicas=replicas, env=session.env, dry_run=dry_run)
    if dry_run:
        return session.output.would(f"write {made.file}", f"create the authority in {made.authority}")
    session.output.emit("cluster-init", made, lambda: [f"{made.file}\n{made.authority}"])
    session.output.note("next: iotctl cluster trust, then iotctl cluster deploy")


@step(READS)
def schema(ctx: typer.Context) -> None:
    """Print the JSON Schema of cluster.yaml, for editors."""
    import msgspec

    from iotctl.spec.cluster_schema import cluster_schema

    session = session_of(ctx)
    session.out.write(msgspec.json.format(msgspec.json.encode(cluster_schema()), indent=2).decode() + "\n")


@step(
    Traits(inspect=lambda look, use: look.agents.start(use), undone_by=("cluster.stop",), undo="cluster.stop")
)
def start(ctx: typer.Context, nodes: Names = None, dry_run: DryRun = False) -> None:
    """Start the agents that are down."""
    from iotctl.lifecycle.agents import agents_of
    from iotctl.lifecycle.rolling import RestartPlan

    session = session_of(ctx)
    names = nodes or session.source.node_names
    with open_machines(session) as machines:
        agents = agents_of(session.source, machines)
        if dry_run:
            down = agents.down(names)
            emit_waves(session, RestartPlan([down] if down else [], [], ""), "start")
            return
        # Without the lock: the agents that are down may be needed to take it.
        begun = agents.start(names)
    _emit_agents(session, "started", begun)
    session.output.note("next: iotctl cluster wait --for healthy")


@step(
    Traits(
        inspect=lambda look, use: look.agents.stop(use),
        undone_by=("cluster.start", "cluster.deploy"),
        undo="cluster.start",
    )
)
def stop(
    ctx: typer.Context,
    nodes: Names = None,
    older_than: OlderThan = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Stop all agents or the named ones.

    Named agents are stopped only if every group keeps its quorum without them.
    """
    from iotctl.lifecycle.agents import agents_of
    from iotctl.lifecycle.rolling import RestartPlan

    session = session_of(ctx)
    names = long_running(session, list(nodes or session.source.node_names), older_than)
    if not names:
        if dry_run:
            emit_waves(session, RestartPlan([], [], ""), "stop")
        else:
            _emit_agents(session, "stopped", [])
        return
    whole = set(names) == set(session.source.node_names)
    if not whole:
        _check_may_stop(session, names)
    what = f"all {len(names)} nodes, which takes the cluster down" if whole else ", ".join(names)
    if dry_run:
        emit_waves(session, RestartPlan([names], [], ""), "stop")
        return
    session.confirm(f"stop {what} ({session.source.name})?", yes=yes)
    with open_machines(session) as machines:
        agents = agents_of(session.source, machines)
        with session.locked(f"cluster stop {' '.join(names)}"):
            if not whole:
                _check_may_stop(session, names)  # another program may have stopped other nodes
                ended = agents.stop(names)
        if whole:  # a stopped cluster cannot release the lock: it is enough that the lock was free
            ended = agents.stop(names)
    _emit_agents(session, "stopped", ended)
    session.output.note("next: iotctl cluster start")


def _check_may_stop(session: Session, names: list[str]) -> None:
    """Raises `RefusedProblem` if a group would lose its quorum without the nodes `names`."""
    from iotctl.errors import RefusedProblem
    from iotctl.observe.stopping import ok_to_stop

    members = {n.node for n in session.cluster.meta().nodes}
    found = ok_to_stop(session.cluster, [n for n in names if n in members], now_ms=now_ms())
    if not found.ok:
        lost = found.lost[0]
        raise RefusedProblem(
            f"{lost.group} would lose its quorum; nothing was stopped",
            why=lost.why or f"{len(lost.left)} voters would be left, {lost.needed} are needed",
            next=f"iotctl cluster ok-to-stop {' '.join(names)}",
        )


@step(Traits(inspect=lambda look, use: look.agents.restart(use), is_visible=never))
def restart(
    ctx: typer.Context,
    nodes: Names = None,
    older_than: OlderThan = None,
    at_once: AtOnce = 1,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Restart agents, by default one by one.

    Transfer leadership first, and keep every group's quorum.
    """
    from iotctl.lifecycle.machines import chosen
    from iotctl.lifecycle.rolling import plan_waves

    session = session_of(ctx)
    names = list(nodes or ())
    if not names:  # leave out a listed node that is not a member yet: it must not block the restart
        members = {n.node for n in session.cluster.meta().nodes}
        names = [n for n in session.source.node_names if n in members]
    chosen(session.source, names)
    names = long_running(session, names, older_than)
    if dry_run:
        emit_waves(session, plan_waves(session.cluster, names, at_once), "restart")
        return
    if not names:
        emit_rolled(session, undrain_leftovers(session, "cluster restart"))
        return
    pace = "one by one" if at_once == 1 else f"at most {at_once} at a time"
    session.confirm(f"restart {', '.join(names)} of {session.source.name}, {pace}?", yes=yes)
    with open_machines(session) as machines, session.locked(f"cluster restart {' '.join(names)}"):
        names = long_running(session, names, older_than)  # another program may have restarted some
        rolled = roll(session, machines, names, "iotctl cluster restart", at_once)
    emit_rolled(session, rolled)


@step(READS)
def logs(
    ctx: typer.Context,
    nodes: Names = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, help="Show this many lines of each node.")
    ] = 50,
    watch: Follow = False,
) -> int:
    """Show the last log lines of the agents. --watch adds new lines.

    This works even if agents are down.
    """
    from iotctl.cli.watching import after, repeated
    from iotctl.errors import Exit, Unreachable
    from iotctl.lifecycle.agents import logs as logs_of

    session = session_of(ctx)
    shown: dict[str, list[str]] = {}

    def show() -> int:
        with open_machines(session) as machines:  # connect each time: a machine may have restarted
            answers = logs_of(session.source, machines, nodes or (), lines)
        found = {n: a.splitlines() for n, a in answers.items() if not isinstance(a, Unreachable)}
        for node, error in answers.items():
            if isinstance(error, Unreachable):
                session.output.warn(
                    f"{node}: {error.what}: {error.why}" if error.why else f"{node}: {error.what}"
                )
        new = {n: after(shown[n], added) if n in shown else added for n, added in found.items()}
        if any(new.values()) or not shown:
            body = {"nodes": [{"node": n, "lines": added} for n, added in new.items()]}
            texts = {n: "\n".join(added) for n, added in new.items() if added or not shown}
            session.output.emit(
                "cluster-logs",
                body,
                lambda: [f"{n}:\n{text}" if len(answers) > 1 else text for n, text in texts.items()],
            )
        shown.update(found)
        return 0 if len(found) == len(answers) else Exit.UNREACHABLE

    return repeated(session, show, watch)


@step(Traits(inspect=lambda look, use: look.agents.destroy(use), is_whole=True, is_visible=never))
def destroy(ctx: typer.Context, confirm: Confirm = None, dry_run: DryRun = False) -> int:
    """Stop every agent and delete all data.

    cluster.yaml and the certificate authority remain.
    """
    from iotctl.errors import Exit, UsageProblem
    from iotctl.lifecycle import destroy as destroying
    from iotctl.spec.find import authority_dir

    session = session_of(ctx)
    source = session.source
    if source.is_local:
        raise UsageProblem("a local fleet has no machines to clear", next="iotctl local destroy")
    with open_machines(session) as machines:
        targets = destroying.survey(source, machines)
        shown = _targets_table(targets)
        if dry_run:
            session.output.emit("cluster-destroy-plan", {"nodes": targets}, lambda: [shown])
            return Exit.UNREACHABLE if any(d.error for d in targets) else Exit.DONE
        if any(d.there or d.error for d in targets):
            session.output.note(shown.render(wide=False))
            question = f"delete all data of {source.name} on {sum(d.there for d in targets)} machines"
            session.confirm_name(question, name=source.name, given=confirm)
        session.on_interrupt = lambda: (
            "some machines may still hold data",
            f"iotctl cluster destroy --confirm {source.name}",
        )
        with session.locked(f"cluster destroy {source.name}"):
            pass  # a destroyed cluster cannot release the lock: it is enough that the lock was free
        done = destroying.destroy(source, machines, targets)
    said = f"destroyed {', '.join(done.destroyed)}" if done.destroyed else "found no data to delete"
    session.output.emit("cluster-destroy", done, lambda: [said])
    for node, left in done.left.items():
        session.output.warn(f"{node}: its directory is kept, because it holds other files: {left}")
    if done.destroyed:
        session.output.note(f"kept: the software in {', '.join(done.software)}; other clusters may use it")
        session.output.note(f"kept: {source.path} and the authority in {authority_dir(source, session.env)}")
    return Exit.DONE


def _targets_table(targets: list[DestroyTarget]) -> Table:
    from iotctl.output.table import Table

    def what(one: DestroyTarget) -> str:
        return one.error or (one.data_dir if one.there else "no data")

    rows = [(d.node, d.host, what(d), "yes" if d.running else "-") for d in targets]
    return Table(("node", "host", "deleted", "runs"), rows)


def _emit_agents(session: Session, what: str, names: list[str]) -> None:
    said = f"{what} {', '.join(names)}" if names else f"nothing was {what}"
    session.output.emit("cluster-agents", {"what": what, "nodes": names}, lambda: [said])
