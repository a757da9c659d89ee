"""The zones of cluster.yaml, as the cluster knows them: it spreads the voters of the meta group over them."""

import msgspec

from iotctl.errors import RefusedProblem
from iotctl.observe.cluster import Cluster
from iotctl.observe.zones import zone_text, zones_to_set
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.features import Feature
from nodeagent.model.requests import Accepted, MetaView, SetZones


class Zones(msgspec.Struct, frozen=True):
    """The zones that the cluster knows after `set-zones`, by node; "" if a node has none. `changed` are the
    nodes whose zone changed."""

    zones: dict[str, str]
    changed: list[str]


def would_set(cluster: Cluster, source: ClusterSource) -> list[str]:
    """What `set_zones` would change, one line per node. Raises as it does."""
    view = _view(cluster)
    present = {n.node: n.zone for n in view.nodes}
    return [
        f"set the zone of {node} from {zone_text(present[node])} to {zone_text(zone)}"
        for node, zone in zones_to_set(source, view).items()
    ]


def set_zones(cluster: Cluster, source: ClusterSource, by: str, *, lock: int = 0) -> Zones:
    """Set the zones of the cluster's nodes to those of cluster.yaml.

    Raises:
        RefusedProblem: the cluster's feature level is too low.
        NodeAgentError: the meta group refuses it (a node has just left, the lock was lost), or does not
            answer.
    """
    view = _view(cluster)
    changed = zones_to_set(source, view)
    if changed:
        reply = cluster.call_meta(SetZones(changed, by, lock))
        assert isinstance(reply, Accepted), reply
    return Zones({n.node: changed.get(n.node, n.zone) for n in view.nodes}, sorted(changed))


def _view(cluster: Cluster) -> MetaView:
    view = cluster.meta(strong=True)
    if view.level < Feature.ZONES:
        raise RefusedProblem(
            f"zones need feature level {Feature.ZONES}, the cluster is at {view.level}; nothing was changed",
            next="iotctl cluster finalize-upgrade",
        )
    return view
