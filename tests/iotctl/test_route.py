"""`iotctl cluster route`: where the rows of a storage group and a time are."""

import json
from pathlib import Path
from typing import Any

import pytest

from iotctl.errors import Exit
from nodeagent.model.config import ClusterSettings
from nodeagent.model.operation import Ranges
from nodeagent.model.requests import ManifestReply
from nodeagent.model.schema import Column, TableSchema
from nodeagent.partition.hash import shard_of, slot_of
from nodeagent.partition.ranges import to_slots
from tests.iotctl.fakes import SLOTS, SPEC, FakeCluster, iotctl

SETTINGS = ClusterSettings(name="plant", slots=SLOTS)
GROUP = "root.plant"
WEEK_MS = SETTINGS.time_partition_interval_ms
SECOND_WEEK = "1970-01-08T00:00:00.005"


def table(name: str, *tags: str) -> TableSchema:
    columns = [Column(t, "STRING", True) for t in tags]
    return TableSchema(GROUP, name, 1, (*columns, Column("v", "INT64", False)))


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(tables=[table("m", "site", "device"), table("other", "site")])


def routes(spec: Path, cluster: FakeCluster, *words: str) -> dict[str, Any]:
    done = iotctl(spec, "cluster", "route", *words, "-o", "json", cluster=cluster)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_without_tags_every_shard_is_listed(spec: Path, cluster: FakeCluster) -> None:
    found = routes(spec, cluster, "ROOT.plant", SECOND_WEEK)
    assert (found["time_partition"], found["time_from_ms"]) == (1, WEEK_MS)
    assert found["time_to_ms"] == 2 * WEEK_MS - 1
    for route in found["routes"]:
        assert route["slot"] == slot_of(GROUP, 1, route["shard"], SETTINGS)
        assert route["tables"] == ["m", "other"]
        assert route["members"][0] == route["owner"] == route["read_from"]
    assert [route["shard"] for route in found["routes"]] == list(range(SETTINGS.shards))


def test_the_tags_of_a_device_select_one_slot(spec: Path, cluster: FakeCluster) -> None:
    """A tag that is not given is null, as in a row without this tag."""
    for words, tags in (
        (("device=d1", "SITE=s"), ("s", "d1")),
        (("device=d1",), (None, "d1")),
        (("device=d1", "site="), (None, "d1")),
    ):
        given = [word for tag in words for word in ("--tag", tag)]
        (route,) = routes(spec, cluster, GROUP, "5", *given)["routes"]
        shard = shard_of(tags, SETTINGS.shards)
        assert (route["shard"], route["tables"]) == (shard, ["m"])
        assert route["slot"] == slot_of(GROUP, 0, shard, SETTINGS)


def test_tables_whose_tags_lead_to_other_shards_are_listed_apart(spec: Path, cluster: FakeCluster) -> None:
    """Trailing nulls do not count, so `site=s` is the same device of both tables."""
    (route,) = routes(spec, cluster, GROUP, "5", "--tag", "site=s")["routes"]
    assert route["tables"] == ["m", "other"]
    cluster.tables.append(table("third", "device", "site"))
    found = routes(spec, cluster, GROUP, "5", "--tag", "site=s")["routes"]
    assert sorted(t for route in found for t in route["tables"]) == ["m", "other", "third"]
    assert shard_of((None, "s"), SETTINGS.shards) in {route["shard"] for route in found}
    (route,) = routes(spec, cluster, GROUP, "5", "--tag", "site=s", "--table", "third")["routes"]
    assert route["shard"] == shard_of((None, "s"), SETTINGS.shards)


def test_files_of_the_partition_are_listed_from_a_member_that_answers(
    spec: Path, cluster: FakeCluster
) -> None:
    """The fake's manifests name only files of the partition (root.plant, 1, 0)."""
    slot = slot_of(GROUP, 1, 0, SETTINGS)
    cluster.sizes[slot] = 4321
    found = routes(spec, cluster, GROUP, SECOND_WEEK)["routes"]
    (first,) = [route for route in found if route["shard"] == 0]
    assert f"f{slot}" in {f["name"] for f in first["files"]}
    assert {f["bytes"] for f in first["files"] if f["name"] == f"f{slot}"} == {4321}
    assert not any(route["files"] for route in found if route["shard"] != 0)

    cluster.down.add(first["owner"])
    (again,) = [r for r in routes(spec, cluster, GROUP, SECOND_WEEK)["routes"] if r["shard"] == 0]
    assert again["read_from"] == first["members"][1] and again["files"] == first["files"]


def test_each_group_is_asked_once(spec: Path) -> None:
    """A cluster may have thousands of shards."""

    class Counting(FakeCluster):
        def manifest(self, node: str, group: str, slots: Ranges = ()) -> ManifestReply:
            asked.append((group, slots))
            return super().manifest(node, group, slots)

    asked: list[tuple[str, Ranges]] = []
    found = routes(spec, Counting(tables=[table("m", "device")]), GROUP, SECOND_WEEK)["routes"]
    assert sorted(group for group, _ in asked) == sorted({route["group"] for route in found})
    for group, slots in asked:
        assert set(to_slots(slots)) == {route["slot"] for route in found if route["group"] == group}


@pytest.mark.parametrize(
    ("time", "span"),
    [("9999-12-31", "to 253"), ("0001-01-01", " -62"), ("1970-01-01", "1970-01-01T00:00:00Z to 1970-01-07")],
)
def test_a_time_partition_at_the_ends_of_the_calendar_is_shown(
    spec: Path, cluster: FakeCluster, time: str, span: str
) -> None:
    done = iotctl(spec, "cluster", "route", GROUP, time, cluster=cluster)
    assert done.code == 0 and span in done.out, done


def test_a_group_without_answers_is_named(spec: Path, cluster: FakeCluster) -> None:
    first = routes(spec, cluster, GROUP, "0")["routes"][0]
    cluster.down.update(first["members"])
    done = iotctl(spec, "cluster", "route", GROUP, "0", cluster=cluster)
    assert done.code == 0 and f"no member of {first['group']} answered" in done.out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("root.nope", "5"), Exit.REFUSED, "there is no storage group root.nope"),
        ((GROUP, "5", "--table", "nope"), Exit.INPUT, "there is no table root.plant.nope"),
        ((GROUP, "5", "--tag", "color=red"), Exit.INPUT, "no table of root.plant has the tags color"),
        ((GROUP, "5", "--tag", "device"), Exit.USAGE, "is not TAG=VALUE"),
        ((GROUP, "soon"), Exit.USAGE, "'soon' is not a time"),
    ],
)
def test_invalid_places_are_refused(
    spec: Path, cluster: FakeCluster, words: tuple[str, ...], code: Exit, says: str
) -> None:
    done = iotctl(spec, "cluster", "route", *words, cluster=cluster)
    assert done.code == code and says in done.err and not done.out
