"""Keep a node from leading groups, before work on it; its slots stay where they are."""

import time
from collections.abc import Callable

import msgspec

from iotctl.errors import Partly
from iotctl.observe.cluster import STATUS_TIMEOUT_S, Cluster
from nodeagent.model.errors import NotFound
from nodeagent.model.requests import Drain, NodeStatus

POLL_S = 0.2
WAIT_S = 15.0
"""Leadership moves within a second where another voter is caught up."""


class Drained(msgspec.Struct, frozen=True):
    """`leads` are the groups the node still leads; None when it does not answer."""

    node: str
    draining: bool
    leads: list[str] | None


def set_draining(
    cluster: Cluster,
    node: str,
    draining: bool,
    by: str,
    *,
    lock: int = 0,
    for_restart: bool = False,
    timeout_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Drained:
    """Record it in the meta group; a drain then waits until the node leads nothing.

    Args:
        lock: serial of the cluster's lock that the caller works under.
        for_restart: as in `NodeRecord`.

    Raises:
        NodeAgentError: no such node, the meta group does not answer, or the lock is lost.
        Partly: the node still leads groups at the end of the time.
    """
    cluster.call_meta(Drain(node, draining, by, lock, for_restart))
    deadline = clock() + (WAIT_S if timeout_s is None else timeout_s)
    while True:
        leads = _led_by(cluster, node)
        if not draining or not leads:
            return Drained(node, draining, leads)
        if clock() >= deadline:
            raise Partly(
                f"{node} is draining and still leads {', '.join(leads)}",
                why="no other voter of these groups is up, caught up and not draining itself",
                next="iotctl cluster status",
            )
        sleep(POLL_S)


def would_drain(cluster: Cluster, node: str, draining: bool) -> list[str]:
    """What `set_draining` would change, one line each.

    Raises:
        NodeAgentError: no such node, or the meta group does not answer.
    """
    record = next((n for n in cluster.meta(strong=True).nodes if n.node == node), None)
    if record is None:
        raise NotFound(f"no node {node} in the cluster", next_step="iotctl cluster nodes")
    if record.draining == draining:
        return []
    if not draining:
        return [f"let {node} lead again"]
    leads = _led_by(cluster, node)
    return [f"keep {node} from leading", *([f"hand over {', '.join(leads)}"] if leads else [])]


def _led_by(cluster: Cluster, node: str) -> list[str] | None:
    status = cluster.statuses(STATUS_TIMEOUT_S).get(node)
    if not isinstance(status, NodeStatus):
        return None
    return sorted(g.group for g in status.groups if g.role == "leader")
