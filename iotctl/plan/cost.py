"""Costs of a plan: what it moves, how long that takes, and how balanced the nodes are afterwards. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from iotctl.plan.facts import ClusterFacts
from iotctl.plan.model import HotSlot, NodeLoad, NodePeak, Summary
from nodeagent.model.ids import NodeId
from nodeagent.partition.balance import ByteArray, lower_bound_slots, spread
from nodeagent.partition.change import Change
from nodeagent.partition.cost import CopyCost, bytes_array, free_bytes, node_bytes, placement_bytes
from nodeagent.partition.loads import LoadArray
from nodeagent.partition.ranges import to_slots
from nodeagent.partition.ring import Ring
from nodeagent.partition.table import PartitionTable

HOT_SHARE = 0.2
"""A slot with a larger share of its group's bytes or writes is listed as hot."""

HOT_SLOTS_MAX = 20

HOT_ADVICE = (
    "a slot cannot be split: write its devices to several storage groups; a new cluster can have more shards"
)


MILLI = 1000
"""The planner counts write rates in thousandths of a byte per second, as whole numbers."""


def loads_of(facts: ClusterFacts, strategy: str) -> LoadArray:
    """Per slot, the load that `strategy` balances."""
    if strategy == "slots":
        return np.ones(facts.table.slots, np.int64)
    if strategy == "bytes":
        return bytes_array(facts.slot_bytes, facts.table.slots)
    assert strategy == "write-rate", strategy
    return bytes_array({s: round(r * MILLI) for s, r in facts.write_rates.items()}, facts.table.slots)


def pullers(cost: CopyCost) -> tuple[NodeId, ...]:
    return tuple(
        sorted({n for pulled in (cost.hand_over, cost.catch_up) for n, size in pulled.items() if size})
    )


def seconds_of(size: int, rate_bytes_per_s: int) -> int:
    """The duration of the copy in seconds, rounded up."""
    return -(-size // max(1, rate_bytes_per_s))


def summary_of(
    facts: ClusterFacts, changes: Sequence[Change], costs: Sequence[CopyCost], sizes: ByteArray
) -> Summary:
    table, replicas = facts.table, facts.replicas
    final = changes[-1].new if changes else table
    copied = sum(c.total for c in costs)
    moved = [s for change in changes for m in change.moves for s in to_slots(m.slots)]
    before, after = node_bytes(table, replicas, sizes), node_bytes(final, replicas, sizes)
    bound = placement_bytes(table, final, replicas, sizes)
    return Summary(
        slots_moved=len(moved),
        lower_bound_slots=_bound_slots(table, final.ring) if changes else 0,
        bytes_copied=copied,
        lower_bound_bytes=bound,
        gap=round(copied / bound - 1, 4) if bound else None,
        copying_at_once_max=max((len(pullers(c)) for c in costs), default=0),
        free_placement_bytes=free_bytes(table, final, replicas, sizes),
        max_minus_min_before=spread(list(table.counts().values()), table.ring.weights),
        max_minus_min_after=spread(list(final.counts().values()), final.ring.weights),
        before=_loads(table, before),
        after=_loads(final, after),
        peak_disk=_peaks(facts, changes, costs, sizes),
        eta_s=seconds_of(copied, facts.rate_bytes_per_s),
        rate_bytes_per_s=facts.rate_bytes_per_s,
        nonempty_slots_moved=int((sizes[np.array(moved, np.int64)] > 0).sum()),
    )


def _bound_slots(table: PartitionTable, final: Ring) -> int:
    """The least number of moved slots that turns `table` into a balanced table on the `final` ring."""
    counts = table.counts()
    names = [*table.ring.names, *(n for n in final.names if n not in table.ring)]
    weights = [final.nodes[final.index(n)].weight if n in final else 0.0 for n in names]
    return lower_bound_slots([counts.get(n, 0) for n in names], weights)


def _loads(table: PartitionTable, on_node: Mapping[NodeId, int]) -> tuple[NodeLoad, ...]:
    counts = table.counts()
    return tuple(NodeLoad(n.node, counts[n.node], on_node[n.node], n.weight) for n in table.ring.nodes)


def _peaks(
    facts: ClusterFacts, changes: Sequence[Change], costs: Sequence[CopyCost], sizes: ByteArray
) -> tuple[NodePeak, ...]:
    """The peak of each node: the maximum over all steps of what it holds before a step plus what it pulls
    during the step.

    No space counts as freed within a step: the previous holders retain their copies until CLEANUP.
    """
    start = node_bytes(facts.table, facts.replicas, sizes)
    peak, copied = dict(start), dict.fromkeys(start, 0)
    for change, cost in zip(changes, costs, strict=True):
        held = node_bytes(change.old, facts.replicas, sizes)
        for node in dict.fromkeys((*change.old.ring.names, *change.new.ring.names)):
            pulled = cost.pulled(node)
            copied[node] = copied.get(node, 0) + pulled
            peak[node] = max(peak.get(node, 0), held.get(node, 0) + pulled)
    return tuple(
        NodePeak(n, size, size - start.get(n, 0), copied[n], facts.node(n).disk_free_bytes)
        for n, size in peak.items()
    )


def hot_slots(facts: ClusterFacts, sizes: ByteArray) -> tuple[HotSlot, ...]:
    """Slots above `HOT_SHARE` of their group, sorted by their share of the whole cluster, largest first."""
    rates = loads_of(facts, "write-rate")
    owners, groups = facts.table.owners, len(facts.table.ring)
    shares, weight = [], np.zeros(facts.table.slots)
    for loads in (sizes, rates):
        group = np.bincount(owners, loads, minlength=groups)[owners]
        shares.append(np.divide(loads, group, out=np.zeros(loads.size), where=group > 0))
        weight = np.maximum(weight, loads / max(1, int(loads.sum())))
    hot = np.flatnonzero(np.maximum(*shares) > HOT_SHARE)
    hot = hot[np.lexsort((hot, -weight[hot]))][:HOT_SLOTS_MAX]
    mean = float(sizes[sizes > 0].mean()) if (sizes > 0).any() else 1.0
    return tuple(
        HotSlot(
            slot=s,
            owner=facts.table.route(s),
            header=facts.table.route(s),
            bytes=int(sizes[s]),
            times_mean=round(float(sizes[s]) / mean, 1),
            bytes_share=round(float(shares[0][s]), 3),
            write_bytes_per_s=round(int(rates[s]) / MILLI, 1),
            write_share=round(float(shares[1][s]), 3),
            advice=HOT_ADVICE,
        )
        for s in hot.tolist()
    )
