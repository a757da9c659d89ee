"""Pieces of work that travel to Spark tasks, and how work is cut into them."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Operation, Ranges
from nodeagent.partition import ranges

UNITS_MAX = 512
"""Tasks of one job: each costs Spark some 10 ms."""

UNIT_BYTES = 8 * 1024 * 1024
"""Bytes of one replica that one comparison task aims at."""


class Side(msgspec.Struct, frozen=True):
    """One holder. With `operation` its sealed slots of that change are meant; `trusted`: the original."""

    node: NodeId
    group: GroupId
    operation: str = ""
    trusted: bool = False
    adopted: bool = False
    cut: int | None = None


class CompareUnit(msgspec.Struct, frozen=True):
    """Slots whose holders are to be compared row by row."""

    slots: Ranges
    sides: tuple[Side, ...]
    storage_groups: tuple[str, ...] = ()


class PullOrder(msgspec.Struct, frozen=True):
    """Slots that `node` is to have as a member of `group`."""

    operation: str
    group: GroupId
    node: NodeId
    slots: Ranges


def cut_slots(slot_bytes: Mapping[int, int], parallelism: int) -> list[Ranges]:
    """Cut slots into pieces of about equal bytes, in slot order.

    At least four pieces per core when there is enough to share, at most `UNITS_MAX`.
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
    """What is missing: for each member of each gaining group the slots it has recorded no copy of.

    A copy counts only for the incarnation that made it. Nodes take turns in the list,
    so that its head already keeps all of them busy. `per_node` is how many orders a node gets per group.
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
    """Copies not recorded yet, counted per slot and member."""
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
