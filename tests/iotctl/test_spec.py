"""`cluster.yaml`: errors name their exact place, edits touch only their lines."""

import json
import re
from pathlib import Path

import pytest

from iotctl.errors import InputProblem, UsageProblem
from iotctl.spec.cluster import SECTION_BOUNDS, NodeEntry, load_cluster
from iotctl.spec.edit import add_node, diff, remove_node
from iotctl.spec.units import parse_duration_ms, parse_rate
from tests.iotctl.fakes import SPEC, iotctl


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("  replicas: 3", "  replicsa: 3", "5:3", "did you mean 'replicas'"),
        ("  slots: 100", "  slots: many", "6:10", "expected a whole number"),
        ("  slots: 100", "  slots: 100\n  slots: 200", "7:3", "duplicate key (first on line 6)"),
        ("  slots: 100", "  slots: 0", "6:10", "not between"),
        ("name: node2,", "name: node1,", "10:12", "listed twice"),
        ("port: 7003", "port: 7001", "11:25", "also the address of 'node1'"),
        ("name: node4", "name: Node 4", "12:12", "not allowed"),
        ("port: 7003}", 'port: 7003, zone: "a\\n"}', "11:54", "not printable text"),
        ("port: 7003}", "port: 7003, zone: ' a'}", "11:54", "not printable text"),
        ("port: 7003}", f"port: 7003, zone: {'z' * 65}}}", "11:54", "has 65 characters"),
        ("name: plant", "name: 12", "4:9", "put it in quotes"),
        ("iotctl/v1", "iotctl/v9", "2:13", "not known"),
        ("host: 127.0.0.1, port: 7005", "port: 7005", "13:5", "nodes[4].host: missing"),
        ("  slots: 100", "  time_partition_interval: 7 weeks", "6:28", "not a duration"),
        ("nodes:\n", "nodes: {}\nx:\n", "7:8", "expected a list, found a mapping"),
        ("  slots: 100", "\tslots: 100", "6:1", "not valid YAML"),
    ],
)
def test_errors_name_line_and_column(tmp_path: Path, old: str, new: str, place: str, message: str) -> None:
    """Each mistake is reported at the value or key that is wrong."""
    assert old in SPEC
    path = write(tmp_path, SPEC.replace(old, new, 1))
    with pytest.raises(InputProblem) as caught:
        load_cluster(path)
    assert caught.value.where == f"{path}:{place}"
    assert message in caught.value.what


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    """The first error is the message; the others follow with their places."""
    path = write(tmp_path, SPEC.replace("slots: 100", "slots: x").replace("port: 7002", "prt: 7002"))
    with pytest.raises(InputProblem) as caught:
        load_cluster(path)
    assert caught.value.where.endswith(":6:10")
    assert ":10:36: nodes[1].prt: unknown key; did you mean 'port'?" in caught.value.why


@pytest.mark.parametrize("text", ["", "[]", "a: [", "just text"])
def test_a_file_that_is_not_a_spec_is_an_input_error(tmp_path: Path, text: str) -> None:
    """The error is never a traceback."""
    with pytest.raises(InputProblem):
        load_cluster(write(tmp_path, text))


def test_defaults_and_settings(tmp_path: Path) -> None:
    """Keys that the file leaves out have the documented defaults."""
    source = load_cluster(write(tmp_path, SPEC.replace(", port: 7001", "")))
    assert source.port_of(source.file.nodes[0]) == 9003
    settings = source.settings()
    assert (settings.replicas, settings.slots, settings.shards) == (3, 100, 8)
    assert settings.time_partition_interval_ms == 604_800_000


def test_adding_a_node_touches_one_line(tmp_path: Path) -> None:
    """Comments and order stay; the new entry has the style of the previous entry."""
    new = add_node(SPEC, NodeEntry(name="node6", host="10.0.0.6", port=7006))
    added = [x for x in diff(SPEC, new, "f").splitlines() if x[:1] in "+-" and x[:3] not in ("+++", "---")]
    assert added == ["+  - {name: node6, host: 10.0.0.6, port: 7006}"]
    assert load_cluster(write(tmp_path, new)).node_names[-1] == "node6"


def test_adding_to_a_block_list_keeps_what_follows(tmp_path: Path) -> None:
    """Keys and comments after the list stay after it."""
    text = (
        "apiVersion: iotctl/v1\ncluster: {name: a}\nnodes:\n- name: n1\n  host: h1\n  # about ssh\n  ssh:\n"
        "    user: u\n# tail\nidentity: me\n"
    )
    new = add_node(text, NodeEntry(name="n2", host="h2"))
    assert "    user: u\n- name: n2\n  host: h2\n# tail\nidentity: me\n" in new
    assert load_cluster(write(tmp_path, new)).node_names == ("n1", "n2")


def test_removing_a_node_takes_its_comment_along(tmp_path: Path) -> None:
    """Only the entry and the comment directly above it are removed."""
    new = remove_node(SPEC, "node2")
    gone = [x for x in diff(SPEC, new, "f").splitlines() if x[:1] in "+-" and x[:3] not in ("+++", "---")]
    assert gone == [
        "-  # the second one has a comment",
        "-  - {name: node2, host: 127.0.0.1, port: 7002}",
    ]
    assert remove_node(SPEC, "node9") == SPEC


def test_add_then_remove_is_the_same_text() -> None:
    """The two edits are inverse."""
    assert remove_node(add_node(SPEC, NodeEntry(name="node6", host="h")), "node6") == SPEC


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("30s", 30_000), ("1.5h", 5_400_000), ("7d", 604_800_000)]
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "rate"),
    [("200MB/s", 200_000_000), ("200MiB/s", 209_715_200), ("1.5GB/s", 1_500_000_000), ("auto", 0)],
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "10", "fast", "10MB", "-1MB/s", "0MB/s", "5 xB/s"])
def test_an_invalid_rate_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageProblem):
        parse_rate(text)


def test_the_schema_accepts_what_the_reader_accepts(tmp_path: Path) -> None:
    """An editor marks what the reader refuses: unknown keys, values out of bounds, unknown choices."""
    schema = json.loads(iotctl(tmp_path, "cluster", "schema").out)
    parts = schema["$defs"]
    assert all(part["additionalProperties"] is False for part in parts.values())
    assert set(parts["ClusterFile"]["required"]) == {"apiVersion", "cluster", "nodes"}
    assert parts["ClusterFile"]["properties"]["apiVersion"] == {"const": "iotctl/v1"}
    for key, (low, high) in SECTION_BOUNDS.items():
        said = parts["ClusterSection"]["properties"][key]
        assert (said["minimum"], said["maximum"]) == (low, high)
        for value in (low - 1, high + 1):
            path = tmp_path / "cluster.yaml"
            others = re.sub(rf"^  {key}: .*\n", "", SPEC, flags=re.MULTILINE)
            path.write_text(others.replace("cluster:\n", f"cluster:\n  {key}: {value}\n"))
            with pytest.raises(InputProblem, match=f"cluster.{key}: {value} is not between"):
                load_cluster(path)
    assert parts["Defaults"]["properties"]["transport"]["enum"] == ["ssh", "local"]
