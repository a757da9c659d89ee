"""Restart agents a few at a time, so that the cluster serves all the while.

Between nodes the same gate as `ok-to-stop`: the next ones stop only while every group keeps its quorum
without them, by what the nodes themselves say now. It fails closed: at the first doubt nothing more stops.
"""

import time
from collections.abc import Callable, Sequence

import msgspec

from iotctl.errors import Partly, RefusedProblem, Unreachable
from iotctl.execute.agents import Agents
from iotctl.execute.cluster import Cluster
from iotctl.execute.draining import set_draining
from iotctl.execute.stopping import ok_to_stop
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.requests import NodeStatus

GATE_S = 120.0
"""How long a node may take to come back, and groups to be whole again, before the rest is left alone."""

POLL_S = 0.25

OnStep = Callable[[str, int, int, str], None]
"""Hears what is done, how many of how many nodes are over, and which node it is about."""


class Rolled(msgspec.Struct, frozen=True):
    """`order`: which nodes were down together, one list after the other."""

    restarted: list[str]
    order: list[list[str]]


def running_longer(cluster: Cluster, names: Sequence[str], age_ms: int, *, now_ms: int) -> list[str]:
    """Those of `names` whose agent was started more than `age_ms` ago, or does not answer."""
    statuses = cluster.statuses()
    found = []
    for name in names:
        status = statuses.get(name)
        if not isinstance(status, NodeStatus) or now_ms - status.started_ms > age_ms:
            found.append(name)
    return found


def rolling(
    cluster: Cluster,
    agents: Agents,
    names: Sequence[str],
    *,
    by: str,
    command: str,
    at_once: int = 1,
    between: Callable[[str], None] = lambda node: None,
    on_step: OnStep,
    gate_s: float = GATE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Rolled:
    """Restart `names`, at most `at_once` at the same time.

    Args:
        command: what the operator typed, to go on with.
        between: called for a node while it is down.

    Raises:
        RefusedProblem: the first node cannot be stopped safely; nothing was stopped.
        Partly: some were restarted, the rest were left alone.
    """
    left, order = list(names), list[list[str]]()
    drained = {n.node for n in cluster.meta().nodes if n.draining}
    while left:
        over, batch = len(names) - len(left), list[str]()
        try:
            batch = _gate(cluster, left, gate_s, clock, sleep)[:at_once]
            for node in batch:
                on_step("moving leaders off", over, len(names), node)
                set_draining(cluster, node, True, by)
            on_step("restarting", over, len(names), ", ".join(batch))
            agents.stop(batch)
            for node in batch:
                between(node)
            agents.start(batch)
            _wait_back(cluster, batch, gate_s, clock, sleep)
            for node in batch:
                if node not in drained:
                    set_draining(cluster, node, False, by)
        except (RefusedProblem, Partly, Unreachable, NodeAgentError) as error:
            still = _undrain(cluster, [n for n in batch if n not in drained], by)
            raise _stopped(error, names, left, command, still) from None
        order.append(batch)
        left = [n for n in left if n not in batch]
        on_step("restarted", len(names) - len(left), len(names), ", ".join(batch))
    return Rolled([n for batch in order for n in batch], order)


def _gate(
    cluster: Cluster,
    left: Sequence[str],
    gate_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[str]:
    """Those of `left` that may stop together; waits until there is one."""
    deadline = clock() + gate_s
    while True:
        found = ok_to_stop(cluster, left, now_ms=0)
        if found.may_stop:
            return found.may_stop
        if clock() >= deadline:
            first = found.lost[0]
            raise RefusedProblem(
                f"{left[0]} cannot stop: {first.group} would lose its quorum",
                why=first.why or f"{len(first.left)} of {first.needed} voters would be left",
                next="iotctl cluster status",
            )
        sleep(POLL_S)


def _wait_back(
    cluster: Cluster,
    batch: Sequence[str],
    gate_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    deadline = clock() + gate_s
    while True:
        statuses = cluster.statuses()
        away = [n for n in batch if not _serves(statuses.get(n))]
        if not away:
            return
        if clock() >= deadline:
            raise Unreachable(
                f"{away[0]} did not come back within {gate_s:g} s", next=f"iotctl cluster logs {away[0]}"
            )
        sleep(POLL_S)


def _serves(status: NodeStatus | NodeAgentError | None) -> bool:
    return (
        isinstance(status, NodeStatus)
        and bool(status.groups)
        and all(g.state == "running" for g in status.groups)
    )


def _undrain(cluster: Cluster, nodes: Sequence[str], by: str) -> list[str]:
    """Let them lead again, when they are back; those for which that could not be recorded."""
    still = []
    for node in nodes:
        try:
            set_draining(cluster, node, False, by)
        except NodeAgentError:
            still.append(node)
    return still


def _stopped(
    error: Exception, names: Sequence[str], left: Sequence[str], command: str, draining: Sequence[str]
) -> Exception:
    what = getattr(error, "what", str(error))
    why = getattr(error, "why", "")
    if len(left) == len(names) and isinstance(error, RefusedProblem):
        return RefusedProblem(f"{what}; nothing was stopped", why=why, next=error.next)
    over = [n for n in names if n not in left]
    steps = ["iotctl cluster status", *(f"iotctl cluster undrain {n}" for n in draining)]
    return Partly(
        f"{what}; {', '.join(over) or 'nothing'} restarted, {', '.join(left)} left alone"
        + (f"; {', '.join(draining)} still draining" if draining else ""),
        why=why,
        next=f"{', '.join(steps)}, then {command} {' '.join(left)}",
    )
