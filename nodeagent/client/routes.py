"""Slot -> group, by one view of the meta state. Pure.

A slot is served by its old group until that group has sealed it. A route follows the partition table; while
an operation is in PLANNED or SEALED, a slot that it moves stays with the source until the source has reported
the seal.

numpy is imported when a slot is first looked up: the import takes longer than most operator commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from nodeagent.model.errors import NotFound, Unavailable
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Operation, Ranges, Stage
from nodeagent.model.requests import GroupRecord, MetaView
from nodeagent.partition import ranges

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Mask = npt.NDArray[np.bool_]

_NONE = -1


@dataclass(frozen=True, slots=True)
class Leg:
    """Slots to ask one group for, and the table version by which it serves them."""

    group: GroupRecord
    slots: Ranges
    version: int


@dataclass(frozen=True)
class Routes:
    view: MetaView

    @property
    def groups(self) -> tuple[GroupRecord, ...]:
        return self.view.groups

    @cached_property
    def owner(self) -> npt.NDArray[np.int32]:
        """`owner[slot]` indexes `groups`; -1 means no group (the cluster is still being formed)."""
        import numpy as np

        by_owner = {r.owner: i for i, r in _numbered(self.groups)}
        by_id = {r.group: i for i, r in enumerate(self.groups)}
        owner = np.full(self.view.settings.slots, _NONE, np.int32)
        for start, end, node in self.view.owners:
            owner[start:end] = by_owner.get(node, _NONE)
        for operation in self.view.operations:
            for source, slots in _still_with_source(operation):
                if source in by_id:
                    owner[ranges.to_array(slots)] = by_id[source]
        return owner

    @property
    def version(self) -> int:
        return self.view.table_version

    def group_of(self, slot: int) -> GroupRecord:
        """Raises `Unavailable` if the slot has no group yet."""
        index = int(self.owner[slot])
        if index == _NONE:
            raise Unavailable(
                f"slot {slot} has no group in table version {self.version}",
                next_step="wait until the cluster is formed: `iotctl cluster status`",
            )
        return self.groups[index]

    def group(self, group: GroupId) -> GroupRecord:
        """Raises `NotFound`."""
        for record in self.groups:
            if record.group == group:
                return record
        raise NotFound(f"group {group} does not exist in table version {self.version}")

    def of_owner(self, owner: NodeId) -> GroupRecord | None:
        """The group that a node owns: its live group if there is one, else its dissolving group."""
        return _by_owner(self.groups).get(owner)

    def next_group_of(self, slot: int) -> GroupId | None:
        """The group to which an operation in SEALED or OPEN moves the slot, if any."""
        index = int(self._coming[slot])
        return None if index == _NONE else self.groups[index].group

    @cached_property
    def _coming(self) -> npt.NDArray[np.int32]:
        """As `owner`, but the target group of each slot that an operation in SEALED or OPEN moves; -1 for
        other slots."""
        import numpy as np

        by_id = {r.group: i for i, r in enumerate(self.groups)}
        coming = np.full(self.view.settings.slots, _NONE, np.int32)
        for operation in self.view.operations:
            if operation.stage in (Stage.SEALED, Stage.OPEN):
                for move in operation.moves:
                    coming[ranges.to_array(move.slots)] = by_id.get(move.target, _NONE)
        return coming

    def legs(self, slots: Mask) -> list[Leg]:
        """The groups to ask for `slots`, each with the slots it serves."""
        import numpy as np

        wanted = np.flatnonzero(slots)
        owners = self.owner[wanted]
        if (owners == _NONE).any():
            self.group_of(int(wanted[owners == _NONE][0]))
        return [
            Leg(self.groups[int(i)], ranges.from_slots(wanted[owners == i]), self.version)
            for i in np.unique(owners)
        ]

    def owns(self, group: GroupId, slots: Ranges) -> bool:
        """Whether `group` serves all of `slots`."""
        import numpy as np

        owners = np.unique(self.owner[ranges.to_array(slots)])
        return all(i != _NONE and self.groups[int(i)].group == group for i in owners)


def in_transition(view: MetaView) -> Ranges:
    """Slots of open operations that their target group possibly does not serve yet. Only a read of such a
    slot shows whether it does."""
    return ranges.union(
        *(
            move.slots
            for operation in view.operations
            if not operation.ended
            for move in operation.moves
            if operation.stage is Stage.CANCELLING or move.target not in operation.opened
        )
    )


def mask_of(slots: Iterable[int], size: int) -> Mask:
    import numpy as np

    mask = np.zeros(size, np.bool_)
    mask[list(slots)] = True
    return mask


def mask_of_ranges(slots: Ranges, size: int) -> Mask:
    import numpy as np

    mask = np.zeros(size, np.bool_)
    for start, end in slots:
        mask[start:end] = True
    return mask


def _still_with_source(operation: Operation) -> Iterator[tuple[GroupId, Ranges]]:
    if operation.stage not in (Stage.PLANNED, Stage.SEALED):
        return
    for move in operation.moves:
        if move.source not in operation.sealed:
            yield move.source, move.slots


def _numbered(groups: tuple[GroupRecord, ...]) -> list[tuple[int, GroupRecord]]:
    """(position, group); a live group comes after a dissolving group of the same owner."""
    return sorted(enumerate(groups), key=lambda item: not item[1].dissolving)


def _by_owner(groups: tuple[GroupRecord, ...]) -> dict[NodeId, GroupRecord]:
    return {record.owner: record for _, record in _numbered(groups)}
