"""Every command that changes something has `--dry-run`, which changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from iotctl.change.lock import HeldLock
from iotctl.cli.catalogue import verbs
from iotctl.cli.main import whole_tree
from iotctl.lifecycle.rolling import RESTART_SUFFIX
from nodeagent.model.features import Feature
from nodeagent.model.operation import Options, Stage
from nodeagent.model.requests import BeginChange, TakeLock
from nodeagent.model.schema import Column, TableSchema

from .fakes import NOW_MS, SPEC, FakeCluster, iotctl, make_operation

WITHOUT = {
    "cluster recover": "without --accept-data-loss it only shows what would be lost",
    "meta recover": "without --accept-data-loss it only shows what would be lost",
    "data write": "one row, typed by an operator",
    "verify": "without --repair it changes nothing",
    "playbook run": "playbook check",
    "demo": "makes and deletes a fleet of its own",
}
"""Commands without `--dry-run`, each with the reason."""


def commands(group: Any, words: tuple[str, ...] = ()) -> dict[str, Any]:
    if not hasattr(group, "commands"):
        return {" ".join(words): group}
    return {k: v for n, c in group.commands.items() for k, v in commands(c, (*words, n)).items()}


def test_every_command_that_changes_something_has_a_dry_run() -> None:
    found = commands(typer.main.get_command(whole_tree()))
    reading = {" ".join(v.words) for v in verbs().values() if v.reads}
    reading |= {"playbook validate", "playbook check", "playbook schema", "playbook runs", "cluster schema"}
    changing = {n for n in found if n not in reading and not n.startswith("completion")}
    lacking = {n for n in changing if "dry_run" not in {p.name for p in found[n].params}}
    assert lacking == WITHOUT.keys()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    (tmp_path / "rows.csv").write_text("time,device,v\n1,d1,2.5\n2,d1,3.5\n")
    return tmp_path


def would(place: Path, words: str, cluster: FakeCluster | None = None) -> list[str]:
    """The changes that a dry run announces; the check fails if anything has changed afterwards."""
    before = sorted(place.rglob("*")), _state(cluster)
    env = {"XDG_DATA_HOME": str(place / "data"), "XDG_STATE_HOME": str(place / "state")}
    done = iotctl(place, *words.split(), "--dry-run", "-o", "json", cluster=cluster, env=env)
    assert done.code == 0, done.err
    assert (sorted(place.rglob("*")), _state(cluster)) == before
    found = json.loads(done.out)
    assert found["kind"] == "dry-run"
    return list(found["would"])


def _state(cluster: FakeCluster | None) -> Any:
    if cluster is None:
        return None
    operations = [(o.id, o.stage, o.paused, o.release_go) for o in cluster.operations]
    kept = cluster.kept.encode()
    done = len(cluster.written), len(cluster.begun), list(cluster.steered)
    return set(cluster.drained), done, list(cluster.tables), operations, kept


def test_abandons_a_run(place: Path) -> None:
    cluster = FakeCluster()
    with HeldLock(cluster, "a run", "ann", NOW_MS) as held:
        held.record("r1", "night", 0, b"{}", ended=False)
    assert would(place, "playbook abandon r1", cluster) == ["abandon run r1"]


def test_drains(place: Path) -> None:
    """Lists the leaderships that a node would transfer; nothing for a node that is draining already."""
    cluster = FakeCluster()
    keeps, hands = would(place, "cluster drain node1", cluster)
    assert (
        keeps == "prevent node1 from leading groups"
        and hands.startswith("transfer the leadership of ")
        and "node1.1" in hands
    )
    assert would(place, "cluster undrain node1", cluster) == []
    cluster.drained = {"node1"}
    assert would(place, "cluster drain node1", cluster) == []
    assert would(place, "cluster undrain node1", cluster) == ["allow node1 to lead groups"]
    cluster.audit.append((1, f"ann{RESTART_SUFFIX}", "drain node1"))
    (keep,) = would(place, "cluster drain node1", cluster)
    assert keep.startswith("keep node1 draining")
    assert iotctl(place, "cluster", "drain", "node9", "--dry-run", cluster=cluster).code != 0


def test_zones(place: Path) -> None:
    text = (place / "cluster.yaml").read_text()
    (place / "cluster.yaml").write_text(text.replace("7002}", "7002, zone: hall-b}"))
    cluster = FakeCluster(level=Feature.ZONES, zones={"node1": "hall-a"})
    assert would(place, "cluster set-zones", cluster) == [
        "set the zone of node1 from 'hall-a' to none",
        "set the zone of node2 from none to 'hall-b'",
    ]


def test_operations(place: Path) -> None:
    cluster = FakeCluster()
    change = BeginChange("add-node", "node6", "ann", Options(hold_release_ms=1000))
    cluster.operations = [make_operation("op-7", change, stage=Stage.SEALED)]
    assert would(place, "ops pause op-7", cluster) == ["pause op-7 (add-node node6)"]
    assert would(place, "ops resume op-7", cluster) == []
    assert would(place, "ops set op-7 --rate 5MB/s", cluster) == [
        "set the rate of op-7 (add-node node6) to 5MB/s"
    ]
    assert would(place, "ops set op-7 --rate auto", cluster) == [], "the rate is already auto"
    assert would(place, "ops release op-7", cluster) == ["release the old copies of op-7 (add-node node6)"]
    assert would(place, "ops cancel op-7", cluster)[0].startswith("cancel op-7 (add-node node6): ")
    cluster.operations[0].paused = True
    cluster.operations[0].stage = Stage.COPYING
    assert would(place, "ops pause op-7", cluster) == []
    assert would(place, "ops resume op-7", cluster) == ["resume op-7 (add-node node6)"]
    (pulled, compared) = would(place, "migrate --op op-7 --verify", cluster)
    assert pulled.startswith("copy the rest of op-7") and "depth content" in compared
    done = iotctl(place, "migrate", "--dry-run", "--rate", "nonsense", cluster=cluster)
    assert done.code == 2
    cluster.operations[0].stage = Stage.CLEANUP
    assert iotctl(place, "ops", "pause", "op-7", "--dry-run", cluster=cluster).code == 5
    cluster.operations[0].stage = Stage.DONE
    for words in ("pause op-7", "release op-7", "set op-7 --rate auto", "cancel op-7"):
        done = iotctl(place, "ops", *words.split(), "--dry-run", cluster=cluster)
        assert done.code == 5 and "ended (" in done.err


def test_the_lock(place: Path) -> None:
    cluster = FakeCluster()
    cluster.call_meta(TakeLock("ann@elsewhere pid 7 (0.0)", "a roll", "ann", 30_000))
    assert "ann@elsewhere" in would(place, "ops unlock 1", cluster)[0]


def test_rows_and_tables(place: Path) -> None:
    columns = (Column("device", "STRING", True), Column("v", "DOUBLE", False))
    cluster = FakeCluster(tables=[TableSchema("root.plant", "m", 1, columns)])
    words = "--storage-group root.plant --table m"
    assert would(place, f"data import rows.csv --tag device {words}", cluster) == [
        "write 2 rows to root.plant.m"
    ]
    assert would(place, f"data schema {words} --set-ttl 30d", cluster) == [
        "retain rows of root.plant.m for 30d"
    ]
    assert would(place, f"data schema {words} --set-ttl none", cluster) == []
    (place / "rows.csv").write_text("time,device,v\n1,d1,2.5\nx,d1,3.5\n")
    bad = iotctl(place, *f"data import rows.csv --tag device {words} --dry-run".split(), cluster=cluster)
    assert bad.code == 3 and "rows.csv:3" in bad.err


def test_a_new_cluster(tmp_path: Path) -> None:
    write, make = would(tmp_path, "cluster init a b c --name plant")
    assert write == f"write {tmp_path / 'cluster.yaml'}" and make.startswith("create the authority in ")
    assert iotctl(tmp_path, "cluster", "init", "a", "a", "b", "--dry-run").code == 2


def test_a_local_fleet(tmp_path: Path) -> None:
    made, *starts = would(tmp_path, "local up --nodes 3 --dir f")
    assert made == f"create a fleet in {tmp_path / 'f'}" and starts == [f"start node{i}" for i in (1, 2, 3)]
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "mine").touch()
    assert iotctl(tmp_path, "local", "up", "--dir", "f", "--dry-run").code == 5
