"""A cluster on machines where systemd runs the agents: as root, then as a user with `sudo -n`.

The tests of each half use one cluster, in their order.
"""

import os
import shutil
import signal
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
import yaml

from tests.fleet.plant import Plant
from tests.fleet.systemd import ASKED, FREE, LOGIN, LOGIN_ID, Machine, NoBoot, booted
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.systemd, pytest.mark.timeout(120)]

NODES = ("node1", "node2", "node3")
LIMIT_NOFILE = 1048576
CAP_SYS_RESOURCE = 1 << 24


@contextmanager
def _booted(nodes: tuple[str, ...], login: str = "root", service: str = "") -> Iterator[Plant]:
    """Boot the machines in a directory that an ordinary user may enter."""
    directory = Path(tempfile.mkdtemp(prefix="iotctl-systemd-"))
    directory.chmod(0o755)
    try:
        with booted(directory, nodes, login, service) as made:
            yield made
    except NoBoot as why:
        pytest.skip(f"no systemd here: {why}")
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def cache() -> Iterator[dict[str, str]]:
    """Both clusters are deployed from packages that are fetched once."""
    with tempfile.TemporaryDirectory(prefix="iotctl-cache-") as directory:
        yield {"XDG_CACHE_HOME": directory}


@pytest.fixture(scope="module")
def plant(cache: dict[str, str]) -> Iterator[Plant]:
    with _booted(NODES) as made:
        made.env |= cache
        yield made


@pytest.fixture(scope="module")
def ops(cache: dict[str, str]) -> Iterator[Plant]:
    """One machine, used by an ordinary user; with its umask, other users cannot read new files."""
    if not shutil.which("sudo"):
        pytest.skip("sudo is not installed")
    with _booted(("node1",), LOGIN, "UMask=0077") as made:
        made.env |= cache
        spec = made.directory / "cluster.yaml"
        spec.write_text(spec.read_text().replace("name: plant}", "name: plant, replicas: 1}"))
        yield made


def test_systemd_runs_there(plant: Plant) -> None:
    assert plant.iotctl("cluster", "trust", "--yes")[0] == 0
    found = plant.json("cluster", "check")["hosts"]
    assert [h["facts"]["init"] for h in found] == ["systemd"] * 3
    for node in NODES:
        assert _machine(plant, node).run("systemctl", "is-system-running", "--wait") == "running\n"
        assert not os.access(_machine(plant, node).root / "proc/sys/fs/file-max", os.W_OK)


@pytest.mark.timeout(300)  # packages are fetched and installed
def test_one_command_deploys_units_and_a_healthy_cluster(plant: Plant) -> None:
    plan = plant.json("cluster", "deploy", "--dry-run")
    assert [c["what"] for c in plan["nodes"][0]["changes"]] == [
        "dirs",
        "software",
        "files",
        "version",
        "unit",
    ]
    done = plant.json("cluster", "deploy", "--yes")
    assert done["changed"] == 3 and done["healthy"]
    for node in NODES:
        assert _machine(plant, node).units() == [_unit(node)]
        assert _show(plant, node, "ActiveState", "UnitFileState") == ["active", "enabled"]
        assert _show(plant, node, "MainPID") != ["0"]
        assert not (plant.home(node) / "supervise").exists()


def test_an_agent_has_what_its_unit_says(plant: Plant) -> None:
    agent, machine = plant.pid("node1"), _machine(plant, "node1")
    group = Path(f"/proc/{agent}/cgroup").read_text().splitlines()[-1]
    assert group.endswith(f"/system.slice/{_unit('node1')}")
    # Without the right to raise limits, systemd applies the machine's own limit.
    own = LIMIT_NOFILE if _capabilities(machine.pid) & CAP_SYS_RESOURCE else _files_max(machine.pid)
    assert _files_max(agent) == min(LIMIT_NOFILE, own)
    keys = ("LimitNOFILE", "Restart", "KillMode", "TimeoutStopUSec", "User")
    assert _show(plant, "node1", *keys) == [str(LIMIT_NOFILE), "always", "mixed", "1min", "root"]


def test_a_second_deploy_changes_nothing(plant: Plant) -> None:
    pids, files = plant.pids(), _written(plant)
    done = plant.json("cluster", "deploy")  # nothing to consent to
    assert done["changed"] == 0 and done["healthy"] and not any(n["later"] for n in done["nodes"])
    assert plant.pids() == pids and _written(plant) == files


def test_systemd_restarts_an_agent_that_dies(plant: Plant) -> None:
    old = plant.pid("node2")
    assert _show(plant, "node2", "NRestarts") == ["0"], _said(plant, "node2")
    os.kill(old, signal.SIGKILL)
    until(lambda: plant.pid("node2") not in (0, old))
    assert _show(plant, "node2", "NRestarts") == ["1"], _said(plant, "node2")
    _healthy(plant)


