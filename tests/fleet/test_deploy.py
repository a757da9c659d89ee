"""Deploys a cluster from cluster.yaml and operates it, over a real sshd for every node.

All tests of this file use one cluster, in their order.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from iotctl.change import lock
from iotctl.demo.generate import EPOCH_MS, TABLE, TAG, WEEK_MS, storage_group_name
from iotctl.demo.load import Load
from iotctl.fleet.ports import take_ports
from iotctl.fleet.wheelhouse import software
from iotctl.lifecycle import deploy as deploying
from nodeagent.client import identity
from nodeagent.client.blocking import BlockingCluster
from tests.fleet.plant import Plant, machines
from tests.waiting import until

pytestmark = pytest.mark.real

NODES = ("node1", "node2", "node3")
SPARE = "node4"
"""A machine that gets a node later."""


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with machines(tmp_path_factory.mktemp("plant"), NODES, (SPARE,)) as made:
        spec = made.directory / "cluster.yaml"
        spec.write_text(spec.read_text().replace("name: node2,", "name: node2, weight: 2,"))
        yield made


def test_a_dry_run_shows_all_changes_and_makes_none(plant: Plant) -> None:
    assert plant.iotctl("cluster", "trust", "--yes")[0] == 0
    plan = plant.json("cluster", "deploy", "--dry-run")
    assert plan["new_cluster"] and plan["new_authority"]
    assert [c["what"] for c in plan["nodes"][0]["changes"]] == ["dirs", "software", "files", "version"]
    assert all(n["start"] for n in plan["nodes"])
    assert not (plant.directory / "nodes").exists() and not (plant.directory / "share").exists()


def test_without_consent_nothing_is_deployed(plant: Plant) -> None:
    code, _, err = plant.iotctl("cluster", "deploy")
    assert code == 5 and "--yes" in err and not (plant.directory / "nodes").exists()


def test_an_authority_is_created_once(plant: Plant) -> None:
    """`cert init` creates it for an existing cluster.yaml; otherwise the first deploy does."""
    share = plant.directory / "share"
    would = plant.json("cert", "init", "--dry-run")["would"]
    assert [w.split()[2] for w in would] == ["authority's", "operator's"] and not share.exists()
    made = plant.json("cert", "init")
    assert [(c["role"], c["state"]) for c in made["certificates"]] == [
        ("authority", "good"),
        ("admin", "good"),
    ]
    assert made["changed"] == 2
    again = plant.json("cert", "init")
    assert again["changed"] == 0 and again["certificates"] == made["certificates"]
    (plant.directory / "share" / "iotctl" / "plant" / "operator" / "node.pem").unlink()
    assert len(plant.json("cert", "init", "--dry-run")["would"]) == 1
    assert plant.json("cert", "init")["changed"] == 1
    assert plant.json("cert", "init", "--dry-run")["would"] == []
    shutil.rmtree(share)


def test_one_command_deploys_a_healthy_cluster(plant: Plant) -> None:
    done = plant.json("cluster", "deploy", "--yes")
    assert done["changed"] == 3 and done["healthy"]
    status = plant.json("cluster", "status")
    assert status["healthy"] and [n["id"] for n in status["nodes"]] == list(NODES)
    assert all(n["reachable"] for n in status["nodes"])


def test_a_node_of_weight_two_owns_twice_the_slots(plant: Plant) -> None:
    ring = plant.json("cluster", "ring")["nodes"]
    assert {n["node"]: (n["weight"], n["slots"]) for n in ring} == {
        "node1": (1.0, 2500),
        "node2": (2.0, 5000),
        "node3": (1.0, 2500),
    }
    assert plant.json("plan")["kind"] == "none"


def test_only_the_owner_can_read_secrets(plant: Plant) -> None:
    keys = [plant.home(n) / "tls" / "node.key" for n in NODES]
    share = plant.directory / "share" / "iotctl" / "plant"
    keys += [share / "authority" / "ca.key", share / "operator" / "node.key"]
    assert {oct(k.stat().st_mode & 0o777) for k in keys} == {"0o600"}
    assert not list(plant.home("node1").glob(".incoming*")) and not (plant.directory / "ca.key").exists()


def test_a_second_deploy_changes_nothing(plant: Plant) -> None:
    pids, files = plant.pids(), plant.files()
    done = plant.json("cluster", "deploy")  # nothing to consent to
    assert done["changed"] == 0 and done["healthy"]
    assert plant.pids() == pids and plant.files() == files


def test_an_agent_that_dies_is_restarted(plant: Plant) -> None:
    old = plant.pid("node2")
    os.kill(old, signal.SIGKILL)
    until(lambda: plant.pid("node2") not in (0, old))
    assert plant.iotctl("cluster", "wait", "--for", "healthy", "--timeout", "60s")[0] == 0


def test_one_node_is_stopped_a_second_one_is_refused_and_start_brings_it_back(plant: Plant) -> None:
    assert plant.json("cluster", "stop", "node3", "--yes") == {
        "format_version": 1,
        "kind": "cluster-agents",
        "what": "stopped",
        "nodes": ["node3"],
    }
    assert plant.pid("node3") == 0
    code, _, err = plant.iotctl("cluster", "stop", "node2", "--yes")
    assert code == 5 and "quorum" in err and plant.pid("node2")
    assert plant.json("cluster", "start", "--dry-run")["waves"] == [["node3"]]
    assert plant.pid("node3") == 0
    assert plant.json("cluster", "start")["nodes"] == ["node3"]
    assert plant.json("cluster", "start", "--dry-run")["waves"] == []
    assert plant.iotctl("cluster", "wait", "--for", "healthy", "--timeout", "60s")[0] == 0


def test_the_end_of_an_agents_log_is_shown(plant: Plant) -> None:
    found = plant.json("cluster", "logs", "node1", "-n", "3")
    assert [n["node"] for n in found["nodes"]] == ["node1"] and len(found["nodes"][0]["lines"]) == 3


def test_an_unreachable_machine_does_not_hide_the_logs_of_the_others(plant: Plant) -> None:
    more = plant.directory / "more.yaml"
    gone = "  - {name: node4, host: 127.0.0.4, data_dir: /nowhere, ssh: {port: 1}}\n"
    more.write_text((plant.directory / "cluster.yaml").read_text() + gone)
    code, out, err = plant.iotctl("cluster", "logs", "-n", "2", "--cluster", str(more))
    assert code == 4 and "node4" in err and all(f"{n}:\n" in out for n in NODES), out + err


def test_a_rolling_restart_loses_no_write(plant: Plant) -> None:
    old = plant.pids()
    places = {(storage_group_name(i), EPOCH_MS + i * WEEK_MS): f"place{i}" for i in range(24)}
    load = Load(plant.connect, TABLE, TAG, places, 0.01)
    load.start()
    try:
        planned, deadline = plant.json("cluster", "restart", "--dry-run"), time.monotonic() + 60
        while planned["blocked"] and time.monotonic() < deadline:  # no node may stop while a follower lags
            planned = plant.json("cluster", "restart", "--dry-run")
        assert plant.pids() == old
        done = plant.json("cluster", "restart", "--yes")
    finally:
        seen = load.stop()
    # A lagging node may change the order, but nodes always restart one by one.
    assert sorted(done["order"]) == sorted(planned["waves"]) == [[n] for n in NODES], planned
    assert sorted(done["restarted"]) == list(NODES)
    assert not seen.failed and not seen.missing and len(seen.acked) == 24
    assert all(plant.pid(n) not in (0, old[n]) for n in NODES)
    assert not any(n.draining for n in _meta(plant).nodes)


def test_an_upgrade_installs_a_version_node_by_node(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    old, files = plant.pids(), plant.files()
    now = software()
    newer = msgspec.structs.replace(
        now, version=now.version + "1", code=(*now.code, ("nodeagent/newer.py", b"NEWER = True\n"))
    )
    monkeypatch.setattr(deploying, "software", lambda: newer)
    deployed = plant.json("cluster", "deploy", "--yes")  # disruptive changes wait
    assert all([c["what"] for c in n["later"]] == ["version"] for n in deployed["nodes"])
    assert plant.pids() == old and plant.files() == files
    done = plant.json("cluster", "upgrade", "--yes")
    assert sorted(done["restarted"]) == list(NODES)
    for node in NODES:
        assert os.readlink(plant.home(node) / "app").endswith(newer.version)
        assert newer.version in Path(f"/proc/{plant.pid(node)}/cmdline").read_text()
    assert plant.json("cluster", "status")["healthy"]
    assert plant.json("cluster", "upgrade")["restarted"] == []


def test_a_plan_is_not_deployed_to_machines_that_changed_since(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is made, shown and confirmed without the lock, so another command may have changed machines.
    An agent that started or stopped since does not make the plan stale."""
    took = lock.HeldLock.__enter__
    supervise = plant.home("node2") / "supervise"
    text = supervise.read_bytes()

    def put(content: bytes) -> None:  # replaced and not edited, because a shell runs the file
        (new := supervise.with_suffix(".new")).write_bytes(content)
        new.chmod(0o755)
        new.replace(supervise)

    for other, expected in ((lambda: put(b"another"), 5), (lambda: None, 0)):
        assert plant.iotctl("cluster", "wait", "--for", "healthy", "--timeout", "60s")[0] == 0
        assert plant.iotctl("cluster", "stop", "node3", "--yes")[0] == 0

        def late(held: lock.HeldLock, other: Callable[[], object] = other) -> lock.HeldLock:
            assert plant.iotctl("cluster", "start", "node3")[0] == 0
            other()
            return took(held)

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(lock.HeldLock, "__enter__", late)
            code, _, err = plant.iotctl("cluster", "deploy", "--yes")
        put(text)
        assert code == expected and ("node2 changed after the plan was shown" in err) == bool(code), err
    assert plant.json("cluster", "deploy")["changed"] == 0


