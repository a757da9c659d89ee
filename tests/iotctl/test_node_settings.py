"""node.yaml from cluster.yaml: a cluster is born once."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from iotctl.errors import RefusedProblem
from iotctl.execute.node_settings import node_settings
from iotctl.spec.cluster import ClusterSource, load_cluster
from nodeagent.runtime.config import parse_config

HEAD = "apiVersion: iotctl/v1\ncluster: {name: plant, slots: 500}\nnodes:\n"


def source(directory: Path, *names: str, head: str = HEAD) -> ClusterSource:
    lines = [f"  - {{name: {n}, host: 10.0.0.{i}}}\n" for i, n in enumerate(names, 1)]
    (directory / "cluster.yaml").write_text(head + "".join(lines))
    return load_cluster(directory / "cluster.yaml")


def settings(spec: ClusterSource, present: dict[str, str]) -> dict[str, dict[str, Any]]:
    return {n: yaml.safe_load(t) for n, t in node_settings(spec, present).items()}


def test_a_new_fleet_is_given_one_list_of_seeds(tmp_path: Path) -> None:
    found = settings(source(tmp_path, "a", "b", "c"), {"a": "", "b": "", "c": ""})
    assert [s["node"] for s in found["a"]["seeds"]] == ["a", "b", "c"]
    assert found["a"]["seeds"] == found["b"]["seeds"] == found["c"]["seeds"]
    assert not any(n["join"] for n in found.values())
    assert (found["b"]["host"], found["b"]["port"], found["b"]["cluster"]["slots"]) == ("10.0.0.2", 9003, 500)


def test_the_node_reads_what_is_written(tmp_path: Path) -> None:
    for text in node_settings(source(tmp_path, "a", "b"), {"a": "", "b": ""}).values():
        assert parse_config(text, "node.yaml").tls


def test_a_node_that_comes_later_joins_and_changes_nobody(tmp_path: Path) -> None:
    first = node_settings(source(tmp_path, "a", "b", "c"), {"a": "", "b": "", "c": ""})
    later = node_settings(source(tmp_path, "a", "b", "c", "d"), {**first, "d": ""})
    assert {n: later[n] for n in first} == first
    joins = yaml.safe_load(later["d"])
    assert joins["join"] and [s["node"] for s in joins["seeds"]] == ["a", "b", "c"]


def test_a_node_that_takes_the_name_of_a_first_one_joins_those_that_are_there(tmp_path: Path) -> None:
    """As a seed it would ask for a cluster to be made; its leftover settings do not matter either."""
    spec = source(tmp_path, "a", "b", "c")
    first = node_settings(spec, {"a": "", "b": "", "c": ""})
    for left in ("", first["b"]):
        joins = yaml.safe_load(node_settings(spec, {**first, "b": left}, ["b"])["b"])
        assert joins["join"] and [s["node"] for s in joins["seeds"]] == ["a", "c"]


def test_where_the_first_nodes_are_all_gone_whoever_comes_joins_those_that_are_there(tmp_path: Path) -> None:
    spec = source(tmp_path, "d", "e", "f")
    others = node_settings(spec, {"d": "", "e": "", "f": ""})
    joined = {n: t.replace("join: false", "join: true") for n, t in others.items()}
    later = node_settings(source(tmp_path, "d", "e", "f", "g"), {**joined, "g": ""})
    joins = yaml.safe_load(later["g"])
    assert joins["join"] and [s["node"] for s in joins["seeds"]] == ["d", "e", "f"]
    assert {n: later[n] for n in joined} == joined


def test_a_first_node_that_got_nothing_yet_is_still_one_of_the_first(tmp_path: Path) -> None:
    """The first deploy was interrupted."""
    spec = source(tmp_path, "a", "b", "c")
    first = node_settings(spec, {"a": "", "b": "", "c": ""})
    again = node_settings(spec, {"a": first["a"], "b": "", "c": ""})
    assert again == first


def test_what_the_operator_tuned_stays(tmp_path: Path) -> None:
    spec = source(tmp_path, "a", "b", "c")
    first = node_settings(spec, {"a": "", "b": "", "c": ""})
    tuned = "# mine\n" + first["a"] + "idle_close_ms: 5\n"
    assert node_settings(spec, {**first, "a": tuned})["a"] == tuned
    moved = node_settings(source(tmp_path, "x", "a", "b", "c"), {**first, "a": tuned, "x": ""})
    assert yaml.safe_load(moved["a"])["idle_close_ms"] == 5 and "10.0.0.2" in moved["a"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: plant", "name: other", "belongs to cluster 'other'"),
        ("slots: 500", "slots: 600", "slots is 600, not 500"),
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
