"""The units that are staged on this node, as their sources described them.

A description is stored beside the files, so that a leader can compose an `Adopt` after a restart, and also
when no source has the files any more.
"""

from collections.abc import Collection, Sequence

from nodeagent.data import commands as data
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.model.files import PulledSlot
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.jobs import JobResult, ReadStaged, StagedRead
from nodeagent.model.operation import Operation, Ranges
from nodeagent.partition.ranges import subtract, union
from nodeagent.scaling import moving
from nodeagent.scaling.moving import Unit

Key = tuple[str, GroupId, Ranges]


class StagedUnits:
    def __init__(self, node: NodeId, incarnation: str, effects: EffectQueue) -> None:
        self._node = node
        self._incarnation = incarnation
        self._effects = effects
        self._pulled: dict[Key, tuple[PulledSlot, ...]] = {}
        self._read: dict[tuple[str, GroupId], bool] = {}
        """(operation, group) whose descriptions were requested from the disk -> whether they were read."""

    def __contains__(self, unit: Unit) -> bool:
        return unit.key in self._pulled

    def put(self, unit: Unit, pulled: tuple[PulledSlot, ...]) -> None:
        self._pulled[unit.key] = pulled

    def drop(self, key: Key) -> None:
        self._pulled.pop(key, None)

    def keep(self, operations: Collection[str]) -> None:
        """Forget all other operations."""
        self._pulled = {k: v for k, v in self._pulled.items() if k[0] in operations}
        self._read = {k: v for k, v in self._read.items() if k[0] in operations}

    def is_read(self, op: Operation, group: GroupId) -> bool:
        """Whether the descriptions on disk are known, so that what is missing has to be pulled."""
        return self._read.get((op.id, group), False)

    def lacks(self, op: Operation, group: GroupId, units: Sequence[Unit]) -> bool:
        """Whether the description of one of the group's `units` is missing; requests those on disk once."""
        if all(u in self for u in units):
            return False
        if (op.id, group) not in self._read:
            self._read[op.id, group] = False
            self._effects.job(ReadStaged(op.id, group), lambda r: self._on_read(op, group, units, r))
        return True

    def _on_read(self, op: Operation, group: GroupId, units: Sequence[Unit], result: JobResult) -> None:
        """Only units that are recorded count: others may be of a pull that was not completed."""
        if (op.id, group) not in self._read:
            return  # the operation has ended
        self._read[op.id, group] = True
        found = {u.slots: u.pulled for u in result.units} if isinstance(result, StagedRead) else {}
        me = (group, self._node, self._incarnation)
        recorded = union(*(c.slots for c in op.copies if (c.target, c.node, c.incarnation) == me))
        for unit in units:
            if unit.slots in found and not subtract(unit.slots, recorded):
                self._pulled.setdefault(unit.key, found[unit.slots])

    def adopt_commands(self, op: Operation, units: Sequence[Unit], open_index: int) -> list[bytes]:
        """`Adopt` entries for these units, one per unit, so that the size of an entry is bounded."""
        out = []
        for unit in units:
            files, tombstones = moving.adoptions(open_index, list(self._pulled[unit.key]))
            out.append(data.encode(data.Adopt(op.id, unit.slots, tuple(files), tuple(tombstones))))
        return out
