"""Rolling restarts of agents, and their output."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.options import Duration
from iotctl.cli.session import Session
from iotctl.cli.watching import watch_healthy

if TYPE_CHECKING:
    from iotctl.lifecycle.machines import Machines
    from iotctl.lifecycle.rolling import RestartPlan, RestartReport
    from iotctl.output.progress import Progress

HEALTHY_S = 180.0


AtOnce = Annotated[
    int, typer.Option("--max-unavailable", min=1, help="Take down at most this many nodes at the same time.")
]


OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than",
        metavar="DURATION",
        parser=Duration,
        help="Include only agents that have run longer than this, such as 1h, or do not answer.",
    ),
]


def long_running(session: Session, names: list[str], older_than: str | None) -> list[str]:
    if older_than is None:
        return names
    from iotctl.lifecycle.rolling import running_longer
    from iotctl.spec.units import parse_duration_ms

    return running_longer(session.cluster, names, parse_duration_ms(older_than))


def open_machines(session: Session, *, ahead: bool = False) -> Machines:
    """Connections to the machines; with `ahead` they open now, while the SSH code loads."""
    from iotctl.fleet.dial import Prefetch, wait_s
    from iotctl.fleet.ssh_config import target_of

    source, timeout_s, begun = session.source, session.options.timeout_s, None
    if ahead and not source.is_local:
        begun = Prefetch([target_of(source, n) for n in source.file.nodes], session.env, wait_s(timeout_s))

    from iotctl.lifecycle.machines import Machines

    return Machines(source, session.env, timeout_s, begun)


def roll(
    session: Session,
    machines: Machines,
    names: list[str],
    command: str,
    at_once: int,
    between: Callable[[str], None] = lambda node: None,
) -> RestartReport:
    from iotctl.lifecycle.agents import agents_of
    from iotctl.lifecycle.rolling import RollRequest, rolling

    session.on_interrupt = lambda: ("a node may be drained or down", "iotctl cluster status")
    with session.progress() as progress:
        return rolling(
            session.cluster,
            agents_of(session.source, machines),
            names,
            RollRequest(session.operator, command, at_once, alone=session.lock is not None),
            between=between,
            check=session.check_lock,
            on_step=partial(_step_of, progress),
        )


def undrain_leftovers(session: Session, what: str) -> RestartReport:
    """Restart no agent, but undrain the nodes that an interrupted restart left draining.

    Does nothing if the cluster does not answer or another program holds its lock.
    """
    from iotctl.errors import BusyProblem
    from iotctl.lifecycle.rolling import RestartReport, left_draining
    from nodeagent.model.errors import NodeAgentError

    with suppress(NodeAgentError, BusyProblem):
        if left_draining(session.cluster):
            with open_machines(session) as machines, session.locked(what):
                return roll(session, machines, [], f"iotctl {what}", 1)
    return RestartReport([], [])


def wait_healthy(session: Session) -> bool:
    """Raises `Partly` after `--timeout`, by default `HEALTHY_S`; `Unreachable` if a local agent exited."""
    watch_healthy(session, timeout_s=HEALTHY_S, fleet=session.fleet)
    return True


def emit_rolled(session: Session, done: RestartReport) -> None:
    said = f"restarted {', '.join(done.restarted)}" if done.restarted else "nothing was restarted"
    session.output.emit("cluster-rolled", done, lambda: [said])
    for node in done.undrained:
        session.output.note(f"{node} may lead again: an interrupted restart had left it draining")
    for node in done.draining:
        session.output.warn(f"{node} was draining before and still is: iotctl cluster undrain {node}")


def emit_waves(session: Session, found: RestartPlan, what: str) -> None:
    lines = wave_lines(found, what) or [f"nothing would {what}"]
    session.output.emit("cluster-waves", found, lambda: ["\n".join(lines)])


def wave_lines(found: RestartPlan, what: str) -> list[str]:
    lines = [f"{i}. {what} {', '.join(wave)}" for i, wave in enumerate(found.waves, 1)]
    if found.blocked:
        lines.append(f"not possible now: {', '.join(found.blocked)} ({found.why})")
    return lines


def show_step(progress: Progress, phase: str, done: int, total: int) -> None:
    progress.update(phase, done, total)


def _step_of(progress: Progress, phase: str, done: int, total: int, node: str) -> None:
    progress.update(phase, done, total, note=node)
