"""Drain a node before work on it: it leads no group; its slots stay where they are."""

import msgspec

from iotctl.errors import Partly
from iotctl.observe.cluster import STATUS_TIMEOUT_S, Cluster
from iotctl.observe.timing import REAL_TIME, Timing
from nodeagent.model.errors import NotFound
from nodeagent.model.requests import Drain, NodeStatus

POLL_S = 0.2
WAIT_S = 15.0
"""Leadership transfers within a second if another voter is caught up."""


class Drained(msgspec.Struct, frozen=True):
    """`leads` are the groups the node still leads; None if the node does not answer."""

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
    timing: Timing = REAL_TIME,
) -> Drained:
    """Record the drain or its end in the meta group; a drain then waits until the node leads no group.

    Args:
        lock: serial of the cluster lock that the caller holds.
        for_restart: as in `NodeRecord`.

    Raises:
        NodeAgentError: there is no such node, the meta group does not answer, or the lock was lost.
        Partly: the node still leads groups when the timeout expires.
    """
    cluster.call_meta(Drain(node, draining, by, lock, for_restart))
    deadline = timing.clock() + (WAIT_S if timeout_s is None else timeout_s)
    while True:
        leads = _led_by(cluster, node)
        if not draining or not leads:
            return Drained(node, draining, leads)
        if timing.clock() >= deadline:
            raise Partly(
                f"{node} is draining but still leads {', '.join(leads)}",
                why="no leadership transfer completed in time: each group needs another voter that is up, "
                "caught up, and neither draining nor leaving",
                next="iotctl cluster status",
            )
        timing.sleep(POLL_S)


def would_drain(cluster: Cluster, node: str, draining: bool) -> list[str]:
    """The changes that `set_draining` would make, one line each.

    Raises:
        NodeAgentError: there is no such node, or the meta group does not answer.
    """
    record = next((n for n in cluster.meta(strong=True).nodes if n.node == node), None)
    if record is None:
        raise NotFound(f"no node {node} in the cluster", next_step="iotctl cluster nodes")
    if record.draining == draining:
        return []
    if not draining:
        return [f"allow {node} to lead groups"]
    leads = _led_by(cluster, node)
    transfer = [f"transfer the leadership of {', '.join(leads)}"] if leads else []
    return [f"prevent {node} from leading groups", *transfer]


def _led_by(cluster: Cluster, node: str) -> list[str] | None:
    status = cluster.statuses(STATUS_TIMEOUT_S).get(node)
    if not isinstance(status, NodeStatus):
        return None
    return sorted(g.group for g in status.groups if g.role == "leader")
