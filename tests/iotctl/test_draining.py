"""Draining a node is recorded, awaited, shown and ended."""

import json
from pathlib import Path

import pytest

from iotctl.errors import Exit
from iotctl.lifecycle.rolling import RESTART_SUFFIX, left_draining
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.requests import Drain
from tests.iotctl.fakes import SPEC, FakeCluster, iotctl


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def test_a_drained_node_leads_nothing_and_status_says_so(spec: Path) -> None:
    """Node and problem name the state and the command that ends it; the cluster stays healthy."""
    cluster = FakeCluster()
    done = iotctl(spec, "cluster", "drain", "node2", "-o", "json", cluster=cluster)
    assert done.code == 0, done.err
    assert json.loads(done.out)["leads"] == [] and cluster.drained == {"node2"}
    assert "next: iotctl cluster undrain node2" in done.err
    found = json.loads(iotctl(spec, "cluster", "status", "-o", "json", cluster=cluster).out)
    node = next(n for n in found["nodes"] if n["id"] == "node2")
    assert (node["state"], node["groups_led"]) == ("draining", 0)
    (problem,) = found["problems"]
    assert (problem["severity"], problem["code"], problem["next"]) == (
        "warning",
        "draining",
        "iotctl cluster undrain node2",
    )
    assert found["healthy"]
    assert iotctl(spec, "cluster", "undrain", "node2", cluster=cluster).code == 0
    assert not cluster.drained
    assert json.loads(iotctl(spec, "cluster", "status", "-o", "json", cluster=cluster).out)["problems"] == []


def test_a_drain_without_another_voter_is_partly_done(spec: Path) -> None:
    """Exit 6 names the groups: the neighbours drain too."""
    cluster = FakeCluster(drained={"node2", "node3"})
    done = iotctl(spec, "cluster", "drain", "node1", "--timeout", "300ms", cluster=cluster)
    assert done.code == Exit.PARTLY
    assert "node1.1" in done.err and "node1" in cluster.drained


def test_a_node_that_is_down_can_be_drained(spec: Path) -> None:
    """The node does not lead after it returns."""
    cluster = FakeCluster(down={"node3"})
    assert iotctl(spec, "cluster", "drain", "node3", cluster=cluster).code == 0
    done = iotctl(spec, "cluster", "nodes", cluster=cluster)
    assert "unreachable (draining)" in done.out


def test_an_unknown_node_is_named(spec: Path) -> None:
    done = iotctl(spec, "cluster", "drain", "node9", cluster=FakeCluster())
    assert done.code != 0 and "node9" in done.err and "iotctl cluster nodes" in done.err


@pytest.mark.parametrize("level", [FIRST, Feature.REASONS])
def test_an_operator_can_keep_a_node_drained_that_a_killed_restart_left_draining(
    spec: Path, level: int
) -> None:
    """Otherwise the next rolling restart would undrain it against the operator's wish."""
    cluster = FakeCluster(level=level)
    cluster.call_meta(Drain("node2", True, f"me{RESTART_SUFFIX}", for_restart=True))
    assert left_draining(cluster) == ["node2"]
    assert iotctl(spec, "cluster", "drain", "node2", cluster=cluster).code == 0
    assert cluster.drained == {"node2"} and left_draining(cluster) == []
