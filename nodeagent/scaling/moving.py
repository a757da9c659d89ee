"""The copies of one operation, divided into units, each of which is pulled and recorded as a whole.

Every member of a target group forms the same units, so that copy records of the same slots can be compared.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from nodeagent.model.files import PARKED, TSFILE, FileMeta, PulledSlot, Tombstone
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.jobs import Adoption
from nodeagent.model.operation import Operation, Ranges, SlotMove, Stage
from nodeagent.partition.ranges import count, from_slots, to_slots

UNIT_SLOTS = 32


@dataclass(frozen=True, slots=True)
class Unit:
    """Slots that a node pulls together for the target of `move`."""

    operation: str
    move: SlotMove
    slots: Ranges

    @property
    def key(self) -> tuple[str, GroupId, Ranges]:
        return (self.operation, self.move.target, self.slots)


def units(op: Operation) -> list[Unit]:
    """All units of the operation, in slot order per move; its moves never change, so callers may cache
    them."""
    out = []
    for move in op.moves:
        slots = to_slots(move.slots)
        for i in range(0, len(slots), UNIT_SLOTS):
            out.append(Unit(op.id, move, from_slots(slots[i : i + UNIT_SLOTS])))
    return out


def units_to_copy(op: Operation, cut: Sequence[Unit], node: NodeId, incarnation: str) -> list[Unit]:
    """The units that `node` still has to copy and record."""
    recorded = {(c.target, c.slots) for c in op.copies if (c.node, c.incarnation) == (node, incarnation)}
    return [u for u in cut if node in u.move.target_members and (u.move.target, u.slots) not in recorded]


def rate_share(op: Operation, node: NodeId) -> int:
    """Bytes per second that `node` may pull so that all nodes together stay within the operation's rate.

    The rate is divided evenly among the nodes that still have something to pull. 0 for no limit.
    """
    rate = op.options.rate_bytes_per_s
    if rate <= 0:
        return 0
    return max(1, rate // len(_pulling(op) | {node}))


def _pulling(op: Operation) -> set[NodeId]:
    """The nodes that pull: before COPYING, those that catch up in groups they join; in COPYING, those that
    still lack copies for a gaining group of which they are a member, unless they are previous holders."""
    joining = {c.joins for c in op.changes if c.joins is not None}
    if op.stage is not Stage.COPYING:
        return joining
    held = Counter[tuple[GroupId, NodeId]]()
    for copy in op.copies:
        held[copy.target, copy.node] += count(copy.slots)
    gained = Counter[GroupId]()
    for move in op.moves:
        gained[move.target] += count(move.slots)
    return {
        node
        for move in op.moves
        for node in move.target_members
        if node not in move.source_members and held[move.target, node] < gained[move.target]
    }


def sources(move: SlotMove, node: NodeId, attempt: int) -> list[NodeId]:
    """Previous holders in the order to try: at attempt 0, new member *i* begins with old member *i*; each
    further attempt begins one member later."""
    members = move.source_members
    at = move.target_members.index(node) if node in move.target_members else 0
    turn = (at + attempt) % len(members)
    return [*members[turn:], *members[:turn]]


def digest(slots: tuple[PulledSlot, ...]) -> str:
    """Digest of the slots' content, equal for equal copies from any source."""
    state = xxhash.xxh3_128()
    for slot in sorted(slots, key=lambda s: s.slot):
        for file in sorted(slot.files, key=lambda f: f.name):
            state.update(f"{slot.slot}:{file.name}:{file.size}:{file.xxh3};".encode())
        for t in sorted(slot.tombstones, key=lambda t: t.order):
            state.update(f"{slot.slot}:{t.order}:{t.table};".encode())
    return state.hexdigest()


def adoptions(open_index: int, pulled: list[PulledSlot]) -> tuple[list[Adoption], list[Tombstone]]:
    """Manifest rows for the new group: older than its `Open`, and in their old order."""
    files: list[Adoption] = []
    tombstones: list[Tombstone] = []
    for slot in sorted(pulled, key=lambda s: s.slot):
        ordered = sorted(slot.files, key=lambda f: (f.order, f.name))
        files += [Adoption(f.name, _adopted(f, open_index, i)) for i, f in enumerate(ordered)]
        tombstones += [
            Tombstone((open_index, *t.order), t.partition, t.table, t.tags, t.time_from, t.time_to)
            for t in slot.tombstones
        ]
    return files, tombstones


def _adopted(file: FileMeta, open_index: int, i: int) -> FileMeta:
    return FileMeta(
        name=f"{file.slot:05d}-{open_index:012d}-{i:04d}{PARKED if file.parked else TSFILE}",
        slot=file.slot,
        partition=file.partition,
        table=file.table,
        order=(open_index, *file.order),
        size=file.size,
        xxh3=file.xxh3,
        rows=file.rows,
        time_min=file.time_min,
        time_max=file.time_max,
        logical=file.logical,
        parked=file.parked,
    )
