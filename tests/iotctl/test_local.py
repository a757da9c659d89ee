"""The local fleet: processes are identified, never killed by mistake, and their data stays."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from iotctl.change.execute import ChangeRequest, execute
from iotctl.change.provision import LocalProvisioner, Probe
from iotctl.cli import local
from iotctl.cli.session import GlobalOptions, Session
from iotctl.errors import BusyProblem, Exit, RefusedProblem
from iotctl.fleet import process
from iotctl.fleet.local import MARKER, LocalFleet
from iotctl.fleet.ports import take_ports
from iotctl.observe.facts import spec_hash
from iotctl.observe.layout import table_of
from iotctl.plan.facts import ClusterFacts
from iotctl.plan.make import make_add
from iotctl.spec.cluster import NodeEntry
from nodeagent.client import identity
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import OutcomeUnknown, Refused
from nodeagent.model.operation import Operation, Stage
from nodeagent.model.requests import BeginChange, NodeStatus
from tests.iotctl.fakes import FakeCluster, iotctl, make_operation
from tests.waiting import until

SETTINGS = ClusterSettings(name="plant", slots=50)


def sleeper(directory: Path) -> Sequence[str]:
    return (sys.executable, "-c", "import time; time.sleep(60)", "nodeagent", str(directory))


def stubborn(directory: Path) -> Sequence[str]:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('up', flush=True); time.sleep(60)"
    )
    return (sys.executable, "-c", code, "nodeagent", str(directory))


def test_a_node_that_is_archived_during_the_start_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another iotctl completes a removal between the listing of the directories and the start."""
    fleet = LocalFleet(tmp_path / "fleet", sleeper)
    fleet.create(SETTINGS, 3, node_settings={})
    start = process.start

    def late(*words: Any, **where: Any) -> int:
        if where["directory"].name == "node3":
            fleet.retire("node3")
        return start(*words, **where)

    monkeypatch.setattr(process, "start", late)
    try:
        assert fleet.start() == ["node1", "node2"]
    finally:
        fleet.destroy()


def test_a_node_that_is_archived_while_nodes_are_listed_is_left_out(fleet: LocalFleet) -> None:
    """Its node.yaml was there when the directory was read (a case of the kill matrix)."""
    (fleet.directory / "node2" / "node.yaml").unlink()
    (fleet.directory / "node2" / "node.yaml").symlink_to(
        "gone"
    )  # the directory is listed, but is missing when it is read
    assert [n.name for n in fleet.nodes()] == ["node1", "node3"]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalFleet]:
    made = LocalFleet(tmp_path / "fleet", sleeper)
    made.create(SETTINGS, 3, node_settings={"idle_close_ms": 500})
    yield made
    if made.exists:
        made.stop(grace_s=1.0)


def test_a_new_fleet_has_ports_certificates_and_a_spec(fleet: LocalFleet) -> None:
    """All ports differ; each node's certificate is its own and signed by the fleet's authority."""
    source = fleet.source()
    assert source.node_names == ("node1", "node2", "node3")
    assert source.settings() == SETTINGS
    assert source.is_local
    ports = [p for n in fleet.nodes() for p in (n.port, n.http_port)]
    assert len(set(ports)) == 6
    ca = (fleet.directory / "authority" / "ca.pem").read_text()
    for name in source.node_names:
        facts = identity.certificate_facts((fleet.directory / name / "tls" / "node.pem").read_text())
        assert (facts.name, facts.role) == (name, "node")
        assert identity.is_issued_by((fleet.directory / name / "tls" / "node.pem").read_text(), ca)
        key = fleet.directory / name / "tls" / "node.key"
        assert key.stat().st_mode & 0o077 == 0
    config = yaml.safe_load((fleet.directory / "node2" / "node.yaml").read_text())
    assert config["node"] == "node2" and config["join"] is False and config["idle_close_ms"] == 500
    assert [s["node"] for s in config["seeds"]] == list(source.node_names)


def test_start_is_idempotent_and_stop_keeps_the_data(fleet: LocalFleet) -> None:
    """A second start starts nothing; after one node died, it only starts that node."""
    assert fleet.start() == ["node1", "node2", "node3"]
    assert fleet.start() == []
    pids = {n.name: n.pid for n in fleet.nodes()}
    assert all(pids.values())
    assert fleet.kill("node2")
    until(lambda: fleet.nodes()[1].pid is None)
    assert fleet.start() == ["node2"]
    assert {n.name: n.pid for n in fleet.nodes() if n.name != "node2"} == {
        k: v for k, v in pids.items() if k != "node2"
    }
    assert fleet.stop() == ["node1", "node2", "node3"]
    assert [n.pid for n in fleet.nodes()] == [None] * 3
    assert (fleet.directory / "node1" / "node.yaml").is_file()


