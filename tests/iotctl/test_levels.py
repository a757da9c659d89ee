"""The end of an upgrade: shown, requested, and refused while a node does not support the level."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from iotctl.change import levels
from iotctl.errors import Exit, Partly
from tests.iotctl.fakes import SPEC, FakeCluster, iotctl

FINALIZE = ("cluster", "finalize-upgrade")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def upgraded(*older: str, down: str = "") -> FakeCluster:
    """Every node supports level 2 except these."""
    spoken = {f"node{i}": 1 if f"node{i}" in older else 2 for i in range(1, 6)}
    return FakeCluster(spoken=spoken, down={down} if down else set())


def status(spec: Path, cluster: FakeCluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(iotctl(spec, "cluster", "status", "-o", "json", cluster=cluster).out)
    return found


def test_the_level_is_raised_on_request(spec: Path) -> None:
    cluster = upgraded()
    assert (status(spec, cluster)["feature_level"], status(spec, cluster)["feature_level_possible"]) == (1, 2)
    assert "iotctl cluster finalize-upgrade" in iotctl(spec, "cluster", "status", cluster=cluster).out
    would = iotctl(spec, *FINALIZE, "--dry-run", "-o", "json", cluster=cluster)
    assert json.loads(would.out)["would"] == ["raise the feature level from 1 to 2"]
    declined = iotctl(spec, *FINALIZE, cluster=cluster)
    assert declined.code == Exit.REFUSED and "go back to the previous release" in declined.err
    assert cluster.level == 1
    done = iotctl(spec, *FINALIZE, "--yes", "-o", "json", cluster=cluster)
    assert done.code == 0 and cluster.level == 2, done.err
    assert json.loads(done.out)["level"] == 2
    assert "finalize" not in iotctl(spec, "cluster", "status", cluster=cluster).out


def test_there_is_nothing_to_do_twice(spec: Path) -> None:
    cluster = upgraded()
    for _ in range(2):
        assert iotctl(spec, *FINALIZE, "--yes", cluster=cluster).code == 0
    assert cluster.raised == [2]
    would = iotctl(spec, *FINALIZE, "--dry-run", "-o", "json", cluster=cluster)
    assert json.loads(would.out)["would"] == []


@pytest.mark.parametrize(
    ("cluster", "names", "step"),
    [
        (upgraded("node3", "node4"), "node3, node4", "iotctl cluster upgrade node3 node4"),
        (upgraded(down="node2"), "node2", "iotctl cluster status"),
        (upgraded("node3", down="node2"), "node2", "iotctl cluster status"),
    ],
    ids=["older", "down", "both"],
)
def test_a_node_that_may_not_support_the_level_is_named(
    spec: Path, cluster: FakeCluster, names: str, step: str
) -> None:
    done = iotctl(spec, *FINALIZE, "--yes", cluster=cluster)
    assert done.code == Exit.REFUSED and names in done.err and step in done.err, done.err
    assert cluster.level == 1 and status(spec, cluster)["feature_level_possible"] == 1


def test_finalize_waits_until_every_node_has_applied_the_level(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release with another TsFile library must not be installed on a node that has not applied it."""
    monkeypatch.setattr(levels, "WAIT_S", 0.5)
    cluster = upgraded(down="node5")
    cluster.down, cluster.unaware = set(), {"node2", "node4"}
    for _ in range(2):
        done = iotctl(spec, *FINALIZE, "--yes", cluster=cluster)
        assert done.code == Exit.PARTLY and "node2, node4 did not apply it" in done.err, done.err
    assert cluster.level == 2
    would = iotctl(spec, *FINALIZE, "--dry-run", "-o", "json", cluster=cluster)
    assert json.loads(would.out)["would"] == ["wait for node2, node4 to apply feature level 2"]
    cluster.unaware = set()
    would = iotctl(spec, *FINALIZE, "--dry-run", "-o", "json", cluster=cluster)
    assert json.loads(would.out)["would"] == []
    assert iotctl(spec, *FINALIZE, "--yes", cluster=cluster).code == 0
    with pytest.raises(Partly):
        cluster.unaware = {"node1"}
        levels.await_level(cluster, 2, clock=count().__next__, sleep=lambda s: None)


def test_a_playbook_does_not_continue_before_every_node_has_applied_the_level(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a check nor a resumed run takes the step as done; afterwards both do."""
    monkeypatch.setattr(levels, "WAIT_S", 0.3)
    (spec / "p.yaml").write_text(
        "apiVersion: iotctl/v1\nname: night\nsteps:\n"
        "  - {uses: cluster.finalize-upgrade}\n  - {uses: cluster.drain, with: {node: node1}}\n"
    )
    cluster = upgraded()
    cluster.unaware = {"node2"}
    env = {"XDG_STATE_HOME": str(tmp_path / "home")}

    def said(*words: str) -> tuple[int, list[str]]:
        done = iotctl(spec, "playbook", *words, "-o", "json", cluster=cluster, env=env)
        return done.code, [s["state"] for s in json.loads(done.out)["steps"]]

    for words in (("run", "p.yaml"), ("run", "p.yaml", "--resume")):
        assert said("check", "p.yaml") == (0, ["would_change", "would_change"])
        assert said(*words) == (Exit.PARTLY, ["failed", "pending"]) and cluster.level == 2
    cluster.unaware = set()
    assert said("run", "p.yaml", "--resume") == (0, ["changed", "changed"])
    assert said("check", "p.yaml") == (0, ["no_change", "no_change"])
    cluster = upgraded()
    assert said("run", "p.yaml", "--limit", "node1") == (0, ["skipped", "changed"]) and cluster.level == 1


def test_a_node_that_no_longer_supports_the_level_is_a_problem(spec: Path) -> None:
    """The node was downgraded after the level was raised."""
    cluster = upgraded("node3")
    cluster.level = 2
    found = status(spec, cluster)
    (problem,) = found["problems"]
    assert problem == {
        "severity": "error",
        "code": "release",
        "node": "node3",
        "group": "",
        "message": "the cluster is at feature level 2, but node3 supports 1; the other nodes ignore node3",
        "next": "iotctl cluster upgrade node3",
    }
    assert not found["healthy"]