def test_the_end_of_an_agents_log_comes_from_the_journal(plant: Plant) -> None:
    (found,) = plant.json("cluster", "logs", "node1", "-n", "3")["nodes"]
    said = _machine(plant, "node1").run("journalctl", "--output=cat", "_COMM=nodeagent", "--no-pager")
    assert len(found["lines"]) == 3 and not (plant.home("node1") / "agent.log").exists()
    assert set(found["lines"]) & set(said.splitlines())


def test_one_node_is_stopped_and_started(plant: Plant) -> None:
    assert plant.json("cluster", "stop", "node3", "--yes")["nodes"] == ["node3"]
    assert plant.pid("node3") == 0
    assert _show(plant, "node3", "ActiveState", "UnitFileState") == ["inactive", "enabled"]
    assert plant.json("cluster", "start")["nodes"] == ["node3"]
    assert _show(plant, "node3", "ActiveState") == ["active"]
    _healthy(plant)


def test_a_rolling_restart(plant: Plant) -> None:
    old = plant.pids()
    done = plant.json("cluster", "restart", "--yes")
    assert sorted(done["order"]) == [[n] for n in NODES]
    assert all(plant.pid(n) not in (0, old[n]) for n in NODES)
    _healthy(plant)


def test_an_edited_unit_is_repaired(plant: Plant) -> None:
    """The unit is repaired at once if the agent is down, and by `upgrade` if it runs; systemd then loads
    it."""
    units = {n: _unit_file(plant, n) for n in NODES}
    meant = {n: unit.read_text() for n, unit in units.items()}
    units["node1"].write_text(meant["node1"].replace("RestartSec=2", "RestartSec=3"))
    pids = plant.pids()
    done = {n["node"]: n for n in plant.json("cluster", "deploy")["nodes"]}
    assert [c["what"] for c in done["node1"]["later"]] == ["unit"] and not done["node2"]["later"]
    assert plant.pids() == pids and units["node1"].read_text() != meant["node1"]
    assert plant.json("cluster", "upgrade", "--yes")["restarted"] == ["node1"]
    _healthy(plant)
    assert plant.json("cluster", "stop", "node2", "--yes")["nodes"] == ["node2"]
    units["node2"].unlink()
    assert plant.json("cluster", "deploy", "--yes")["changed"] == 1
    for node in NODES:
        assert units[node].read_text() == meant[node] and (plant.pid(node) == pids[node]) == (node == "node3")
        assert _show(plant, node, "NeedDaemonReload", "RestartUSec", "UnitFileState") == [
            "no",
            "2s",
            "enabled",
        ]


def test_a_running_agent_loads_its_renewed_certificate(plant: Plant) -> None:
    pids, old = plant.pids(), _shown_certificate(plant, "node1")
    assert plant.json("cert", "renew", "--within", "3650d", "--yes")["changed"] == 4
    until(lambda: _shown_certificate(plant, "node1") != old)
    kept = (plant.home("node1") / "tls" / "node.pem").read_text()
    assert _shown_certificate(plant, "node1").strip() in kept
    assert plant.pids() == pids
    _healthy(plant)


def test_all_stop_even_if_a_node_was_never_deployed(plant: Plant) -> None:
    """cluster.yaml lists the node, but its machine has no unit."""
    path = plant.directory / "cluster.yaml"
    text = path.read_text()
    port = _address(plant, "node3")[1]
    ssh = plant.hosts["node1"].port
    path.write_text(
        text + f"  - {{name: node4, host: 127.0.0.1, port: {port}, data_dir: {plant.home('node4')},"
        f" ssh: {{port: {ssh}, user: root}}}}\n"
    )
    try:
        assert plant.json("cluster", "stop", "--yes")["nodes"] == list(NODES)
    finally:
        path.write_text(text)
    assert set(plant.pids().values()) == {0}
    assert plant.json("cluster", "start")["nodes"] == list(NODES)
    _healthy(plant)


def test_destroy_leaves_no_unit_and_no_process(plant: Plant) -> None:
    """This includes the unit of a killed agent, which systemd records as failed."""
    late = _machine(plant, "node2").root / "run/systemd/system" / f"{_unit('node2')}.d" / "late.conf"
    late.parent.mkdir(parents=True)
    late.write_text("[Service]\nTimeoutStopSec=1ms\n")
    _machine(plant, "node2").run("systemctl", "daemon-reload")
    done = plant.json("cluster", "destroy", "--confirm", "plant")
    assert done["destroyed"] == list(NODES)
    shutil.rmtree(late.parent)
    assert set(plant.pids().values()) == {0}
    for node in NODES:
        assert _machine(plant, node).units() == [] and not plant.home(node).exists()
        assert _machine(plant, node).run("systemctl", "is-system-running") == "running\n"
    assert plant.json("cluster", "destroy")["destroyed"] == []
    _unit_file(plant, "node3").write_text("[Service]\nExecStart=/bin/true\n")  # only the unit is left
    assert plant.json("cluster", "destroy", "--confirm", "plant")["destroyed"] == ["node3"]
    assert _machine(plant, "node3").units() == []


