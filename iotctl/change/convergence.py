"""Plans that bring the cluster to the state that cluster.yaml describes."""

from collections.abc import Iterator

import msgspec

from iotctl.observe.cluster import Cluster
from iotctl.observe.facts import plan_facts
from iotctl.observe.problems import SET_ZONES
from iotctl.observe.zones import zone_text, zones_to_set
from iotctl.plan.make import make_spec
from iotctl.plan.model import Difference, Plan
from iotctl.spec.cluster import ClusterSection, ClusterSource
from nodeagent.model.features import Feature
from nodeagent.model.requests import MetaView


def spec_plan(
    cluster: Cluster, source: ClusterSource, *, allow_remove: bool, accept_layout: bool = False
) -> tuple[Plan, list[str]]:
    """The plan that makes the cluster match cluster.yaml.

    Returns: the plan, and the nodes it does not remove although the file does not list them.

    Raises:
        Unreachable: no agent returned the partition table.
    """
    facts, view = plan_facts(cluster, source)
    added = [n for n in source.node_names if n not in view.ring]
    removed = [n for n in view.ring if n not in source.node_names]
    plan = make_spec(facts, added, removed if allow_remove else (), accept_layout=accept_layout)
    differ = tuple(differences(source, view))
    return msgspec.structs.replace(plan, from_spec=True, differences=differ), [] if allow_remove else removed


def differences(source: ClusterSource, view: MetaView) -> Iterator[Difference]:
    """Settings that differ from cluster.yaml but were fixed when the cluster or the node was created."""
    wanted, section = source.settings(), ClusterSection.__struct_fields__
    for key in wanted.__struct_fields__:
        present, listed = getattr(view.settings, key), getattr(wanted, key)
        name = key.removesuffix("_ms")
        if present != listed and name in section:
            unit = "ms" if name != key else ""
            then = f"write {name}: {present}{unit} into the file"
            yield Difference("", name, f"{present}{unit}", f"{listed}{unit}", then)
    records = {n.node: n for n in view.nodes}
    for node in source.file.nodes:
        record = records.get(node.name)
        if record is None or node.name not in view.ring:
            continue
        there, listed = f"{record.host}:{record.port}", f"{node.host}:{source.port_of(node)}"
        if there != listed:
            then = f"write {there} into the file, or: iotctl cluster replace-node {node.name} NEW"
            yield Difference(node.name, "address", there, listed, then)
        if record.weight != node.weight:
            then = f"write weight {record.weight:g} into the file, or remove {node.name} and add it again"
            yield Difference(node.name, "weight", f"{record.weight:g}", f"{node.weight:g}", then)
    for name, zone in zones_to_set(source, view).items() if view.level >= Feature.ZONES else ():
        yield Difference(name, "zone", zone_text(records[name].zone), zone_text(zone), SET_ZONES)
