"""node.yaml from cluster.yaml: a cluster forms once."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from iotctl.errors import RefusedProblem
from iotctl.lifecycle.node_settings import check_layout, check_ours, node_settings
from iotctl.spec.cluster import ClusterSource, load_cluster
from nodeagent.runtime.config import parse_config

HEAD = "apiVersion: iotctl/v1\ncluster: {name: plant, slots: 500}\nnodes:\n"


def source(directory: Path, *names: str, head: str = HEAD) -> ClusterSource:
    lines = [f"  - {{name: {n}, host: 10.0.0.{i}}}\n" for i, n in enumerate(names, 1)]
    (directory / "cluster.yaml").write_text(head + "".join(lines))
    return load_cluster(directory / "cluster.yaml")


def settings(spec: ClusterSource, present: dict[str, str]) -> dict[str, dict[str, Any]]:
    return {n: yaml.safe_load(t) for n, t in node_settings(spec, present).items()}


def test_a_new_fleet_gets_one_list_of_seeds(tmp_path: Path) -> None:
    found = settings(source(tmp_path, "a", "b", "c"), {"a": "", "b": "", "c": ""})
    assert [s["node"] for s in found["a"]["seeds"]] == ["a", "b", "c"]
    assert found["a"]["seeds"] == found["b"]["seeds"] == found["c"]["seeds"]
    assert not any(n["join"] for n in found.values())
    assert (found["b"]["host"], found["b"]["port"], found["b"]["cluster"]["slots"]) == ("10.0.0.2", 9003, 500)


def test_the_node_reads_what_is_written(tmp_path: Path) -> None:
    for text in node_settings(source(tmp_path, "a", "b"), {"a": "", "b": ""}).values():
        assert parse_config(text, "node.yaml").tls


def test_a_node_added_later_joins_and_changes_no_other_node(tmp_path: Path) -> None:
    first = node_settings(source(tmp_path, "a", "b", "c"), {"a": "", "b": "", "c": ""})
    later = node_settings(source(tmp_path, "a", "b", "c", "d"), {**first, "d": ""})
    assert {n: later[n] for n in first} == first
    joins = yaml.safe_load(later["d"])
    assert joins["join"] and [s["node"] for s in joins["seeds"]] == ["a", "b", "c"]


def test_a_new_node_with_the_name_of_a_first_node_joins(tmp_path: Path) -> None:
    """As a seed it would form a cluster; its leftover settings do not matter."""
    spec = source(tmp_path, "a", "b", "c")
    first = node_settings(spec, {"a": "", "b": "", "c": ""})
    for left in ("", first["b"]):
        joins = yaml.safe_load(node_settings(spec, {**first, "b": left}, ["b"])["b"])
        assert joins["join"] and [s["node"] for s in joins["seeds"]] == ["a", "c"]


def test_new_nodes_join_if_all_first_nodes_have_been_replaced(tmp_path: Path) -> None:
    spec = source(tmp_path, "d", "e", "f")
    others = node_settings(spec, {"d": "", "e": "", "f": ""})
    joined = {n: t.replace("join: false", "join: true") for n, t in others.items()}
    later = node_settings(source(tmp_path, "d", "e", "f", "g"), {**joined, "g": ""})
    joins = yaml.safe_load(later["g"])
    assert joins["join"] and [s["node"] for s in joins["seeds"]] == ["d", "e", "f"]
    assert {n: later[n] for n in joined} == joined


def test_a_first_node_without_settings_is_still_a_first_node(tmp_path: Path) -> None:
    """The first deploy was interrupted."""
    spec = source(tmp_path, "a", "b", "c")
    first = node_settings(spec, {"a": "", "b": "", "c": ""})
    again = node_settings(spec, {"a": first["a"], "b": "", "c": ""})
    assert again == first


def test_tuning_by_the_operator_stays(tmp_path: Path) -> None:
    spec = source(tmp_path, "a", "b", "c")
    first = node_settings(spec, {"a": "", "b": "", "c": ""})
    tuned = "# mine\n" + first["a"] + "idle_close_ms: 5\n"
    assert node_settings(spec, {**first, "a": tuned})["a"] == tuned
    head = HEAD.replace("nodes:", "defaults: {http_port: 9999}\nnodes:")
    moved = node_settings(source(tmp_path, "a", "b", "c", head=head), {**first, "a": tuned})
    assert yaml.safe_load(moved["a"])["idle_close_ms"] == 5 and "http_port: 9999" in moved["a"]


def test_a_node_keeps_its_address(tmp_path: Path) -> None:
    """The other nodes know it by its first address: with another address they could not reach it."""
    first = node_settings(source(tmp_path, "a", "b", "c"), {"a": "", "b": "", "c": ""})
    with pytest.raises(RefusedProblem) as caught:
        node_settings(source(tmp_path, "x", "a", "b", "c"), {**first, "x": ""})
    assert "a has the address 10.0.0.1:9003, but cluster.yaml says 10.0.0.2:9003" in caught.value.what
    assert caught.value.next.endswith("iotctl cluster replace-node a NEW")


def test_first_nodes_have_weights_and_an_order_that_separates_zones(tmp_path: Path) -> None:
    names = ("a1", "a2", "b1", "b2", "c1", "c2")
    spec = zoned(tmp_path, *names, more=", weight: 2")
    check_layout(spec)
    found = settings(spec, dict.fromkeys(names, ""))
    order = [s["node"] for s in found["a1"]["seeds"]]
    assert [n[0] for n in order] == list("abcabc") and sorted(order) == sorted(names)
    assert all(s["weight"] == 2 for s in found["a1"]["seeds"])
    assert all(s["zone"] == s["node"][0] for s in found["a1"]["seeds"])
    joins = settings(
        zoned(tmp_path, *names, "a3"), {**node_settings(spec, dict.fromkeys(names, "")), "a3": ""}
    )
    assert joins["a3"]["join"] and not any("zone" in s for s in joins["a3"]["seeds"])
    kept = zoned(tmp_path, "b1", "c1", "a1", "b2", "c2", "a2")
    assert [s["node"] for s in settings(kept, {"a1": ""})["a1"]["seeds"]] == list(kept.node_names)


def test_a_new_cluster_whose_zones_no_ring_separates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedProblem) as caught:
        check_layout(zoned(tmp_path, "a1", "a2", "b1", "b2", "c1"))
    assert "too many members in one zone" in caught.value.what and "nothing was changed" in caught.value.what
    assert "--accept-layout" in caught.value.next
    check_layout(zoned(tmp_path, "a1", "a2", "b1", "b2"))  # unavoidable with two zones


def zoned(directory: Path, *names: str, more: str = "") -> ClusterSource:
    """Nodes whose zones are the first letters of their names."""
    lines = [f"  - {{name: {n}, host: 10.0.0.{i}, zone: {n[0]}{more}}}\n" for i, n in enumerate(names, 1)]
    (directory / "cluster.yaml").write_text(HEAD + "".join(lines))
    return load_cluster(directory / "cluster.yaml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: plant", "name: other", "belongs to cluster 'other'"),
        ("slots: 500", "slots: 600", "slots is 600 in the cluster, 500 in the file"),
        ("node: a", "node: z", "belongs to z"),
        ("seeds:", "sedes:", "cannot be read"),
        ("join:", "join: {", "cannot be read"),
    ],
)
def test_another_node_or_cluster_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    spec = source(tmp_path, "a", "b", "c")
    first = node_settings(spec, {"a": "", "b": "", "c": ""})
    assert old in first["a"]
    with pytest.raises(RefusedProblem) as caught:
        node_settings(spec, {**first, "a": first["a"].replace(old, new, 1)})
    assert said in caught.value.what and "nothing was changed" in caught.value.what


@pytest.mark.parametrize("text", ["seeds: " + "[" * 5_000, "seeds: []\nx: " + "x" * (5 << 20)])
def test_a_node_yaml_that_cannot_be_read_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """F15: a machine's file is as hostile as its owner."""
    with pytest.raises(RefusedProblem, match="cannot be read"):
        check_ours(source(tmp_path, "a"), {"a": text})
