"""iotctl is killed at every record of a run and continued with cluster.yaml, credentials and the playbook.

Home and working directory are empty each time, so only the machines and the cluster know what was done.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from iotctl.change.lock import kept
from iotctl.playbook.model import Entry
from tests.fleet.plant import Plant, machines

pytestmark = [pytest.mark.long, pytest.mark.real]

NODES, SPARE = ("node1", "node2", "node3"), "node4"
PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
BOOTSTRAP = ("begun:", "outcome:check", "intent:deploy", "outcome:deploy", "outcome:healthy", "ended:")
ADD = (
    *("begun:", "outcome:status", "outcome:quorum", "intent:add", "outcome:add"),
    *("intent:verify", "outcome:verify", "ended:"),
)


@dataclass
class Operator:
    """Every command runs with a new home."""

    plant: Plant
    place: Path
    lives: int = 0
    pids: dict[str, int] = field(default_factory=dict)
    """Agents seen so far: no agent may be started twice."""

    def run(self, playbook: str, record: str, when: str) -> bool:
        """Return whether iotctl was killed at the record; otherwise it completed."""
        self.lives += 1
        home = self.place / f"life{self.lives}"
        (home / "work").mkdir(parents=True)
        for source in (*(self.plant.directory / n for n in ("cluster.yaml", "id")), PLAYBOOKS / playbook):
            shutil.copy(source, home / "work")
        for known in self.plant.directory.glob("*known_hosts*"):
            shutil.copy(known, home / "work")
        kept_out = {"HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"}
        env = {k: v for k, v in self.plant.env.items() if k not in kept_out} | {"HOME": str(home)}
        env["PYTHONPATH"] = ":".join(sys.path)
        words = ["playbook", "run", playbook, *(["--var", f"node={SPARE}"] if "add" in playbook else [])]
        for more in (["--resume"], []):
            told = home / "told"
            code = subprocess.run(
                [sys.executable, "-m", "tests.fleet.killed", record, when, told, "--", *words, *more],
                cwd=home / "work",
                env=env,
                capture_output=True,
                text=True,
            )
            if code.returncode != 2:  # the error of --resume: there is no run to continue
                break
        assert code.returncode in (0, -9), code.stdout + code.stderr
        assert told.exists() == (code.returncode == -9)
        self._same_agents()
        return told.exists()

    def records(self, name: str) -> set[str]:
        """Every record that any run wrote: iotctl must have been killed at each of them."""
        found = set[str]()
        for path in self.place.rglob("*.jsonl"):
            lines = path.read_bytes().splitlines()
            if msgspec.json.decode(lines[0], type=Entry).playbook == name:
                found |= {named(line) for line in lines}
        return found

    def _same_agents(self) -> None:
        for node in (*NODES, SPARE):
            now = self.plant.pid(node)
            assert now == self.pids.get(node, now), f"{node} was started again"
            if now:
                self.pids[node] = now


def named(record: bytes) -> str:
    entry = msgspec.json.decode(record, type=Entry)
    return f"{entry.event}:{entry.step}"


@pytest.fixture(scope="module", params=["before", "after"])
def killed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Operator, str]]:
    directory = tmp_path_factory.mktemp("killed")
    with machines(directory, NODES, (SPARE,)) as plant:
        assert plant.iotctl("cluster", "trust", "--yes")[0] == 0
        yield Operator(plant, directory / "operators"), request.param


def test_bootstrap(killed: tuple[Operator, str]) -> None:
    operator, when = killed
    for record in BOOTSTRAP:
        assert operator.run("bootstrap.yaml", record, when), f"{record} was never written"
        assert bool(operator.pids) == (record in BOOTSTRAP[3:]), record
    made = files(operator.plant)
    assert not operator.run("bootstrap.yaml", "none", when)
    assert files(operator.plant) == made and set(operator.pids) == set(NODES)
    assert operator.plant.json("cluster", "status")["healthy"]
    with operator.plant.connect() as cluster:
        assert not cluster.meta().operations and kept(cluster)[0] is None
    assert operator.records("bootstrap") == {*BOOTSTRAP}


def test_add_node(killed: tuple[Operator, str]) -> None:
    operator, when = killed
    plant = operator.plant
    path = plant.directory / "cluster.yaml"
    path.write_text(path.read_text() + plant.lines[SPARE] + "\n")
    assert plant.iotctl("cluster", "trust", "--yes")[0] == 0
    for record in ADD:
        assert operator.run("add-node.yaml", record, when), f"{record} was never written"
        assert (SPARE in operator.pids) == (record in ADD[4:]), record
    assert not operator.run("add-node.yaml", "none", when)
    assert plant.json("cluster", "deploy")["changed"] == 0
    with plant.connect() as cluster:
        view = cluster.meta()
        assert [o.title for o in view.operations] == [f"add-node {SPARE}"]
        assert set(view.ring) == {*NODES, SPARE}
        run = next(r for r in reversed(kept(cluster)[1]) if r.name == "add-node")
        whole = next(r for r in kept(cluster, run.id)[1] if r.id == run.id)
    said = [named(e) for e in whole.entries]
    assert (said[0], said[-1]) == (ADD[0], ADD[-1])
    assert operator.records("add-node") == {*ADD}


def files(plant: Plant) -> dict[str, str]:
    """The deployed files and the authority that issued them."""
    authority = Path(plant.env["XDG_DATA_HOME"]) / "iotctl" / "plant" / "authority"
    found = [p for p in authority.rglob("*") if p.is_file()]
    found += [
        plant.home(n) / f for n in NODES for f in ("node.yaml", "tls/node.pem", "tls/node.key", "supervise")
    ]
    assert found
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}
