"""Facts and an intent -> plan.

Several nodes are planned together to the final table; the steps go there one node at a time.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from iotctl.plan.check import (
    check_add,
    check_disks,
    check_newcomers,
    check_quorums,
    check_remove,
    check_replace,
)
from iotctl.plan.facts import ClusterFacts
from iotctl.plan.model import (
    GroupChange,
    HotSlot,
    NodeLoad,
    NodePeak,
    Plan,
    Refusal,
    SlotMove,
    Step,
    Summary,
)
from nodeagent.model.errors import Refused
from nodeagent.model.ids import NodeId
from nodeagent.partition.balance import ByteArray, lower_bound_slots, spread
from nodeagent.partition.change import Change, ChangeKind
from nodeagent.partition.cost import CopyCost, bytes_array, copy_cost, node_bytes, placement_bytes
from nodeagent.partition.planner import plan_adds, plan_rebalance, plan_removes, plan_replace
from nodeagent.partition.ranges import count, to_slots
from nodeagent.partition.ring import Ring
from nodeagent.partition.table import PartitionTable

HOT_TIMES_MEAN = 4.0
HOT_SLOTS_MAX = 20

ADD, REMOVE, REPLACE, REBALANCE = "add-node", "remove-node", "replace-node", "rebalance"


def make_add(
    facts: ClusterFacts,
    nodes: Sequence[NodeId],
    after: NodeId | None = None,
    weights: Mapping[NodeId, float] | None = None,
) -> Plan:
    """Add nodes; without `after` each takes the ring place with the fewest copied bytes."""
    weights = weights or {}
    refusals = check_add(facts, nodes, after, weights)
    if refusals:
        return _plan(ADD, facts, (), refusals)
    wanted = [(n, weights.get(n, 1.0)) for n in nodes]
    try:
        changes = plan_adds(facts.table, wanted, after, facts.replicas, facts.slot_bytes or None)
    except Refused as error:
        return _plan(ADD, facts, (), (Refusal("no_place", after or "", error.what, error.next_step),))
    return _plan(ADD, facts, changes, tuple(check_newcomers(facts, nodes)))


def make_remove(facts: ClusterFacts, nodes: Sequence[NodeId]) -> Plan:
    """Remove nodes, in the order given."""
    refusals = check_remove(facts, nodes)
    if refusals:
        return _plan(REMOVE, facts, (), refusals)
    changes = plan_removes(facts.table, nodes, facts.replicas, facts.slot_bytes or None)
    return _plan(REMOVE, facts, changes, ())


def make_replace(facts: ClusterFacts, old: NodeId, new: NodeId) -> Plan:
    """`new` takes the ring place, the weight and the slots of `old`."""
    refusals = check_replace(facts, old, new)
    if refusals:
        return _plan(REPLACE, facts, (), refusals)
    change = plan_replace(facts.table, old, new, facts.replicas)
    return _plan(REPLACE, facts, (change,), tuple(check_newcomers(facts, [new])))


def make_rebalance(facts: ClusterFacts, moves_max: int | None = None) -> Plan:
    """Even out slots per weight without a ring change; a balanced cluster gives an empty plan."""
    change = plan_rebalance(facts.table, facts.replicas, facts.slot_bytes or None, moves_max)
    return _plan(REBALANCE, facts, () if change is None else (change,), ())


def _plan(kind: str, facts: ClusterFacts, changes: Sequence[Change], refusals: tuple[Refusal, ...]) -> Plan:
    sizes = bytes_array(facts.slot_bytes, facts.table.slots)
    if changes:
        costs = [copy_cost(c, sizes) for c in changes]
        summary = _summary(facts, changes, costs, sizes)
        refusals += (*check_quorums(facts, changes), *check_disks(summary.peak_disk))
    if not changes or refusals:
        changes, costs = (), []
        summary = _summary(facts, changes, costs, sizes)
    return Plan(
        kind=kind,
        table_version=facts.table.version,
        spec_hash=facts.spec_hash,
        strategy="bytes" if facts.slot_bytes else "slots",
        moves=_moves(changes, sizes),
        group_changes=_group_changes(facts.table, changes, costs),
        summary=summary,
        hot_slots=_hot_slots(facts.table, sizes),
        refusals=refusals,
        steps=tuple(_step(c, cost) for c, cost in zip(changes, costs, strict=True)),
        replicas=facts.replicas,
    )


def _moves(changes: Sequence[Change], sizes: ByteArray) -> tuple[SlotMove, ...]:
    """In the order of the steps, then by slot."""
    return tuple(
        SlotMove(slot, source, target, int(sizes[slot]))
        for change in changes
        for slot, source, target in sorted(
            (slot, m.source, m.target) for m in change.moves for slot in to_slots(m.slots)
        )
    )


def _group_changes(
    table: PartitionTable, changes: Sequence[Change], costs: Sequence[CopyCost]
) -> tuple[GroupChange, ...]:
    """From the first table to the last; what a node copied for a group it left again still counts."""
    if not changes:
        return ()
    catch_up: dict[NodeId, int] = {}
    for change, cost in zip(changes, costs, strict=True):
        for g in change.members:
            size = len(g.joins) * cost.group_bytes.get(g.group, 0)
            catch_up[g.group] = catch_up.get(g.group, 0) + size
    final, replicas = changes[-1].new, changes[-1].replicas
    out: list[GroupChange] = []
    gone = [n for n in table.ring.names if n not in final.ring]
    for header in (*final.ring.names, *gone):
        before = table.ring.members(header, replicas) if header in table.ring else ()
        after = final.ring.members(header, replicas) if header in final.ring else ()
        if before != after or catch_up.get(header):
            joins = tuple(n for n in after if n not in before)
            leaves = tuple(n for n in before if n not in after)
            out.append(GroupChange(header, joins, leaves, catch_up.get(header, 0)))
    return tuple(out)


def _step(change: Change, cost: CopyCost) -> Step:
    slots = sum(count(m.slots) for m in change.moves)
    if change.kind not in (ChangeKind.ADD, ChangeKind.REPLACE):
        return Step(change.kind.value, change.node, 0, "", 0.0, slots, cost.total)
    ring = change.new.ring
    at = ring.index(change.node)
    placed = ring.nodes[at]
    after = ring.nodes[at - 1].node
    replaces = next((n for n in change.old.ring.names if n not in ring), "")
    return Step(
        change.kind.value, change.node, placed.position, after, placed.weight, slots, cost.total, replaces
    )


def _summary(
    facts: ClusterFacts, changes: Sequence[Change], costs: Sequence[CopyCost], sizes: ByteArray
) -> Summary:
    table, replicas = facts.table, facts.replicas
    final = changes[-1].new if changes else table
    copied = sum(c.total for c in costs)
    moved = [s for change in changes for m in change.moves for s in to_slots(m.slots)]
    before, after = node_bytes(table, replicas, sizes), node_bytes(final, replicas, sizes)
    return Summary(
        slots_moved=len(moved),
        lower_bound_slots=_bound_slots(table, final.ring) if changes else 0,
        bytes_copied=copied,
        lower_bound_bytes=placement_bytes(table, final, replicas, sizes),
        max_minus_min_before=spread(list(table.counts().values()), table.ring.weights),
        max_minus_min_after=spread(list(final.counts().values()), final.ring.weights),
        before=_loads(table, before),
        after=_loads(final, after),
        peak_disk=_peaks(facts, changes, costs, sizes),
        eta_s=-(-copied // max(1, facts.rate_bytes_per_s)),
        rate_bytes_per_s=facts.rate_bytes_per_s,
        nonempty_slots_moved=int((sizes[np.array(moved, np.int64)] > 0).sum()),
    )


def _bound_slots(table: PartitionTable, final: Ring) -> int:
    """Fewest slots that lead from `table` to a balanced one on the `final` ring."""
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
    """Per node the largest, over the steps, of what it holds before the step plus what it pulls in it.

    Nothing is taken as freed inside a step: previous holders keep their copies until RELEASED.
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


def _hot_slots(table: PartitionTable, sizes: ByteArray) -> tuple[HotSlot, ...]:
    filled = sizes[sizes > 0]
    if not filled.size:
        return ()
    mean = float(filled.mean())
    hot = np.flatnonzero(sizes > HOT_TIMES_MEAN * mean)
    hot = hot[np.lexsort((hot, -sizes[hot]))][:HOT_SLOTS_MAX]
    return tuple(
        HotSlot(s, table.route(s), int(sizes[s]), round(float(sizes[s]) / mean, 1)) for s in hot.tolist()
    )
