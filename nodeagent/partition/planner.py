"""Plan arithmetic: from a table and an intent to the changes that lead there.

Several nodes are planned to one final table, and the changes go towards it one node at a time, so that no
slot moves twice. New tables carry the provisional version old + 1 (see `table`).
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
"""Behind which nodes a newcomer may stand on the ring as it is at its turn."""


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
    """One change per (node, weight), in order.

    With `after` the nodes stand behind it in the order given. Without, each takes the one of its `places`
    (all when None) with the fewest copied bytes at its turn; among equals the widest gap, then the lowest
    position.

    Raises:
        Refused: a node is on the ring already, or no position is free.
        NotFound: `after` is not on the ring.
    """
    for i, (node, _) in enumerate(nodes):
        if node in table.ring or node in [n for n, _ in nodes[:i]]:
            raise Refused(f"node {node} is in the cluster already", next_step="see `iotctl cluster nodes`")
    sizes = None if slot_bytes is None else bytes_array(slot_bytes, table.slots)
    names = (*table.ring.names, *(n for n, _ in nodes))
    weights = [*table.ring.weights, *(w for _, w in nodes)]
    final = balanced(table.owners.astype(np.int64), weights, sizes)
    changes: list[Change] = []
    for i, (node, weight) in enumerate(nodes):
        index = len(table.ring) + i
        last = i == len(nodes) - 1
        current = changes[-1].new if changes else table
        now = _indices(current, names)
        # A lopsided table also moves slots between old nodes: with the last change, when all are there.
        due = np.flatnonzero((now != final) if last else (final == index))
        place = after
        if place is None:
            allowed = current.ring.names if places is None else places(current.ring, node)
            place = _best_place(current, node, due, final, names, replicas, sizes, allowed)
        ring = current.ring.adding(RingNode(node, place_between(current.ring, place), weight))
        new = current.moved(_gains(due, final, names), ring, current.version + 1)
        changes.append(change_between(ChangeKind.ADD, node, current, new, replicas))
        after = node if after is not None else None
    return tuple(changes)


def plan_removes(
    table: PartitionTable, nodes: Sequence[NodeId], replicas: int, slot_bytes: SlotBytes | None = None
) -> tuple[Change, ...]:
    """One change per node, in order.

    Raises:
        NotFound: a node is not on the ring.
        Refused: a node is named twice, or fewer than `replicas` nodes would remain.
    """
    gone = {table.ring.index(n) for n in nodes}
    if len(gone) < len(nodes):
        raise Refused("a node is named twice", next_step="name each node once")
    if len(table.ring) - len(nodes) < max(replicas, 1):
        raise Refused(
            f"{len(table.ring) - len(nodes)} nodes would remain, fewer than the {replicas} replicas",
            next_step="add nodes first",
        )
    sizes = None if slot_bytes is None else bytes_array(slot_bytes, table.slots)
    names = table.ring.names
    weights = [0.0 if i in gone else w for i, w in enumerate(table.ring.weights)]
    final = balanced(table.owners.astype(np.int64), weights, sizes)
    changes: list[Change] = []
    for i, node in enumerate(nodes):
        current = changes[-1].new if changes else table
        now = _indices(current, names)
        last = i == len(nodes) - 1
        due = np.flatnonzero((now != final) if last else (now == table.ring.index(node)))
        ring = current.ring.removing(node)
        new = current.moved(_gains(due, final, names), ring, current.version + 1)
        changes.append(change_between(ChangeKind.REMOVE, node, current, new, replicas))
    return tuple(changes)


def plan_replace(table: PartitionTable, old: NodeId, new: NodeId, replicas: int) -> Change:
    """`new` takes the place, the weight and the slots of `old`; nothing else moves.

    Raises:
        Refused: `new` is on the ring already.
        NotFound: `old` is not.
    """
    place = table.ring.nodes[table.ring.index(old)]
    if new in table.ring:
        raise Refused(
            f"{new} is in the cluster already", next_step="replace it by a node with a name of its own"
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
    """Move slots between the groups there are; None when nothing has to move.

    Args:
        slot_bytes: without `loads` they decide which slots move, never how many.
        moves_max: at most so many slots, the most useful ones.
        loads: per slot what is to be even among groups (see `loads`); without it their number is.
    """
    now = table.owners.astype(np.int64)
    weights = table.ring.weights
    if loads is not None:
        final = evened(now, weights, loads, moves_max)
        due = np.flatnonzero(now != final)
    else:
        sizes = None if slot_bytes is None else bytes_array(slot_bytes, table.slots)
        final = balanced(now, weights, sizes)
        due = np.flatnonzero(now != final)
        if moves_max is not None and due.size > moves_max:
            due = _most_useful(now, final, weights, sizes, moves_max)
    if not due.size:
        return None
    new = table.moved(_gains(due, final, table.ring.names), table.ring, table.version + 1)
    return change_between(ChangeKind.MOVE, "", table, new, replicas)


def _most_useful(
    now: OwnerIndex, final: OwnerIndex, weights: Sequence[float], sizes: ByteArray | None, moves_max: int
) -> OwnerIndex:
    """The slots to move when not all may: each from the fullest giver left to its emptiest taker.

    Among the slots of one pair those with the fewest bytes go first: each is worth one slot.
    """
    due = np.flatnonzero(now != final)
    due = due[np.lexsort((due, sizes[due] if sizes is not None else np.zeros(due.size)))]
    waiting: dict[int, dict[int, list[int]]] = {}
    for slot in due[::-1].tolist():
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


def _gains(due: OwnerIndex, final: OwnerIndex, names: Sequence[NodeId]) -> dict[NodeId, SlotRanges]:
    return {names[i]: from_slots(due[final[due] == i]) for i in np.unique(final[due]).tolist()}


def _best_place(
    table: PartitionTable,
    node: NodeId,
    due: OwnerIndex,
    final: OwnerIndex,
    names: Sequence[NodeId],
    replicas: int,
    sizes: ByteArray | None,
    allowed: Sequence[NodeId],
) -> NodeId:
    """The one of `allowed` to stand behind: fewest copied bytes, the widest gap, the lowest position.

    Which slots move does not depend on the place, so only what depends on it is summed (`place_bytes`).
    """
    ring, nodes = table.ring, table.ring.names
    cost = [0] * len(ring)
    if sizes is not None and replicas <= len(ring):
        pairs = _pair_bytes(table, due, final, names, sizes)
        cost = place_bytes(ring, _kept_bytes(table, due, sizes), pairs, node, replicas)
    open_places = [i for i in map(ring.index, allowed) if gap_after(ring, nodes[i]) >= 2]
    if not open_places:
        raise Refused("no ring position is left", next_step="rebuild the cluster with spread positions")
    best = min(open_places, key=lambda i: (cost[i], -gap_after(ring, nodes[i]), i))
    return nodes[best]


def _kept_bytes(table: PartitionTable, due: OwnerIndex, sizes: ByteArray) -> list[int]:
    kept = sizes.copy()
    kept[due] = 0
    total = np.zeros(len(table.ring), np.int64)
    np.add.at(total, table.owners, kept)
    result: list[int] = total.tolist()
    return result


def _pair_bytes(
    table: PartitionTable, due: OwnerIndex, final: OwnerIndex, names: Sequence[NodeId], sizes: ByteArray
) -> dict[tuple[NodeId, NodeId], int]:
    """Bytes (one replica's) that move, by (source, target)."""
    code = table.owners[due].astype(np.int64) * len(names) + final[due]
    pairs, inverse = np.unique(code, return_inverse=True)
    total = np.zeros(pairs.size, np.int64)
    np.add.at(total, inverse, sizes[due])
    return {
        (table.ring.names[c // len(names)], names[c % len(names)]): t
        for c, t in zip(pairs.tolist(), total.tolist(), strict=True)
        if t
    }


def place_bytes(
    ring: Ring, kept: Sequence[int], pairs: Mapping[tuple[NodeId, NodeId], int], node: NodeId, replicas: int
) -> list[int]:
    """Copied bytes that depend on the place of `node`, for each place "behind ring node p".

    Args:
        kept: per ring node the bytes its group keeps.
        pairs: bytes that move, by (source, target) header.
        replicas: at most the length of the ring.

    Behind p, `node` heads a group with the R - 1 nodes after p, which spare the bytes of groups they were
    in; and it joins the groups of p and the R - 2 nodes before, whose last members go.
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
            # The last member would have linked its files; `node` in its stead pulls them.
            joined[ring.index(target)] += size
    return [
        sum(joined[(p - i) % n] for i in range(replicas - 1))
        - sum(spared[(p + 1 + i) % n] for i in range(replicas - 1))
        for p in range(n)
    ]
