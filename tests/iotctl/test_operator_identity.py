"""A command uses the certificate of its option, else of the environment, of the file, or of the user."""

import io
from pathlib import Path

import pytest

from iotctl.cli.inner_commands import absolute_words
from iotctl.cli.session import GlobalOptions, Session
from iotctl.errors import Unreachable
from iotctl.observe.cluster import cluster_spec
from iotctl.spec.cluster import load_cluster
from iotctl.spec.find import find_identity, operator_dir

TEXT = "apiVersion: iotctl/v1\ncluster: {name: plant}\nnodes:\n  - {name: node1, host: 10.0.0.1}\n"
PEM = {"IOTCTL_CERT": "c", "IOTCTL_KEY": "k", "IOTCTL_CA": "a"}


def test_options_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    """Each source is used only if all sources before it are unset."""
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


@pytest.mark.parametrize(
    ("given", "env", "used"),
    [
        (None, {}, []),
        (None, {"IOTCTL_IDENTITY": "theirs"}, ["theirs"]),
        ("own", {"IOTCTL_IDENTITY": "theirs"}, ["own"]),
    ],
)
def test_a_printed_command_works_from_any_directory(
    tmp_path: Path, given: str | None, env: dict[str, str], used: list[str]
) -> None:
    """It names the certificate of this run, also if it comes from the environment."""
    (tmp_path / "cluster.yaml").write_text(TEXT)
    options = GlobalOptions(identity=given)
    session = Session(io.StringIO(), io.StringIO(), io.StringIO(), env, tmp_path, options=options)
    named = [w for name in used for w in ("--identity", str(tmp_path / name))]
    assert absolute_words(session) == ["--cluster", str(tmp_path / "cluster.yaml"), *named]


def test_an_incomplete_certificate_is_refused(tmp_path: Path) -> None:
    """Without the key the connection would be plain text, and the nodes' refusal unclear."""
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
