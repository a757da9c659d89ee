"""The cluster's feature level, and raising it after an upgrade (`nodeagent.model.features`)."""

import time
from collections.abc import Callable

import msgspec

from iotctl.errors import Partly, RefusedProblem
from iotctl.observe.cluster import Cluster
from iotctl.observe.model import DEAD, ClusterStatus
from nodeagent.model.requests import Accepted, NodeStatus, RaiseLevel

POLL_S = 0.2
WAIT_S = 30


class FeatureLevel(msgspec.Struct, frozen=True):
    """`possible` is the highest level that every node supports. `nodes`: the highest level of each node; null
    if it does not answer."""

    level: int
    possible: int
    nodes: dict[str, int | None]


def feature_level(status: ClusterStatus) -> FeatureLevel:
    """Raises `RefusedProblem` if some nodes support a higher level, but others do not or do not answer."""
    nodes = {n.id: n.feature_level for n in status.nodes if n.state != DEAD}
    found = FeatureLevel(status.feature_level, status.feature_level_possible, nodes)
    highest = max((level for level in found.nodes.values() if level is not None), default=0)
    if highest <= found.possible:
        return found
    silent = [n for n, level in found.nodes.items() if level is None]
    behind = [n for n, level in found.nodes.items() if level is not None and level < highest]
    if silent:
        raise RefusedProblem(
            f"the feature level stays at {found.level}: {', '.join(silent)} did not answer",
            why="a node that is down may still have the earlier release",
            next="iotctl cluster status",
        )
    raise RefusedProblem(
        f"the feature level stays at {found.level}: {highest} is not supported by {', '.join(behind)}",
        why="these nodes run an earlier release",
        next=f"iotctl cluster upgrade {' '.join(behind)}",
    )


def raise_level(cluster: Cluster, level: int, by: str, *, lock: int = 0) -> None:
    """Raises `NodeAgentError` if the meta group refuses the level or does not answer."""
    reply = cluster.call_meta(RaiseLevel(level, by, lock))
    assert isinstance(reply, Accepted), reply


def await_level(
    cluster: Cluster,
    level: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until every node that answers has applied the feature level `level`.

    Raises:
        Partly: some nodes have not applied it within `WAIT_S`.
    """
    deadline = clock() + WAIT_S
    while late := behind(cluster, level):
        if clock() >= deadline:
            raise Partly(
                f"the feature level is {level}, but {', '.join(late)} did not apply it within {WAIT_S} s",
                why="another release must not be installed on these nodes before they have applied it",
                next="iotctl cluster finalize-upgrade",
            )
        sleep(POLL_S)


def behind(cluster: Cluster, level: int) -> list[str]:
    """Nodes that answer but have not applied the feature level `level`."""
    found = cluster.statuses()
    return sorted(n for n, s in found.items() if isinstance(s, NodeStatus) and s.level < level)
