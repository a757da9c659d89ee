"""Events from the agents that answer."""

import json
import time
from pathlib import Path

import pytest

from iotctl.cli.watching import after
from iotctl.errors import Exit
from nodeagent.model.requests import NodeEvent
from tests.iotctl.fakes import SPEC, FakeCluster, iotctl

NOW = int(time.time() * 1000)
HOUR = 3_600_000


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def cluster(**more: object) -> FakeCluster:
    return FakeCluster(
        audit=[(NOW - 2 * HOUR, "ann", "begin op-9: add-node node6"), (NOW - 900, "ann", "pause op-9")],
        notes={
            "node1": [NodeEvent(NOW - 1_000, "leader", "node1.1", "term 5")],
            "node2": [NodeEvent(NOW - 500, "started", "", "recovery_s 0.1")],
        },
        **more,  # type: ignore[arg-type]
    )


def test_audit_and_notes_are_merged_newest_last(spec: Path) -> None:
    """One audit log although five nodes return it; every line has time, node, group and event."""
    done = iotctl(spec, "cluster", "events", "-o", "json", cluster=cluster())
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [(e["node"], e["group"], e["event"], e["by"], e["message"]) for e in found["events"]] == [
        ("", "meta", "audit", "ann", "begin op-9: add-node node6"),
        ("node1", "node1.1", "leader", "", "term 5"),
        ("", "meta", "audit", "ann", "pause op-9"),
        ("node2", "", "started", "", "recovery_s 0.1"),
    ]
    assert found["unread"] == []


def test_since_and_limit(spec: Path) -> None:
    """--since counts back from now; --limit keeps the newest; jsonl is one event a line."""
    done = iotctl(spec, "cluster", "events", "--since", "1h", "-o", "jsonl", cluster=cluster())
    lines = [json.loads(x) for x in done.out.splitlines()]
    assert [e["event"] for e in lines] == ["leader", "audit", "started"]
    shown = iotctl(spec, "cluster", "events", "--limit", "1", cluster=cluster())
    assert "started" in shown.out and "leader" not in shown.out
    assert iotctl(spec, "cluster", "events", "--limit", "0", cluster=cluster()).code == Exit.USAGE


def test_dead_nodes_are_named_and_other_events_are_shown(spec: Path) -> None:
    """No leader is needed: three of five are dead."""
    found = cluster(down={"node1", "node3", "node4"})
    done = iotctl(spec, "cluster", "events", "-o", "json", cluster=found)
    assert done.code == 0
    told = json.loads(done.out)
    assert [s["node"] for s in told["unread"]] == ["node1", "node3", "node4"]
    assert {e["event"] for e in told["events"]} == {"audit", "started"}
    assert "node3 did not respond" in done.err
    nobody = cluster(down=set(found.names))
    assert iotctl(spec, "cluster", "events", cluster=nobody).code == Exit.UNREACHABLE


def test_the_audit_log_comes_from_the_most_advanced_node(spec: Path) -> None:
    """A node that was down has an old audit log."""
    told = json.loads(
        iotctl(spec, "cluster", "events", "-o", "json", cluster=cluster(applied={"node3": 60})).out
    )
    assert told["source"] == "node3"


def test_watch_prints_new_events_once(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, slept = cluster(), [0]

    def sleep(seconds: float) -> None:
        slept[0] += 1
        if slept[0] == 2:  # nothing is new the first time
            fake.notes["node3"] = [NodeEvent(NOW - 100, "started", "", "recovery_s 0.2")]
        if slept[0] == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("iotctl.cli.watching.time.sleep", sleep)
    done = iotctl(spec, "cluster", "events", "--watch", "-o", "jsonl", cluster=fake)
    *lines, end = [json.loads(x) for x in done.out.splitlines()]
    assert [e["node"] for e in lines] == ["", "node1", "", "node2", "node3"]
    assert done.code == Exit.INTERRUPTED and end["error"]["what"] == "interrupted"


@pytest.mark.parametrize("what", ["status", "nodes", "groups", "ring", "slots"])
def test_each_view_can_be_watched(spec: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    slept: list[float] = []

    def twice(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("iotctl.cli.watching.time.sleep", twice)
    done = iotctl(spec, "cluster", what, "--watch", "-o", "jsonl", cluster=cluster())
    *shown, end = [json.loads(x)["kind"] for x in done.out.splitlines()]
    assert done.code == Exit.INTERRUPTED and end == "error"
    assert shown == [f"cluster-{what}"] * 2, done.err


@pytest.mark.parametrize(
    ("shown", "told", "new"),
    [
        (["a", "b", "c"], ["b", "c", "d"], ["d"]),
        (["a", "b"], ["a", "b"], []),
        (["a", "b"], ["x", "y"], ["x", "y"]),
        (["a", "a"], ["a", "a", "a"], ["a"]),
        ([], ["a"], ["a"]),
    ],
)
def test_a_watched_log_continues_after_the_shown_lines(
    shown: list[str], told: list[str], new: list[str]
) -> None:
    assert after(shown, told) == new
