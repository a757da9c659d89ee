"""The ring and the slots as the meta group has them."""

import msgspec

from iotctl.errors import RefusedProblem
from iotctl.execute.cluster import Cluster
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.operation import ENDED
from nodeagent.model.requests import GroupRecord, ListPartitions, MetaView, PartitionsListed


class RingRow(msgspec.Struct, frozen=True):
    """`position` is in [0, 2^64); `share` is the node's part of all slots."""

    node: str
    position: int
    weight: float
    group: str
    members: list[str]
    slots: int
    share: float


class RingView(msgspec.Struct, frozen=True):
    table_version: int
    replicas: int
    slots: int
    nodes: list[RingRow]


class SlotRange(msgspec.Struct, frozen=True):
    """Slots [start, end) of one owner. `moving_from` names the previous group while its copies count."""

    start: int
    end: int
    header: str
    group: str
    members: list[str]
    moving_from: str


class SlotLoad(msgspec.Struct, frozen=True):
    """What one replica of a non-empty slot holds; `rows` is an upper bound where not `exact`."""

    slot: int
    group: str
    partitions: int
    rows: int
    exact: bool
    bytes: int


class SlotsView(msgspec.Struct, frozen=True):
    table_version: int
    slots: int
    nonempty: int
    ranges: list[SlotRange]
    loads: list[SlotLoad]
    unread: list[str]


def ring_of(cluster: Cluster) -> RingView:
    view = cluster.meta()
    owned = _owned(view)
    total = view.settings.slots
    groups = {g.header: g for g in view.groups if not g.dissolving}
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
            )
        )
    return RingView(view.table_version, view.settings.replicas, total, rows)


def slots_of(cluster: Cluster, storage_group: str | None) -> SlotsView:
    """Ranges from the table; loads from one member of each group (a group nobody tells of is `unread`).

    Raises:
        RefusedProblem: no such storage group.
    """
    view = cluster.meta()
    known = sorted({s.storage_group for s in view.schemas})
    if storage_group is not None and storage_group.lower() not in known:
        why = f"there are: {', '.join(known) or 'none'}"
        raise RefusedProblem(f"no storage group {storage_group}", why=why, next="iotctl data schema")
    groups = {g.header: g for g in view.groups if not g.dissolving}
    ranges = [
        SlotRange(start, end, header, *_group_of(groups, header), _moving_from(view, start))
        for start, end, header in _cut(view)
    ]
    loads: dict[tuple[int, str], list[int]] = {}
    unread = []
    for group in groups.values():
        listed = _list(cluster, group, (storage_group or "").lower())
        if listed is None:
            unread.append(group.group)
            continue
        for p in listed.partitions:
            load = loads.setdefault((p.slot, group.group), [0, 0, 1, 0])
            load[0] += 1
            load[1] += p.rows
            load[2] &= p.exact
            load[3] += p.bytes
    rows = [
        SlotLoad(slot, group, n, count, bool(exact), size)
        for (slot, group), (n, count, exact, size) in sorted(loads.items())
    ]
    nonempty = len({r.slot for r in rows})
    return SlotsView(view.table_version, view.settings.slots, nonempty, ranges, rows, unread)


def _owned(view: MetaView) -> dict[str, int]:
    owned: dict[str, int] = {}
    for start, end, header in view.owners:
        owned[header] = owned.get(header, 0) + end - start
    return owned


def _group_of(groups: dict[str, GroupRecord], header: str) -> tuple[str, list[str]]:
    group = groups.get(header)
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
    """The owners' ranges, cut where moving slots begin and end."""
    edges = sorted({e for start, end, _ in _open_moves(view) for e in (start, end)})
    out = []
    for start, end, header in view.owners:
        points = [start, *(e for e in edges if start < e < end), end]
        out += [(a, b, header) for a, b in zip(points, points[1:], strict=False)]
    return out


def _moving_from(view: MetaView, slot: int) -> str:
    return next((source for start, end, source in _open_moves(view) if start <= slot < end), "")


def _list(cluster: Cluster, group: GroupRecord, storage_group: str) -> PartitionsListed | None:
    for member in group.members:
        try:
            reply = cluster.call(member, ListPartitions(group.group, storage_group, read="weak"))
        except NodeAgentError:
            continue
        assert isinstance(reply, PartitionsListed)
        return reply
    return None
