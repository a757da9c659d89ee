"""Machines behind a jump host whose link is cut during a step; a repeated command continues.

All tests of this file use one cluster, in their order. A cut ends sshd's sessions; commands that they started
may continue, as on an unreachable machine.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from iotctl.fleet.wheelhouse import software
from iotctl.lifecycle import deploy as deploying
from tests.fleet.plant import Plant, machines
from tests.fleet.sshd import Sshd

pytestmark = [pytest.mark.long, pytest.mark.real]

NODES, SPARE = ("node1", "node2", "node3"), "node4"


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    directory = tmp_path_factory.mktemp("links")
    with machines(directory, NODES, (SPARE,)) as made:
        gate = Sshd(directory / "gate", directory / "id", address="127.0.0.9")
        try:
            config, spec = directory / "ssh_config", directory / "cluster.yaml"
            config.write_text(f"{config.read_text()}Host {gate.address}\nIdentityFile {directory / 'id'}\n")
            jump = f"jump: '{gate.user}@{gate.address}:{gate.port}'"
            spec.write_text(spec.read_text().replace("ssh: {key: id}", f"ssh: {{key: id, {jump}}}"))
            yield made
        finally:
            gate.stop()


def sessions(sshd: Sshd) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == sshd.pid:
            found.append(int(path.parent.name))
    return found


def cut_when(plant: Plant, node: str, there: Callable[[], object], *words: str) -> tuple[int, str]:
    """Run a command, end all sessions of a machine once the command has reached a point, and return its code
    and output."""
    done: list[tuple[int, str, str]] = []
    running = threading.Thread(target=lambda: done.append(plant.iotctl(*words)))
    running.start()
    deadline = time.monotonic() + 120.0
    while not there():
        assert running.is_alive() and time.monotonic() < deadline, done
        time.sleep(0.002)
    cut = sessions(plant.hosts[node])
    assert cut
    for pid in cut:
        os.kill(pid, signal.SIGKILL)
    running.join(120.0)
    return done[0][0], done[0][2]


def test_a_deployment_continues_after_its_link_was_cut(plant: Plant) -> None:
    """The link is cut while its machine installs packages for all nodes that share its directory."""
    assert plant.iotctl("cluster", "trust", "--yes")[0] == 0
    assert plant.iotctl("cluster", "check")[0] == 0
    wheels = plant.directory / "software"
    code, err = cut_when(
        plant, "node1", lambda: [*wheels.glob("wheels-*/*.whl")], "cluster", "deploy", "--yes"
    )
    assert code == 4 and "node1: the SSH connection was lost" in err and "repeat the command" in err, err
    assert not any(plant.pids().values())
    assert plant.json("cluster", "deploy", "--yes")["healthy"]
    pids = plant.pids()
    assert plant.json("cluster", "deploy")["changed"] == 0 and plant.pids() == pids


def test_adding_a_node_succeeds_on_the_second_try_after_a_cut(plant: Plant) -> None:
    spec = plant.directory / "cluster.yaml"
    spec.write_text(spec.read_text() + plant.lines[SPARE] + "\n")
    assert plant.iotctl("cluster", "trust", "--yes")[0] == 0
    tls = plant.home(SPARE) / "tls"
    code, err = cut_when(plant, SPARE, tls.is_dir, "cluster", "add-node", SPARE, "--yes")
    assert code == 4 and f"{SPARE}: the SSH connection was lost" in err, err
    assert not plant.json("cluster", "status")["operations"]
    assert plant.json("cluster", "add-node", SPARE, "--yes")["state"] == "done"
    assert plant.json("cluster", "deploy")["changed"] == 0
    assert plant.json("cluster", "status")["healthy"]


def test_an_upgrade_cut_while_a_node_is_down_continues(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other nodes are left alone, and no node is left draining."""
    now = software()
    newer = msgspec.structs.replace(
        now, version=now.version + "1", code=(*now.code, ("nodeagent/newer.py", b"NEWER = True\n"))
    )
    monkeypatch.setattr(deploying, "software", lambda: newer)
    old = {n: plant.pid(n) for n in (*NODES, SPARE)}
    plant.json("cluster", "deploy", "--yes")
    words = ("cluster", "upgrade", "--yes")
    code, err = cut_when(plant, "node2", lambda: not plant.pid("node2"), *words)
    assert code == 6 and "iotctl cluster upgrade" in err, err
    restarted = {n for n in old if n != "node2" and plant.pid(n) != old[n]}
    told = err.partition(" restarted, ")[0].rpartition("; ")[2]
    assert restarted == set(re.findall(r"node\d", told)), f"the rest is left alone: {err}"
    plant.json(*words)
    for node in old:
        assert os.readlink(plant.home(node) / "app").endswith(newer.version)
        assert newer.version in Path(f"/proc/{plant.pid(node)}/cmdline").read_text()
    deadline = time.monotonic() + 10
    while not (status := plant.json("cluster", "status"))["healthy"] or "draining" in states_of(status):
        assert time.monotonic() < deadline, (status, plant.json("cluster", "events")["events"])
        time.sleep(0.5)
    assert plant.json("cluster", "upgrade")["restarted"] == []


def states_of(status: dict[str, Any]) -> list[str]:
    return [n["state"] for n in status["nodes"]]
