"""The cluster's feature level, and raising it when an upgrade is over (`nodeagent.model.features`)."""

import msgspec

from iotctl.errors import RefusedProblem
from iotctl.execute.cluster import Cluster
from iotctl.execute.status import DEAD, ClusterStatus
from nodeagent.model.requests import Accepted, RaiseLevel


class FeatureLevel(msgspec.Struct, frozen=True):
    """`possible` is the highest level that every node speaks. `nodes`: the highest of each; null if it does
    not answer."""

    level: int
    possible: int
    nodes: dict[str, int | None]


def feature_level(status: ClusterStatus) -> FeatureLevel:
    """Raises `RefusedProblem` when some nodes could go further and others cannot, or do not answer."""
    nodes = {n.id: n.feature_level for n in status.nodes if n.state != DEAD}
    found = FeatureLevel(status.feature_level, status.feature_level_possible, nodes)
    highest = max((level for level in found.nodes.values() if level is not None), default=0)
    if highest <= found.possible:
        return found
    silent = [n for n, level in found.nodes.items() if level is None]
    behind = [n for n, level in found.nodes.items() if level is not None and level < highest]
    if silent:
        raise RefusedProblem(
            f"the feature level stays at {found.level}: {', '.join(silent)} cannot be asked",
            why="a node that is down may be of the release before",
            next="iotctl cluster status",
        )
    raise RefusedProblem(
        f"the feature level stays at {found.level}: {', '.join(behind)} cannot go to {highest}",
        why="these nodes run an earlier release",
        next=f"iotctl cluster upgrade {' '.join(behind)}",
    )


def raise_level(cluster: Cluster, level: int, by: str, *, lock: int = 0) -> None:
    """Raises `NodeAgentError`: refused, or the meta group does not answer."""
    reply = cluster.call_meta(RaiseLevel(level, by, lock))
    assert isinstance(reply, Accepted), reply
