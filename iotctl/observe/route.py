"""Where the rows of a storage group and a time are: slots, groups, members and files."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from iotctl.errors import InputProblem
from iotctl.observe.cluster import Cluster
from iotctl.observe.layout import SlotRange, slot_ranges, stored_group
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.ids import PartitionKey
from nodeagent.model.requests import MetaView
from nodeagent.model.schema import TableSchema
from nodeagent.partition.hash import shard_of, slot_of, time_partition, time_span
from nodeagent.partition.ranges import SlotRanges, from_slots


class RoutedFile(msgspec.Struct, frozen=True):
    """A file of one replica; `rows` includes rows that a later file or a delete hides."""

    name: str
    table: str
    rows: int
    bytes: int
    time_min_ms: int
    time_max_ms: int


Files = dict[PartitionKey, list[RoutedFile]]


class Route(msgspec.Struct, frozen=True):
    """One shard of the time partition. `moving_from` names the losing group while the slot migrates: files
    that it still has are not listed.

    `files` are those of the member `read_from`, which is "" if no member answered. Rows that are still in
    memory are in no file.
    """

    shard: int
    tables: list[str]
    slot: int
    owner: str
    group: str
    members: list[str]
    moving_from: str
    read_from: str
    files: list[RoutedFile]


class RouteView(msgspec.Struct, frozen=True):
    """The places of rows of one storage group with times in [time_from_ms, time_to_ms]."""

    table_version: int
    storage_group: str
    time_partition: int
    time_from_ms: int
    time_to_ms: int
    routes: list[Route]


def route_of(
    cluster: Cluster, storage_group: str, time_ms: int, table: str | None, tags: Mapping[str, str]
) -> RouteView:
    """The places of the rows with this time and, if `tags` are given, of the one device with these tags.

    Args:
        table: only rows of this table; None for all tables of the storage group that have the tags.
        tags: values by tag; if some are given, the other tags of a table are null.

    Raises:
        RefusedProblem: there is no such storage group.
        InputProblem: there is no such table, or no table with these tags.
    """
    view = cluster.meta(strong=True)
    group, settings = stored_group(view, storage_group), view.settings
    shards = _shards(_tables(view, group, table, tags), tags, settings.shards)
    number = time_partition(time_ms, settings.time_partition_interval_ms, settings.hash_mode)
    first, last = time_span(number, settings.time_partition_interval_ms, settings.hash_mode)
    ranges = slot_ranges(view)
    places = {shard: _place(ranges, slot_of(group, number, shard, settings)) for shard in shards}
    held = _files(cluster, places.values())
    routes = []
    for shard, tables in shards.items():
        slot, place = places[shard]
        member, files = held[place.group]
        own = files.get(PartitionKey(group, number, shard), [])
        routes.append(
            Route(
                shard=shard,
                tables=tables,
                slot=slot,
                owner=place.owner,
                group=place.group,
                members=place.members,
                moving_from=place.moving_from,
                read_from=member,
                files=[f for f in own if f.table in tables],
            )
        )
    return RouteView(view.table_version, group, number, first, last, routes)


def _tables(view: MetaView, group: str, table: str | None, tags: Mapping[str, str]) -> list[TableSchema]:
    name = (table or "").lower()
    wanted = [s for s in view.schemas if s.storage_group == group and name in ("", s.table)]
    if not wanted:
        raise InputProblem(f"there is no table {group}.{name}", next="iotctl data schema")
    having = [s for s in wanted if set(tags) <= set(s.tags)]
    if not having:
        names = ", ".join(sorted(f"{s.table} ({', '.join(s.tags) or 'no tags'})" for s in wanted))
        what = f"table {group}.{name} does not have" if name else f"no table of {group} has"
        raise InputProblem(
            f"{what} the tags {', '.join(tags)}",
            why=f"tables with their tags: {names}",
            next="iotctl data schema",
        )
    return having


def _shards(schemas: Sequence[TableSchema], tags: Mapping[str, str], shards: int) -> dict[int, list[str]]:
    """Shard -> tables, ascending; without tags every shard may have rows of every table."""
    if not tags:
        return {shard: sorted(s.table for s in schemas) for shard in range(shards)}
    found: dict[int, list[str]] = {}
    for schema in sorted(schemas, key=lambda s: s.table):
        shard = shard_of([tags.get(t) or None for t in schema.tags], shards)
        found.setdefault(shard, []).append(schema.table)
    return dict(sorted(found.items()))


def _place(ranges: Sequence[SlotRange], slot: int) -> tuple[int, SlotRange]:
    return slot, ranges[bisect_right(ranges, slot, key=lambda r: r.start) - 1]


def _files(cluster: Cluster, places: Iterable[tuple[int, SlotRange]]) -> dict[str, tuple[str, Files]]:
    """Group -> the first member that answers, and its files of the slots; ("", {}) if none answers."""
    slots: dict[str, list[int]] = {}
    members: dict[str, list[str]] = {}
    for slot, place in places:
        slots.setdefault(place.group, []).append(slot)
        members[place.group] = place.members
    return {group: _manifest(cluster, group, members[group], from_slots(slots[group])) for group in slots}


def _manifest(cluster: Cluster, group: str, members: Sequence[str], slots: SlotRanges) -> tuple[str, Files]:
    for member in members:
        try:
            manifest = cluster.manifest(member, group, slots)
        except NodeAgentError:
            continue
        files: Files = {}
        for f in manifest.files:
            routed = RoutedFile(f.name, f.table, f.rows, f.size, f.time_min, f.time_max)
            files.setdefault(f.partition, []).append(routed)
        return member, files
    return "", {}