def test_a_node_is_deployed_added_and_removed_with_its_agent(plant: Plant) -> None:
    """This works twice: the archived files of the first node of that name do not block the second."""
    path, others = plant.directory / "cluster.yaml", plant.pids()
    text = path.read_text()
    for time_number in (1, 2):
        path.write_text(text + plant.lines[SPARE] + "\n")
        assert plant.iotctl("cluster", "trust", "--yes")[0] == 0
        done = plant.json("cluster", "add-node", SPARE, "--yes")
        assert done["state"] == "done" and plant.pid(SPARE)
        status = plant.json("cluster", "status")
        assert status["healthy"] and SPARE in [n["id"] for n in status["nodes"]]
        assert plant.json("cluster", "deploy")["changed"] == 0, (
            "the added node is treated like any other node"
        )
        assert plant.json("cluster", "remove-node", SPARE, "--yes")["state"] == "done"
        assert plant.pid(SPARE) == 0 and path.read_text() == text
        kept = plant.home(SPARE) / f"removed-{time_number}"
        assert (kept / "node.yaml").is_file() and (kept / "data").is_dir()
        assert not (plant.home(SPARE) / "node.yaml").exists()
    assert plant.pids() == others and plant.json("cluster", "status")["healthy"]


def test_a_new_node_that_cannot_be_deployed_changes_nothing(plant: Plant) -> None:
    path = plant.directory / "cluster.yaml"
    text = path.read_text()
    try:
        path.write_text(text + "  - {name: node5, host: 127.0.0.9, data_dir: /nowhere, ssh: {port: 1}}\n")
        code, _, err = plant.iotctl("cluster", "add-node", "node5", "--yes")
        assert code == 4 and "node5 does not answer" in err and "cannot be deployed" in err
    finally:
        path.write_text(text)
    assert not plant.json("cluster", "status")["operations"]


