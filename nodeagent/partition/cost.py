"""Bytes that cross the network in a change, as nodes copy them.

- *Slot migration*: for each slot that moves from group A to group B, every member of B (by the new ring) that
  is not a member of A (by the old ring) pulls the slot. A member of both links its files locally: 0 bytes.
- *Catch-up*: a node that joins an existing group pulls the group's checkpoint and the files of the slots that
  the group retains. Slots that the group loses are sealed and stay with the old members; slots that it gains
  come to the joiner by slot migration, as to every other member.

For one change the sum is exactly its placement bound (`placement_bytes`): each replica byte that is on a node
after the change and was not before is copied once. Log entries and messages are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nodeagent.model.errors import InvalidInput
from nodeagent.model.ids import NodeId
from nodeagent.partition.balance import ByteArray
from nodeagent.partition.change import Change
from nodeagent.partition.table import PartitionTable


@dataclass(frozen=True, slots=True)
class CopyCost:
    """Bytes to copy; nodes and groups without any are left out."""

    hand_over: dict[NodeId, int]
    """Pulled by each node as a member of gaining groups."""

    catch_up: dict[NodeId, int]
    """Pulled by each joiner of existing groups."""

    group_bytes: dict[NodeId, int]
    """By group owner: what one node that joins the group pulls in catch-up."""

    @property
    def total(self) -> int:
        return sum(self.hand_over.values()) + sum(self.catch_up.values())

    def pulled(self, node: NodeId) -> int:
        return self.hand_over.get(node, 0) + self.catch_up.get(node, 0)


def bytes_array(slot_bytes: Mapping[int, int], slots: int) -> ByteArray:
    """One replica's bytes by slot; `InvalidInput` for a slot outside the table or a negative size."""
    array = np.zeros(slots, np.int64)
    if not slot_bytes:
        return array
    at = np.fromiter(slot_bytes.keys(), np.int64, len(slot_bytes))
    sizes = np.fromiter(slot_bytes.values(), np.int64, len(slot_bytes))
    if at.min() < 0 or at.max() >= slots or sizes.min() < 0:
        raise InvalidInput(
            f"sizes of slots were refused: a slot is not in [0, {slots}) or a size is negative",
            next_step="read the partition table and the sizes again",
        )
    array[at] = sizes
    return array


def group_bytes(table: PartitionTable, sizes: ByteArray) -> dict[NodeId, int]:
    """One replica's bytes of each group, by group owner."""
    total = np.zeros(len(table.ring), np.int64)
    np.add.at(total, table.owners, sizes)
    return dict(zip(table.ring.names, total.tolist(), strict=True))


def node_bytes(table: PartitionTable, replicas: int, sizes: ByteArray) -> dict[NodeId, int]:
    """All replicas' bytes on each node, in ring order."""
    per_group = group_bytes(table, sizes)
    on_node = dict.fromkeys(table.ring.names, 0)
    for owner, size in per_group.items():
        for member in table.ring.members(owner, replicas):
            on_node[member] += size
    return on_node


def copy_cost(change: Change, sizes: ByteArray) -> CopyCost:
    """What the change copies; `sizes` are one replica's bytes by slot."""
    upto = np.concatenate(([0], np.cumsum(sizes)))
    hand_over: dict[NodeId, int] = {}
    lost: dict[NodeId, int] = {}
    for move in change.moves:
        size = sum(int(upto[b] - upto[a]) for a, b in move.slots)
        lost[move.source] = lost.get(move.source, 0) + size
        old = change.old_members(move.source)
        for member in change.new_members(move.target):
            if member not in old:
                hand_over[member] = hand_over.get(member, 0) + size
    before = group_bytes(change.old, sizes)
    catch_up: dict[NodeId, int] = {}
    per_joiner: dict[NodeId, int] = {}
    for group in change.members:
        kept = before[group.group] - lost.get(group.group, 0)
        per_joiner[group.group] = kept
        for node in group.joins:
            catch_up[node] = catch_up.get(node, 0) + kept
    return CopyCost(_non_zero(hand_over), _non_zero(catch_up), _non_zero(per_joiner))


def _non_zero(sizes: dict[NodeId, int]) -> dict[NodeId, int]:
    return {k: v for k, v in sizes.items() if v}


def free_bytes(old: PartitionTable, new: PartitionTable, replicas: int, sizes: ByteArray) -> int:
    """Fewest bytes to copy if replicas could be on any node, with each node as full as it is by `new`.

    What a change copies beyond this is due to the ring: the members of groups follow from it.
    """
    held = node_bytes(old, replicas, sizes)
    return sum(max(0, size - held.get(node, 0)) for node, size in node_bytes(new, replicas, sizes).items())


def placement_bytes(old: PartitionTable, new: PartitionTable, replicas: int, sizes: ByteArray) -> int:
    """Fewest bytes that any procedure copies between the two placements.

    It is the sum over slots of size times the number of nodes that hold the slot by `new` and not by `old`.
    Several changes in a row may copy more (a node may join a group and leave it later).
    """
    # Slots with the same old and new owner have the same holders: one step per distinct pair.
    pair = old.owners.astype(np.int64) * len(new.ring) + new.owners
    pairs, inverse = np.unique(pair, return_inverse=True)
    total = np.zeros(pairs.size, np.int64)
    np.add.at(total, inverse, sizes)
    moved = 0
    for code, size in zip(pairs.tolist(), total.tolist(), strict=True):
        if size:
            source, target = divmod(code, len(new.ring))
            before = old.ring.members(old.ring.nodes[source].node, replicas)
            after = new.ring.members(new.ring.nodes[target].node, replicas)
            moved += size * sum(n not in before for n in after)
    return moved
