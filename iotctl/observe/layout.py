"""The ring and the slots as recorded in the meta group."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from iotctl.errors import RefusedProblem
from iotctl.observe.cluster import Cluster
from iotctl.plan.layout import ZoneOverlap, stops_with_a_zone
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.ids import META
from nodeagent.model.operation import ENDED
from nodeagent.model.requests import (
    GetWriteRates,
    GroupRecord,
    ListPartitions,
    MetaView,
    NodeStatus,
    PartitionInfo,
    PartitionsListed,
    WriteRatesReply,
)
from nodeagent.partition.ring import Ring, RingNode
from nodeagent.partition.table import PartitionTable


class RingRow(msgspec.Struct, frozen=True):
    """`position` is in [0, 2^64); `share` is the fraction of all slots that the node owns."""

    node: str
    position: int
    weight: float
    group: str
    members: list[str]
    slots: int
    share: float
    zone: str = ""


class RingView(msgspec.Struct, frozen=True):
    """`crowded`: the groups that stop when a whole zone fails, by the zones of cluster.yaml."""

    table_version: int
    replicas: int
    slots: int
    nodes: list[RingRow]
    crowded: list[ZoneOverlap]


class SlotRange(msgspec.Struct, frozen=True):
    """Slots [start, end) of one owner. `moving_from` names the losing group while the slots migrate."""

    start: int
    end: int
    header: str
    """The former name of `owner`, printed until 0.3.0."""

    group: str
    members: list[str]
    moving_from: str
    owner: str = ""
    """Empty in a status that 0.1.0 saved, which has `header`."""


class SlotLoad(msgspec.Struct, frozen=True):
    """What one replica of a non-empty slot holds; `rows` is an upper bound if not `exact`.

    `write_bytes_per_s`: rate of acknowledged bytes in the last minutes, the most recent weighted most, as
    counted by `group`. The rates of groups that do not list the slot are included in the slot's first row.
    """

    slot: int
    group: str
    partitions: int
    rows: int
    exact: bool
    bytes: int
    write_bytes_per_s: float = 0.0


class RingPlace(msgspec.Struct, frozen=True):
    node: str
    position: int
    weight: float


class SlotsView(msgspec.Struct, frozen=True):
    """Slot owners, ring and sizes: enough to plan from (`plan … --from-status`)."""

    table_version: int
    slots: int
    nonempty: int
    ranges: list[SlotRange]
    loads: list[SlotLoad]
    unread: list[str]
    replicas: int
    ring: list[RingPlace]


def table_of(view: MetaView) -> PartitionTable:
    """The partition table of a meta view."""
    by_name = {n.node: n for n in view.nodes}
    nodes = [RingNode(n, by_name[n].position, by_name[n].weight) for n in view.ring]
    ring = Ring(tuple(sorted(nodes, key=lambda n: n.position)))
    owners = np.zeros(view.settings.slots, np.uint16)
    for start, end, owner in view.owners:
        owners[start:end] = ring.index(owner)
    owners.setflags(write=False)
    return PartitionTable(view.table_version, ring, owners)


def ring_of(view: MetaView, source: ClusterSource) -> RingView:
    owned = _owned(view)
    total = view.settings.slots
    groups = {g.owner: g for g in view.groups if not g.dissolving}
    records = {n.node: n for n in view.nodes}
    rows = []
    for node in view.ring:
        group = groups.get(node)
        rows.append(
            RingRow(
                node=node,
                position=records[node].position,
                weight=records[node].weight,
                group=group.group if group else "",
                members=list(group.members) if group else [],
                slots=owned.get(node, 0),
                share=round(owned.get(node, 0) / total, 4),
                zone=source.zones.get(node, ""),
            )
        )
    apart = len(set(source.zones.values())) > 1
    groups_of = [*((r.node, r.members) for r in rows), (META, view.voters)]
    crowded = [c for of, members in groups_of for c in stops_with_a_zone(of, members, source.zones) if apart]
    return RingView(view.table_version, view.settings.replicas, total, rows, crowded)


def slots_of(cluster: Cluster, view: MetaView, storage_group: str | None) -> SlotsView:
    """Ranges from the table, loads from one member of each group. A group without an answer is `unread`.

    Raises:
        RefusedProblem: there is no such storage group.
    """
    wanted = stored_group(view, storage_group) if storage_group is not None else ""
    groups = [g for g in view.groups if not g.dissolving]
    loads: dict[tuple[int, str], list[int]] = {}
    unread = []
    for group in groups:
        listed = _list(cluster, group, wanted)
        if listed is None:
            unread.append(group.group)
            continue
        for p in listed:
            load = loads.setdefault((p.slot, group.group), [0, 0, 1, 0])
            load[0] += 1
            load[1] += p.rows
            load[2] &= p.exact
            load[3] += p.bytes
    statuses = {n: s for n, s in cluster.statuses().items() if isinstance(s, NodeStatus)}
    rates = _rates_of_rows(_write_rates(cluster, statuses, view), sorted(loads))
    rows = [
        SlotLoad(slot, group, n, count, bool(exact), size, round(rates[slot, group], 1))
        for (slot, group), (n, count, exact, size) in sorted(loads.items())
    ]
    nonempty = len({r.slot for r in rows})
    places = {n.node: n for n in view.nodes}
    return SlotsView(
        table_version=view.table_version,
        slots=view.settings.slots,
        nonempty=nonempty,
        ranges=slot_ranges(view),
        loads=rows,
        unread=unread,
        replicas=view.settings.replicas,
        ring=[RingPlace(n, places[n].position, places[n].weight) for n in view.ring],
    )


def stored_group(view: MetaView, storage_group: str) -> str:
    """The name of the storage group as it is stored. Raises `RefusedProblem` if there is no such group."""
    name, known = storage_group.lower(), sorted({s.storage_group for s in view.schemas})
    if name not in known:
        why = f"storage groups: {', '.join(known) or 'none'}"
        raise RefusedProblem(f"there is no storage group {storage_group}", why=why, next="iotctl data schema")
    return name


def slot_ranges(view: MetaView) -> list[SlotRange]:
    """All slots, ascending; the slots of a range have the same owner and migrate together."""
    groups = {g.owner: g for g in view.groups if not g.dissolving}
    return [
        SlotRange(start, end, owner, *_group_of(groups, owner), _moving_from(view, start), owner=owner)
        for start, end, owner in _cut(view)
    ]


def slot_write_rates(
    cluster: Cluster, statuses: Mapping[str, NodeStatus], view: MetaView
) -> dict[int, float]:
    """Acknowledged bytes per second of each written slot, as counted by the leaders of the groups.

    A slot's rate is the sum over all groups, since a group that lost the slot still counts recent writes.
    """
    total: dict[int, float] = {}
    for own in _write_rates(cluster, statuses, view).values():
        for slot, rate in own.items():
            total[slot] = total.get(slot, 0.0) + rate
    return total


def _write_rates(
    cluster: Cluster, statuses: Mapping[str, NodeStatus], view: MetaView
) -> dict[str, dict[int, float]]:
    """The rates of each group, by slot; without the groups whose leader does not answer."""
    rates: dict[str, dict[int, float]] = {}
    for group in view.groups:
        for status in statuses.values():
            if any(g.group == group.group and g.role == "leader" for g in status.groups):
                try:
                    reply = cluster.call(status.node, GetWriteRates(group.group))
                except NodeAgentError:
                    continue
                assert isinstance(reply, WriteRatesReply)
                rates[group.group] = dict(reply.rates)
                break
    return rates


def _rates_of_rows(
    rates: Mapping[str, Mapping[int, float]], rows: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], float]:
    """The rate of each row (slot, group), as in `SlotLoad`: the rows of a slot add up to the slot's rate."""
    found = dict.fromkeys(rows, 0.0)
    first = {slot: (slot, group) for slot, group in reversed(rows)}
    for group, own in rates.items():
        for slot, rate in own.items():
            if slot in first:
                found[(slot, group) if (slot, group) in found else first[slot]] += rate
    return found