@pytest.mark.timeout(300)
def test_a_user_with_sudo_deploys_units(ops: Plant) -> None:
    """With a strict umask, files that root writes must still be readable."""
    assert ops.iotctl("cluster", "trust", "--yes")[0] == 0
    done = ops.json("cluster", "deploy", "--yes")
    assert done["healthy"] and _machine(ops).units() == [_unit("node1")]
    assert _show(ops, "node1", "User", "ActiveState") == [LOGIN, "active"]
    assert ops.home("node1").stat().st_uid == Path(f"/proc/{ops.pid('node1')}").stat().st_uid != 0
    pid = ops.pid("node1")
    again = ops.json("cluster", "deploy")
    assert again["changed"] == 0 and not again["nodes"][0]["later"] and ops.pid("node1") == pid
    assert len(ops.json("cluster", "logs", "node1", "-n", "2")["nodes"][0]["lines"]) == 2


def test_a_user_with_sudo_renews_stops_and_starts(ops: Plant) -> None:
    pid, old = ops.pid("node1"), _shown_certificate(ops, "node1")
    assert ops.json("cert", "renew", "--within", "3650d", "--yes")["changed"] == 2
    until(lambda: _shown_certificate(ops, "node1") != old)
    assert ops.pid("node1") == pid
    assert ops.json("cluster", "stop", "--yes")["nodes"] == ["node1"] and ops.pid("node1") == 0
    assert ops.json("cluster", "start")["nodes"] == ["node1"] and ops.pid("node1") not in (0, pid)
    _healthy(ops)


def test_a_user_who_needs_a_sudo_password_cannot_stop_a_unit(ops: Plant) -> None:
    pid = ops.pid("node1")
    _sudoers(ops, ASKED)
    try:
        code, _, err = ops.iotctl("cluster", "stop", "--yes")
    finally:
        _sudoers(ops, FREE)
    assert code == 4 and "node1: the agent did not stop" in err and ops.pid("node1") == pid, err


def test_a_user_with_sudo_destroys(ops: Plant) -> None:
    assert ops.json("cluster", "destroy", "--confirm", "plant")["destroyed"] == ["node1"]
    assert ops.pid("node1") == 0 and _machine(ops).units() == []


def test_a_user_who_needs_a_sudo_password_gets_a_supervisor(ops: Plant) -> None:
    """This needs directories that were created for the user; without them nothing is done."""
    _sudoers(ops, ASKED)
    home = ops.home("node1")
    home.rmdir()
    code, _, err = ops.iotctl("cluster", "deploy", "--yes")
    assert code == 5 and f"{LOGIN} may not write" in err and not home.exists(), err
    home.mkdir()
    shutil.chown(home, LOGIN_ID, LOGIN_ID)
    done = ops.json("cluster", "deploy", "--yes")
    assert done["healthy"] and _machine(ops).units() == [] and (home / "supervisor.pid").is_file()
    assert ops.json("cluster", "destroy", "--confirm", "plant")["destroyed"] == ["node1"]
    assert ops.pid("node1") == 0


def _machine(plant: Plant, node: str = "node1") -> Machine:
    return cast(Machine, plant.hosts[node])


def _unit(node: str) -> str:
    return f"nodeagent-plant-{node}.service"


def _unit_file(plant: Plant, node: str) -> Path:
    return _machine(plant, node).root / "etc/systemd/system" / _unit(node)


def _show(plant: Plant, node: str, *keys: str) -> list[str]:
    """The properties of the node's unit in systemd."""
    words = ("systemctl", "show", _unit(node), *(f"--property={k}" for k in keys))
    said = dict(line.split("=", 1) for line in _machine(plant, node).run(*words).splitlines())
    return [said[k] for k in keys]


def _said(plant: Plant, node: str) -> str:
    return _machine(plant, node).run("journalctl", "--no-pager", f"--unit={_unit(node)}")


def _written(plant: Plant) -> dict[str, int]:
    """The time of the last write to the deployed files, in nanoseconds."""
    names = ("node.yaml", "tls/node.pem", "tls/node.key", "tls/ca.pem", "app")
    files = [plant.home(n) / name for n in plant.nodes for name in names]
    return {str(f): f.lstat().st_mtime_ns for f in (*files, *(_unit_file(plant, n) for n in plant.nodes))}


def _address(plant: Plant, node: str) -> tuple[str, int]:
    listed = yaml.safe_load((plant.directory / "cluster.yaml").read_text())["nodes"]
    return next((n["host"], n["port"]) for n in listed if n["name"] == node)


def _shown_certificate(plant: Plant, node: str) -> str:
    return ssl.get_server_certificate(_address(plant, node), timeout=10.0)


def _files_max(pid: int) -> int:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(int(line.split()[4]) for line in lines if line.startswith("Max open files"))


def _capabilities(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))


def _sudoers(plant: Plant, text: str) -> None:
    (_machine(plant).root / "etc/sudoers").write_text(text)


def _healthy(plant: Plant) -> None:
    assert plant.iotctl("cluster", "wait", "--for", "healthy", "--timeout", "60s")[0] == 0
