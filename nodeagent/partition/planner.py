"""Plans the changes that lead from a table to an intended cluster.

Several nodes are planned towards one final table, which the changes approach one node at a time, so that no
slot moves twice. New tables have the provisional version old + 1 (see `table`).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nodeagent.model.errors import Refused
from nodeagent.model.ids import NodeId
from nodeagent.partition.balance import ByteArray, OwnerIndex, balanced
from nodeagent.partition.change import Change, ChangeKind, change_between
from nodeagent.partition.cost import bytes_array
from nodeagent.partition.loads import LoadArray, evened
from nodeagent.partition.ranges import SlotRanges, from_slots
from nodeagent.partition.ring import Ring, RingNode, gap_after, place_between
from nodeagent.partition.table import PartitionTable

SlotBytes = Mapping[int, int]
Places = Callable[[Ring, NodeId], Sequence[NodeId]]
"""(ring when the new node is placed, new node) -> the nodes after which it may be placed."""


def plan_add(
    table: PartitionTable,
    node: NodeId,
    after: NodeId | None,
    replicas: int,
    weight: float = 1.0,
    slot_bytes: SlotBytes | None = None,
) -> Change:
    """Add one node; see `plan_adds`."""
    return plan_adds(table, [(node, weight)], after, replicas, slot_bytes)[0]


def plan_remove(
    table: PartitionTable, node: NodeId, replicas: int, slot_bytes: SlotBytes | None = None
) -> Change:
    """Remove one node; see `plan_removes`."""
    return plan_removes(table, [node], replicas, slot_bytes)[0]


def plan_adds(
    table: PartitionTable,
    nodes: Sequence[tuple[NodeId, float]],
    after: NodeId | None,
    replicas: int,
    slot_bytes: SlotBytes | None = None,
    places: Places | None = None,
) -> tuple[Change, ...]:
    """Add nodes only; see `plan_members`."""
    return plan_members(table, replicas, adds=nodes, after=after, slot_bytes=slot_bytes, places=places)


def plan_removes(
    table: PartitionTable, nodes: Sequence[NodeId], replicas: int, slot_bytes: SlotBytes | None = None
) -> tuple[Change, ...]:
    """Remove nodes only; see `plan_members`."""
    return plan_members(table, replicas, removes=nodes, slot_bytes=slot_bytes)


def plan_members(
    table: PartitionTable,
    replicas: int,
    *,
    adds: Sequence[tuple[NodeId, float]] = (),
    replaces: Mapping[NodeId, NodeId] | None = None,
    removes: Sequence[NodeId] = (),
    after: NodeId | None = None,
    slot_bytes: SlotBytes | None = None,
    places: Places | None = None,
) -> tuple[Change, ...]:
    """One change per node that joins, per (old, new) of `replaces`, and per node that leaves, in this order.

    With `after`, the new nodes are placed after it in the order given. Without `after`, each new node
    gets the place, of those that `places` allows (None: all), for which the fewest bytes are copied; among
    equals the widest gap, then the lowest position. If the table is unbalanced, the last change also moves
    slots between nodes that stay, except if nodes are replaced: some slots would then move twice.

    Raises:
        Refused: a new node is on the ring already, no position is free, a node is named twice, or fewer than
            `replicas` nodes would remain.
        NotFound: `after` or a node that leaves is not on the ring.
    """
    replaces = replaces or {}
    _check_members(table, [n for n, _ in adds], replaces, removes, replicas)
    leaving = {table.ring.index(n) for n in removes}
    sizes = None if slot_bytes is None else bytes_array(slot_bytes, table.slots)
    names = [*table.ring.names, *(n for n, _ in adds)]
    weights = [0.0 if i in leaving else w for i, w in enumerate(table.ring.weights)] + [w for _, w in adds]
    final = balanced(table.owners.astype(np.int64), weights, sizes)
    changes: list[Change] = []

    def current() -> PartitionTable:
        return changes[-1].new if changes else table

    def to_move(at: OwnerIndex) -> OwnerIndex:
        """The slots that move with the current change: those marked in `at`, or all that remain if it is the
        last change."""
        last = not replaces and len(changes) == len(adds) + len(removes) - 1
        return np.flatnonzero(_indices(current(), names) != final if last else at)

    def move(slots: OwnerIndex, kind: ChangeKind, node: NodeId, ring: Ring) -> None:
        new = current().moved(_gains(slots, final, names), ring, current().version + 1)
        changes.append(change_between(kind, node, current(), new, replicas))

    for i, (node, weight) in enumerate(adds):
        ring, slots, place = current().ring, to_move(final == len(table.ring) + i), after
        if place is None:
            allowed = ring.names if places is None else places(ring, node)
            place = _best_place(current(), node, slots, final, names, replicas, sizes, allowed)
        move(slots, ChangeKind.ADD, node, ring.adding(RingNode(node, place_between(ring, place), weight)))
        after = node if after is not None else None
    for old, new in replaces.items():
        names[names.index(old)] = new
        changes.append(plan_replace(current(), old, new, replicas))
    for node in removes:
        slots = to_move(_indices(current(), names) == names.index(node))
        move(slots, ChangeKind.REMOVE, node, current().ring.removing(node))
    return tuple(changes)


def _check_members(
    table: PartitionTable,
    adds: Sequence[NodeId],
    replaces: Mapping[NodeId, NodeId],
    removes: Sequence[NodeId],
    replicas: int,
) -> None:
    for node in (*adds, *replaces.values()):
        if node in table.ring:
            raise Refused(
                f"no plan was made: node {node} is in the cluster already",
                next_step="see `iotctl cluster nodes`",
            )
    for node in (*replaces, *removes):
        table.ring.index(node)
    named = [*adds, *replaces, *replaces.values(), *removes]
    if len({*named}) < len(named):
        raise Refused("no plan was made: a node is named twice", next_step="name each node once")
    left = len(table.ring) + len(adds) - len(removes)
    if removes and left < max(replicas, 1):
        raise Refused(
            f"no plan was made: {left} nodes would remain, fewer than the {replicas} replicas",
            next_step="add nodes first",
        )


def plan_replace(table: PartitionTable, old: NodeId, new: NodeId, replicas: int) -> Change:
    """`new` takes the place, the weight and the slots of `old`; no other slot moves.

    Raises:
        Refused: `new` is on the ring already.
        NotFound: `old` is not on the ring.
    """
    place = table.ring.nodes[table.ring.index(old)]
    if new in table.ring:
        raise Refused(
            f"{old} was not replaced: {new} is in the cluster already",
            next_step="give the replacement a name that no node has",
        )
    ring = table.ring.removing(old).adding(RingNode(new, place.position, place.weight))
    moved = table.moved({new: table.slots_of(old)}, ring, table.version + 1)
    return change_between(ChangeKind.REPLACE, new, table, moved, replicas)


def plan_rebalance(
    table: PartitionTable,
    replicas: int,
    slot_bytes: SlotBytes | None = None,
    moves_max: int | None = None,
    loads: LoadArray | None = None,
) -> Change | None:
    """Move slots between the existing groups; None if no slot must move.

    Args:
        slot_bytes: without `loads` these decide which slots move, never how many.
        moves_max: the most slots that may move; the most useful slots come first.
        loads: the load of each slot, to be made even among groups (see `loads`); without it the number of
            slots is made even.
    """
    now = table.owners.astype(np.int64)
    weights = table.ring.weights
    if loads is not None:
        final = evened(now, weights, loads, moves_max)
        moving = np.flatnonzero(now != final)
    else:
        sizes = None if slot_bytes is None else bytes_array(slot_bytes, table.slots)
        final = balanced(now, weights, sizes)
        moving = np.flatnonzero(now != final)
        if moves_max is not None and moving.size > moves_max:
            moving = _most_useful(now, final, weights, sizes, moves_max)
    if not moving.size:
        return None
    new = table.moved(_gains(moving, final, table.ring.names), table.ring, table.version + 1)
    return change_between(ChangeKind.MOVE, "", table, new, replicas)


def plan_placement(table: PartitionTable, wanted: PartitionTable, replicas: int) -> Change | None:
    """Move slots until each has the owner that it has in `wanted`; None if no slot must move.

    Raises:
        ValueError: the tables differ in their rings or in their number of slots.
    """
    if table.ring.names != wanted.ring.names or table.slots != wanted.slots:
        raise ValueError("the two tables differ in their rings or in their number of slots")
    final = wanted.owners.astype(np.int64)
    moving = np.flatnonzero(table.owners != final)
    if not moving.size:
        return None
    new = table.moved(_gains(moving, final, table.ring.names), table.ring, table.version + 1)
    return change_between(ChangeKind.MOVE, "", table, new, replicas)


def _most_useful(
    now: OwnerIndex, final: OwnerIndex, weights: Sequence[float], sizes: ByteArray | None, moves_max: int
) -> OwnerIndex:
    """The slots to move if not all may move: each from the fullest remaining giver to its emptiest taker.

    Of the slots of one pair, those with the fewest bytes move first, as each counts as one slot.
    """
    moving = np.flatnonzero(now != final)
    moving = moving[np.lexsort((moving, sizes[moving] if sizes is not None else np.zeros(moving.size)))]
    waiting: dict[int, dict[int, list[int]]] = {}
    for slot in moving[::-1].tolist():
        waiting.setdefault(int(now[slot]), {}).setdefault(int(final[slot]), []).append(slot)
    counts = np.bincount(now, minlength=len(weights)).tolist()
    chosen = []
    for _ in range(moves_max):
        giver = max(waiting, key=lambda i: (counts[i] / weights[i], -i))
        takers = waiting[giver]
        taker = min(takers, key=lambda i: (counts[i] / weights[i], i))
        chosen.append(takers[taker].pop())
        counts[giver] -= 1
        counts[taker] += 1
        if not takers[taker]:
            del takers[taker]
        if not takers:
            del waiting[giver]
    return np.sort(np.array(chosen, np.int64))


def _indices(table: PartitionTable, names: Sequence[NodeId]) -> OwnerIndex:
    """Owners as indices into `names`."""
    at = {n: i for i, n in enumerate(names)}
    by_ring = np.fromiter((at[n] for n in table.ring.names), np.int64, len(table.ring))
    owners: OwnerIndex = by_ring[table.owners]
    return owners


def _gains(moving: OwnerIndex, final: OwnerIndex, names: Sequence[NodeId]) -> dict[NodeId, SlotRanges]:
    return {names[i]: from_slots(moving[final[moving] == i]) for i in np.unique(final[moving]).tolist()}


def _best_place(
    table: PartitionTable,
    node: NodeId,
    moving: OwnerIndex,
    final: OwnerIndex,
    names: Sequence[NodeId],
    replicas: int,
    sizes: ByteArray | None,
    allowed: Sequence[NodeId],
) -> NodeId:
    """The node of `allowed` after which to place `node`: fewest copied bytes, then widest gap, then lowest
    position.

    Which slots move does not depend on the place, so only bytes that depend on it are summed (`place_bytes`).
    """
    ring, nodes = table.ring, table.ring.names
    cost = [0] * len(ring)
    if sizes is not None and replicas <= len(ring):
        pairs = _pair_bytes(table, moving, final, names, sizes)
        cost = place_bytes(ring, _kept_bytes(table, moving, sizes), pairs, node, replicas)
    open_places = [i for i in map(ring.index, allowed) if gap_after(ring, nodes[i]) >= 2]
    if not open_places:
        raise Refused(
            f"no plan was made: none of the preferred places on the ring has a free position for {node}",
            next_step="name another place with --after, or rebuild the cluster: a new ring is evenly spaced",
        )
    best = min(open_places, key=lambda i: (cost[i], -gap_after(ring, nodes[i]), i))
    return nodes[best]


def _kept_bytes(table: PartitionTable, moving: OwnerIndex, sizes: ByteArray) -> list[int]:
    kept = sizes.copy()
    kept[moving] = 0
    total = np.zeros(len(table.ring), np.int64)
    np.add.at(total, table.owners, kept)
    result: list[int] = total.tolist()
    return result


def _pair_bytes(
    table: PartitionTable, moving: OwnerIndex, final: OwnerIndex, names: Sequence[NodeId], sizes: ByteArray
) -> dict[tuple[NodeId, NodeId], int]:
    """One replica's bytes that move, by (source, target)."""
    code = table.owners[moving].astype(np.int64) * len(names) + final[moving]
    pairs, inverse = np.unique(code, return_inverse=True)
    total = np.zeros(pairs.size, np.int64)
    np.add.at(total, inverse, sizes[moving])
    return {
        (table.ring.names[c // len(names)], names[c % len(names)]): t
        for c, t in zip(pairs.tolist(), total.tolist(), strict=True)
        if t
    }


def place_bytes(
    ring: Ring, kept: Sequence[int], pairs: Mapping[tuple[NodeId, NodeId], int], node: NodeId, replicas: int
) -> list[int]:
    """Copied bytes that depend on the place of `node`, for each place "after ring node p".

    Args:
        kept: per ring node the bytes that its group retains.
        pairs: bytes that move, by (source, target) group owner.
        replicas: at most the length of the ring.

    Placed after p, `node` owns a group with the R - 1 nodes after p, which need not copy bytes of groups they
    were in; and it joins the groups of p and of the R - 2 nodes before p, whose last members leave.
    """
    n = len(ring)
    spared = [0] * n
    joined = list(kept)
    for (source, target), size in pairs.items():
        old = ring.members(source, replicas)
        if target == node:
            for member in old:
                spared[ring.index(member)] += size
        elif target in ring and ring.members(target, replicas)[-1] in old:
            # The last member would have linked its files; `node`, which replaces it, pulls them.
            joined[ring.index(target)] += size
    return [
        sum(joined[(p - i) % n] for i in range(replicas - 1))
        - sum(spared[(p + 1 + i) % n] for i in range(replicas - 1))
        for p in range(n)
    ]