def _owned(view: MetaView) -> dict[str, int]:
    owned: dict[str, int] = {}
    for start, end, owner in view.owners:
        owned[owner] = owned.get(owner, 0) + end - start
    return owned


def _group_of(groups: dict[str, GroupRecord], owner: str) -> tuple[str, list[str]]:
    group = groups.get(owner)
    return (group.group, list(group.members)) if group else ("", [])


def _open_moves(view: MetaView) -> list[tuple[int, int, str]]:
    return [
        (start, end, move.source)
        for operation in view.operations
        if operation.stage not in ENDED
        for move in operation.moves
        for start, end in move.slots
    ]


def _cut(view: MetaView) -> list[tuple[int, int, str]]:
    """The owners' ranges, split at the boundaries of the slots that migrate."""
    edges = sorted({e for start, end, _ in _open_moves(view) for e in (start, end)})
    out = []
    for start, end, owner in view.owners:
        points = [start, *(e for e in edges if start < e < end), end]
        out += [(a, b, owner) for a, b in zip(points, points[1:], strict=False)]
    return out


def _moving_from(view: MetaView, slot: int) -> str:
    return next((source for start, end, source in _open_moves(view) if start <= slot < end), "")


def _list(cluster: Cluster, group: GroupRecord, storage_group: str) -> list[PartitionInfo] | None:
    """The partitions that the first answering member lists; None if no member answers."""
    for member in group.members:
        found: list[PartitionInfo] = []
        request = ListPartitions(group.group, storage_group, read="weak", paged=True)
        try:
            while True:
                reply = cluster.call(member, request)
                assert isinstance(reply, PartitionsListed)
                found += reply.partitions
                if reply.next is None:
                    return found
                request = msgspec.structs.replace(request, after=reply.next)
        except NodeAgentError:
            continue
    return None