def test_one_command_renews_certificates_that_have_all_expired(plant: Plant) -> None:
    """Agents and operator can no longer connect to each other; SSH still works, and no data is touched."""
    share = plant.directory / "share" / "iotctl" / "plant"
    authority = identity.read_authority(share / "authority")
    rows = "".join(f"{1_700_000_000_000 + i},d{i % 40},{i}\n" for i in range(4_000))
    (plant.directory / "rows.csv").write_text("time,device,value\n" + rows)
    words = ("--storage-group", "root.plant", "--table", "t", "--time", "time", "--tag", "device")
    plant.json("data", "import", "rows.csv", *words)
    counted = plant.json("data", "count")["tables"]
    assert 4_000 in [c["rows"] for c in counted]
    with plant.connect() as cluster:
        closed = {g.group: cluster.close_all(g.group) for g in cluster.meta().groups}
    wait_for_files(plant, closed)
    held = data_of(plant)
    assert held
    for node in NODES:
        pair = identity.issue(authority, node, "node", hosts=("127.0.0.1",), days=-1)
        identity.write_identity(plant.home(node) / "tls", pair, authority.cert)
    identity.write_identity(
        share / "operator", identity.issue(authority, "me", "admin", days=-1), authority.cert
    )
    logs = {n: plant.home(n) / "agent.log" for n in NODES}
    starts = {n: log.read_text().count('"event":"started"') for n, log in logs.items()}
    assert plant.iotctl("cluster", "stop", "--yes")[0] == 0  # as if the agents had restarted after the expiry
    assert plant.iotctl("cluster", "start")[0] == 0
    # An agent that loads its certificate during the renewal ends and is restarted.
    until(lambda: all(log.read_text().count('"event":"started"') > starts[n] for n, log in logs.items()))
    pids = plant.pids()
    code, out, _ = plant.iotctl("cluster", "status", "--timeout", "5s")
    assert code == 4
    shown = plant.json("cert", "show")["certificates"]
    assert [c["state"] for c in shown] == ["good", "expired", "expired", "expired", "expired"]
    due = plant.json("cert", "renew", "--dry-run")
    assert [c["state"] for c in due["certificates"]] == ["due"] * 4 and due["changed"] == 4
    assert [c["state"] for c in plant.json("cert", "show")["certificates"]] == ["good"] + ["expired"] * 4
    (plant.directory / "renew.yaml").write_text(
        "apiVersion: iotctl/v1\nname: renew\nsteps:\n  - {id: renew, uses: cert.renew}\n"
    )
    (step,) = plant.json("playbook", "check", "renew.yaml")["steps"]
    assert step["state"] == "would_change" and "node1, node2, node3" in step["message"]
    assert plant.json("cert", "renew", "--yes")["changed"] == 4
    assert plant.iotctl("cluster", "wait", "--for", "healthy", "--timeout", "60s")[0] == 0
    assert plant.pids() == pids, "no agent was restarted"
    # Files that no checkpoint named when the agents ended are made again; a member begins only once it hears
    # of a commit.
    wait_for_files(plant, closed)
    assert data_of(plant) == held and plant.json("data", "count")["tables"] == counted
    assert plant.json("cert", "renew", "--dry-run")["changed"] == 0
    assert plant.json("cert", "renew", "--yes")["changed"] == 0
    assert plant.json("playbook", "run", "renew.yaml")["changed"] == 0


