"""Units of work for Spark tasks, and how work is split into them."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Operation, Ranges
from nodeagent.partition import ranges

UNITS_MAX = 512
"""The most tasks per group or move: each task costs Spark about 10 ms."""

UNIT_BYTES = 8 * 1024 * 1024
"""Target size of one comparison task, in bytes of one replica."""


class Side(msgspec.Struct, frozen=True):
    """A holder of slots. `operation`: the change for which this previous holder sealed them; "" for another
    holder. `trusted`: it has the original files. `adopted` and `cut` are as in `Scope`."""

    node: NodeId
    group: GroupId
    operation: str = ""
    trusted: bool = False
    adopted: bool = False
    cut: int | None = None


class CompareUnit(msgspec.Struct, frozen=True):
    """Slots whose holders are compared row by row."""

    slots: Ranges
    sides: tuple[Side, ...]
    storage_groups: tuple[str, ...] = ()


class PullOrder(msgspec.Struct, frozen=True):
    """An order for `node` to pull slots as a member of `group`."""

    operation: str
    group: GroupId
    node: NodeId
    slots: Ranges


def cut_slots(slot_bytes: Mapping[int, int], parallelism: int) -> list[Ranges]:
    """Split slots into pieces of about equal bytes, in slot order.

    At most `UNITS_MAX` pieces; about four per core or more if that leaves 16 slots per piece.
    """
    total = sum(slot_bytes.values())
    wanted = max(total // UNIT_BYTES, min(4 * parallelism, len(slot_bytes) // 16), 1)
    share = total / min(wanted, UNITS_MAX)
    pieces: list[Ranges] = []
    piece: list[int] = []
    held = 0
    for slot in sorted(slot_bytes):
        piece.append(slot)
        held += slot_bytes[slot]
        if held >= share:
            pieces.append(ranges.from_slots(piece))
            piece, held = [], 0
    if piece:
        pieces.append(ranges.from_slots(piece))
    return pieces


def pull_orders(operation: Operation, incarnations: Mapping[NodeId, str], per_node: int) -> list[PullOrder]:
    """The missing copies: for each member of each gaining group, the slots without a recorded copy.

    A copy only counts for the incarnation that made it. Nodes alternate in the list, so that its first orders
    keep all nodes busy. `per_node` is the most orders per node and group.
    """
    queues: list[list[PullOrder]] = []
    for group in operation.gaining:
        moves = [m for m in operation.moves if m.target == group]
        slots = ranges.union(*(m.slots for m in moves))
        for node in moves[0].target_members:
            missing = ranges.subtract(slots, _copied(operation, group, node, incarnations.get(node)))
            queues.append([PullOrder(operation.id, group, node, p) for p in _split(missing, per_node)])
    return _in_turns(queues)


def missing_slots(operation: Operation, incarnations: Mapping[NodeId, str]) -> int:
    """The number of unrecorded copies, counted per slot and member."""
    return sum(ranges.count(o.slots) for o in pull_orders(operation, incarnations, 1))


def _copied(operation: Operation, group: GroupId, node: NodeId, incarnation: str | None) -> Ranges:
    return ranges.union(
        *(
            c.slots
            for c in operation.copies
            if (c.target, c.node) == (group, node) and incarnation in (None, c.incarnation)
        )
    )


def _split(slots: Ranges, pieces: int) -> list[Ranges]:
    """At most `pieces` parts with about equally many slots."""
    every = ranges.to_array(slots)
    if not len(every):
        return []
    size = -(-len(every) // pieces)
    return [ranges.from_slots(every[i : i + size]) for i in range(0, len(every), size)]


def _in_turns(queues: Sequence[Sequence[PullOrder]]) -> list[PullOrder]:
    longest = max((len(q) for q in queues), default=0)
    return [queue[i] for i in range(longest) for queue in queues if i < len(queue)]


def total_slots(many: Iterable[Ranges]) -> int:
    return sum(ranges.count(r) for r in many)
