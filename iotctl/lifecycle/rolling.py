"""Restart agents a few at a time, so that the cluster serves all the while.

Between nodes the same gate as `ok-to-stop`: the next ones stop only while every group keeps its quorum
without them, by what the nodes themselves say now. It fails closed: at the first doubt nothing more stops.
"""

import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from iotctl.change.draining import set_draining
from iotctl.errors import BusyProblem, Partly, RefusedProblem, Unreachable
from iotctl.lifecycle.agents import Agents
from iotctl.observe.cluster import Cluster
from iotctl.observe.collect import Facts, collect
from iotctl.observe.events import audit_of
from iotctl.observe.stopping import OkToStop, decide, ok_to_stop
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.features import Feature
from nodeagent.model.ids import META
from nodeagent.model.requests import Accepted, Drain, NodeStatus

GATE_S = 120.0
"""How long a node may take to come back, and groups to be whole again, before the rest is left alone."""

STILL_S = 10.0
"""How long whoever leads after a drain may take to hear its followers."""

POLL_S = 0.25

BY_A_ROLL = ", to restart it"
"""Follows the operator's name in the audit: before `Feature.REASONS` nothing else says why a node drains."""

OnStep = Callable[[str, int, int, str], None]
"""Hears what is done, how many of how many nodes are over, and which node it is about."""


class Rolled(msgspec.Struct, frozen=True):
    """`order`: which nodes were down together, one list after the other. `draining`: those that were draining
    before, and still are. `undrained`: those that a roll which was killed had left draining."""

    restarted: list[str]
    order: list[list[str]]
    draining: list[str] = []
    undrained: list[str] = []


class Waves(msgspec.Struct, frozen=True):
    """A roll as it would go while the cluster stays as it is: `waves` stop one after the other, `blocked` not
    at all, for `why`."""

    waves: list[list[str]]
    blocked: list[str]
    why: str


def plan_waves(cluster: Cluster, names: Sequence[str], at_once: int) -> Waves:
    """What `rolling` would do, by the same gate; nothing is stopped.

    Raises:
        Unreachable: no agent tells which groups there are.
    """
    facts = collect(cluster)
    if facts.view is None:
        raise Unreachable("no agent tells which groups there are", next="iotctl cluster status")
    known = {n.node for n in facts.view.nodes}
    waves = [[n] for n in names if n not in known]
    left = [n for n in names if n in known]
    while left and (batch := _next(facts, left, at_once)):
        waves.append(batch)
        left = [n for n in left if n not in batch]
    return Waves(waves, left, _unsafe(decide(facts, left[:1], now_ms=0), left[0]).why if left else "")


def running_longer(cluster: Cluster, names: Sequence[str], age_ms: int) -> list[str]:
    """Those of `names` whose agent runs for more than `age_ms` by its own clock, or does not answer."""
    statuses = cluster.statuses()
    found = []
    for name in names:
        status = statuses.get(name)
        if not isinstance(status, NodeStatus) or status.now_ms - status.started_ms > age_ms:
            found.append(name)
    return found


def left_draining(cluster: Cluster) -> list[str]:
    """Nodes that only a roll wanted to drain; who holds the lock knows that it was killed."""
    view = cluster.meta(strong=True)
    if view.level >= Feature.REASONS:
        return [n.node for n in view.nodes if n.for_restart]
    draining = [n.node for n in view.nodes if n.draining]
    last: dict[str, str] = {}
    for _, who, what in audit_of(cluster) if draining else ():
        verb, _, node = what.partition(" ")
        if verb in ("drain", "undrain"):
            last[node] = who
    return [n for n in draining if last.get(n, "").endswith(BY_A_ROLL)]