def wait_for_files(plant: Plant, closed: dict[str, int]) -> None:
    """Wait until every member has written all files up to this index of its group's log and writes no
    others."""
    with plant.connect() as cluster:
        for group in cluster.meta().groups:
            for member in group.members:
                until(partial(has_all_files, cluster, member, group.group, closed[group.group]))


def has_all_files(cluster: BlockingCluster, member: str, group: str, index: int) -> bool:
    manifest = cluster.manifest(member, group)
    return manifest.materialised >= index and not manifest.pending


def data_of(plant: Plant) -> dict[str, str]:
    """Every file with rows, and its hash. (Snapshots do not count: these links to files may disappear at any
    time.)"""
    files = [f for n in NODES for f in (plant.home(n) / "data" / "groups").rglob("*.tsfile")]
    return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_another_machine_creates_no_second_authority(plant: Plant, tmp_path: Path) -> None:
    """The nodes would refuse certificates of a second authority."""
    elsewhere = dataclasses.replace(plant, env=plant.env | {"XDG_DATA_HOME": str(tmp_path)})
    code, _, err = elsewhere.iotctl("cert", "init")
    assert code == 5 and "is not on this machine" in err and not list(tmp_path.iterdir())


def test_a_certificate_for_a_reader(plant: Plant) -> None:
    would = plant.json("cert", "issue", "eve", "--out", "eve", "--dry-run")["would"]
    assert len(would) == 1 and "eve (reader)" in would[0] and not (plant.directory / "eve").exists()
    made = plant.json("cert", "issue", "eve", "--out", "eve")["certificates"][0]
    assert (made["name"], made["role"], made["state"]) == ("eve", "reader", "good")
    assert plant.iotctl("--identity", "eve", "cluster", "status")[0] == 0
    code, _, err = plant.iotctl("--identity", "eve", "cluster", "drain", "node1")
    assert code not in (0, 1) and "reader" in err


