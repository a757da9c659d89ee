"""The data groups and who their members are. A group's id has the index of the entry that made it, so that
none is used twice.
"""

from collections.abc import Collection
from typing import Protocol

from msgspec.structs import replace

from nodeagent.model.ids import GroupId, NodeId, data_group
from nodeagent.model.operation import Ranges
from nodeagent.model.requests import GroupRecord, Recovery
from nodeagent.partition.recovery import lost_groups


class Kept(Protocol):
    """The part of the image that is changed here."""

    groups: dict[GroupId, GroupRecord]


class Groups:
    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def __contains__(self, group: GroupId) -> bool:
        return group in self._kept.groups

    def members(self) -> dict[GroupId, tuple[NodeId, ...]]:
        return {g.group: g.members for g in self._kept.groups.values()}

    def by_header(self) -> dict[NodeId, GroupId]:
        """Those that are not being dissolved: a node heads one of them at most."""
        return {g.header: g.group for g in self._kept.groups.values() if not g.dissolving}

    def of(self, header: NodeId) -> GroupRecord | None:
        """The living group that `header` heads."""
        return next((g for g in self._kept.groups.values() if g.header == header and not g.dissolving), None)

    def create(self, index: int, header: NodeId, members: tuple[NodeId, ...], slots: Ranges = ()) -> GroupId:
        group = data_group(header, index)
        self._kept.groups[group] = GroupRecord(group, header, members, members, slots)
        return group

    def form(self, group: GroupId, members: tuple[NodeId, ...]) -> None:
        """These are its members from now on."""
        self._kept.groups[group] = replace(self._kept.groups[group], members=members)

    def dissolve(self, group: GroupId) -> None:
        """Its slots are open elsewhere. It stays until what it has is copied."""
        self._kept.groups[group] = replace(self._kept.groups[group], dissolving=True)

    def remove(self, group: GroupId) -> None:
        del self._kept.groups[group]

    # --- lost majorities ---------------------------------------------------------------------------

    def lost(self, living: Collection[NodeId]) -> dict[GroupId, tuple[NodeId, ...]]:
        """Of each group that has no majority among `living`: who is left."""
        return lost_groups(self._kept.groups.values(), living)

    def in_recovery(self) -> GroupRecord | None:
        """One that goes on without its majority and is not led again yet."""
        return next((g for g in self._kept.groups.values() if g.recovery is not None), None)

    def recover(self, group: GroupId, members: tuple[NodeId, ...], recovery: Recovery) -> None:
        """It goes on with these members."""
        self._kept.groups[group] = replace(self._kept.groups[group], members=members, recovery=recovery)

    def led_again(self, group: GroupId, operation: str) -> GroupRecord | None:
        """The group whose recovery that was; None when it is over already."""
        record = self._kept.groups.get(group)
        if record is None or record.recovery is None or record.recovery.operation != operation:
            return None
        self._kept.groups[group] = replace(record, recovery=None)
        return record
