"""Requests for the list of partitions of one data group, page by page."""

from collections.abc import Iterator, Sequence

from nodeagent.host.cluster import Cluster
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.handlers.read_levels import with_level
from nodeagent.host.handlers.scans import held_from
from nodeagent.host.handlers.whole import elsewhere, why_incomplete
from nodeagent.model import limits, requests
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import PartitionKey
from nodeagent.model.requests import PartitionInfo, PartitionsListed
from nodeagent.partition.ranges import to_slots


def on_list(cluster: Cluster, replica: DataReplica, token: int, request: requests.ListPartitions) -> None:
    def answer() -> None:
        refusal = why_incomplete(cluster, replica, set(to_slots(request.slots)))
        if refusal is not None:
            return cluster.effects.reply(token, refusal)
        infos, end = _list(replica, request)
        if end is not None and not request.paged:
            return cluster.effects.refuse(
                token, "refused", "the list is longer than a page", "use a newer iotctl"
            )
        handover, _ = elsewhere(cluster, replica, replica.state.slots.open)
        return cluster.effects.reply(
            token, PartitionsListed(infos, handover, cluster.meta.placement.version, next=end)
        )

    with_level(cluster.effects, replica, token, request.read, answer)


_ListPlace = tuple[PartitionKey, str]


def _list(
    replica: DataReplica, request: requests.ListPartitions
) -> tuple[tuple[PartitionInfo, ...], _ListPlace | None]:
    """One page of the list, after `request.after`, and the place where it ends if there is more."""
    slots = replica.state.slots.open
    infos: list[PartitionInfo] = []
    files = looked = 0
    place: _ListPlace | None = None
    for key, slot in _listed(replica, request):
        looked += 1
        if files >= limits.LIST_FILES_MAX or looked > limits.PARTITIONS_LOOKED_MAX:
            return tuple(infos), place
        for table in _tables(replica, key, request.table) if slot in slots else ():
            if request.after is not None and (key, table) <= request.after:
                continue
            if files >= limits.LIST_FILES_MAX:
                return tuple(infos), place
            fs = replica.state.files.manifest.of_partition(key, table)
            infos.append(_info(replica, key, slot, table, fs))
            files += len(fs) + 1
            place = (key, table)
        place = (key, _LAST)
    return tuple(infos), None


_LAST = chr(0x10FFFF)
"""Sorts after every table name."""


def _listed(replica: DataReplica, request: requests.ListPartitions) -> Iterator[tuple[PartitionKey, int]]:
    state, after = replica.state, request.after
    groups = {*state.files.manifest.storage_groups(), *(key.storage_group for key in state.rows.slot_of)}
    for group in sorted(groups & {request.storage_group} if request.storage_group else groups):
        first = 0
        if after is not None and group <= after[0].storage_group:
            if group < after[0].storage_group:
                continue
            first = after[0].position + (after[1] == _LAST)
        yield from held_from(replica, group, first)


def _tables(replica: DataReplica, key: PartitionKey, table: str) -> list[str]:
    """Tables with rows in the partition; only `table`, if given."""
    memory = replica.state.rows.memtable.partition(key)
    names = {*replica.state.files.manifest.tables_of(key), *(memory.tables() if memory is not None else ())}
    return sorted(names & {table} if table else names)


def _info(
    replica: DataReplica, key: PartitionKey, slot: int, table: str, files: Sequence[FileMeta]
) -> PartitionInfo:
    memory = replica.state.rows.memtable.partition(key)
    fs = sorted(files, key=lambda f: f.time_min)
    hs = list(memory.runs(table)) if memory is not None else []
    apart = all(a.time_max < b.time_min for a, b in zip(fs, fs[1:], strict=False))
    dead = bool(replica.state.files.tombstones.of(key, table))
    return PartitionInfo(
        key,
        slot,
        table,
        sum(f.rows for f in fs) + sum(h.rows for h in hs),
        apart and not hs and not dead and replica.state.slots.arriving_by(slot) is None,
        min([f.time_min for f in fs] + [h.time_min for h in hs]),
        max([f.time_max for f in fs] + [h.time_max for h in hs]),
        sum(f.size for f in fs) + sum(h.nbytes for h in hs),
    )
