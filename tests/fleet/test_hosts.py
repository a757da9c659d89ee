"""`cluster trust` and `cluster check` over a real sshd, as an operator uses them."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from iotctl.cli.main import run
from iotctl.cli.session import Session
from iotctl.errors import Exit
from iotctl.fleet.ssh_config import CONFIG
from tests.fleet.sshd import Sshd

pytestmark = pytest.mark.real

Start = Callable[..., Sshd]


def iotctl(directory: Path, *words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    env = {**os.environ, CONFIG: str(directory / "ssh_config"), "SSH_AUTH_SOCK": ""}
    return run(words, Session(out, err, io.StringIO(), env, directory)), out.getvalue(), err.getvalue()


def spec(directory: Path, *hosts: Sshd, ssh: str = "", **places: str) -> Path:
    """`node1` and so on, each with its own ports and directory."""
    (directory / "ssh_config").write_text("UserKnownHostsFile none\n")
    # No test's agent listens on a port below 1024.
    lines = [
        "apiVersion: iotctl/v1",
        "cluster: {name: plant}",
        "defaults:",
        f"  ssh: {{key: id{ssh}}}",
        "nodes:",
    ]
    for i, host in enumerate(hosts, 1):
        place = places.get(
            f"node{i}", f"port: {900 + 2 * i}, http_port: {901 + 2 * i}, data_dir: /tmp/plant/{i}"
        )
        reach = f"ssh: {{port: {host.port}, user: {host.user}}}"
        lines.append(f"  - {{name: node{i}, host: {host.address}, {place}, {reach}}}")
    path = directory / "cluster.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_unknown_machines_are_trusted_and_checked(start: Start, tmp_path: Path) -> None:
    """`check` names the next command, `trust` shows and stores keys, then `check` passes."""
    spec(tmp_path, start("a"), start("b", address="127.0.0.2"), start("c", address="127.0.0.3"))
    code, out, _ = iotctl(tmp_path, "cluster", "check")
    assert code == 4 and out.count("is not known") == 3 and "iotctl cluster trust" in out

    code, _, err = iotctl(tmp_path, "cluster", "trust")
    assert code == 5 and "--yes" in err and not (tmp_path / "known_hosts").exists()

    code, out, _ = iotctl(tmp_path, "cluster", "trust", "--yes", "-o", "json")
    trusted = json.loads(out)
    assert code == 0 and [h["state"] for h in trusted["hosts"]] == ["new"] * 3
    shown = os.popen(f"ssh-keygen -lf {tmp_path}/a/host_key.pub").read().split()[1]
    assert trusted["hosts"][0]["fingerprint"] == shown

    before = (tmp_path / "known_hosts").read_bytes()
    code, out, _ = iotctl(tmp_path, "cluster", "trust", "-o", "json")
    assert code == 0 and {h["state"] for h in json.loads(out)["hosts"]} == {"known"}
    assert (tmp_path / "known_hosts").read_bytes() == before

    code, out, _ = iotctl(tmp_path, "cluster", "check", "-o", "json")
    checked = json.loads(out)
    facts = checked["hosts"][0]["facts"]
    assert facts["system"] == "Linux" and facts["python"].startswith("python3") and facts["cpus"] > 0
    assert abs(facts["clock_ms"]) < 2_000 and facts["data_free_bytes"] > 0 and facts["data_writable"]
    assert "machine" in {f["code"] for f in checked["findings"] if f["node"] == "node2"}
    assert code == 0, checked["findings"]


def test_nodes_with_the_same_place_and_a_port_in_use_are_errors(start: Start, tmp_path: Path) -> None:
    a, b = start("a"), start("b", address="127.0.0.2")
    place = f"port: {a.port}, http_port: 29100, data_dir: /tmp/plant/x"
    spec(tmp_path, a, b, node1=place, node2=place)
    assert iotctl(tmp_path, "cluster", "trust", "--yes")[0] == 0
    code, out, _ = iotctl(tmp_path, "cluster", "check", "-o", "json")
    found = {(f["node"], f["code"]) for f in json.loads(out)["findings"] if f["severity"] == "error"}
    assert code == 5 and {("node2", "same_place"), ("node1", "port")} <= found


def test_a_changed_key_is_refused_until_its_node_is_named(start: Start, tmp_path: Path) -> None:
    a = start("a")
    spec(tmp_path, a)
    assert iotctl(tmp_path, "cluster", "trust", "--yes")[0] == 0
    before = (tmp_path / "known_hosts").read_bytes()
    a.stop()
    start("other", port=a.port)
    code, out, _ = iotctl(tmp_path, "cluster", "check")
    assert code == 4 and "has CHANGED" in out
    code, _, err = iotctl(tmp_path, "cluster", "trust", "--yes")
    assert code == 5 and "--replace node1" in err and (tmp_path / "known_hosts").read_bytes() == before
    assert iotctl(tmp_path, "cluster", "trust", "--yes", "--replace", "node1")[0] == 0
    assert iotctl(tmp_path, "cluster", "check")[0] == 0


def test_a_key_that_differs_from_the_operators_known_hosts_has_changed(start: Start, tmp_path: Path) -> None:
    """`trust`, which `check` recommends, does not accept a key that `check` refused."""
    a, b = start("a"), start("b", address="127.0.0.2")
    spec(tmp_path, a, b)
    name = f"[{a.address}]:{a.port}"
    mine = tmp_path / "mine"
    mine.write_text(f"{name} {(tmp_path / 'b' / 'host_key.pub').read_text()}")
    (tmp_path / "ssh_config").write_text(f"UserKnownHostsFile {mine}\n")
    assert iotctl(tmp_path, "cluster", "check")[0] == 4
    code, _, err = iotctl(tmp_path, "cluster", "trust", "--yes")
    assert code == 5 and "--replace node1" in err and not (tmp_path / "known_hosts").exists()
    mine.write_text(f"{name} {(tmp_path / 'a' / 'host_key.pub').read_text()}")
    code, out, _ = iotctl(tmp_path, "cluster", "trust", "--yes", "-o", "json")
    assert code == 0 and [h["state"] for h in json.loads(out)["hosts"]] == ["yours", "new"]
    mine.write_text("")
    assert iotctl(tmp_path, "cluster", "check")[0] == 0  # the cluster's file has the key now


def test_an_unreadable_configuration_and_a_missing_key_are_input_errors(start: Start, tmp_path: Path) -> None:
    spec(tmp_path, start("a"))
    (tmp_path / "ssh_config").write_text("Nonsense yes\n")
    for verb in ("check", "trust"):
        code, _, err = iotctl(tmp_path, "cluster", verb)
        assert code == 3 and "ssh -G" in err, err
    spec(tmp_path, start("b", address="127.0.0.2"), ssh="x")
    assert iotctl(tmp_path, "cluster", "check")[0] == 3


def test_nested_jump_hosts_are_trusted_outermost_first(start: Start, tmp_path: Path) -> None:
    outer, gate, inner = (
        start("outer"),
        start("gate", address="127.0.0.2"),
        start("inner", address="127.0.0.3"),
    )
    spec(tmp_path, inner, ssh=", jump: gate")
    config = "".join(
        f"Host {name}\n  HostName {one.address}\n  Port {one.port}\n  User {one.user}\n  {more}\n"
        for name, one, more in (("outer", outer, ""), ("gate", gate, "ProxyJump outer"))
    )
    (tmp_path / "ssh_config").write_text(
        f"{config}Host *\n  IdentityFile {inner.user_key}\n  UserKnownHostsFile none\n"
    )
    code, out, _ = iotctl(tmp_path, "cluster", "trust", "--yes", "-o", "json")
    assert code == 0 and [h["node"] for h in json.loads(out)["hosts"]] == ["outer", "gate", "node1"]
    assert iotctl(tmp_path, "cluster", "check")[0] == 0


def test_the_jump_host_is_trusted_first(start: Start, tmp_path: Path) -> None:
    gate, inner = start("gate"), start("inner", address="127.0.0.2")
    spec(tmp_path, inner, ssh=", jump: gate")
    (tmp_path / "ssh_config").write_text(
        f"Host gate\n  HostName {gate.address}\n  Port {gate.port}\n  User {gate.user}\n"
        f"  IdentityFile {gate.user_key}\nHost *\n  UserKnownHostsFile none\n"
    )
    code, out, _ = iotctl(tmp_path, "cluster", "trust", "--yes", "-o", "json")
    assert code == 0 and [h["node"] for h in json.loads(out)["hosts"]] == ["gate", "node1"]
    assert iotctl(tmp_path, "cluster", "check")[0] == 0

    known = tmp_path / "known_hosts"
    known.write_text("".join(line for line in known.open() if f":{gate.port} " not in line))
    inner.stop()
    start("other", address="127.0.0.2", port=inner.port)
    code, _, err = iotctl(tmp_path, "cluster", "trust", "--yes")
    assert code == Exit.PARTLY and "has CHANGED or is revoked; the keys accepted before are stored" in err, (
        err
    )
    assert "nothing was" not in err and f":{gate.port} " in known.read_text()


def test_a_machine_that_does_not_answer_does_not_hide_the_others(start: Start, tmp_path: Path) -> None:
    a, b = start("a"), start("b", address="127.0.0.2")
    spec(tmp_path, a, b)
    assert iotctl(tmp_path, "cluster", "trust", "--yes")[0] == 0
    b.stop()
    code, out, _ = iotctl(tmp_path, "cluster", "check", "-o", "json")
    hosts = {h["node"]: h for h in json.loads(out)["hosts"]}
    assert code == 4 and hosts["node1"]["facts"] and "Connection refused" in hosts["node2"]["error"]
    code, _, err = iotctl(tmp_path, "cluster", "check", "node9")
    assert code == 2 and "does not list node9" in err and "node1, node2" in err


def test_a_local_fleet_is_checked_without_ssh(tmp_path: Path) -> None:
    text = "apiVersion: iotctl/v1\ncluster: {name: here}\ndefaults: {transport: local}\nnodes:\n"
    (tmp_path / "cluster.yaml").write_text(
        f"{text}  - {{name: node1, host: 127.0.0.1, port: 900, http_port: 901}}\n"
    )
    code, out, _ = iotctl(tmp_path, "cluster", "check", "-o", "json")
    assert code == 0 and json.loads(out)["hosts"][0]["facts"]["clock_ms"] == pytest.approx(0, abs=500)
    code, _, err = iotctl(tmp_path, "cluster", "trust")
    assert code == 2 and "its transport is local" in err
