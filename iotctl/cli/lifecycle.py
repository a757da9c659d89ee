"""`iotctl cluster init`, `deploy`, `start`, `stop`, `restart`, `upgrade`, `logs`, `destroy`: agents on
machines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.hosts import Names
from iotctl.cli.options import AcceptLayout, Confirm, DryRun, Duration, Wait, Watch, Yes
from iotctl.cli.session import Session, now_ms, session_of
from iotctl.cli.watching import watch_healthy
from iotctl.playbook.traits import READS, Traits, never, step

if TYPE_CHECKING:
    from iotctl.fleet.local import LocalFleet
    from iotctl.lifecycle.deploy import Deployment, DeployPlan
    from iotctl.lifecycle.destroy import Doomed
    from iotctl.lifecycle.machines import Machines
    from iotctl.lifecycle.rolling import Rolled, Waves
    from iotctl.output.progress import Progress
    from iotctl.output.table import Table

HEALTHY_S = 180.0
AtOnce = Annotated[
    int, typer.Option("--max-unavailable", min=1, help="At most so many nodes down at the same time.")
]

OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than", metavar="1h", parser=Duration, help="Only agents that have been running longer."
    ),
]


def register(app: typer.Typer) -> None:
    for command in (init, schema, deploy, start, stop, restart, upgrade, logs, destroy):
        app.command()(command)


@step(Traits(inspect=lambda look, use: look.file("cluster.yaml")))
def init(
    ctx: typer.Context,
    hosts: Annotated[list[str], typer.Argument(metavar="HOST…", help="[user@]host[:ssh-port], one a node.")],
    name: Annotated[str, typer.Option(help="Name of the cluster.")] = "plant",
    replicas: Annotated[int, typer.Option(min=1, max=9, help="Copies of every row.")] = 3,
    dry_run: DryRun = False,
) -> None:
    """Write cluster.yaml for these machines, and make the cluster's certificate authority."""
    from iotctl.lifecycle.initialise import initialise

    session = session_of(ctx)
    made = initialise(session.cwd, hosts, name=name, replicas=replicas, env=session.env, dry_run=dry_run)
    if dry_run:
        return session.output.would(f"write {made.file}", f"make the authority in {made.authority}")
    session.output.emit("cluster-init", made, lambda: [f"{made.file}\n{made.authority}"])
    session.output.note("next: iotctl cluster trust, then iotctl cluster deploy")


@step(READS)
def schema(ctx: typer.Context) -> None:
    """The JSON Schema of cluster.yaml, for editors."""
    import msgspec

    from iotctl.spec.cluster_schema import cluster_schema

    session = session_of(ctx)
    session.out.write(msgspec.json.format(msgspec.json.encode(cluster_schema()), indent=2).decode() + "\n")


