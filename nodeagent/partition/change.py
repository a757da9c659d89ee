"""A change of the partition table: two tables and everything that follows from them.

Moves and member lists are derived from the kind, the node, the number of replicas and the two tables; a saved
change has only these. The record of an operation (`model.operation`) stores what was derived when it began,
so a new rule does not affect an open operation. The four rules for member lists (pre and formal, add and
remove) are those of old IoTDB's two-phase change: pre only adds, formal applies pre and then only removes,
and each may be repeated in any order. The stages of a change are those of its record.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import numpy as np

from nodeagent.model.errors import InvalidInput
from nodeagent.model.ids import NodeId
from nodeagent.partition.ranges import SlotRanges, from_slots
from nodeagent.partition.ring import Ring
from nodeagent.partition.table import PartitionTable, TableWire

Members = tuple[NodeId, ...]


class ChangeKind(StrEnum):
    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"
    MOVE = "move"


class MemberChange(msgspec.Struct, frozen=True):
    """The members of one data group (by owner) before and after the change; () if it does not exist."""

    group: NodeId
    joins: Members
    leaves: Members
    before: Members
    after: Members

    @property
    def is_created(self) -> bool:
        return not self.before

    @property
    def is_dissolved(self) -> bool:
        return not self.after


class Move(msgspec.Struct, frozen=True):
    """Slots that move from one data group to another, both given by group owner."""

    slots: SlotRanges
    source: NodeId
    target: NodeId


class ChangeWire(msgspec.Struct, frozen=True):
    """The serialised form of a change."""

    kind: ChangeKind
    node: NodeId
    replicas: int
    old: TableWire
    new: TableWire


@dataclass(frozen=True, slots=True)
class Change:
    """`node` is the node added or removed (replace: added), "" for a move.

    Invariants: `moves` is exactly the difference of the tables' owners, ordered by (source, target) on the
    old and the new ring; `members` has the groups that exist before and after and whose members change.
    """

    kind: ChangeKind
    node: NodeId
    replicas: int
    old: PartitionTable
    new: PartitionTable
    moves: tuple[Move, ...]
    members: tuple[MemberChange, ...]
    created: MemberChange | None
    dissolved: MemberChange | None

    def to_wire(self) -> ChangeWire:
        return ChangeWire(self.kind, self.node, self.replicas, self.old.to_wire(), self.new.to_wire())

    @classmethod
    def from_wire(cls, wire: ChangeWire) -> "Change":
        """Raise `InvalidInput` if a table is invalid or the rings do not differ as the kind says."""
        old, new = PartitionTable.from_wire(wire.old), PartitionTable.from_wire(wire.new)
        return change_between(wire.kind, wire.node, old, new, wire.replicas)

    def old_members(self, owner: NodeId) -> Members:
        """Members of a group by the old ring; () for the group that is created."""
        return self.old.ring.members(owner, self.replicas) if owner in self.old.ring else ()

    def new_members(self, owner: NodeId) -> Members:
        """Members of a group by the new ring; () for the group that is dissolved."""
        return self.new.ring.members(owner, self.replicas) if owner in self.new.ring else ()


def change_between(
    kind: ChangeKind, node: NodeId, old: PartitionTable, new: PartitionTable, replicas: int
) -> Change:
    """The change from `old` to `new`; `InvalidInput` if the rings do not differ as `kind` says."""
    gone = tuple(n.node for n in old.ring.nodes if n not in new.ring.nodes)
    come = tuple(n.node for n in new.ring.nodes if n not in old.ring.nodes)
    expected = {
        ChangeKind.ADD: ((), (node,)),
        ChangeKind.REMOVE: ((node,), ()),
        ChangeKind.REPLACE: (gone[:1], (node,)),
        ChangeKind.MOVE: ((), ()),
    }[kind]
    if (gone, come) != expected or len(gone) < (kind is ChangeKind.REPLACE) or old.slots != new.slots:
        what = f"{kind} {node}".rstrip()
        raise InvalidInput(
            f"the change was refused: old and new ring do not fit `{what}`", next_step="make a new plan"
        )
    groups = group_changes(old.ring, new.ring, replicas)
    return Change(
        kind,
        node,
        replicas,
        old,
        new,
        _moves(old, new),
        tuple(g for g in groups if not g.is_created and not g.is_dissolved),
        next((g for g in groups if g.is_created), None),
        next((g for g in groups if g.is_dissolved), None),
    )


def _moves(old: PartitionTable, new: PartitionTable) -> tuple[Move, ...]:
    to_new = np.fromiter((new.ring.index(n) if n in new.ring else -1 for n in old.ring.names), np.int64)
    slots = np.flatnonzero(to_new[old.owners] != new.owners)
    source, target = old.owners[slots], new.owners[slots]
    order = np.lexsort((slots, target, source))
    slots, source, target = slots[order], source[order], target[order]
    cut = np.flatnonzero((np.diff(source) != 0) | (np.diff(target) != 0)) + 1
    return tuple(
        Move(from_slots(part), old.route(int(part[0])), new.route(int(part[0])))
        for part in np.split(slots, cut)
        if part.size
    )


def group_changes(old: Ring, new: Ring, replicas: int) -> list[MemberChange]:
    """Every group whose members differ: changed and created groups in order of the new ring, then dissolved
    groups."""
    out: list[MemberChange] = []
    gone = [h for h in old.names if h not in new]
    for owner in (*new.names, *gone):
        before = old.members(owner, replicas) if owner in old else ()
        after = new.members(owner, replicas) if owner in new else ()
        if before != after:
            joins = tuple(n for n in after if n not in before)
            leaves = tuple(n for n in before if n not in after)
            out.append(MemberChange(owner, joins, leaves, before, after))
    return out


def pre_add(members: Members, new: NodeId, ring: Ring, replicas: int) -> Members:
    """The group with `new` at its place on the ring; no member is removed.

    A group of at least `replicas` members does not change if that place is after its last member.

    Args:
        members: group owner first, in ring order.
        ring: the ring that contains `new`.
    """
    if new in members:
        return members
    place = {n: ring.offset(members[0], n) for n in (*members, new)}
    if len(members) >= replicas and place[new] > place[members[-1]]:
        return members
    return tuple(sorted((*members, new), key=place.__getitem__))


def formal_add(members: Members, new: NodeId, ring: Ring, replicas: int) -> Members:
    """`pre_add`, without the last member if the group has more than `replicas` members."""
    members = pre_add(members, new, ring, replicas)
    if new not in members or len(members) <= replicas:
        return members
    return members[:-1]


def pre_remove(members: Members, leaving: NodeId, ring: Ring, replicas: int) -> Members:
    """The group with the replacement of the leaving node appended; no member is removed.

    The replacement is the last member by `ring`, which does not contain the leaving node any more. The group
    that the leaving node owns does not change: it serves until it is dissolved.
    """
    if leaving not in members or leaving == members[0]:
        return members
    replacement = ring.members(members[0], replicas)[-1]
    return members if replacement in members else (*members, replacement)


def formal_remove(members: Members, leaving: NodeId, ring: Ring, replicas: int) -> Members:
    """`pre_remove`, without the leaving node."""
    members = pre_remove(members, leaving, ring, replicas)
    if leaving == members[0]:
        return members
    return tuple(n for n in members if n != leaving)


Rule = Callable[[Members, NodeId, Ring, int], Members]
PRE: dict[ChangeKind, Rule] = {ChangeKind.ADD: pre_add, ChangeKind.REMOVE: pre_remove}
FORMAL: dict[ChangeKind, Rule] = {ChangeKind.ADD: formal_add, ChangeKind.REMOVE: formal_remove}
