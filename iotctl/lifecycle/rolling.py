"""Rolling restart: restarts agents a few at a time while the cluster keeps serving.

Each batch passes the same gate as `ok-to-stop`: its nodes stop only if, according to the current
statuses of all nodes, every group keeps its quorum without them. If this is uncertain, no further node stops.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from iotctl.change.draining import set_draining
from iotctl.errors import BusyProblem, Partly, RefusedProblem, Unreachable
from iotctl.lifecycle.agents import Agents
from iotctl.observe.cluster import Cluster
from iotctl.observe.collect import Facts, collect
from iotctl.observe.events import audit_of
from iotctl.observe.stopping import OkToStop, decide, ok_to_stop
from iotctl.observe.timing import REAL_TIME, Timing
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.features import Feature
from nodeagent.model.ids import META
from nodeagent.model.requests import Accepted, Drain, NodeStatus

GATE_S = 120.0
"""How long a node may take to come back, and groups to recover, before the restart is aborted."""

STILL_S = 10.0
"""How long a new leader may take to hear its followers after a drain."""

POLL_S = 0.25

RESTART_SUFFIX = ", to restart it"
"""Suffix of the operator's name in the audit log. Below feature level `REASONS`, nothing else records that a
rolling restart drained the node."""

OnStep = Callable[[str, int, int, str], None]
"""Called with the step, how many of how many nodes are done, and the node concerned."""


class RestartReport(msgspec.Struct, frozen=True):
    """`order`: the batches of nodes that were down together. `draining`: the restarted nodes that were
    draining before and still are. `undrained`: the nodes that an earlier restart, which was killed, had left
    draining."""

    restarted: list[str]
    order: list[list[str]]
    draining: list[str] = []
    undrained: list[str] = []


class RestartPlan(msgspec.Struct, frozen=True):
    """A rolling restart as it would proceed now: `waves` stop one after the other; `blocked` nodes cannot
    stop, because of `why`."""

    waves: list[list[str]]
    blocked: list[str]
    why: str


def plan_waves(cluster: Cluster, names: Sequence[str], at_once: int) -> RestartPlan:
    """What `rolling` would do, by the same gate; nothing is stopped.

    Raises:
        Unreachable: no agent returned the list of groups.
    """
    facts = collect(cluster)
    if facts.view is None:
        raise Unreachable("no agent returned the list of groups", next="iotctl cluster status")
    known = {n.node for n in facts.view.nodes}
    waves = [[n] for n in names if n not in known]
    left = [n for n in names if n in known]
    while left and (batch := _next(facts, left, at_once)):
        waves.append(batch)
        left = [n for n in left if n not in batch]
    return RestartPlan(waves, left, _unsafe(decide(facts, left[:1], now_ms=0), left[0]).why if left else "")


def running_longer(cluster: Cluster, names: Sequence[str], age_ms: int) -> list[str]:
    """Those of `names` whose agent has run for longer than `age_ms` by its own clock, or does not answer."""
    statuses = cluster.statuses()
    found = []
    for name in names:
        status = statuses.get(name)
        if not isinstance(status, NodeStatus) or status.now_ms - status.started_ms > age_ms:
            found.append(name)
    return found


def left_draining(cluster: Cluster) -> list[str]:
    """Nodes that drain only because of a rolling restart. If the caller holds the lock, no restart is
    running: the restart that drained them was killed."""
    view = cluster.meta(strong=True)
    if view.level >= Feature.REASONS:
        return [n.node for n in view.nodes if n.for_restart]
    draining = [n.node for n in view.nodes if n.draining]
    last: dict[str, str] = {}
    for _, who, what in audit_of(cluster) if draining else ():
        verb, _, node = what.partition(" ")
        if verb in ("drain", "undrain"):
            last[node] = who
    return [n for n in draining if last.get(n, "").endswith(RESTART_SUFFIX)]


@dataclass(frozen=True, slots=True)
class RollRequest:
    """How to restart.

    `command`: the operator's command, shown as the way to continue. `at_once`: how many nodes may be down at
    the same time. `alone`: the caller holds the lock, so no other rolling restart runs. `gate_s`: see
    `GATE_S`.
    """

    by: str
    command: str
    at_once: int = 1
    alone: bool = False
    gate_s: float = GATE_S


def rolling(
    cluster: Cluster,
    agents: Agents,
    names: Sequence[str],
    request: RollRequest,
    *,
    on_step: OnStep,
    between: Callable[[str], None] = lambda node: None,
    check: Callable[[], int] = lambda: 0,
    timing: Timing = REAL_TIME,
) -> RestartReport:
    """Restart `names`, at most `at_once` at the same time. If `alone`, first undrain the nodes that a killed
    rolling restart left draining. Nodes that the cluster does not know hold no data and are restarted first.

    Args:
        between: called for a node while it is down.
        check: called before a node is drained or stopped; returns the lock's serial. Raises `RefusedProblem`
            if the restart must not continue.

    Raises:
        RefusedProblem: the first node cannot be stopped safely; nothing was stopped or left draining.
        BusyProblem: another command drains nodes; nothing was stopped or left draining.
        Partly: the restart ended early; the error names the nodes that were restarted, and those that may be
            down or are still draining.
    """
    return _Roll(cluster, agents, names, request, on_step, between, check, timing).run()


class _Roll:
    """One rolling restart."""

    def __init__(
        self,
        cluster: Cluster,
        agents: Agents,
        names: Sequence[str],
        request: RollRequest,
        on_step: OnStep,
        between: Callable[[str], None],
        check: Callable[[], int],
        timing: Timing,
    ) -> None:
        self._cluster = cluster
        self._agents = agents
        self._names = names
        self._request = request
        self._on_step = on_step
        self._between = between
        self._check = check
        self._timing = timing
        self._by = request.by + RESTART_SUFFIX
        self._drained: set[str] = set()
        """Nodes that were draining before this restart."""
        self._ours: list[str] = []
        """Nodes that drain because of this restart."""
        self._lock = 0
        self._down: list[str] = []
        """Nodes that were stopped and are not known to be back."""
        self._order: list[list[str]] = []
        """The batches that were restarted."""
        self._left: list[str] = []
        """The other nodes, which are still to be restarted."""

    def run(self) -> RestartReport:
        cluster, names = self._cluster, self._names
        undrained = left_draining(cluster) if self._request.alone else []
        for node in undrained:
            _let_lead(cluster, node, self._by, self._check())
        known = {n.node: n.draining for n in cluster.meta(strong=True).nodes}
        self._drained = {n for n, draining in known.items() if draining}
        outside = [n for n in names if n not in known]
        self._left = outside + [n for n in names if n in known]
        try:
            for node in outside:
                self._restart_outside(node)
            while self._left:
                self._restart_batch()
        except (RefusedProblem, BusyProblem, Partly, Unreachable, NodeAgentError) as error:
            raise self._ended(error, _undrain(cluster, self._ours, self._by, self._lock)) from None
        except BaseException:  # Ctrl-C: leave the cluster as it was
            _undrain(cluster, self._ours, self._by, self._lock)
            raise
        restarted = [n for batch in self._order for n in batch]
        return RestartReport(restarted, self._order, [n for n in restarted if n in self._drained], undrained)

    def _restart_outside(self, node: str) -> None:
        """Restart a node that the cluster does not know, if its agent runs."""
        self._check()
        self._down = [node]
        if self._agents.stop([node]):
            self._between(node)
            self._agents.start([node])
            self._order.append([node])
        self._left.remove(node)
        self._down = []

    def _restart_batch(self) -> None:
        """Drain, restart and undrain as many of the nodes left as may be down together."""
        cluster, over = self._cluster, len(self._names) - len(self._left)
        batch = self._gate(self._left)
        for node in batch:
            self._on_step("transferring leadership", over, len(self._names), node)
            self._lock = self._check()
            if node not in self._drained:
                self._ours.append(node)
            set_draining(cluster, node, True, self._by, lock=self._lock, for_restart=True)
        _check_alone(cluster, {*batch, *self._drained})
        self._wait_still(batch)
        self._check()
        self._on_step("restarting", over, len(self._names), ", ".join(batch))
        self._down = batch
        self._agents.stop(batch)
        for node in batch:
            self._between(node)
        self._agents.start(batch)
        self._wait_back(batch, 0)
        self._down = []
        self._order.append(batch)
        self._left = [n for n in self._left if n not in batch]
        index = 0
        while self._ours:
            index = _let_lead(cluster, self._ours[0], self._by, self._lock)
            del self._ours[0]
        # A node that has not applied its undrain yet reports that it is not ready.
        self._wait_back(batch, index)
        self._on_step("restarted", over + len(batch), len(self._names), ", ".join(batch))

    def _ended(self, error: Exception, draining: Sequence[str]) -> Exception:
        """`error`, with what the restart did before it; `draining` could not be undrained."""
        what, why = getattr(error, "what", str(error)), getattr(error, "why", "")
        over, left = [n for batch in self._order for n in batch], self._left
        if isinstance(error, RefusedProblem | BusyProblem) and not (over or self._down or draining):
            return type(error)(f"{what}; nothing was stopped", why=why, next=error.next)
        steps = ["iotctl cluster status", *(f"iotctl cluster undrain {n}" for n in draining)]
        return Partly(
            f"{what}; {', '.join(over) or 'nothing'} restarted"
            + (f", {', '.join(left)} not" if left else "")
            + (f"; {', '.join(self._down)} may be down" if self._down else "")
            + (f"; {', '.join(draining)} still draining" if draining else ""),
            why=why,
            next=", ".join(steps) + (f", then {self._request.command} {' '.join(left)}" if left else ""),
        )

    def _gate(self, left: Sequence[str]) -> list[str]:
        """At most `at_once` of `left` that may stop together; waits until there is at least one, and raises
        `RefusedProblem` if there is none after `gate_s`.

        `may_stop` ignores a group that has no quorum now, such as a group without a leader. Such a group
        may be about to recover, so no node stops until every group keeps its quorum.
        """
        deadline = self._timing.clock() + self._request.gate_s
        while True:
            if batch := _next(facts := collect(self._cluster), left, self._request.at_once):
                return batch
            if self._timing.clock() >= deadline:
                raise _unsafe(decide(facts, left[:1], now_ms=0), left[0])
            self._timing.sleep(POLL_S)

    def _wait_still(self, batch: Sequence[str]) -> None:
        """Wait until the new leaders have heard their followers after the drain; raises `RefusedProblem` if
        the batch still must not stop after `STILL_S`."""
        deadline = self._timing.clock() + STILL_S
        while not (found := ok_to_stop(self._cluster, batch, now_ms=0)).ok:
            if self._timing.clock() >= deadline:
                raise _unsafe(found, batch[0])
            self._timing.sleep(POLL_S)

    def _wait_back(self, batch: Sequence[str], heard: int) -> None:
        """Wait until all of `batch` serve and have applied the meta group's entry `heard`."""
        gate_s = self._request.gate_s
        deadline = self._timing.clock() + gate_s
        while True:
            statuses = self._cluster.statuses()
            waiting = [(n, why) for n in batch if (why := _not_back(statuses.get(n), heard))]
            if not waiting:
                return
            if self._timing.clock() >= deadline:
                node, why = waiting[0]
                raise Unreachable(f"{node} {why} within {gate_s:g} s", next=f"iotctl cluster logs {node}")
            self._timing.sleep(POLL_S)


