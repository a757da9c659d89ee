"""Ring order with zones and weights. A group is a node and the nodes that follow it on the ring, so only the
order of the ring determines how zones and weights are met.

A zone is a set of nodes that fail together (a rack, a room). A group may have as many members in one zone as
its quorum can lose; with too few zones for that, an equal share of its members. Nodes without a zone count in
none. A weight is a share of the slots; disk and traffic also depend on the neighbours' slots, so some weights
cannot be met by any order.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, cycle, islice

import msgspec

from nodeagent.model.ids import NodeId
from nodeagent.partition.planner import Places
from nodeagent.partition.ring import Ring, initial_ring

OVERLOAD = 1.5
"""A node may hold at most this multiple of its weight's share of all replicas."""

SWAPS, SWAP_NODES = 1_000, 100
"""Number of swaps tried for a better order, and the most nodes for which swaps are tried: enough to find a
valid order of 8 nodes if there is one (tested)."""

Zones = Mapping[NodeId, str]
Weights = Mapping[NodeId, float]


class ZoneOverlap(msgspec.Struct, frozen=True):
    """A zone overlap: a group that stops if `zone` fails, because too many of its members are in it."""

    owner: NodeId
    zone: str
    nodes: tuple[NodeId, ...]
    header: str = ""
    """The former name of `owner`, printed until 0.3.0."""


