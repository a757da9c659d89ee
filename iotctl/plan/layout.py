"""What ring order makes of zones and weights: a group is a node and those that follow it, nothing else.

A zone is what fails at once (a rack, a room). A group may have as many members in one zone as its quorum can
do without; with too few zones for that, its share. Nodes without a zone count in none. A weight is a
share of the slots; disk and traffic follow from the neighbours' slots too, so a weight can ask for what no
order gives.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, cycle, islice

import msgspec

from nodeagent.model.ids import NodeId
from nodeagent.partition.planner import Places
from nodeagent.partition.ring import Ring, initial_ring
from nodeagent.partition.table import PartitionTable

OVERLOAD = 1.5
"""A node may hold this many times its weight's share of all replicas."""

SWAPS = 1_000
"""Tried for a better order: enough to find one of 8 nodes where there is one (a test compares)."""

Zones = Mapping[NodeId, str]


class Crowd(msgspec.Struct, frozen=True):
    """A group that would stop with `zone`: too many of its members are there."""

    header: NodeId
    zone: str
    nodes: tuple[NodeId, ...]


def members_allowed(zones: Zones, nodes: Collection[NodeId], replicas: int) -> int:
    """How many members of one group may be in one zone."""
    members = min(replicas, len(nodes))
    known = len({zones[n] for n in nodes if zones.get(n)})
    return max(-(-members // max(1, known)), (members - 1) // 2)


def crowds(ring: Ring, zones: Zones, replicas: int, allowed: int | None = None) -> list[Crowd]:
    """The groups with more than `allowed` members in one zone (`members_allowed` when None)."""
    most = members_allowed(zones, ring.names, replicas) if allowed is None else allowed
    found: list[Crowd] = []
    for header in ring.names if zones else ():
        members = ring.members(header, replicas)
        for zone, count in Counter(zones[n] for n in members if zones.get(n)).items():
            if count > most:
                found.append(Crowd(header, zone, tuple(n for n in members if zones.get(n) == zone)))
    return found


def places_apart(zones: Zones, table: PartitionTable, newcomers: Sequence[NodeId], replicas: int) -> Places:
    """Where newcomers keep zones apart best; for those of one plan that fit only together: side by side."""
    allowed = members_allowed(zones, [*table.ring.names, *newcomers], replicas)

    def places(ring: Ring, node: NodeId) -> list[NodeId]:
        names, line = ring.names, [zones.get(n, "") for n in ring.names]
        excess = [_excess_at(line, p, zones.get(node, ""), replicas, allowed) for p in range(len(names))]
        fewest = min(excess)
        least = [p for p, e in enumerate(excess) if e == fewest]
        if crowds(ring, zones, replicas, allowed):
            beside = [p for p in least if {names[p], names[(p + 1) % len(names)]} & {*newcomers}]
            least = beside or least
        return [names[p] for p in least]

    return places


def spread_order(nodes: Sequence[NodeId], zones: Zones, replicas: int) -> list[NodeId]:
    """An order for a new ring that keeps zones apart as far as possible; the given one when it does."""
    order = list(nodes)
    allowed = members_allowed(zones, nodes, replicas)
    if not crowds(initial_ring(order), zones, replicas, allowed):
        return order
    order = _dealt(order, zones)
    best = len(crowds(initial_ring(order), zones, replicas, allowed))
    pairs = cycle(combinations(range(len(order)), 2))
    for i, j in islice(pairs, SWAPS if best else 0):
        tried = [*order]
        tried[i], tried[j] = order[j], order[i]
        left = len(crowds(initial_ring(tried), zones, replicas, allowed))
        if left < best:
            order, best = tried, left
    return order


def overload(ring: Ring, replicas: int) -> tuple[NodeId, float]:
    """The node that holds most for its weight: its share of all replicas over its share of all weights."""
    members = min(replicas, len(ring))
    weights = dict(zip(ring.names, ring.weights, strict=True))
    times = {
        n: sum(weights[h] for h in ring.headers_with(n, replicas)) / (members * weights[n])
        for n in ring.names
    }
    worst = max(times, key=times.__getitem__)
    return worst, times[worst]


def objections(
    ring: Ring, zones: Zones, replicas: int, today: Ring | None = None
) -> Iterator[tuple[str, NodeId, str]]:
    """What `ring` does not meet, and `today` meets better: (`zones` or `weights`, its group or node, why)."""
    # A zone that nobody is left in still counts: who wanted three apart is told that there will be two.
    allowed = members_allowed(zones, {*ring.names, *(today.names if today else ())}, replicas)
    crowded = crowds(ring, zones, replicas, allowed)
    now = crowds(today, zones, replicas, allowed) if today else []
    if len(crowded) > len(now):
        first = crowded[0]
        yield (
            "zones",
            first.header,
            f"{len(crowded)} of {len(ring)} groups would have too many members in one zone"
            f" ({len(now)} today): group {first.header} stops without zone {first.zone},"
            f" where {' and '.join(first.nodes)} are",
        )
    node, times = overload(ring, replicas)
    if times > max(OVERLOAD, overload(today, replicas)[1] if today else 0.0):
        yield (
            "weights",
            node,
            f"{node} would hold {times:.1f} times what its weight says: it keeps its neighbours' slots too",
        )


def _excess_at(order: Sequence[str], place: int, zone: str, replicas: int, allowed: int) -> int:
    """Members too many in the groups that change when `zone` comes behind `place`, less those of today."""
    reach = min(replicas, len(order)) - 1
    n = len(order)
    before = [order[(place - i) % n] for i in range(reach, -1, -1)]
    behind = [order[(place + 1 + i) % n] for i in range(reach)]
    return _too_many([*before, zone, *behind], replicas, allowed) - _too_many(
        [*before, *behind], replicas, allowed
    )


def _too_many(line: Sequence[str], replicas: int, allowed: int) -> int:
    total = 0
    for first in range(len(line) - replicas + 1):
        counts = Counter(z for z in line[first : first + replicas] if z)
        total += sum(c - allowed for c in counts.values() if c > allowed)
    return total


def _dealt(nodes: Sequence[NodeId], zones: Zones) -> list[NodeId]:
    """One of each zone in turn, the largest zones first."""
    piles: dict[str, list[NodeId]] = {}
    for node in nodes:
        piles.setdefault(zones.get(node, ""), []).append(node)
    stacks = sorted(piles.values(), key=len, reverse=True)
    return [s[i] for i in range(len(stacks[0])) for s in stacks if i < len(s)]
