"""Whose certificate a command shows: what is said, else the environment's, else the file's, else the own."""

from pathlib import Path

import pytest

from iotctl.errors import Unreachable
from iotctl.observe.cluster import cluster_spec
from iotctl.spec.cluster import load_cluster
from iotctl.spec.find import find_identity, operator_dir

TEXT = "apiVersion: iotctl/v1\ncluster: {name: plant}\nnodes:\n  - {name: node1, host: 10.0.0.1}\n"
PEM = {"IOTCTL_CERT": "c", "IOTCTL_KEY": "k", "IOTCTL_CA": "a"}


def test_the_nearest_to_the_operator_wins(tmp_path: Path) -> None:
    """Each is taken only when none before it is there."""
    spec = tmp_path / "cluster.yaml"
    spec.write_text(TEXT)
    bare, env = load_cluster(spec), {"HOME": str(tmp_path)}
    assert find_identity(None, env, bare, tmp_path) is None
    own = operator_dir(bare, env)
    own.mkdir(parents=True)
    assert find_identity(None, env, bare, tmp_path) == own
    spec.write_text(TEXT + "identity: operator\n")
    source = load_cluster(spec)
    assert find_identity(None, env, source, tmp_path) == tmp_path / "operator"
    assert find_identity(None, env | PEM, source, tmp_path) is None
    env |= PEM | {"IOTCTL_IDENTITY": "other"}
    assert find_identity(None, env, source, tmp_path) == tmp_path / "other"
    assert find_identity("said", env, source, tmp_path) == tmp_path / "said"


def test_a_part_of_the_certificate_is_not_taken_for_none(tmp_path: Path) -> None:
    """Without the key the connection would be plain, and the nodes' refusal a riddle."""
    spec = tmp_path / "cluster.yaml"
    spec.write_text(
        "apiVersion: iotctl/v1\ncluster: {name: plant}\nnodes:\n  - {name: node1, host: 10.0.0.1}\n"
    )
    source = load_cluster(spec)
    assert cluster_spec(source, None, PEM).identity is not None
    for missing in PEM:
        with pytest.raises(Unreachable) as caught:
            cluster_spec(source, None, PEM | {missing: ""})
        assert missing in caught.value.why
