"""Preconditions of a plan that can be checked before the cluster is asked to change."""

from collections.abc import Iterator, Sequence

from iotctl.plan.facts import ClusterFacts
from iotctl.plan.layout import layout_violations
from iotctl.plan.model import NodePeak, Refusal
from nodeagent.model.errors import InvalidName
from nodeagent.model.ids import NodeId, check_node_id
from nodeagent.partition.change import Change
from nodeagent.partition.ring import Ring

LAYOUT_NEXT = {
    "zones": "change the same number of nodes in every zone in one plan, or add --accept-layout",
    "weights": "choose weights that differ less, or add --accept-layout",
}


def check_add(facts: ClusterFacts, nodes: Sequence[NodeId], after: NodeId | None) -> tuple[Refusal, ...]:
    out = list(_names(nodes))
    for node in nodes:
        if node in facts.table.ring:
            out.append(
                Refusal("node_exists", node, f"node {node} is already in the cluster", "iotctl cluster nodes")
            )
        try:
            check_node_id(node)
        except InvalidName as error:
            out.append(Refusal("invalid_name", node, error.what, error.next_step))
        if not 0 < facts.weights.get(node, 1.0) < float("inf"):
            out.append(Refusal("invalid_weight", node, "a weight is a number above 0", "edit cluster.yaml"))
    if after is not None and after not in facts.table.ring:
        out.append(_unknown(after))
    return tuple(out)


def check_remove(facts: ClusterFacts, nodes: Sequence[NodeId], added: int = 0) -> tuple[Refusal, ...]:
    """`added`: how many nodes the same plan adds."""
    out = list(_names(nodes))
    out += [_unknown(n) for n in nodes if n not in facts.table.ring]
    left = len(facts.table.ring) + added - len(nodes)
    if not out and left < max(facts.replicas, 1):
        reason = f"{left} nodes would remain, fewer than the {facts.replicas} replicas"
        down = next((n for n in nodes if not facts.node(n).live), None)
        help = "add-node NODE" if down is None else f"replace-node {down} NEW --dead"
        out.append(Refusal("cluster_too_small", nodes[-1], reason, f"iotctl cluster {help}"))
    return tuple(out)


def check_replace(facts: ClusterFacts, old: NodeId, new: NodeId) -> tuple[Refusal, ...]:
    if new == old:
        return check_remove(facts, [old])
    unknown = () if old in facts.table.ring else (_unknown(old),)
    return (*unknown, *check_add(facts, [new], None))


def check_quorums(facts: ClusterFacts, changes: Sequence[Change]) -> Iterator[Refusal]:
    """Every group that loses or gains slots or changes members needs a live majority of its members."""
    affected: dict[NodeId, tuple[NodeId, ...]] = {}
    for change in changes:
        moving = [h for m in change.moves for h in (m.source, m.target)]
        for owner in moving + [g.group for g in change.members]:
            if owner in facts.table.ring:
                affected[owner] = facts.members_of(owner)
    for owner, members in affected.items():
        live = [n for n in members if facts.node(n).live]
        if len(live) <= len(members) // 2:
            down = [n for n in members if n not in live]
            names = ", ".join(down)
            reason = f"group {owner} has {len(live)} of {len(members)} members live (down: {names})"
            recover = f"if permanently lost: iotctl cluster recover {' '.join(down)}"
            yield Refusal(
                "no_quorum", owner, reason, f"{facts.start or f'start the agents of {names}'}; {recover}"
            )


def check_new_nodes(facts: ClusterFacts, nodes: Sequence[NodeId]) -> Iterator[Refusal]:
    for node in nodes:
        if not facts.node(node).live:
            yield Refusal("unreachable", node, f"node {node} does not answer", f"start the agent of {node}")


def check_disks(peaks: Sequence[NodePeak]) -> Iterator[Refusal]:
    for peak in peaks:
        if peak.free_bytes is not None and peak.extra_bytes > peak.free_bytes:
            reason = f"node {peak.node} needs {peak.extra_bytes} more bytes but has {peak.free_bytes} free"
            yield Refusal(
                "disk_full", peak.node, reason, "free or add disk space, or plan fewer nodes at once"
            )


def check_layout(facts: ClusterFacts, final: Ring) -> Iterator[Refusal]:
    """At most two refusals: for more zone overlaps, or a higher overload, than in the current ring."""
    today = facts.table.ring
    if final != today:
        for code, subject, why in layout_violations(final, facts.zones, facts.replicas, today):
            yield Refusal(code, subject, why, LAYOUT_NEXT[code])


def _names(nodes: Sequence[NodeId]) -> Iterator[Refusal]:
    if not nodes:
        yield Refusal("no_node", "", "no node is named", "name at least one node")
    for node in sorted({n for n in nodes if nodes.count(n) > 1}):
        yield Refusal("named_twice", node, f"node {node} is named twice", "name each node once")


def _unknown(node: NodeId) -> Refusal:
    return Refusal("unknown_node", node, f"node {node} is not in the cluster", "iotctl cluster nodes")