def members_allowed(zones: Zones, nodes: Collection[NodeId], replicas: int) -> int:
    """How many members of one group may be in one zone: as many as its quorum can lose, or an equal share."""
    members = min(replicas, len(nodes))
    known = len({zones[n] for n in nodes if zones.get(n)})
    return max(-(-members // max(1, known)), (members - 1) // 2)


def crowds(ring: Ring, zones: Zones, replicas: int, allowed: int | None = None) -> list[ZoneOverlap]:
    """The groups with more than `allowed` members in one zone (None: `members_allowed`)."""
    most = members_allowed(zones, ring.names, replicas) if allowed is None else allowed
    groups = ((h, ring.members(h, replicas)) for h in ring.names) if zones else ()
    return [c for owner, members in groups for c in crowded(owner, members, zones, most)]


def stops_with_a_zone(owner: NodeId, members: Sequence[NodeId], zones: Zones) -> list[ZoneOverlap]:
    """The zones whose failure costs this group its quorum."""
    return crowded(owner, members, zones, (len(members) - 1) // 2)


def crowded(owner: NodeId, members: Sequence[NodeId], zones: Zones, allowed: int) -> list[ZoneOverlap]:
    """The zones that hold more than `allowed` members of one group."""
    counts = Counter(zones[n] for n in members if zones.get(n))
    return [
        ZoneOverlap(owner, zone, tuple(n for n in members if zones.get(n) == zone), header=owner)
        for zone, count in counts.items()
        if count > allowed
    ]


def places_apart(
    zones: Zones, weights: Weights, ring: Ring, leavers: Collection[NodeId], replicas: int
) -> Places:
    """The places for new nodes with the least zone overlap and, among these, the least load above `OVERLOAD`.

    New nodes whose zones fit only together are placed side by side.

    Args:
        weights: weights of the new nodes.
        ring: the ring before the first of them is added.
        leavers: nodes that are removed afterwards; the ring is judged without them.
    """
    newcomers = weights.keys()
    allowed = members_allowed(zones, {*ring.names, *newcomers} - {*leavers}, replicas)

    def places(ring: Ring, node: NodeId) -> list[NodeId]:
        stays = Ring(tuple(n for n in ring.nodes if n.node not in leavers))
        if not stays.nodes:
            return list(ring.names)
        names = stays.names
        best = list(range(len(names)))
        if zones:
            line = [zones.get(n, "") for n in names]
            best = _fewest(best, lambda p: _excess_at(line, p, zones.get(node, ""), replicas, allowed))
            if crowds(stays, zones, replicas, allowed):
                best = [p for p in best if {names[p], names[(p + 1) % len(names)]} & newcomers] or best
        if len({*stays.weights, weights[node]}) > 1:
            best = _fewest(best, lambda p: max(OVERLOAD, _load_at(stays.weights, p, weights[node], replicas)))
        return [names[p] for p in best]

    return places


def spread_order(nodes: Weights, zones: Zones, replicas: int) -> list[NodeId]:
    """The best order found for a new ring of these nodes with zones and weights; the given order if it is as
    good."""

    def misses(order: Sequence[NodeId]) -> tuple[int, float]:
        ring = initial_ring(order, [nodes[n] for n in order])
        return len(crowds(ring, zones, replicas, allowed)), max(OVERLOAD, overload(ring, replicas)[1])

    allowed = members_allowed(zones, nodes, replicas)
    given = list(nodes)
    none = (0, OVERLOAD)
    turns = range(len(given) if len(given) <= SWAP_NODES else 1)
    order = min(
        given, *(_alternated(given[i:] + given[:i], zones, replicas, allowed) for i in turns), key=misses
    )
    least = misses(order)
    pairs = cycle(combinations(range(len(order)), 2)) if 1 < len(order) <= SWAP_NODES else ()
    for i, j in islice(pairs, SWAPS):
        if least == none:
            break
        tried = [*order]
        tried[i], tried[j] = order[j], order[i]
        if (left := misses(tried)) < least:
            order, least = tried, left
    return order


def overload(ring: Ring, replicas: int) -> tuple[NodeId, float]:
    """The node that holds most for its weight: its share of all replicas over its share of all weights."""
    loads = {n: _load(ring.weights, i, replicas) for i, n in enumerate(ring.names)}
    worst = max(loads, key=loads.__getitem__)
    return worst, loads[worst]


def layout_violations(
    ring: Ring, zones: Zones, replicas: int, today: Ring | None = None
) -> Iterator[tuple[str, NodeId, str]]:
    """At most one violation each for more zone overlaps and for a higher overload than in `today`, as
    (`zones` or `weights`, a group owner or node, why).

    Only the number of overlaps counts: with some numbers of nodes, every ring has overlaps, and then each
    node that is added or replaced moves them to other groups.
    """
    # A zone without nodes still counts: an operator with three zones learns that only two would be left.
    allowed = members_allowed(zones, {*ring.names, *(today.names if today else ())}, replicas)
    after = crowds(ring, zones, replicas, allowed)
    # If a node of today's ring has no zone (a line deleted from cluster.yaml), today's overlaps are unknown:
    # all overlaps of `ring` are reported.
    comparable = today is not None and all(n in zones for n in today.names)
    now = crowds(today, zones, replicas, allowed) if today is not None and comparable else []
    if len(after) > len(now):
        known = {(o.owner, o.zone) for o in now}
        first = next(o for o in after if (o.owner, o.zone) not in known)
        they = " and ".join(first.nodes)
        before = f" ({len(now)} today)" if comparable else ""
        yield (
            "zones",
            first.owner,
            f"{len(after)} of {len(ring)} groups would have too many members in one zone{before}:"
            f" {they} of group {first.owner} are in zone {first.zone}",
        )
    node, times = overload(ring, replicas)
    if times > max(OVERLOAD, overload(today, replicas)[1] if today else 0.0):
        yield (
            "weights",
            node,
            f"{node} would hold {times:.1f} times its weight's share: it also holds its neighbours' slots",
        )


def _fewest(of: Iterable[int], cost: Callable[[int], float]) -> list[int]:
    costs = [(cost(p), p) for p in of]
    least = min(c for c, _ in costs)
    return [p for c, p in costs if c == least]


def _load(weights: Sequence[float], at: int, replicas: int) -> float:
    members = min(replicas, len(weights))
    return sum(weights[at - i] for i in range(members)) / (members * weights[at])


def _load_at(weights: Sequence[float], place: int, weight: float, replicas: int) -> float:
    """The largest load near a node of `weight` that is inserted after `place`."""
    line = [*weights[: place + 1], weight, *weights[place + 1 :]]
    return max(_load(line, (place + 1 + i) % len(line), replicas) for i in range(min(replicas, len(line))))


def _excess_at(order: Sequence[str], place: int, zone: str, replicas: int, allowed: int) -> int:
    """How many more excess members the affected groups have if a node of `zone` is inserted after `place`."""
    reach = min(replicas, len(order)) - 1
    n = len(order)
    before = [order[(place - i) % n] for i in range(reach, -1, -1)]
    behind = [order[(place + 1 + i) % n] for i in range(reach)]
    return _excess([*before, zone, *behind], replicas, allowed) - _excess(
        [*before, *behind], replicas, allowed
    )


def _excess(line: Sequence[str], replicas: int, allowed: int) -> int:
    total = 0
    for first in range(len(line) - replicas + 1):
        counts = Counter(z for z in line[first : first + replicas] if z)
        total += sum(c - allowed for c in counts.values() if c > allowed)
    return total


def _alternated(nodes: Sequence[NodeId], zones: Zones, replicas: int, allowed: int) -> list[NodeId]:
    """An order that always continues with the zone with the most remaining nodes, unless the groups at that
    place already have their maximum of that zone's nodes."""
    piles: dict[str, list[NodeId]] = {}
    for node in nodes:
        piles.setdefault(zones.get(node, ""), []).append(node)
    order: list[NodeId] = []
    left = {zone: len(pile) for zone, pile in piles.items()}
    while any(left.values()):
        lately = Counter(zones.get(n, "") for n in order[max(0, len(order) - replicas + 1) :])
        there = [z for z, count in left.items() if count]
        zone = max([z for z in there if not z or lately[z] < allowed] or there, key=left.__getitem__)
        order.append(piles[zone][-left[zone]])
        left[zone] -= 1
    return order
