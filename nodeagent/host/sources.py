"""Slots of a replica with their files and deletes, in the form that is sent to another member."""

from nodeagent.host.data_replica import DataReplica
from nodeagent.model.files import FileMeta, PulledSlot, Tombstone
from nodeagent.model.ids import PartitionKey


def source_slots(replica: DataReplica, slots: set[int]) -> tuple[PulledSlot, ...]:
    """The given slots with all their files on this member."""
    files = tuple(f for slot in sorted(slots) for f in replica.state.files.manifest.of_slot(slot))
    return by_slot(replica, files, slots)


def by_slot(replica: DataReplica, files: tuple[FileMeta, ...], slots: set[int]) -> tuple[PulledSlot, ...]:
    by_slot: dict[int, list[FileMeta]] = {slot: [] for slot in slots}
    owner: dict[PartitionKey, int] = {}
    for f in files:
        by_slot.setdefault(f.slot, []).append(f)
        owner[f.partition] = f.slot
    return tuple(
        PulledSlot(
            slot,
            tuple(by_slot[slot]),
            tuple(
                t
                for t in replica.state.files.tombstones
                if owner.get(t.partition) == slot and masks(t, by_slot[slot])
            ),
        )
        for slot in sorted(by_slot)
    )


def masks(delete: Tombstone, files: list[FileMeta]) -> bool:
    """Whether the delete masks any of these files. One that masks none is not sent: members forget such
    deletes at different times, but copies of a slot must not differ."""
    return any(delete.masks(f) for f in files)