def test_a_reused_pid_is_not_ours(fleet: LocalFleet) -> None:
    """A pid file that names another process (other start time or command line) never kills it."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        fleet.start(["node1"])
        pid_file = fleet.directory / "node1" / "agent.pid"
        honest = json.loads(pid_file.read_text())
        assert process.running(pid_file) == honest["pid"]
        ours = honest["pid"]
        for lie in ({"pid": other.pid}, {"started": honest["started"] + 1}, {"word": "/elsewhere"}):
            pid_file.write_text(json.dumps({**honest, **lie}))
            assert process.running(pid_file) is None
            process.stop([pid_file], grace_s=0.1)
            assert other.poll() is None
            pid_file.write_text(json.dumps(honest))
        pid_file.write_bytes(b'{"pid":1,"word":"\xff"}')
        assert process.running(pid_file) is None
        pid_file.write_text(json.dumps(honest))
        assert process.running(pid_file) == ours
    finally:
        other.kill()
        other.wait()


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    """stop() returns with nothing running, and reports what had to be killed."""
    fleet = LocalFleet(tmp_path / "f", stubborn)
    fleet.create(SETTINGS, 1, node_settings={})
    fleet.start()
    until(lambda: "up" in fleet.log_tail("node1"))
    pid = fleet.nodes()[0].pid
    assert pid is not None
    killed = process.stop([fleet.directory / "node1" / "agent.pid"], grace_s=0.2)
    assert len(killed) == 1
    assert not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text()


def test_destroy_needs_the_mark(tmp_path: Path, fleet: LocalFleet) -> None:
    """A directory that `up` did not create is never deleted or filled."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("x")
    with pytest.raises(RefusedProblem):
        LocalFleet(precious).destroy()
    with pytest.raises(RefusedProblem):
        LocalFleet(precious).create(SETTINGS, 1, node_settings={})
    assert (precious / "thesis.txt").read_text() == "x"
    fleet.start()
    fleet.destroy()
    assert not fleet.directory.exists()


def test_an_added_node_joins(fleet: LocalFleet) -> None:
    """The node has its own ports, join mode, the others as seeds and their tuning; a second call adds
    nothing."""
    entry = fleet.add("node4")
    config = yaml.safe_load((fleet.directory / "node4" / "node.yaml").read_text())
    assert config["join"] is True and config["idle_close_ms"] == 500
    assert [s["node"] for s in config["seeds"]] == ["node1", "node2", "node3"]
    assert config["port"] == entry.port
    assert fleet.add("node4") == entry
    assert fleet.source().node_names == ("node1", "node2", "node3"), "the spec changes with the cluster"
    assert fleet.start() == ["node1", "node2", "node3"], "a node outside the spec starts only when named"
    assert fleet.start(["node4"]) == ["node4"]


def test_a_listed_node_is_created_at_its_listed_address(fleet: LocalFleet) -> None:
    """The node is the first in the list: `apply` creates it as the operator wrote it, with its ports."""
    text = fleet.spec_path.read_text()
    line = "nodes:\n  - {name: node0, host: 127.0.0.1, port: 19123, http_port: 19124, weight: 2}"
    fleet.spec_path.write_text(text.replace("nodes:", line))
    entry = fleet.add("node0")
    config = yaml.safe_load((fleet.directory / "node0" / "node.yaml").read_text())
    assert (config["port"], config["http_port"], entry.weight) == (19123, 19124, 2)
    assert config["join"] and config["idle_close_ms"] == 500
    assert [s["node"] for s in config["seeds"]] == ["node1", "node2", "node3"], (
        "a node that has not joined is no member"
    )


def test_a_retired_node_is_archived(fleet: LocalFleet) -> None:
    """Its data stays under removed/, and its name can be used for a new node."""
    fleet.start(["node3"])
    fleet.retire("node3")
    assert [n.name for n in fleet.nodes()] == ["node1", "node2"]
    assert (fleet.directory / "removed" / "node3-1" / "node.yaml").is_file()
    fleet.add("node3")
    fleet.retire("node3")
    assert (fleet.directory / "removed" / "node3-2").is_dir()


