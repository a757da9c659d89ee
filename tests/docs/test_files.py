"""The example files of the reference are complete and valid."""

import re
from pathlib import Path

import msgspec

from iotctl.spec.cluster import ClusterFile, load_cluster
from nodeagent.model.config import NodeConfig
from nodeagent.runtime.config import parse_config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "files.md"
CLUSTER, NODE = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


def keys(text: str) -> set[str]:
    """The top-level keys of a YAML text."""
    return set(re.findall(r"^(\w+):", text, re.MULTILINE))


def test_cluster_yaml_loads_and_shows_every_key(tmp_path: Path) -> None:
    """The example has every section of the file and describes three nodes."""
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    assert load_cluster(path).node_names == ("node1", "node2", "node3")
    assert keys(CLUSTER) == {f.encode_name for f in msgspec.structs.fields(ClusterFile)}


def test_node_yaml_loads_and_shows_every_key_with_its_default() -> None:
    """The example has every setting of a node; optional settings show their default."""
    config = parse_config(NODE, "node.yaml")
    fields = msgspec.structs.fields(NodeConfig)
    assert keys(NODE) == {f.encode_name for f in fields}
    for field in fields:
        if field.default is not msgspec.NODEFAULT:
            assert getattr(config, field.name) == field.default, field.name