@step(Traits(inspect=lambda look, use: look.deploy(use), undone_by=("cluster.stop", "cluster.destroy")))
def deploy(
    ctx: typer.Context,
    nodes: Names = None,
    accept_layout: AcceptLayout = False,
    wait: Wait = True,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Bring cluster.yaml to its machines: software, certificates, settings, running agents.

    Nothing changes where nothing differs. What running agents read only at their start waits for `upgrade`.
    """
    session = session_of(ctx)
    if session.fleet is not None:
        return _deploy_local(session, session.fleet, nodes or [], wait=wait, dry_run=dry_run)
    with _machines(session, ahead=True) as machines:
        from iotctl.change.lock import of_plan
        from iotctl.lifecycle import deploy as deploying

        todo = _prepared(session, machines, nodes or (), accept_layout=accept_layout)
        if dry_run:
            session.output.emit("cluster-deploy-plan", todo.plan, lambda: _plan_tables(todo.plan))
            return 0
        if todo.plan.has_changes:
            _show_plan(session, todo.plan)
            new = " as a new cluster" if todo.plan.new_cluster else ""
            session.confirm(f"deploy {session.source.name}{new}?", yes=yes)
        changes = todo.plan.has_changes
        with session.locked(of_plan("cluster deploy", todo.plan)) if changes else nullcontext():
            if todo.plan.has_changes:
                todo = _looked_again(session, todo, machines, nodes or ())
            _carry_out(session, todo, machines)
        healthy = wait and _wait_healthy(session)
    done = deploying.deployed(todo.plan, healthy)
    session.output.emit("cluster-deploy", done, lambda: _plan_tables(todo.plan, done=True))
    if todo.plan.is_behind:
        session.output.note(f"next: iotctl cluster upgrade ({', '.join(todo.plan.is_behind)})")
    else:
        session.output.note("next: iotctl cluster status")
    return 0


def _deploy_local(session: Session, fleet: LocalFleet, names: list[str], *, wait: bool, dry_run: bool) -> int:
    """Its agents run from this installation, so there is nothing to bring: only start what is down."""
    from iotctl.lifecycle.deploy import DeployPlan, NodePlan, deployed

    listed = [n for n in fleet.nodes() if n.name in session.source.node_names]
    picked = [n for n in listed if not names or n.name in names]
    plan = DeployPlan(
        version="local",
        new_cluster=False,
        new_authority=False,
        nodes=[NodePlan(n.name, n.host, [], [], n.pid is None) for n in picked],
        findings=[],
    )
    if dry_run:
        session.output.emit("cluster-deploy-plan", plan, lambda: _plan_tables(plan))
        return 0
    if plan.has_changes:
        fleet.start([n.node for n in plan.nodes if n.start])
    healthy = wait and _wait_healthy(session)
    session.output.emit("cluster-deploy", deployed(plan, healthy), lambda: _plan_tables(plan, done=True))
    return 0


@step(Traits(inspect=lambda look, use: look.start(use), undone_by=("cluster.stop",), undo="cluster.stop"))
def start(ctx: typer.Context, nodes: Names = None, dry_run: DryRun = False) -> None:
    """Start the agents that are down."""
    from iotctl.lifecycle.agents import agents_of
    from iotctl.lifecycle.rolling import Waves

    session = session_of(ctx)
    names = nodes or session.source.node_names
    with _machines(session) as machines:
        agents = agents_of(session.source, machines)
        if dry_run:
            down = agents.down(names)
            _emit_waves(session, Waves([down] if down else [], [], ""), "start")
            return
        # Without the lock: what is down may be what it takes to have one.
        begun = agents.start(names)
    _emit_agents(session, "started", begun)
    session.output.note("next: iotctl cluster wait --for healthy")


@step(
    Traits(
        inspect=lambda look, use: look.stop(use),
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
    """Stop agents: all of them, or those named while every group keeps its quorum without them."""
    from iotctl.lifecycle.agents import agents_of
    from iotctl.lifecycle.rolling import Waves

    session = session_of(ctx)
    names = _long_running(session, list(nodes or session.source.node_names), older_than)
    if not names:
        if dry_run:
            _emit_waves(session, Waves([], [], ""), "stop")
        else:
            _emit_agents(session, "stopped", [])
        return
    whole = set(names) == set(session.source.node_names)
    if not whole:
        _check_may_stop(session, names)
    what = f"all {len(names)} nodes; the cluster is down then" if whole else ", ".join(names)
    if dry_run:
        _emit_waves(session, Waves([names], [], ""), "stop")
        return
    session.confirm(f"stop {what} ({session.source.name})?", yes=yes)
    with _machines(session) as machines:
        agents = agents_of(session.source, machines)
        with session.locked(f"cluster stop {' '.join(names)}"):
            if not whole:
                _check_may_stop(session, names)  # another program may have stopped others since
                ended = agents.stop(names)
        if whole:  # who is down cannot take the lock back: that it was free must do
            ended = agents.stop(names)
    _emit_agents(session, "stopped", ended)
    session.output.note("next: iotctl cluster start")


def _check_may_stop(session: Session, names: list[str]) -> None:
    """Raises `RefusedProblem`: a group would lose its quorum without them."""
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


@step(Traits(inspect=lambda look, use: look.restart(use), is_visible=never))
def restart(
    ctx: typer.Context,
    nodes: Names = None,
    older_than: OlderThan = None,
    at_once: AtOnce = 1,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Restart agents one after the other, each once every group can do without it. Leaders move off first."""
    from iotctl.lifecycle.machines import chosen
    from iotctl.lifecycle.rolling import plan_waves

    session = session_of(ctx)
    names = list(nodes or ())
    if not names:  # a node that is listed, and not added yet, holds nothing: it must not stand in the way
        members = {n.node for n in session.cluster.meta().nodes}
        names = [n for n in session.source.node_names if n in members]
    chosen(session.source, names)
    names = _long_running(session, names, older_than)
    if dry_run:
        _emit_waves(session, plan_waves(session.cluster, names, at_once), "restart")
        return
    if not names:
        _emit_rolled(session, _roll_none(session, "cluster restart"))
        return
    session.confirm(f"restart {', '.join(names)} of {session.source.name}, one by one?", yes=yes)
    with _machines(session) as machines, session.locked(f"cluster restart {' '.join(names)}"):
        names = _long_running(session, names, older_than)  # another program may have restarted some
        rolled = _roll(session, machines, names, "iotctl cluster restart", at_once)
    _emit_rolled(session, rolled)


def _long_running(session: Session, names: list[str], older_than: str | None) -> list[str]:
    if older_than is None:
        return names
    from iotctl.lifecycle.rolling import running_longer
    from iotctl.spec.units import parse_duration_ms

    return running_longer(session.cluster, names, parse_duration_ms(older_than))


@step(Traits(inspect=lambda look, use: look.upgrade(use), undone_by=("cluster.stop",)))
def upgrade(
    ctx: typer.Context, nodes: Names = None, at_once: AtOnce = 1, dry_run: DryRun = False, yes: Yes = False
) -> int:
    """Bring this machine's version and cluster.yaml's settings to running nodes, restarted one by one."""
    from iotctl.change.lock import of_plan
    from iotctl.lifecycle import deploy as deploying
    from iotctl.lifecycle.rolling import Waves, plan_waves

    session = session_of(ctx)
    if session.fleet is not None:
        session.output.note("a local fleet runs from this installation; iotctl cluster restart loads it")
        _emit_rolled(session, _roll_none(session, "cluster upgrade"))
        return 0
    with _machines(session) as machines:
        todo = _prepared(session, machines, nodes or ())
        behind = todo.plan.is_behind
        if dry_run:
            waves = plan_waves(session.cluster, behind, at_once) if behind else Waves([], [], "")
            session.output.emit("cluster-deploy-plan", todo.plan, lambda: _plan_tables(todo.plan))
            for line in _wave_lines(waves, "restart"):
                session.output.note(line)
            return 0
        if not behind and not todo.plan.has_changes:
            session.output.note(f"every node runs {todo.plan.version} with its settings")
            _emit_rolled(session, _roll_none(session, "cluster upgrade"))
            return 0
        _show_plan(session, todo.plan)
        session.confirm(f"upgrade {session.source.name} to {todo.plan.version}?", yes=yes)
        with session.locked(of_plan(f"cluster upgrade to {todo.plan.version}", todo.plan)):
            todo = _carry_out(session, _looked_again(session, todo, machines, nodes or ()), machines)
            behind = todo.plan.is_behind  # an agent that was down when it was shown may run by now

            def between(node: str) -> None:
                deploying.configure(todo, node, machines.of(todo.entries[node]))

            rolled = _roll(session, machines, behind, "iotctl cluster upgrade", at_once, between)
            deleted, failed = deploying.prune(todo, machines)
    _emit_rolled(session, rolled)
    _note_level(session)
    if deleted:
        session.output.note(f"deleted, for no node runs it any more: {', '.join(deleted)}")
    for error in failed:
        session.output.warn(f"{error.what}: {error.why}")
    return 0


@step(READS)
def logs(
    ctx: typer.Context,
    nodes: Names = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Of each node.")] = 50,
    watch: Watch = False,
) -> int:
    """The last lines the agents wrote, also of those that are down; --watch goes on with what is new."""
    from iotctl.cli.watching import after, repeated
    from iotctl.errors import Exit, Unreachable
    from iotctl.lifecycle.agents import logs as logs_of

    session = session_of(ctx)
    shown: dict[str, list[str]] = {}

    def show() -> int:
        with _machines(session) as machines:  # anew each time: a machine that was started anew is another one
            answers = logs_of(session.source, machines, nodes or (), lines)
        found = {n: a.splitlines() for n, a in answers.items() if not isinstance(a, Unreachable)}
        for node, error in answers.items():
            if isinstance(error, Unreachable):
                session.output.warn(
                    f"{node}: {error.what}: {error.why}" if error.why else f"{node}: {error.what}"
                )
        new = {n: after(shown[n], told) if n in shown else told for n, told in found.items()}
        if any(new.values()) or not shown:
            body = {"nodes": [{"node": n, "lines": told} for n, told in new.items()]}
            texts = {n: "\n".join(told) for n, told in new.items() if told or not shown}
            session.output.emit(
                "cluster-logs",
                body,
                lambda: [f"{n}:\n{text}" if len(answers) > 1 else text for n, text in texts.items()],
            )
        shown.update(found)
        return 0 if len(found) == len(answers) else Exit.UNREACHABLE

    return repeated(session, show, watch)


@step(Traits(inspect=lambda look, use: look.destroy(use), is_whole=True, is_visible=never))
def destroy(ctx: typer.Context, confirm: Confirm = None, dry_run: DryRun = False) -> int:
    """Stop every agent and delete every copy of the data; the file and the certificate authority stay."""
    from iotctl.errors import Exit, UsageProblem
    from iotctl.lifecycle import destroy as destroying
    from iotctl.spec.find import authority_dir

    session = session_of(ctx)
    source = session.source
    if source.is_local:
        raise UsageProblem("a local fleet is not on machines", next="iotctl local destroy")
    with _machines(session) as machines:
        doomed = destroying.survey(source, machines)
        shown = _doomed_table(doomed)
        if dry_run:
            session.output.emit("cluster-destroy-plan", {"nodes": doomed}, lambda: [shown])
            return Exit.UNREACHABLE if any(d.error for d in doomed) else Exit.DONE
        if any(d.there or d.error for d in doomed):
            session.output.note(shown.render(wide=False))
            question = f"delete all data of {source.name} on {sum(d.there for d in doomed)} machines"
            session.confirm_name(question, name=source.name, given=confirm)
        session.on_interrupt = lambda: (
            "some machines may hold data still",
            f"iotctl cluster destroy --confirm {source.name}",
        )
        with session.locked(f"cluster destroy {source.name}"):
            pass  # no cluster will be left to give it back to: that it was free must do
        done = destroying.destroy(source, machines, doomed)
    said = f"destroyed {', '.join(done.destroyed)}" if done.destroyed else "nothing was there"
    session.output.emit("cluster-destroy", done, lambda: [said])
    for node, left in done.left.items():
        session.output.warn(f"{node}: its directory is kept, for it holds what is not ours: {left}")
    if done.destroyed:
        session.output.note(
            f"kept: the software in {', '.join(done.software)}, for other clusters may use it"
        )
        session.output.note(f"kept: {source.path} and the authority in {authority_dir(source, session.env)}")
    return Exit.DONE


# --- shared ----------------------------------------------------------------------------------------


def _machines(session: Session, *, ahead: bool = False) -> Machines:
    """With `ahead` all of them are called now, while the code that speaks to them is read."""
    from iotctl.fleet.dial import Ahead, wait_s
    from iotctl.fleet.ssh_config import target_of

    source, timeout_s, begun = session.source, session.options.timeout_s, None
    if ahead and not source.is_local:
        begun = Ahead([target_of(source, n) for n in source.file.nodes], session.env, wait_s(timeout_s))

    from iotctl.lifecycle.machines import Machines

    return Machines(source, session.env, timeout_s, begun)


def _prepared(
    session: Session,
    machines: Machines,
    names: list[str] | tuple[str, ...],
    *,
    accept_layout: bool = False,
    tell: bool = True,
) -> Deployment:
    from iotctl.lifecycle.deploy import prepare

    with session.progress() as progress:
        todo = prepare(
            session.source,
            names,
            session.env,
            machines,
            partial(_step, progress),
            now_ms=now_ms(),
            accept_layout=accept_layout,
        )
    for finding in todo.plan.findings if tell else ():
        session.output.warn(f"{finding.node}: {finding.message}")
    return todo


def _looked_again(
    session: Session, todo: Deployment, machines: Machines, names: list[str] | tuple[str, ...]
) -> Deployment:
    """Under the lock: what was shown was seen before it, and another program may have been at work since.

    An agent that has ended or begun since is no other plan: one that is to be mended does it all the time.

    Raises:
        RefusedProblem: a machine holds something else now.
    """
    from iotctl.errors import RefusedProblem

    if session.lock is None:  # there is no cluster yet that could be locked
        return todo
    again = _prepared(session, machines, names, tell=False)
    pairs = zip(again.plan.nodes, todo.plan.nodes, strict=True)
    differ = [new.node for new, old in pairs if new.differences != old.differences]
    if differ:
        raise RefusedProblem(
            f"{', '.join(differ)} changed after the plan was shown; nothing was changed by this command",
            why="the lock of the cluster was free until then",
            next="run the command again",
        )
    return again


def _carry_out(session: Session, todo: Deployment, machines: Machines) -> Deployment:
    from iotctl.lifecycle.deploy import execute

    with session.progress() as progress:
        return execute(
            session.source,
            todo,
            session.env,
            machines,
            partial(_step, progress),
            now_ms=now_ms(),
            check=session.check_lock,
        )


def _roll(
    session: Session,
    machines: Machines,
    names: list[str],
    command: str,
    at_once: int,
    between: Callable[[str], None] = lambda node: None,
) -> Rolled:
    from iotctl.lifecycle.agents import agents_of
    from iotctl.lifecycle.rolling import rolling

    session.on_interrupt = lambda: ("a node may be drained or down", "iotctl cluster status")
    with session.progress() as progress:
        return rolling(
            session.cluster,
            agents_of(session.source, machines),
            names,
            by=session.operator,
            command=command,
            at_once=at_once,
            alone=session.lock is not None,
            between=between,
            check=session.check_lock,
            on_step=partial(_step_of, progress),
        )


def _roll_none(session: Session, what: str) -> Rolled:
    """No agent is to be restarted; what a roll that was killed left is ended all the same, where that can be
    known and nobody else is at work."""
    from iotctl.errors import BusyProblem
    from iotctl.lifecycle.rolling import Rolled, left_draining
    from nodeagent.model.errors import NodeAgentError

    with suppress(NodeAgentError, BusyProblem):
        if left_draining(session.cluster):
            with _machines(session) as machines, session.locked(what):
                return _roll(session, machines, [], f"iotctl {what}", 1)
    return Rolled([], [])


def _wait_healthy(session: Session) -> bool:
    """Raises `Partly` when the time is up."""
    watch_healthy(session, timeout_s=HEALTHY_S, fleet=session.fleet)
    return True


def _show_plan(session: Session, plan: DeployPlan) -> None:
    for part in _plan_tables(plan):
        session.output.note(part if isinstance(part, str) else part.render(wide=False))


def _plan_tables(plan: DeployPlan, *, done: bool = False) -> list[Table | str]:
    from iotctl.output.table import Table

    rows = []
    for n in plan.nodes:
        now = [c.detail for c in n.changes] + (["start"] if n.start else [])
        rows.append(
            (n.node, n.host, "\n".join(now) or "nothing", "\n".join(c.detail for c in n.later) or "-")
        )
    made = " (with a new certificate authority)" if plan.new_authority else ""
    return [
        Table(("node", "host", "done" if done else "now", "with `upgrade`"), rows),
        f"version {plan.version}{made}",
    ]


def _doomed_table(doomed: list[Doomed]) -> Table:
    from iotctl.output.table import Table

    def what(one: Doomed) -> str:
        return one.error or (one.data_dir if one.there else "nothing is there")

    rows = [(d.node, d.host, what(d), "yes" if d.running else "-") for d in doomed]
    return Table(("node", "host", "deleted", "runs"), rows)


def _emit_agents(session: Session, what: str, names: list[str]) -> None:
    said = f"{what} {', '.join(names)}" if names else f"nothing was {what}"
    session.output.emit("cluster-agents", {"what": what, "nodes": names}, lambda: [said])


def _emit_rolled(session: Session, done: Rolled) -> None:
    said = f"restarted {', '.join(done.restarted)}" if done.restarted else "nothing was restarted"
    session.output.emit("cluster-rolled", done, lambda: [said])
    for node in done.undrained:
        session.output.note(f"{node} may lead again: a restart that was killed had left it draining")
    for node in done.draining:
        session.output.warn(f"{node} was draining before and still is: iotctl cluster undrain {node}")


def _note_level(session: Session) -> None:
    """The end of an upgrade, if it can come."""
    from iotctl.observe.collect import collect
    from iotctl.observe.problems import FINALIZE
    from iotctl.observe.status import build_status

    found = build_status(collect(session.cluster), session.source, now_ms=now_ms())
    if found.feature_level_possible > found.feature_level:
        session.output.note(f"next, when no node is to go back: {FINALIZE}")


def _emit_waves(session: Session, found: Waves, what: str) -> None:
    lines = _wave_lines(found, what) or [f"nothing would {what}"]
    session.output.emit("cluster-waves", found, lambda: ["\n".join(lines)])


def _wave_lines(found: Waves, what: str) -> list[str]:
    lines = [f"{i}. {what} {', '.join(wave)}" for i, wave in enumerate(found.waves, 1)]
    if found.blocked:
        lines.append(f"not as the cluster is now: {', '.join(found.blocked)} ({found.why})")
    return lines


def _step(progress: Progress, phase: str, done: int, total: int) -> None:
    progress.update(phase, done, total)


def _step_of(progress: Progress, phase: str, done: int, total: int, node: str) -> None:
    progress.update(phase, done, total, note=node)