def rolling(
    cluster: Cluster,
    agents: Agents,
    names: Sequence[str],
    *,
    by: str,
    command: str,
    at_once: int = 1,
    alone: bool = False,
    between: Callable[[str], None] = lambda node: None,
    check: Callable[[], int] = lambda: 0,
    on_step: OnStep,
    gate_s: float = GATE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Rolled:
    """Restart `names`, at most `at_once` at the same time; those the cluster does not know hold nothing, and
    come first. Before that, what a killed roll left draining may lead again.

    Args:
        alone: the caller holds the lock, so that no other roll lives.
        command: what the operator typed, to go on with.
        between: called for a node while it is down.
        check: called before anything is drained or stopped; the lock's serial. Raises `RefusedProblem` when
            we must not go on.

    Raises:
        RefusedProblem: the first node cannot be stopped safely; nothing was stopped.
        Partly: some were restarted, the rest were left alone.
    """
    by += BY_A_ROLL
    undrained = left_draining(cluster) if alone else []
    for node in undrained:
        _let_lead(cluster, node, by, check())
    known = {n.node: n.draining for n in cluster.meta(strong=True).nodes}
    drained = {n for n, draining in known.items() if draining}
    order = []
    for node in names:
        if node not in known and agents.stop([node]):
            between(node)
            agents.start([node])
            order.append([node])
    left = [n for n in names if n in known]
    while left:
        over, ours, lock = len(names) - len(left), list[str](), 0
        try:
            batch = _gate(cluster, left, at_once, gate_s, clock, sleep)
            for node in batch:
                on_step("moving leaders off", over, len(names), node)
                lock = check()
                if node not in drained:
                    ours.append(node)
                set_draining(cluster, node, True, by, lock=lock, for_restart=True)
            _check_alone(cluster, {*batch, *drained})
            _wait_still(cluster, batch, clock, sleep)
            check()
            on_step("restarting", over, len(names), ", ".join(batch))
            agents.stop(batch)
            for node in batch:
                between(node)
            agents.start(batch)
            _wait_back(cluster, batch, 0, gate_s, clock, sleep)
            left = [n for n in left if n not in batch]
            index = 0
            while ours:
                index = _let_lead(cluster, ours[0], by, lock)
                del ours[0]
            # Until it has heard of that it is not ready, for whoever asks it.
            _wait_back(cluster, batch, index, gate_s, clock, sleep)
        except (RefusedProblem, BusyProblem, Partly, Unreachable, NodeAgentError) as error:
            still = _undrain(cluster, ours, by, lock)
            raise _stopped(error, names, left, command, still) from None
        except BaseException:  # Ctrl-C: the next try must find the cluster as this one did
            _undrain(cluster, ours, by, lock)
            raise
        order.append(batch)
        on_step("restarted", len(names) - len(left), len(names), ", ".join(batch))
    restarted = [n for batch in order for n in batch]
    return Rolled(restarted, order, [n for n in restarted if n in drained], undrained)


def _gate(
    cluster: Cluster,
    left: Sequence[str],
    at_once: int,
    gate_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[str]:
    """At most `at_once` of `left` that may stop together; waits until there is one.

    A group without a leader has nothing to lose by `may_stop`; it may be about to have one again, so nobody
    stops until every group keeps its quorum.
    """
    deadline = clock() + gate_s
    while True:
        if batch := _next(facts := collect(cluster), left, at_once):
            return batch
        if clock() >= deadline:
            raise _unsafe(decide(facts, left[:1], now_ms=0), left[0])
        sleep(POLL_S)


def _next(facts: Facts, left: Sequence[str], at_once: int) -> list[str]:
    batch = decide(facts, left, now_ms=0).may_stop[:at_once]
    return batch if batch and decide(facts, batch, now_ms=0).ok else []


def _wait_still(
    cluster: Cluster,
    batch: Sequence[str],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Draining takes its time, and whoever leads now has yet to hear its followers: raises `RefusedProblem`
    when the batch may not stop any more."""
    deadline = clock() + STILL_S
    while not (found := ok_to_stop(cluster, batch, now_ms=0)).ok:
        if clock() >= deadline:
            raise _unsafe(found, batch[0])
        sleep(POLL_S)


def _check_alone(cluster: Cluster, ours: Collection[str]) -> None:
    """Raises `BusyProblem` when somebody else drains a node too, and may be about to stop it.

    Every roll records its drains before it looks for those of others, so of two at least one sees the other.
    """
    others = [n.node for n in cluster.meta(strong=True).nodes if n.draining and n.node not in ours]
    if others:
        raise BusyProblem(
            f"{', '.join(others)} began to drain meanwhile",
            why="another restart or upgrade seems to be going on",
            next="iotctl cluster status",
        )


def _unsafe(found: OkToStop, node: str) -> RefusedProblem:
    if not found.lost:
        return RefusedProblem(f"{node} cannot stop yet", next="iotctl cluster status")
    first = found.lost[0]
    return RefusedProblem(
        f"{node} cannot stop: {first.group} would lose its quorum",
        why=first.why or f"{len(first.left)} of {first.needed} voters would be left",
        next="iotctl cluster status",
    )


def _wait_back(
    cluster: Cluster,
    batch: Sequence[str],
    heard: int,
    gate_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Until all of `batch` serve, and have applied the meta group's entry `heard`."""
    deadline = clock() + gate_s
    while True:
        statuses = cluster.statuses()
        waiting = [(n, why) for n in batch if (why := _away(statuses.get(n), heard))]
        if not waiting:
            return
        if clock() >= deadline:
            node, why = waiting[0]
            raise Unreachable(f"{node} {why} within {gate_s:g} s", next=f"iotctl cluster logs {node}")
        sleep(POLL_S)


def _away(status: NodeStatus | NodeAgentError | None, heard: int) -> str:
    groups = status.groups if isinstance(status, NodeStatus) else ()
    if not groups or any(g.state != "running" for g in groups):
        return "did not come back"
    if any(g.group == META and g.applied < heard for g in groups):
        return "is back and did not hear that it may lead again"
    return ""


def _let_lead(cluster: Cluster, node: str, by: str, lock: int) -> int:
    """Index of the entry of the meta group that says so."""
    reply = cluster.call_meta(Drain(node, False, by, lock, for_restart=True))
    assert isinstance(reply, Accepted), reply
    return reply.index


def _undrain(cluster: Cluster, nodes: Sequence[str], by: str, lock: int) -> list[str]:
    """Let them lead again, when they are back; those for which that could not be recorded. Once the lock is
    lost that is all of them: another program may want them to drain by now."""
    still = []
    for node in nodes:
        try:
            _let_lead(cluster, node, by, lock)
        except NodeAgentError:
            still.append(node)
    return still


def _stopped(
    error: Exception, names: Sequence[str], left: Sequence[str], command: str, draining: Sequence[str]
) -> Exception:
    what = getattr(error, "what", str(error))
    why = getattr(error, "why", "")
    if len(left) == len(names) and isinstance(error, RefusedProblem | BusyProblem):
        return type(error)(f"{what}; nothing was stopped", why=why, next=error.next)
    over = [n for n in names if n not in left]
    steps = ["iotctl cluster status", *(f"iotctl cluster undrain {n}" for n in draining)]
    return Partly(
        f"{what}; {', '.join(over) or 'nothing'} restarted"
        + (f", {', '.join(left)} not" if left else "")
        + (f"; {', '.join(draining)} still draining" if draining else ""),
        why=why,
        next=", ".join(steps) + (f", then {command} {' '.join(left)}" if left else ""),
    )
