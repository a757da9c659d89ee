"""The zones of cluster.yaml, compared with those that the cluster knows."""

from iotctl.spec.cluster import ClusterSource
from nodeagent.model.requests import MetaView


def zones_to_set(source: ClusterSource, view: MetaView) -> dict[str, str]:
    """The nodes whose zone in cluster.yaml is not the one that the cluster knows, each with its zone in the
    file. A node that the file does not list keeps its zone."""
    listed = {n.name: n.zone for n in source.file.nodes}
    return {n.node: listed[n.node] for n in view.nodes if listed.get(n.node, n.zone) != n.zone}


def zone_text(zone: str) -> str:
    return f"'{zone}'" if zone else "none"
