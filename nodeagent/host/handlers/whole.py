"""Whether a replica can answer for the requested slots, and where their older rows are."""

from nodeagent.host.cluster import Cluster
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.handlers.refusals import moved
from nodeagent.model.files import Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.requests import ErrorReply, PendingSlots
from nodeagent.partition.hash import slot_of
from nodeagent.partition.ranges import from_slots, to_slots


def why_incomplete(cluster: Cluster, replica: DataReplica, wanted: set[int]) -> ErrorReply | None:
    """Why this replica cannot answer for the requested slots. None if it can: all are open, and the meta
    state here says where older rows of arriving slots are."""
    absent = wanted - replica.state.slots.open
    if absent:
        return moved(cluster, min(absent), waiting=True)
    if any(cluster.meta.operations.find(op) is None for op in replica.state.slots.arriving):
        return ErrorReply("unavailable", f"{replica.raft.node} lags behind the meta group")
    return None


def elsewhere(
    cluster: Cluster, replica: DataReplica, slots: set[int]
) -> tuple[tuple[PendingSlots, ...], tuple[Tombstone, ...]]:
    """Those of `slots` whose older rows are with previous holders, and the deletes in these slots since the
    slots were opened here. Older deletes are from an earlier stay of the slot here and must not mask
    those rows."""
    out = []
    opened: dict[int, int] = {}
    for operation, arrival in replica.state.slots.arriving.items():
        op = cluster.meta.operations.find(operation)
        here = arrival.slots & slots
        if not here:
            continue
        assert op is not None
        opened |= dict.fromkeys(here, arrival.index)
        for move in op.moves:
            part = here & set(to_slots(move.slots)) if move.target == replica.group else set()
            if part:
                out.append(PendingSlots(operation, from_slots(part), move.source, move.source_members))
    if not opened:
        return (), ()
    mine = tuple(
        t
        for t in replica.state.files.tombstones
        if (index := opened.get(_slot_of(cluster, replica, t.partition))) is not None and (index,) < t.order
    )
    return tuple(out), mine


def _slot_of(cluster: Cluster, replica: DataReplica, partition: PartitionKey) -> int:
    """The slot of a partition, whether it has rows here or not."""
    held = replica.state.files.manifest.slot_of(partition)
    if held is None:
        held = replica.state.rows.slot_of.get(partition)
    return _slot(cluster, partition) if held is None else held


def _slot(cluster: Cluster, partition: PartitionKey) -> int:
    settings = cluster.meta.image.settings
    assert settings is not None
    return slot_of(partition.storage_group, partition.time_partition, partition.shard, settings)