def test_a_machine_of_another_cluster_is_left_alone(plant: Plant) -> None:
    files = plant.files()
    path = plant.directory / "cluster.yaml"
    text = path.read_text()
    try:
        path.write_text(text.replace("name: plant}", "name: other}"))
        code, _, err = plant.iotctl("cluster", "deploy", "--yes")
        assert code == 5 and "belongs to cluster 'plant'" in err
        path.write_text(text.replace("name: plant}", "name: plant, slots: 500}"))
        code, _, err = plant.iotctl("cluster", "deploy", "--yes")
        assert code == 5 and "slots is 10000 in the cluster, 500 in the file" in err
        path.write_text(text.replace(str(plant.home("node1")), str(plant.home("node9"))))
        path.write_text(text.replace(str(plant.home("node2")), str(plant.home("node1")), 1))
        code, _, err = plant.iotctl("cluster", "deploy", "--yes")
        assert code == 5 and "nothing was changed" in err
    finally:
        path.write_text(text)
    assert plant.files() == files


def test_without_the_authority_nothing_is_deployed(plant: Plant) -> None:
    elsewhere = Plant(plant.directory, NODES, {**plant.env, "XDG_DATA_HOME": str(plant.directory / "nobody")})
    code, _, err = elsewhere.iotctl("cluster", "deploy", "--yes")
    assert code == 5 and "authority" in err and not (plant.directory / "nobody").exists()


def test_an_unreachable_machine_stops_the_deployment_before_any_change(plant: Plant) -> None:
    path = plant.directory / "cluster.yaml"
    text = path.read_text()
    first = yaml.safe_load(text)["nodes"][0]["ssh"]["port"]
    try:
        path.write_text(text.replace(f"port: {first},", f"port: {take_ports(1, plant.directory)[0]},"))
        code, _, err = plant.iotctl("cluster", "deploy", "--yes")
        assert code == 4 and "nothing was changed" in err and "node1" in err
        code, out, _ = plant.iotctl("cert", "show", "-o", "json")
        states = {c["name"]: c["state"] for c in json.loads(out)["certificates"]}
        assert code == 4 and [states[n] for n in NODES] == ["unreachable", "good", "good"]
    finally:
        path.write_text(text)


def test_an_operator_with_a_copy_of_the_authority_gets_a_certificate(plant: Plant) -> None:
    share = plant.directory / "second"
    kept = share / "iotctl" / "plant" / "authority"
    shutil.copytree(plant.directory / "share" / "iotctl" / "plant" / "authority", kept)
    second = Plant(plant.directory, NODES, {**plant.env, "XDG_DATA_HOME": str(share), "USER": "bob smith"})
    assert second.json("cluster", "deploy")["changed"] == 0
    assert second.json("cluster", "status")["healthy"] and (kept.parent / "operator" / "node.pem").is_file()


def test_the_whole_cluster_stops(plant: Plant) -> None:
    assert plant.json("cluster", "stop", "--yes")["nodes"] == list(NODES)
    assert set(plant.pids().values()) == {0}
    assert not list(plant.directory.glob("nodes/*/supervisor.pid"))


def test_destroy_asks_for_the_name_and_deletes_only_our_files(plant: Plant) -> None:
    plant.json("cluster", "start", "node1")
    own = plant.home("node3") / "notes.txt"
    own.write_text("mine")
    for words in ((), ("--confirm", "other")):
        code, _, err = plant.iotctl("cluster", "destroy", *words)
        assert code == 5 and "plant" in err and plant.pid("node1")
    doomed = plant.json("cluster", "destroy", "--dry-run")["nodes"]
    assert [(d["node"], d["there"], d["running"]) for d in doomed] == [
        ("node1", True, True),
        ("node2", True, False),
        ("node3", True, False),
    ]
    plant.hosts["node2"].stop()
    code, _, err = plant.iotctl("cluster", "destroy", "--confirm", "plant")
    assert (
        code == 6 and "destroyed: node1, node3; not destroyed: node2" in err and plant.home("node2").is_dir()
    )
    assert plant.pid("node1") == 0 and not plant.home("node1").exists() and own.read_text() == "mine"
    plant.hosts["node2"].start()
    done = plant.json("cluster", "destroy", "--confirm", "plant")
    assert done["destroyed"] == ["node2"]
    assert set(plant.pids().values()) == {0} and own.read_text() == "mine"
    left = {p.name for p in (plant.directory / "nodes").iterdir()}
    assert left == {"node3", SPARE}, "the node is no longer listed"
    assert plant.json("cluster", "destroy")["destroyed"] == []
    assert (plant.directory / "cluster.yaml").is_file()


def _meta(plant: Plant) -> Any:
    cluster = plant.connect()
    try:
        return cluster.meta(strong=True)
    finally:
        cluster.close()
