"""The data groups and their members. The id of a group contains the meta log index of the entry that created
it, so that no id is used twice.
"""

from collections.abc import Collection
from typing import Protocol

from msgspec.structs import replace

from nodeagent.model.ids import GroupId, NodeId, data_group
from nodeagent.model.operation import Operation, Ranges
from nodeagent.model.requests import GroupRecord, Recovery
from nodeagent.partition.recovery import Lost, lost_groups


class Kept(Protocol):
    """The fields of the image that this module changes."""

    groups: dict[GroupId, GroupRecord]


class Groups:
    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def __contains__(self, group: GroupId) -> bool:
        return group in self._kept.groups

    def members(self) -> dict[GroupId, tuple[NodeId, ...]]:
        return {g.group: g.members for g in self._kept.groups.values()}

    def by_owner(self) -> dict[NodeId, GroupId]:
        """Groups by owner, without those being dissolved: a node owns at most one of the others."""
        return {g.owner: g.group for g in self._kept.groups.values() if not g.dissolving}

    def of(self, owner: NodeId) -> GroupRecord | None:
        """The group that `owner` owns, unless it is being dissolved."""
        return next((g for g in self._kept.groups.values() if g.owner == owner and not g.dissolving), None)

    def create(self, index: int, owner: NodeId, members: tuple[NodeId, ...], slots: Ranges = ()) -> GroupId:
        group = data_group(owner, index)
        self._kept.groups[group] = GroupRecord(group, owner, members, members, slots)
        return group

    def form(self, group: GroupId, members: tuple[NodeId, ...]) -> None:
        """Record the members that the group has from this entry on."""
        self._kept.groups[group] = replace(self._kept.groups[group], members=members)

    def dissolve(self, group: GroupId) -> None:
        """Mark a group whose slots are open in other groups; it stays until the operation is done."""
        self._kept.groups[group] = replace(self._kept.groups[group], dissolving=True)

    def remove(self, group: GroupId) -> None:
        del self._kept.groups[group]

    # --- lost majorities ---------------------------------------------------------------------------

    def lost(self, living: Collection[NodeId], change: Operation | None) -> dict[GroupId, Lost]:
        """Each group without a majority among `living`, while `change` is open."""
        return lost_groups(self._kept.groups.values(), living, change)

    def in_recovery(self) -> GroupRecord | None:
        """A group whose force recovery is not completed; None if there is none."""
        return next((g for g in self._kept.groups.values() if g.recovery is not None), None)

    def recover(self, group: GroupId, members: tuple[NodeId, ...], recovery: Recovery) -> None:
        """Begin the force recovery of the group with these members."""
        self._kept.groups[group] = replace(self._kept.groups[group], members=members, recovery=recovery)

    def complete_recovery(self, group: GroupId, operation: str) -> GroupRecord | None:
        """Complete a group's force recovery; return the previous record, None if that recovery has ended."""
        record = self._kept.groups.get(group)
        if record is None or record.recovery is None or record.recovery.operation != operation:
            return None
        self._kept.groups[group] = replace(record, recovery=None)
        return record
