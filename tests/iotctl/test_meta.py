"""`iotctl meta`."""

import json
from pathlib import Path

import pytest

from nodeagent.model.requests import LogPin, MetaStatus
from tests.iotctl.fakes import SPEC, FakeCluster, iotctl

METAS = {
    "node1": MetaStatus("LEADER", 61_000, "it was elected in term 3", 101, 250, 250, 0, 240, 100),
    "node2": MetaStatus("FOLLOWER", 5_000, "node1 leads in term 3", 1, 250, 249, 40, 200),
    "node4": MetaStatus(
        "UNKNOWN", 900, "no leader is heard in term 3", 1, 90, 90, -1, 80, 0, LogPin("follower", "node5")
    ),
}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def test_the_status_shows_role_journal_and_images_of_every_node(spec: Path) -> None:
    shown = iotctl(spec, "meta", "status", cluster=FakeCluster(metas=METAS, down={"node5"}))
    assert shown.code == 0, shown.err
    lines = {line.split()[0]: line.split() for line in shown.out.splitlines() if line.startswith("node")}
    assert lines["node1"][1:] == ["LEADER", "1", "min", "1", "s", "101", "250", "250", "0", "ms", "240"]
    assert lines["node2"][1:] == ["FOLLOWER", "5", "s", "1", "250", "249", "40", "ms", "200"]
    assert lines["node3"][1:3] == ["no", "answer"], "an earlier release says nothing about its role"
    assert lines["node4"][1:] == ["UNKNOWN", "900", "ms", "1", "90", "90", "-", "80"]
    assert max(map(len, shown.out.splitlines())) <= 80


def test_the_document_names_what_pins_the_journal_and_who_did_not_answer(spec: Path) -> None:
    shown = iotctl(spec, "meta", "status", "-o", "json", cluster=FakeCluster(metas=METAS, down={"node5"}))
    rows = {row["node"]: row for row in json.loads(shown.out)["nodes"]}
    assert rows["node4"]["pinned_by"] == "follower node5" and rows["node4"]["age_ms"] is None
    assert rows["node1"]["fallback"] == 100 and rows["node2"]["fallback"] is None
    assert rows["node3"]["role"] is None and "0.1.0" in rows["node3"]["error"]
    assert rows["node5"]["role"] is None and "refused" in rows["node5"]["error"]


def test_without_a_majority_of_the_voters_the_exit_code_says_so(spec: Path) -> None:
    down = {"node1", "node2", "node3", "node4"}
    shown = iotctl(spec, "meta", "status", cluster=FakeCluster(metas=METAS, down=down))
    assert shown.code == 4 and "QUORUM LOST" in shown.out
