"""Waits until a cluster is healthy."""

import time
from collections.abc import Callable

from iotctl.errors import Partly, Unreachable
from iotctl.fleet.local import LocalFleet
from iotctl.observe.cluster import Cluster
from iotctl.observe.model import ClusterStatus
from iotctl.observe.status import cluster_status
from iotctl.spec.cluster import ClusterSource

POLL_S = 0.25

NEXT = "next: "
"""Prefix of the line in which an agent that exits names the next command."""

OnStatus = Callable[[ClusterStatus], None]


def wait_healthy(
    cluster: Cluster,
    source: ClusterSource,
    *,
    on_status: OnStatus,
    timeout_s: float | None = None,
    fleet: LocalFleet | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ClusterStatus:
    """Poll until no problem is an error.

    Args:
        fleet: watched too, so that a local agent that exits is reported at once with the end of its log.

    Raises:
        Partly: the timeout expired first.
        Unreachable: a local agent has exited.
    """
    deadline = None if timeout_s is None else clock() + timeout_s
    while True:
        status = cluster_status(cluster, source, now_ms=int(time.time() * 1000))
        on_status(status)
        if status.healthy:
            return status
        if fleet is not None:
            check_alive(fleet)
        if deadline is not None and clock() >= deadline:
            first = next(p for p in status.problems if p.severity == "error")
            raise Partly("the cluster is not healthy yet", why=first.message, next=first.next)
        sleep(POLL_S)


def check_alive(fleet: LocalFleet) -> None:
    """Raises `Unreachable` for the first agent of the spec that is not running."""
    listed = fleet.source().node_names
    for node in fleet.nodes():
        if node.pid is None and node.name in listed:
            raise _ended(node.name, fleet)


def _ended(node: str, fleet: LocalFleet) -> Unreachable:
    """The error of an agent that exited: the end of its log, and the next command if the log names one."""
    *words, last = fleet.log_tail(node, 2).splitlines() or [""]
    log = f"see {fleet.directory / node / 'agent.log'}"
    if not last.startswith(NEXT):
        return Unreachable(
            f"the agent of {node} has exited", why=" | ".join(filter(None, [*words, last])), next=log
        )
    why = " | ".join(w.removeprefix("error: ") for w in words)
    return Unreachable(f"the agent of {node} has exited", why=why, next=f"{last.removeprefix(NEXT)} ({log})")
