"""The partition table: slot -> owner of its data group.

`version` is the meta log index of the entry that put the table in force, and covers ring and owners only;
equal versions are equal tables. A planner does not know it yet and uses the old version + 1; the meta group
sets the final version with `stamped`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt

from nodeagent.model.errors import InvalidInput, NotFound
from nodeagent.model.ids import NodeId
from nodeagent.model.limits import NODES_MAX, SLOTS_MAX
from nodeagent.partition.balance import targets
from nodeagent.partition.ranges import SlotRanges, check_ranges, from_slots, to_array, to_bounds
from nodeagent.partition.ring import Ring, RingNode

OwnerArray = npt.NDArray[np.uint16]


class TableWire(msgspec.Struct, frozen=True):
    """A table as it is stored and sent: `owned[i]` are the slots of `nodes[i]`."""

    version: int
    slots: int
    nodes: tuple[RingNode, ...]
    owned: tuple[SlotRanges, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PartitionTable:
    """Invariant: every slot has exactly one owner, which is on the ring.

    `owners[slot]` is an index into `ring.nodes`; the array is read-only.
    """

    version: int
    ring: Ring
    owners: OwnerArray

    def __post_init__(self) -> None:
        n = len(self.ring)
        if not 0 < n <= NODES_MAX or not 0 < self.owners.size <= SLOTS_MAX:
            raise InvalidInput(
                f"a table of {n} nodes and {self.owners.size} slots was refused",
                next_step=f"use 1 to {NODES_MAX} nodes and 1 to {SLOTS_MAX} slots",
            )
        assert self.owners.dtype == np.uint16 and int(self.owners.max()) < n
        self.owners.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionTable):
            return NotImplemented
        return self.version == other.version and self.same_layout(other)

    def __hash__(self) -> int:
        return hash((self.version, self.ring))

    def same_layout(self, other: "PartitionTable") -> bool:
        """Whether the two are equal except for the version."""
        return self.ring == other.ring and np.array_equal(self.owners, other.owners)

    @property
    def slots(self) -> int:
        return int(self.owners.size)

    def route(self, slot: int) -> NodeId:
        """Owner of the group that holds `slot`; `NotFound` outside [0, slots)."""
        if not 0 <= slot < self.owners.size:
            raise NotFound(
                f"there is no slot {slot}: slots are in [0, {self.owners.size})",
                next_step="use the cluster's own number of slots",
            )
        return self.ring.nodes[int(self.owners[slot])].node

    def slots_of(self, owner: NodeId) -> SlotRanges:
        return from_slots(np.flatnonzero(self.owners == self.ring.index(owner)))

    def counts(self) -> dict[NodeId, int]:
        """Number of slots per group owner, in ring order."""
        counts = np.bincount(self.owners, minlength=len(self.ring)).tolist()
        return dict(zip(self.ring.names, counts, strict=True))

    def holds(self, node: NodeId, slot: int, replicas: int) -> bool:
        """Whether `node` is a member of the slot's group."""
        return node in self.ring.members(self.route(slot), replicas)

    def stamped(self, version: int) -> "PartitionTable":
        return replace(self, version=version)

    def moved(self, moves: Mapping[NodeId, SlotRanges], ring: Ring, version: int) -> "PartitionTable":
        """The table on `ring` after each group owner in `moves` gained its slots.

        Raises:
            InvalidInput: a slot would keep an owner that is not on `ring`.
            NotFound: an owner in `moves` is not on `ring`.
        """
        at = np.fromiter((ring.index(n) if n in ring else -1 for n in self.ring.names), np.int64)
        owners = at[self.owners]
        for owner, ranges in moves.items():
            owners[to_array(check_ranges(ranges, self.slots))] = ring.index(owner)
        if (owners < 0).any():
            raise InvalidInput(
                "the table was refused: some slots would have an owner that is not on the ring",
                next_step="move all slots of a node that leaves",
            )
        return PartitionTable(version, ring, owners.astype(np.uint16))

    def to_wire(self) -> TableWire:
        by_owner = np.argsort(self.owners, kind="stable")
        ends = np.cumsum(np.bincount(self.owners, minlength=len(self.ring)))
        owned = tuple(from_slots(part) for part in np.split(by_owner, ends[:-1]))
        return TableWire(self.version, self.slots, self.ring.nodes, owned)

    @classmethod
    def from_wire(cls, wire: TableWire) -> "PartitionTable":
        """Raise `InvalidInput` unless each slot is named exactly once."""
        next_step = "read the partition table again"
        if len(wire.owned) != len(wire.nodes) or not 0 < wire.slots <= SLOTS_MAX:
            raise InvalidInput(
                f"the table was refused: it has {len(wire.owned)} owners for {len(wire.nodes)} nodes "
                f"and {wire.slots} slots",
                next_step=next_step,
            )
        for ranges in wire.owned:
            check_ranges(ranges, wire.slots)
        bounds = to_bounds(list(chain.from_iterable(wire.owned)))
        owner = np.repeat(np.arange(len(wire.owned)), [len(ranges) for ranges in wire.owned])
        order = np.argsort(bounds[:, 0], kind="stable")
        starts, ends = bounds[order, 0], bounds[order, 1]
        gaps = np.append(starts, wire.slots) - np.append(0, ends)
        if gaps.any():
            at = int(np.flatnonzero(gaps)[0])
            first = int(ends[at - 1]) if at else 0
            what = f"slot {first} has no owner"
            if gaps[at] < 0:
                what = f"a slot in [{starts[at]}, {ends[at]}) has two owners"
            raise InvalidInput(f"the table was refused: {what}", next_step=next_step)
        owners = np.repeat(owner[order], ends - starts).astype(np.uint16)
        return cls(wire.version, Ring(wire.nodes), owners)


def initial_table(ring: Ring, slots: int, version: int = 0) -> PartitionTable:
    """Each node owns a run of slots // n slots, in ring order; the last node takes the remainder (as in old
    IoTDB). With weights that differ, the runs follow the weights.
    """
    n = len(ring)
    if n == 0:
        raise InvalidInput("no table was made: it needs at least one node", next_step="name a node")
    if len(set(ring.weights)) > 1:
        runs = targets([slots, *[0] * (n - 1)], ring.weights)
        return PartitionTable(version, ring, np.repeat(np.arange(n), runs).astype(np.uint16))
    # With fewer slots than nodes the run length would be 0: the first nodes get one slot each.
    per = max(1, slots // n)
    owners = np.minimum(np.arange(slots) // per, n - 1).astype(np.uint16)
    return PartitionTable(version, ring, owners)