def _next(facts: Facts, left: Sequence[str], at_once: int) -> list[str]:
    batch = decide(facts, left, now_ms=0).may_stop[:at_once]
    return batch if batch and decide(facts, batch, now_ms=0).ok else []


def _check_alone(cluster: Cluster, ours: Collection[str]) -> None:
    """Raises `BusyProblem` if another command drains a node too and may be about to stop it.

    Every rolling restart records its drains before it looks for other drains, so of two restarts, at least
    one sees the other.
    """
    others = [n.node for n in cluster.meta(strong=True).nodes if n.draining and n.node not in ours]
    if others:
        raise BusyProblem(
            f"another command began to drain {', '.join(others)}",
            why="another restart or upgrade seems to be in progress",
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


def _not_back(status: NodeStatus | NodeAgentError | None, heard: int) -> str:
    groups = status.groups if isinstance(status, NodeStatus) else ()
    if not groups or any(g.state != "running" for g in groups):
        return "did not come back"
    if any(g.group == META and g.applied < heard for g in groups):
        return "is back but did not apply the end of its drain"
    return ""


def _let_lead(cluster: Cluster, node: str, by: str, lock: int) -> int:
    """Undrain the node; returns the index of the meta group's entry that records it."""
    reply = cluster.call_meta(Drain(node, False, by, lock, for_restart=True))
    assert isinstance(reply, Accepted), reply
    return reply.index


def _undrain(cluster: Cluster, nodes: Sequence[str], by: str, lock: int) -> list[str]:
    """Undrain the nodes; returns those for which the meta group did not record this: all if the lock was
    lost, because another command may then need these nodes to drain."""
    still = []
    for node in nodes:
        try:
            _let_lead(cluster, node, by, lock)
        except NodeAgentError:
            still.append(node)
    return still
