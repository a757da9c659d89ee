"""`iotctl cluster deploy` and `upgrade`: the software and settings of agents."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import typer

from iotctl.cli.hosts import Names
from iotctl.cli.options import AcceptLayout, DryRun, Wait, Yes
from iotctl.cli.rolls import (
    AtOnce,
    emit_rolled,
    open_machines,
    roll,
    show_step,
    undrain_leftovers,
    wait_healthy,
    wave_lines,
)
from iotctl.cli.session import Session, now_ms, session_of
from iotctl.playbook.traits import Traits, step

if TYPE_CHECKING:
    from iotctl.fleet.local import LocalFleet
    from iotctl.lifecycle.deploy import Deployment, DeployPlan
    from iotctl.lifecycle.machines import Machines
    from iotctl.output.table import Table


@step(
    Traits(inspect=lambda look, use: look.agents.deploy(use), undone_by=("cluster.stop", "cluster.destroy"))
)
def deploy(
    ctx: typer.Context,
    nodes: Names = None,
    accept_layout: AcceptLayout = False,
    wait: Wait = True,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Make the machines match cluster.yaml.

    This installs software, certificates and settings, and starts agents.

    A machine without differences is not changed. Until `cluster upgrade`, running agents keep their version
    and those settings that an agent reads only when it starts.
    """
    session = session_of(ctx)
    if session.fleet is not None:
        return _deploy_local(session, session.fleet, nodes or [], wait=wait, dry_run=dry_run)
    with open_machines(session, ahead=True) as machines:
        from iotctl.change.lock import lock_purpose
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
        with session.locked(lock_purpose("cluster deploy", todo.plan)) if changes else nullcontext():
            if todo.plan.has_changes:
                todo = _looked_again(session, todo, machines, nodes or ())
            _carry_out(session, todo, machines)
        healthy = wait and wait_healthy(session)
    done = deploying.deployed(todo.plan, healthy)
    session.output.emit("cluster-deploy", done, lambda: _plan_tables(todo.plan, done=True))
    if todo.plan.is_behind:
        session.output.note(f"next: iotctl cluster upgrade ({', '.join(todo.plan.is_behind)})")
    else:
        session.output.note("next: iotctl cluster status")
    return 0


def _deploy_local(session: Session, fleet: LocalFleet, names: list[str], *, wait: bool, dry_run: bool) -> int:
    """Start the agents that are down; local agents already run from this installation."""
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
    healthy = wait and wait_healthy(session)
    session.output.emit("cluster-deploy", deployed(plan, healthy), lambda: _plan_tables(plan, done=True))
    return 0


@step(Traits(inspect=lambda look, use: look.agents.upgrade(use), undone_by=("cluster.stop",)))
def upgrade(
    ctx: typer.Context, nodes: Names = None, at_once: AtOnce = 1, dry_run: DryRun = False, yes: Yes = False
) -> int:
    """Upgrade nodes to this machine's version and settings.

    The settings are those of cluster.yaml here. By default, nodes are upgraded one by one.
    """
    from iotctl.change.lock import lock_purpose
    from iotctl.lifecycle import deploy as deploying
    from iotctl.lifecycle.rolling import RestartPlan, plan_waves

    session = session_of(ctx)
    if session.fleet is not None:
        session.output.note(
            "a local fleet runs the code of this installation; to apply it to running agents:"
            " iotctl cluster restart"
        )
        emit_rolled(session, undrain_leftovers(session, "cluster upgrade"))
        return 0
    with open_machines(session) as machines:
        todo = _prepared(session, machines, nodes or ())
        behind = todo.plan.is_behind
        if dry_run:
            waves = plan_waves(session.cluster, behind, at_once) if behind else RestartPlan([], [], "")
            session.output.emit("cluster-deploy-plan", todo.plan, lambda: _plan_tables(todo.plan))
            for line in wave_lines(waves, "restart"):
                session.output.note(line)
            return 0
        if not behind and not todo.plan.has_changes:
            session.output.note(f"every node runs {todo.plan.version} with the settings of cluster.yaml")
            emit_rolled(session, undrain_leftovers(session, "cluster upgrade"))
            return 0
        _show_plan(session, todo.plan)
        session.confirm(f"upgrade {session.source.name} to {todo.plan.version}?", yes=yes)
        with session.locked(lock_purpose(f"cluster upgrade to {todo.plan.version}", todo.plan)):
            todo = _carry_out(session, _looked_again(session, todo, machines, nodes or ()), machines)
            behind = todo.plan.is_behind  # an agent that was down when the plan was shown may run now

            def between(node: str) -> None:
                deploying.configure(todo, node, machines.of(todo.entries[node]))

            rolled = roll(session, machines, behind, "iotctl cluster upgrade", at_once, between)
            deleted, failed = deploying.prune(todo, machines)
    emit_rolled(session, rolled)
    _note_level(session)
    if deleted:
        session.output.note(f"deleted software that no node uses: {', '.join(deleted)}")
    for error in failed:
        session.output.warn(f"{error.what}: {error.why}")
    return 0


def _prepared(
    session: Session,
    machines: Machines,
    names: list[str] | tuple[str, ...],
    *,
    accept_layout: bool = False,
    warn: bool = True,
) -> Deployment:
    from iotctl.lifecycle.deploy import prepare

    with session.progress() as progress:
        todo = prepare(
            session.source,
            names,
            session.env,
            machines,
            partial(show_step, progress),
            now_ms=now_ms(),
            accept_layout=accept_layout,
        )
    for finding in todo.plan.findings if warn else ():
        session.output.warn(f"{finding.node}: {finding.message}")
    return todo


def _looked_again(
    session: Session, todo: Deployment, machines: Machines, names: list[str] | tuple[str, ...]
) -> Deployment:
    """Plan again under the lock: another program may have changed the machines since the plan was shown.

    An agent that stopped or started since then does not count as a difference, because a broken agent stops
    and starts repeatedly.

    Raises:
        RefusedProblem: a machine differs from the plan that was shown.
    """
    from iotctl.errors import RefusedProblem

    if session.lock is None:  # the cluster does not exist yet, or does not answer
        return todo
    again = _prepared(session, machines, names, warn=False)
    pairs = zip(again.plan.nodes, todo.plan.nodes, strict=True)
    differ = [new.node for new, old in pairs if new.differences != old.differences]
    if differ:
        raise RefusedProblem(
            f"{', '.join(differ)} changed after the plan was shown; nothing was changed by this command",
            why="another program changed them before this command locked the cluster",
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
            partial(show_step, progress),
            now_ms=now_ms(),
            check=session.check_lock,
        )


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


def _note_level(session: Session) -> None:
    """Name the last step of an upgrade, if it is possible now."""
    from iotctl.observe.collect import collect
    from iotctl.observe.problems import FINALIZE
    from iotctl.observe.status import build_status

    found = build_status(collect(session.cluster), session.source, now_ms=now_ms())
    if found.feature_level_possible > found.feature_level:
        session.output.note(f"next, when no node needs to go back to the previous release: {FINALIZE}")