def test_local_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """up (twice), status, down, destroy: documents, exit codes and the export line."""
    monkeypatch.setattr("iotctl.fleet.local.LocalFleet.__init__.__defaults__", (sleeper,))
    cluster = FakeCluster()
    up = iotctl(tmp_path, "local", "up", "--nodes", "5", cluster=cluster)
    assert up.code == 0 and "warning" not in up.err, up.err
    assert f"export IOTCTL_CLUSTER={tmp_path}/iotctl-local/cluster.yaml" in up.out
    assert up.out.count("\n  iotctl ") == 3
    again = iotctl(tmp_path, "local", "up", "--nodes", "9", "-o", "json", cluster=cluster)
    assert "every agent is already running" in again.err
    assert len(json.loads(again.out)["nodes"]) == 5, "an existing fleet keeps its size"
    assert (tmp_path / "iotctl-local" / MARKER).is_file()
    asked = iotctl(tmp_path, "local", "down", "--dry-run", "-o", "json")
    assert asked.code == 0 and "stop node1" in json.loads(asked.out)["would"]
    down = iotctl(tmp_path, "local", "down", "-o", "json")
    assert down.code == 0 and all(n["pid"] is None for n in json.loads(down.out)["nodes"])
    refused = iotctl(tmp_path, "local", "destroy")
    assert refused.code == Exit.REFUSED and "--yes" in refused.err
    assert iotctl(tmp_path, "local", "destroy", "--yes").code == 0
    assert not (tmp_path / "iotctl-local").exists()
    assert iotctl(tmp_path, "local", "status").code == Exit.REFUSED


def test_up_reports_an_agent_that_exits_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 4 with the end of the agent's log, not a timeout."""

    def failing(directory: Path) -> Sequence[str]:
        return (sys.executable, "-c", "print('port is taken'); raise SystemExit(1)", str(directory))

    monkeypatch.setattr("iotctl.fleet.local.LocalFleet.__init__.__defaults__", (failing,))
    cluster = FakeCluster(down={f"node{i}" for i in range(1, 6)})
    done = iotctl(tmp_path, "local", "up", "--nodes", "5", cluster=cluster)
    assert done.code == Exit.UNREACHABLE
    assert "has exited" in done.err
    assert iotctl(tmp_path, "local", "destroy", "--yes").code == 0


def test_up_shows_the_next_command_of_an_agent_that_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's next command becomes the next command of `local up`, and not a part of the reason."""
    words = r"error: log/ is missing\nnext: iotctl cluster replace-node node1 NEW --dead"

    def failing(directory: Path) -> Sequence[str]:
        return (sys.executable, "-c", f"print('{words}'); raise SystemExit(7)", str(directory))

    monkeypatch.setattr("iotctl.fleet.local.LocalFleet.__init__.__defaults__", (failing,))
    cluster = FakeCluster(down={f"node{i}" for i in range(1, 6)})
    done = iotctl(tmp_path, "local", "up", "--nodes", "5", cluster=cluster)
    assert "why: log/ is missing\n" in done.err
    assert "next: iotctl cluster replace-node node1 NEW --dead (see " in done.err
    assert iotctl(tmp_path, "local", "destroy", "--yes").code == 0


def test_fewer_nodes_than_replicas_cause_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotctl.fleet.local.LocalFleet.__init__.__defaults__", (sleeper,))
    up = iotctl(tmp_path, "local", "up", "--nodes", "2", cluster=FakeCluster())
    assert "warning: 2 nodes hold 2 copies of a row; --replicas 3 needs more nodes" in up.err
    assert iotctl(tmp_path, "local", "destroy", "--yes").code == 0


def add_node4(fleet: LocalFleet, cluster: FakeCluster, probe: Probe) -> None:
    source = fleet.source()
    facts = ClusterFacts(table_of(cluster.view()), 3, {}, spec_hash=spec_hash(source))
    execute(
        lambda: cluster,
        source,
        make_add(facts, ["node4"]),
        ChangeRequest("tester"),
        provisioner=LocalProvisioner(fleet, probe),
        on_note=lambda _: None,
        on_update=lambda _: None,
    )


def three(error: Exception | None = None) -> FakeCluster:
    """A fleet of three nodes whose changes end in `error`; questions are answered."""

    class Refusing(FakeCluster):
        def begin_change(self, change: BeginChange) -> Operation:
            assert error is not None
            raise error

    return Refusing(names=["node1", "node2", "node3"])


def test_a_new_node_is_not_started_while_another_change_is_open(fleet: LocalFleet) -> None:
    """The meta group would refuse the change, and the agent would never join."""
    cluster = three()
    cluster.operations.append(make_operation("op-9", stage=Stage.COPYING))
    with pytest.raises(BusyProblem, match="op-9"):
        add_node4(fleet, cluster, lambda entry, timeout_s: cluster.status("node1"))
    assert "node4" not in [n.name for n in fleet.nodes()]


