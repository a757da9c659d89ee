"""The ring: nodes ordered by a 64-bit position, and the groups that follow from it.

Every node owns one data group: itself and the next R - 1 nodes clockwise. With fewer than R nodes a group is
the whole ring. Positions only order the nodes; the partition table assigns the slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from nodeagent.model.errors import InvalidInput, NotFound, Refused
from nodeagent.model.ids import NodeId, check_node_id

SPAN = 1 << 64


class RingNode(msgspec.Struct, array_like=True, frozen=True):
    """`position` is in [0, 2^64) and unique on its ring. `weight` > 0: relative share of the slots."""

    node: NodeId
    position: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Ring:
    """Invariant: nodes ascend by position; names and positions are unique."""

    nodes: tuple[RingNode, ...]
    _index: dict[NodeId, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", {n.node: i for i, n in enumerate(self.nodes)})
        if len(self._index) != len(self.nodes):
            raise InvalidInput("the ring was refused: a node is on it twice", next_step="name each node once")
        for n in self.nodes:
            check_node_id(n.node)
            if not 0 <= n.position < SPAN or not 0 < n.weight < float("inf"):
                raise InvalidInput(
                    f"the ring was refused: {n.node} has position {n.position} and weight {n.weight}",
                    next_step="use a position in [0, 2^64) and a finite weight above 0",
                )
        if any(a.position >= b.position for a, b in zip(self.nodes, self.nodes[1:], strict=False)):
            raise InvalidInput(
                "the ring was refused: its nodes do not ascend by position",
                next_step="sort the nodes by position and use each position once",
            )

    def __len__(self) -> int:
        return len(self.nodes)

    def __contains__(self, node: object) -> bool:
        return node in self._index

    @property
    def names(self) -> tuple[NodeId, ...]:
        return tuple(n.node for n in self.nodes)

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(n.weight for n in self.nodes)

    def index(self, node: NodeId) -> int:
        """The node's index in order of position, from 0; `NotFound` if it is not on the ring."""
        found = self._index.get(node)
        if found is None:
            raise NotFound(f"node {node!r} is not on the ring", next_step="see `iotctl cluster ring`")
        return found

    def members(self, owner: NodeId, replicas: int) -> tuple[NodeId, ...]:
        """The members of the group that `owner` owns, in ring order from it; at most `replicas` nodes."""
        first, n = self.index(owner), len(self.nodes)
        return tuple(self.nodes[(first + i) % n].node for i in range(min(replicas, n)))

    def owners_with(self, node: NodeId, replicas: int) -> tuple[NodeId, ...]:
        """Owners of the groups of which `node` is a member: itself, then its predecessors."""
        at, n = self.index(node), len(self.nodes)
        return tuple(self.nodes[(at - i) % n].node for i in range(min(replicas, n)))

    def offset(self, owner: NodeId, node: NodeId) -> int:
        """Clockwise distance of positions from `owner` to `node`."""
        return (self.nodes[self.index(node)].position - self.nodes[self.index(owner)].position) % SPAN

    def adding(self, node: RingNode) -> "Ring":
        """This ring with `node`; `InvalidInput` if its name or position is taken."""
        return Ring(tuple(sorted((*self.nodes, node), key=lambda n: n.position)))

    def removing(self, node: NodeId) -> "Ring":
        at = self.index(node)
        return Ring(self.nodes[:at] + self.nodes[at + 1 :])


def initial_ring(nodes: Sequence[NodeId], weights: Sequence[float] | None = None) -> Ring:
    """A ring of the nodes in the order given, with positions evenly spaced from 0."""
    w = weights if weights is not None else [1.0] * len(nodes)
    return Ring(
        tuple(RingNode(n, i * SPAN // len(nodes), x) for i, (n, x) in enumerate(zip(nodes, w, strict=True)))
    )


def gap_after(ring: Ring, after: NodeId) -> int:
    """Distance from `after` to the next node clockwise (the whole span on a ring of one node)."""
    at = ring.index(after)
    following = ring.nodes[(at + 1) % len(ring.nodes)]
    return (following.position - ring.nodes[at].position - 1) % SPAN + 1


def place_between(ring: Ring, after: NodeId) -> int:
    """The position half-way from `after` to its successor; `Refused` if no position is free there."""
    gap = gap_after(ring, after)
    if gap < 2:
        raise Refused(
            f"no node can be placed after {after}: no ring position is free up to its successor",
            next_step="name another node with --after",
        )
    return (ring.nodes[ring.index(after)].position + gap // 2) % SPAN
