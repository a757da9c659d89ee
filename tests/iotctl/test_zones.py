"""The zones of cluster.yaml are set in the cluster, and a difference is reported."""

import json
from pathlib import Path

import pytest

from iotctl.change.zones import set_zones
from iotctl.errors import Exit
from iotctl.spec.cluster import load_cluster
from nodeagent.model.errors import Refused
from nodeagent.model.features import Feature
from tests.iotctl.fakes import SPEC, FakeCluster, iotctl

ZONED = (
    SPEC.replace("7001}", "7001, zone: a}")
    .replace("7002}", "7002, zone: b}")
    .replace("7003}", "7003, zone: b}")
)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(ZONED)
    return tmp_path


def test_a_difference_is_reported_until_the_zones_are_set(spec: Path) -> None:
    """Once: a second run sets nothing. Nodes that cluster.yaml does not list keep their zone."""
    cluster = FakeCluster(level=Feature.ZONES, zones={"node2": "b", "node3": "c"})
    shown = iotctl(spec, "cluster", "status", cluster=cluster)
    problem = "the zone of node1 is 'a' in cluster.yaml, none in the cluster; 2 nodes differ"
    assert problem in " ".join(shown.out.split()) and "iotctl cluster set-zones" in shown.out
    done = iotctl(spec, "cluster", "set-zones", "-o", "json", cluster=cluster)
    found = json.loads(done.out)
    assert done.code == Exit.DONE and found["changed"] == ["node1", "node3"], done.err
    assert found["zones"] == {"node1": "a", "node2": "b", "node3": "b", "node4": "", "node5": ""}
    assert cluster.zones == {"node1": "a", "node2": "b", "node3": "b"}
    assert "set-zones" not in iotctl(spec, "cluster", "status", cluster=cluster).out
    assert (
        json.loads(iotctl(spec, "cluster", "set-zones", "-o", "json", cluster=cluster).out)["changed"] == []
    )
    (spec / "cluster.yaml").write_text(
        ZONED.replace("  - {name: node3, host: 127.0.0.1, port: 7003, zone: b}\n", "")
    )
    assert (
        json.loads(iotctl(spec, "cluster", "set-zones", "-o", "json", cluster=cluster).out)["changed"] == []
    )
    assert cluster.zones["node3"] == "b"


def test_nothing_is_reported_before_the_cluster_can_know_zones(spec: Path) -> None:
    cluster = FakeCluster(level=Feature.ZONES - 1)
    assert "set-zones" not in iotctl(spec, "cluster", "status", cluster=cluster).out
    assert json.loads(iotctl(spec, "plan", "-o", "json", cluster=cluster).out)["differences"] == []
    for words in ((), ("--dry-run",)):
        refused = iotctl(spec, "cluster", "set-zones", *words, cluster=cluster)
        assert refused.code == Exit.REFUSED and "iotctl cluster finalize-upgrade" in refused.err
    assert not cluster.zones


def test_a_plan_names_the_command_that_sets_the_zones(spec: Path) -> None:
    cluster = FakeCluster(level=Feature.ZONES, zones={"node1": "b", "node2": "b", "node3": "b"})
    (found,) = json.loads(iotctl(spec, "plan", "-o", "json", cluster=cluster).out)["differences"]
    assert (found["node"], found["what"], found["present"], found["wanted"]) == (
        "node1",
        "zone",
        "'b'",
        "'a'",
    )
    done = iotctl(spec, "apply", "--yes", cluster=cluster)
    assert (
        done.code == 0
        and "node1: zone stays 'b', but cluster.yaml says 'a'; iotctl cluster set-zones" in done.err
    )


def test_zones_are_not_set_under_a_lock_that_was_lost(spec: Path) -> None:
    cluster = FakeCluster(level=Feature.ZONES)
    with pytest.raises(Refused, match="lock"):
        set_zones(cluster, load_cluster(spec / "cluster.yaml"), "ann", lock=9)
    assert not cluster.zones


def test_the_ring_names_the_zone_that_stops_the_meta_group(spec: Path) -> None:
    """All five nodes vote: three of them in zone b."""
    (spec / "cluster.yaml").write_text(ZONED.replace("7004}", "7004, zone: b}"))
    shown = iotctl(spec, "cluster", "ring", cluster=FakeCluster())
    assert "group meta loses its quorum if zone b fails (node2, node3, node4)" in shown.out
