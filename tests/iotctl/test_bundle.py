"""What a support bundle contains, and what it never contains."""

import json
import tarfile
from pathlib import Path

import pytest

from iotctl.errors import Exit
from iotctl.fleet.local import LocalFleet
from iotctl.observe.bundle import LOG_TAIL_BYTES, REDACTED, redact
from nodeagent.model.config import ClusterSettings
from nodeagent.model.operation import Stage
from tests.iotctl.fakes import SPEC, FakeCluster, iotctl, make_operation


def contents(path: Path) -> dict[str, bytes]:
    """Names of files without the archive's root."""
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None and entry.isfile()
            found[entry.name.partition("/")[2]] = file.read()
    return found


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def test_a_bundle_has_the_answers_of_all_live_nodes(spec: Path) -> None:
    """Two nodes are dead: exit 0, they are named, and the statuses of all others are included."""
    cluster = FakeCluster(down={"node2", "node4"}, operations=[make_operation("op-9", stage=Stage.DONE)])
    done = iotctl(spec, "support", "bundle", "--out", "b.tar.gz", "-o", "json", cluster=cluster)
    assert done.code == 0, done.err
    said = json.loads(done.out)
    found = contents(spec / "b.tar.gz")
    assert set(found) == {
        *("manifest.json", "cluster.yaml", "versions.json", "status.json", "events.json", "operations.json"),
        *(f"nodes/node{i}/status.json" for i in (1, 3, 5)),
    }
    assert said["bytes"] == (spec / "b.tar.gz").stat().st_size
    assert {f["name"]: f["bytes"] for f in said["files"]} == {n: len(c) for n, c in found.items()}
    manifest = json.loads(found["manifest.json"])
    assert [s["node"] for s in manifest["unreachable"]] == ["node2", "node4"]
    assert {f["name"] for f in manifest["files"]} == set(found) - {"manifest.json"}
    assert json.loads(found["operations.json"])["operations"][0]["id"] == "op-9"
    assert "msgspec" in json.loads(found["versions.json"])["packages"]
    assert found["cluster.yaml"].decode() == SPEC


def test_a_bundle_is_written_although_no_node_answers(spec: Path) -> None:
    """No node answers: exit 0, and the manifest says what is missing and why."""
    cluster = FakeCluster(down={f"node{i}" for i in range(1, 6)})
    done = iotctl(spec, "support", "bundle", cluster=cluster)
    assert done.code == 0, done.err
    (path,) = spec.glob("support-plant-*.tar.gz")
    found = contents(path)
    assert {m["what"] for m in json.loads(found["manifest.json"])["missing"]} >= {
        "events.json",
        "operations.json",
    }
    assert str(path) in done.out and "node3" in done.out


def test_logs_of_a_local_fleet_and_never_its_keys(tmp_path: Path) -> None:
    """The end of each agent's log; no key, whether from a file or logged."""
    fleet = LocalFleet(tmp_path / "fleet")
    fleet.create(ClusterSettings(name="plant"), 2, node_settings={})
    key = (tmp_path / "fleet" / "node1" / "tls" / "node.key").read_text()
    log = tmp_path / "fleet" / "node1" / "agent.log"
    log.write_text("old line\n" * (LOG_TAIL_BYTES // 4) + key + "the last line\n")
    env = {"IOTCTL_CLUSTER": str(tmp_path / "fleet")}
    done = iotctl(tmp_path, "support", "bundle", "--out", "b.tar.gz", cluster=FakeCluster(), env=env)
    assert done.code == 0, done.err
    found = contents(tmp_path / "b.tar.gz")
    tail = found["nodes/node1/agent.log"]
    assert tail.endswith(b"the last line\n") and tail.startswith(b"old line\n")
    assert len(tail) <= LOG_TAIL_BYTES
    secret = key.splitlines()[1].encode()
    assert not any(b"PRIVATE KEY" in c or secret in c for c in found.values())
    missing = json.loads(found["manifest.json"])["missing"]
    assert [m["what"] for m in missing] == ["nodes/node2/agent.log"]


@pytest.mark.parametrize(
    "text",
    [
        "password: hunter2",
        "  ssh: {user: ann, password: hunter2, port: 22}",
        '{"api_token": "hunter2"}',
        "# old secret: hunter2",
        "aws_secret_access_key: 'hunter2 and more'",
        "passphrase: |\n  hunter2\n  hunter2",
        "- secret: >-\n    hunter2",
        "token:\n  hunter2",
        "url: iotdb://root:hunter2@host:6667/x",
        "pem: |\n  -----BEGIN PRIVATE KEY-----\n  hunter2\n  -----END PRIVATE KEY-----",
    ],
)
def test_possible_secrets_are_redacted(text: str) -> None:
    """The surrounding text stays."""
    whole = f"cluster: {{name: plant}}\n{text}\nnodes: [a]\n"
    clean = redact(whole)
    assert "hunter2" not in clean and REDACTED in clean
    assert clean.startswith("cluster: {name: plant}\n") and clean.endswith("nodes: [a]\n")


def test_an_unwritable_path_is_an_input_error(spec: Path) -> None:
    done = iotctl(spec, "support", "bundle", "--out", "no/such/b.tar.gz", cluster=FakeCluster())
    assert done.code == Exit.INPUT and "no/such" in done.err