def test_a_new_node_that_does_not_join_is_stopped(fleet: LocalFleet) -> None:
    """The start was interrupted before the change was requested, or the cluster refused the change."""
    refused = three(Refused("no live quorum"))

    def interrupted(entry: NodeEntry, timeout_s: float) -> NodeStatus:
        assert fleet.nodes()[-1].pid is not None
        raise KeyboardInterrupt

    for probe, error in ((interrupted, KeyboardInterrupt), (lambda _, s: refused.status("node1"), Refused)):
        with pytest.raises(error):
            add_node4(fleet, refused, probe)
        assert fleet.nodes()[-1].name == "node4" and fleet.nodes()[-1].pid is None


def test_a_new_node_brings_its_zone(fleet: LocalFleet) -> None:
    spec, cluster = fleet.spec_path, FakeCluster(names=["node1", "node2", "node3"])
    ports = take_ports(2, fleet.directory)
    place = f"{{name: node4, host: 127.0.0.1, port: {ports[0]}, http_port: {ports[1]}, zone: hall-b}}"
    spec.write_text(spec.read_text().rstrip("\n") + f"\n  - {place}\n")
    add_node4(fleet, cluster, lambda _, s: cluster.status("node1"))
    assert [b.zone for b in cluster.begun] == ["hall-b"]


def test_a_new_node_whose_change_may_have_begun_keeps_running(fleet: LocalFleet) -> None:
    """The cluster may already need it."""
    cluster = three(OutcomeUnknown("the connection was lost"))
    with pytest.raises(OutcomeUnknown):
        add_node4(fleet, cluster, lambda _, s: cluster.status("node1"))
    assert fleet.nodes()[-1].name == "node4" and fleet.nodes()[-1].pid is not None


def test_ctrl_c_during_a_start_leaves_no_unrecorded_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_at = process._started

    def interrupted(pid: int) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return started_at(pid)

    file, word = tmp_path / "pid", str(tmp_path)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as now, pytest.raises(KeyboardInterrupt):
            now.setattr(process, "_started", interrupted)
            command = [sys.executable, "-c", "import time; time.sleep(60)", word]
            process.start(command, directory=tmp_path, log=tmp_path / "log", pid_file=file, word=word)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.running(file)
    assert process.kill(file)


@pytest.mark.parametrize("call", ["write_bytes", "replace"])
def test_a_full_disk_leaves_no_unrecorded_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Without space for the record nothing is started; an agent whose record fails is stopped. The error says
    what was not started, and a repeated command continues once there is space."""
    fleet = LocalFleet(tmp_path / "fleet", sleeper)
    fleet.create(SETTINGS, 2, node_settings={})
    real = getattr(Path, call)
    started: list[int] = []
    popen = subprocess.Popen

    def full(path: Path, *rest: Any) -> Any:
        if path.parent.name == "node2" and path.name.startswith("agent."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, *rest)

    def noted(*words: Any, **how: Any) -> Any:
        process = popen(*words, **how)
        started.append(process.pid)
        return process

    try:
        with monkeypatch.context() as now, pytest.raises(RefusedProblem) as error:
            now.setattr(Path, call, full)
            now.setattr(subprocess, "Popen", noted)
            fleet.start()
        assert error.value.what == "node2 was not started; started before it: node1"
        assert "No space left" in error.value.why and error.value.next
        assert [n.name for n in fleet.nodes() if n.pid] == ["node1"]
        assert len(started) == (1 if call == "write_bytes" else 2)
        assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == [fleet.nodes()[0].pid]
        assert fleet.start() == ["node2"]
    finally:
        fleet.stop(grace_s=0.0)


def test_quiet_prints_the_fleet_and_no_hints(tmp_path: Path) -> None:
    """`local up -q`: the next command is a hint; the table is the result."""
    fleet = LocalFleet(tmp_path / "fleet", sleeper)
    fleet.create(SETTINGS, 1, node_settings={})
    shown = {}
    for quiet in (False, True):
        out = io.StringIO()
        session = Session(out, io.StringIO(), io.StringIO(), {}, tmp_path, options=GlobalOptions(quiet=quiet))
        local._print(session, fleet, "local-up", hints=True)
        shown[quiet] = out.getvalue()
    assert "node1" in shown[True] and "iotctl " not in shown[True] and "export " not in shown[True]
    assert shown[False].startswith(shown[True]) and "iotctl cluster status" in shown[False]
