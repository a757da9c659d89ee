"""Makes plans from facts and an intent.

Several nodes are planned together towards the final table; the steps lead there one node at a time.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from iotctl.plan.check import (
    LAYOUT_NEXT,
    check_add,
    check_disks,
    check_layout,
    check_new_nodes,
    check_quorums,
    check_remove,
    check_replace,
)
from iotctl.plan.cost import MILLI, hot_slots, loads_of, pullers, seconds_of, summary_of
from iotctl.plan.facts import ClusterFacts
from iotctl.plan.layout import crowds, places_apart
from iotctl.plan.model import GroupChange, GroupLoad, Plan, Refusal, SlotMove, Step
from nodeagent.model.errors import Refused
from nodeagent.model.ids import NodeId
from nodeagent.partition.balance import ByteArray
from nodeagent.partition.change import Change, ChangeKind
from nodeagent.partition.cost import CopyCost, bytes_array, copy_cost, group_bytes
from nodeagent.partition.loads import EVEN, fewest_moves, max_over_mean
from nodeagent.partition.planner import (
    Places,
    plan_adds,
    plan_members,
    plan_placement,
    plan_rebalance,
    plan_removes,
    plan_replace,
)
from nodeagent.partition.ranges import count, to_slots
from nodeagent.partition.ring import RingNode
from nodeagent.partition.table import PartitionTable

STRATEGIES = ("slots", "bytes", "write-rate")


ADD, REMOVE, REPLACE, REBALANCE = "add-node", "remove-node", "replace-node", "rebalance"


SPEC, NONE = "spec", "none"


KINDS = (ADD, REMOVE, REPLACE, REBALANCE, SPEC, NONE)
"""The kinds of plans."""


def make_add(
    facts: ClusterFacts, nodes: Sequence[NodeId], after: NodeId | None = None, *, accept_layout: bool = False
) -> Plan:
    """Add nodes with their weights.

    Without `after`, each node takes the place with the fewest copied bytes among those that separate zones
    best.

    Args:
        accept_layout: accept layout violations of zones and weights (see `layout`).
    """
    refusals = check_add(facts, nodes, after)
    if refusals:
        return _plan(ADD, facts, (), refusals)
    try:
        changes = _adding(facts, nodes, after)
    except Refused as error:
        return _plan(ADD, facts, (), (Refusal("no_place", after or "", error.what, error.next_step),))
    unreachable = tuple(check_new_nodes(facts, nodes))
    options = ("--after", after) if after else ()
    return _plan(ADD, facts, changes, unreachable, options, accept_layout=accept_layout)


def make_remove(facts: ClusterFacts, nodes: Sequence[NodeId], *, accept_layout: bool = False) -> Plan:
    """Remove nodes, in the order given."""
    refusals = check_remove(facts, nodes)
    if refusals:
        return _plan(REMOVE, facts, (), refusals)
    changes = plan_removes(facts.table, nodes, facts.replicas, facts.slot_bytes or None)
    return _plan(REMOVE, facts, changes, (), accept_layout=accept_layout)


def make_replace(facts: ClusterFacts, old: NodeId, new: NodeId, *, accept_layout: bool = False) -> Plan:
    """`new` takes over the ring place, weight and slots of `old`.

    With the same name (a machine with a new disk), the plan has two steps, a removal and an addition: a group
    cannot distinguish two members with one name.
    """
    refusals = check_replace(facts, old, new)
    if refusals:
        return _plan(REPLACE, facts, (), refusals)
    if new == old:
        return _plan(REPLACE, facts, _out_and_in(facts, old), (), accept_layout=accept_layout)
    change = plan_replace(facts.table, old, new, facts.replicas)
    unreachable = tuple(check_new_nodes(facts, [new]))
    return _plan(REPLACE, facts, (change,), unreachable, accept_layout=accept_layout)


def make_spec(
    facts: ClusterFacts, added: Sequence[NodeId], removed: Sequence[NodeId], *, accept_layout: bool = False
) -> Plan:
    """One plan from the cluster's nodes to those that cluster.yaml lists.

    A new node replaces a leaving node of the same weight, since a replacement copies least, unless only
    separate additions and removals avoid layout violations. The other new nodes are added before the
    replacements, and the other leaving nodes are removed after them; no slot moves twice.
    """
    refusals = (
        *(check_add(facts, added, None) if added else ()),
        *(check_remove(facts, removed, added=len(added)) if removed else ()),
    )
    if refusals:
        return _plan(_spec_kind(added, {}, removed), facts, (), refusals)
    unreachable = tuple(check_new_nodes(facts, added))
    plans = []
    for pairs in (_successors(facts, added, removed), {}):
        adds, removes = [n for n in added if n not in pairs.values()], [n for n in removed if n not in pairs]
        heirs = {old: facts.zones[new] for old, new in pairs.items() if new in facts.zones}
        changes = plan_members(
            facts.table,
            facts.replicas,
            adds=[(n, facts.weights.get(n, 1.0)) for n in adds],
            replaces=pairs,
            removes=removes,
            slot_bytes=facts.slot_bytes or None,
            places=_places(facts, adds, removes, heirs),
        )
        kind = _spec_kind(added, pairs, removed)
        plans.append(_plan(kind, facts, changes, unreachable, accept_layout=accept_layout))
        if not any(r.code in LAYOUT_NEXT for r in plans[-1].refusals):
            return plans[-1]
    return plans[0]


def _spec_kind(added: Sequence[NodeId], pairs: Mapping[NodeId, NodeId], removed: Sequence[NodeId]) -> str:
    kinds = (
        [ADD] * (len(added) > len(pairs)) + [REPLACE] * bool(pairs) + [REMOVE] * (len(removed) > len(pairs))
    )
    return kinds[0] if len(kinds) == 1 else SPEC if kinds else NONE


def _places(
    facts: ClusterFacts,
    new_nodes: Sequence[NodeId],
    leavers: Sequence[NodeId] = (),
    heirs: Mapping[NodeId, str] | None = None,
) -> Places:
    """`heirs`: by leaving node, the zone of the node that replaces it."""
    weights = {n: facts.weights.get(n, 1.0) for n in new_nodes}
    zones = {**facts.zones, **(heirs or {})}
    return places_apart(zones, weights, facts.table.ring, leavers, facts.replicas)


def _adding(facts: ClusterFacts, nodes: Sequence[NodeId], after: NodeId | None) -> tuple[Change, ...]:
    """Raises `Refused` if no place is left."""
    wanted = [(n, facts.weights.get(n, 1.0)) for n in nodes]
    return plan_adds(
        facts.table, wanted, after, facts.replicas, facts.slot_bytes or None, _places(facts, nodes)
    )


def _successors(
    facts: ClusterFacts, added: Sequence[NodeId], removed: Sequence[NodeId]
) -> dict[NodeId, NodeId]:
    """Leaving node -> the new node that replaces it: of the same weight, with the least zone overlap."""
    ring, found = facts.table.ring, dict[NodeId, NodeId]()
    for old in removed:
        place = ring.nodes[ring.index(old)]
        rings = [
            (new, ring.removing(old).adding(RingNode(new, place.position, place.weight)))
            for new in added
            if new not in found.values() and facts.weights.get(new, 1.0) == place.weight
        ]
        if rings:
            zones, replicas = facts.zones, facts.replicas
            found[old], ring = min(rings, key=lambda r: len(crowds(r[1], zones, replicas)))
    return found


def _out_and_in(facts: ClusterFacts, node: NodeId) -> tuple[Change, ...]:
    """Changes that remove `node` and add it again at its place with its weight."""
    ring, sizes = facts.table.ring, facts.slot_bytes or None
    at = ring.index(node)
    out = plan_removes(facts.table, [node], facts.replicas, sizes)
    wanted = [(node, ring.nodes[at].weight)]
    return out + plan_adds(out[-1].new, wanted, ring.nodes[at - 1].node, facts.replicas, sizes)


def make_rebalance(facts: ClusterFacts, strategy: str = "slots", moves_max: int | None = None) -> Plan:
    """Balance slots, bytes or writes per weight without changing the ring; the plan is empty if balanced."""
    loads = loads_of(facts, strategy)
    by = None if strategy == "slots" else loads
    change = plan_rebalance(facts.table, facts.replicas, facts.slot_bytes or None, moves_max, by)
    balanced = () if by is None else ("--strategy", strategy)
    limited = () if moves_max is None else ("--max-moves", str(moves_max))
    plan = _plan(REBALANCE, facts, () if change is None else (change,), (), (*balanced, *limited))
    final = facts.table if change is None or plan.refusals else change.new
    weights = facts.table.ring.weights
    before, after = (max_over_mean(t.owners.astype(np.int64), weights, loads) for t in (facts.table, final))
    summary = msgspec.structs.replace(
        plan.summary, max_over_mean_before=round(before, 4), max_over_mean_after=round(after, 4)
    )
    if by is not None:
        bound = fewest_moves(facts.table.owners.astype(np.int64), weights, by, max(EVEN, after))
        summary = msgspec.structs.replace(summary, lower_bound_slots=bound)
    return msgspec.structs.replace(
        plan, strategy=strategy, summary=summary, group_loads=_group_loads(facts, final)
    )


def make_placement(facts: ClusterFacts, wanted: PartitionTable) -> Plan:
    """Give each slot the owner that it has in `wanted`, a table of the same ring. The plan is empty if no
    slot has to move.

    Raises:
        ValueError: the tables differ in their rings or in their number of slots.
    """
    change = plan_placement(facts.table, wanted, facts.replicas)
    return _plan(REBALANCE, facts, () if change is None else (change,), ())


def _group_loads(facts: ClusterFacts, final: PartitionTable) -> tuple[GroupLoad, ...]:
    table = facts.table
    sizes, rates = loads_of(facts, "bytes"), loads_of(facts, "write-rate")
    slots = table.counts(), final.counts()
    held = group_bytes(table, sizes), group_bytes(final, sizes)
    written = group_bytes(table, rates), group_bytes(final, rates)
    return tuple(
        GroupLoad(
            n.node,
            n.weight,
            *(s[n.node] for s in slots),
            *(h[n.node] for h in held),
            *(round(w[n.node] / MILLI, 1) for w in written),
        )
        for n in table.ring.nodes
    )


def _plan(
    kind: str,
    facts: ClusterFacts,
    changes: Sequence[Change],
    refusals: tuple[Refusal, ...],
    options: tuple[str, ...] = (),
    *,
    accept_layout: bool = False,
) -> Plan:
    sizes = bytes_array(facts.slot_bytes, facts.table.slots)
    if changes and not accept_layout:
        refusals += tuple(check_layout(facts, changes[-1].new.ring))
    if changes:
        costs = [copy_cost(c, sizes) for c in changes]
        summary = summary_of(facts, changes, costs, sizes)
        refusals += (*check_quorums(facts, changes), *check_disks(summary.peak_disk))
    if not changes or refusals:
        changes, costs = (), []
        summary = summary_of(facts, changes, costs, sizes)
    return Plan(
        kind=kind,
        table_version=facts.table.version,
        spec_hash=facts.spec_hash,
        strategy="bytes" if facts.slot_bytes else "slots",
        moves=_moves(changes, sizes),
        group_changes=_group_changes(facts.table, changes, costs),
        summary=summary,
        hot_slots=hot_slots(facts, sizes),
        refusals=refusals,
        steps=tuple(_step(c, cost, facts.rate_bytes_per_s) for c, cost in zip(changes, costs, strict=True)),
        replicas=facts.replicas,
        options=(*options, "--accept-layout") if accept_layout else options,
    )


def _moves(changes: Sequence[Change], sizes: ByteArray) -> tuple[SlotMove, ...]:
    """All moves in the order of the steps, then by slot."""
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
    """Group changes from the first table to the last; also counts copies for a group that a node joined and
    left again."""
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
    for owner in (*final.ring.names, *gone):
        before = table.ring.members(owner, replicas) if owner in table.ring else ()
        after = final.ring.members(owner, replicas) if owner in final.ring else ()
        if before != after or catch_up.get(owner):
            joins = tuple(n for n in after if n not in before)
            leaves = tuple(n for n in before if n not in after)
            out.append(GroupChange(owner, joins, leaves, catch_up.get(owner, 0)))
    return tuple(out)


def _step(change: Change, cost: CopyCost, rate_bytes_per_s: int) -> Step:
    position, after, weight, replaces = 0, "", 0.0, ""
    if change.kind in (ChangeKind.ADD, ChangeKind.REPLACE):
        ring = change.new.ring
        at = ring.index(change.node)
        position, weight = ring.nodes[at].position, ring.nodes[at].weight
        after = ring.nodes[at - 1].node
        replaces = next((n for n in change.old.ring.names if n not in ring), "")
    return Step(
        kind=change.kind.value,
        node=change.node,
        position=position,
        after=after,
        weight=weight,
        slots=sum(count(m.slots) for m in change.moves),
        bytes_copied=cost.total,
        replaces=replaces,
        copies=pullers(cost),
        eta_s=seconds_of(cost.total, rate_bytes_per_s),
    )
