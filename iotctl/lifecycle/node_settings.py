"""The `node.yaml` of every node, from cluster.yaml and the nodes' present files. Pure.

A cluster forms once: its first nodes keep the same list of seeds, and a node added later has `join`. An
existing `node.yaml` therefore keeps both, and new seeds are chosen only if no node has a `node.yaml`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
import yaml

from iotctl.errors import RefusedProblem
from iotctl.spec.cluster import ClusterSource, NodeEntry
from iotctl.spec.typed_yaml import BYTES_MAX
from nodeagent.model.config import ClusterSettings, Seed
from nodeagent.partition.ring import initial_ring

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The fast loader: a fleet has many of these files, and we wrote them ourselves."""


def is_new(existing: Mapping[str, str]) -> bool:
    """Whether no node belongs to a cluster yet."""
    return not any(existing.values())


def node_settings(
    source: ClusterSource, existing: Mapping[str, str], joining: Collection[str] = ()
) -> dict[str, str]:
    """The node.yaml that each node of `existing` should have; its present text if that is equivalent.

    Args:
        existing: the present node.yaml by node, "" without one.
        joining: nodes that join an existing cluster, even if one of its first nodes had the same name.

    Raises:
        RefusedProblem: a node belongs to another cluster, or to one with other create-once settings.
    """
    parsed = check_ours(source, existing)
    first = next((t["seeds"] for t in parsed.values() if not t.get("join")), None)
    members = [n for n in source.file.nodes if n.name in parsed]
    if parsed and first is None:  # the first nodes have all been replaced
        joining = [*joining, *(n for n in existing if n not in parsed)]
    seeds = _seeds(ring_order(source), source) if first is None else first
    entries = {n.name: n for n in source.file.nodes}
    found = {}
    for node, text in existing.items():
        if node in joining:
            others = _seeds((n for n in members if n.name != node), source)
            wanted = _wanted(source, entries[node], None, others, joins=True)
        else:
            _check_address(source, entries[node], parsed.get(node))
            wanted = _wanted(source, entries[node], parsed.get(node), seeds)
        present = parsed.get(node)
        same = present is not None and all(present.get(k) == v for k, v in wanted.items())
        kept = {k: v for k, v in (present or {}).items() if k not in wanted}
        found[node] = text if same else yaml.safe_dump({**wanted, **kept}, sort_keys=False)
    return found


def ring_order(source: ClusterSource) -> list[NodeEntry]:
    """The nodes of a new cluster in ring order: as listed, or reordered to separate zones."""
    from iotctl.plan.layout import spread_order  # the import takes as long as asking a machine

    entries = {n.name: n for n in source.file.nodes}
    order = spread_order(source.weights, source.zones, source.file.cluster.replicas)
    return [entries[n] for n in order]


def check_layout(source: ClusterSource) -> None:
    """Check that a new cluster's ring respects zones and weights.

    Raises:
        RefusedProblem: the ring violates one of them; the error names the group or node.
    """
    from iotctl.plan.layout import layout_violations

    nodes = ring_order(source)
    ring = initial_ring([n.name for n in nodes], [n.weight for n in nodes])
    for _, _, why in layout_violations(ring, source.zones, source.file.cluster.replicas):
        raise RefusedProblem(
            f"found no ring of these nodes that respects zones and weights: {why}; nothing was changed",
            next=f"correct the zones, weights or order in {source.path}, or add --accept-layout",
        )


def check_ours(source: ClusterSource, existing: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The parsed node.yaml of each node that has one.

    Raises:
        RefusedProblem: a node.yaml belongs to another cluster or another node.
    """
    parsed = {node: _read(node, text) for node, text in existing.items() if text}
    for node, settings in parsed.items():
        _check_same(source, node, settings)
    return parsed


def _wanted(
    source: ClusterSource,
    entry: NodeEntry,
    present: dict[str, Any] | None,
    seeds: list[dict[str, Any]],
    *,
    joins: bool = False,
) -> dict[str, Any]:
    if present is not None:
        seeds, join = present["seeds"], bool(present.get("join"))
    else:
        join = joins or entry.name not in {s["node"] for s in seeds}
        if join:  # only the first nodes need the zones, and an agent of an earlier release refuses them
            seeds = [{key: value for key, value in s.items() if key != "zone"} for s in seeds]
    return {
        "node": entry.name,
        "host": entry.host,
        "port": source.port_of(entry),
        "http_port": source.http_port_of(entry),
        "seeds": seeds,
        "cluster": msgspec.to_builtins(source.settings()),
        "join": join,
    }


def _seeds(nodes: Iterable[NodeEntry], source: ClusterSource) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(Seed(n.name, n.host, source.port_of(n), n.weight, n.zone)) for n in nodes]


def _check_address(source: ClusterSource, entry: NodeEntry, present: dict[str, Any] | None) -> None:
    if present is None:
        return
    there, listed = f"{present.get('host')}:{present.get('port')}", f"{entry.host}:{source.port_of(entry)}"
    if there != listed:
        raise RefusedProblem(
            f"{entry.name} has the address {there}, but {source.path.name} says {listed}; "
            "nothing was changed",
            why="a node's address cannot change: the other nodes know the node by it",
            next=f"write {there} into {source.path}, or: iotctl cluster replace-node {entry.name} NEW",
            where=entry.name,
        )


def _read(node: str, text: str) -> dict[str, Any]:
    if len(text) > BYTES_MAX:
        raise _unreadable(node, f"it is larger than {BYTES_MAX >> 20} MiB")
    try:
        found = yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise _unreadable(node, "it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise _unreadable(node, str(error).replace("\n", " ")) from None
    if not isinstance(found, dict) or not isinstance(found.get("seeds"), list):
        raise _unreadable(node, "the file has no list of seeds")
    return found


def _unreadable(node: str, why: str) -> RefusedProblem:
    return RefusedProblem(
        f"{node}: its node.yaml cannot be read; nothing was changed",
        why=why,
        next=f"repair the file on the machine of {node}, or move it away",
        where=node,
    )


def _check_same(source: ClusterSource, node: str, settings: dict[str, Any]) -> None:
    if settings.get("node") != node:
        raise RefusedProblem(
            f"the directory of {node} belongs to {settings.get('node')}; nothing was changed",
            next=f"correct host or data_dir in {source.path}",
            where=node,
        )
    wanted = source.settings()
    try:
        present = msgspec.convert(settings.get("cluster"), ClusterSettings)
    except msgspec.ValidationError as error:
        raise _unreadable(node, str(error)) from None
    if present.name != wanted.name:
        raise RefusedProblem(
            f"{node} belongs to cluster {present.name!r}, but {source.path.name} says {wanted.name!r};"
            " nothing was changed",
            next=f"correct host or data_dir in {source.path}",
            where=node,
        )
    differ = [
        f"{k} is {getattr(present, k)} in the cluster, {getattr(wanted, k)} in the file"
        for k in ClusterSettings.__struct_fields__
        if getattr(present, k) != getattr(wanted, k)
    ]
    if differ:
        raise RefusedProblem(
            f"{source.path.name} changes settings that are fixed when a cluster is created: "
            f"{'; '.join(differ)}; nothing was changed",
            next=f"write the cluster's values into {source.path}",
            where=node,
        )
