"""The bundled playbooks on real agents: check, run, and a second run without changes."""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from iotctl.cli.main import run
from iotctl.cli.session import Session
from iotctl.fleet.local import LocalFleet
from iotctl.observe.cluster import cluster_spec
from iotctl.observe.operations import wait_operation
from iotctl.spec.find import operator_dir
from nodeagent.client.blocking import BlockingCluster
from nodeagent.model.config import ClusterSettings
from nodeagent.model.requests import BeginChange
from nodeagent.partition.ranges import from_slots, to_slots
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.real]

ROOT = Path(__file__).parents[2]
PLAYBOOKS, EXAMPLES = ROOT / "playbooks", ROOT / "examples" / "ci"


@dataclass
class Place:
    directory: Path

    def iotctl(self, *words: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        env = {**os.environ, "XDG_STATE_HOME": str(self.directory / "state")}
        env.pop("GITHUB_ACTIONS", None)
        code = run(words, Session(out, err, io.StringIO(), env, self.directory / "fleet"))
        return code, out.getvalue(), err.getvalue()

    def resumed(self, name: str, record: str, *given: str) -> Any:
        """Run, interrupt in the step of `record`, and resume with an empty home directory.

        If the cluster does not answer yet, only the first machine has the record of the run.
        """
        words = [w for g in given for w in ("--var", g)]
        spec = str(self.directory / "fleet" / "cluster.yaml")
        line = ["--cluster", spec, "playbook", "run", str(PLAYBOOKS / f"{name}.yaml"), *words, "-o", "json"]
        homes = [tempfile.mkdtemp(dir=self.directory) for _ in range(2)]
        for more, code in (([], 130), (["--resume"], 0)):
            home = Path(homes[1 if more and name != "bootstrap" else 0])
            env = {**os.environ, "HOME": str(home), "PYTHONPATH": ":".join(sys.path)}
            env.pop("XDG_STATE_HOME", None)
            at, told = (record, home / "told") if code else ("none", home / "none")
            begun = [sys.executable, "-m", "tests.fleet.killed", at, "during", str(told), "--", *line, *more]
            done = subprocess.run(begun, cwd=home, env=env, capture_output=True, text=True)
            if done.returncode != code or told.exists() != bool(code):
                _, operations, problem = self.iotctl("ops", "list", "-o", "json")
                pytest.fail("\n".join([done.stdout, done.stderr, operations, problem]))
        return json.loads(done.stdout)

    def connect(self) -> BlockingCluster:
        source = LocalFleet(self.directory / "fleet").source()
        return BlockingCluster.connect(cluster_spec(source, operator_dir(source, {}), {}))

    def skew(self) -> None:
        """Move half of node1's slots to node2."""
        with self.connect() as cluster:
            slots = to_slots(tuple(r[:2] for r in cluster.meta().owners if r[2] == "node1"))
            gains = (("node2", from_slots(slots[: len(slots) // 2])),)
            begun = cluster.begin_change(BeginChange("rebalance", "", "tester", gains=gains))
            wait_operation(cluster, begun.id, on_update=lambda o: None, timeout_s=60.0)

    def playbook(self, verb: str, name: str, *given: str) -> Any:
        words = [w for g in given for w in ("--var", g)]
        file = str(PLAYBOOKS / f"{name}.yaml")
        code, out, err = self.iotctl("playbook", verb, file, *words, "-o", "json")
        assert code == 0, out + err
        return json.loads(out)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("playbooks")
    fleet = LocalFleet(directory / "fleet")
    fleet.create(ClusterSettings(name="plant", slots=200), 4, node_settings={})
    try:
        yield Place(directory)
    finally:
        fleet.stop(grace_s=2.0)


@pytest.mark.parametrize(
    ("name", "given", "changed", "record"),
    [
        ("bootstrap", (), 1, "intent:deploy"),
        ("nightly-verify", ("depth=hash",), 0, "outcome:healthy"),
        ("add-node", ("node=node5", "depth=manifest"), 1, "intent:add"),
        ("rolling-restart", ("older_than=1ms",), 1, "intent:restart"),
        ("disaster-drill", ("node=node3", "older_than=1ms"), 2, "intent:stop"),
        ("rolling-upgrade", (), 0, "outcome:healthy"),
        ("rebalance", ("strategy=slots",), 1, "intent:apply"),
        ("remove-node", ("node=node5", "depth=manifest"), 1, "intent:remove"),
    ],
)
def test_a_playbook_is_checked_interrupted_resumed_and_run_twice(
    place: Place, name: str, given: tuple[str, ...], changed: int, record: str
) -> None:
    if name == "rebalance":
        place.skew()
    elif changed:  # without a running cluster or a written plan, a check is incomplete
        checked = place.playbook("check", name, *given)
        assert checked["changed"] == changed and not checked["failed"]
    done = place.resumed(name, record, *given)
    assert done["changed"] == changed and not done["failed"] and not done["resume"]
    again = tuple("older_than=1h" if g.startswith("older_than") else g for g in given)
    assert place.playbook("run", name, *again)["changed"] == 0


def test_a_killed_rolling_restart_is_completed(place: Place) -> None:
    """The restart left a node draining, possibly down; the next run undrains it even if nothing else is left
    to do."""
    spec = str(place.directory / "fleet" / "cluster.yaml")
    words = ["--cluster", spec, "cluster", "restart", "--yes"]
    with place.connect() as cluster:
        rolling = subprocess.Popen([sys.executable, "-m", "iotctl", *words], stderr=subprocess.DEVNULL)
        try:

            def draining() -> list[str]:
                assert rolling.poll() is None
                return [n.node for n in cluster.meta().nodes if n.draining]

            left = until(draining, 60.0, poll_s=0.01)
        finally:
            rolling.kill()
            rolling.wait()
    assert place.iotctl("cluster", "start")[0] == 0
    assert place.iotctl("cluster", "wait", "--for", "healthy", "--timeout", "60s")[0] == 0
    done = place.playbook("run", "rolling-restart", "older_than=1h")
    assert (done["changed"], done["failed"]) == (1, 0)
    assert left[0] in next(s["message"] for s in done["steps"] if s["id"] == "restart")
    with place.connect() as cluster:
        assert not [n.node for n in cluster.meta().nodes if n.draining]


def test_every_playbook_is_valid_and_has_its_page(place: Place) -> None:
    table = (PLAYBOOKS / "README.md").read_text()
    for path in sorted(PLAYBOOKS.glob("*.yaml")):
        assert place.iotctl("playbook", "validate", str(path))[0] == 0, path
        book, page = yaml.safe_load(path.read_text()), path.with_suffix(".md").read_text()
        assert f"({path.stem}.md)" in table and f"playbooks/{path.name}" in page
        named = [*book.get("vars", {}), *(step["id"] for step in book["steps"])]
        assert not [n for n in named if f"`{n}`" not in page], path


def test_nightly_verify_fails_with_a_node_down_and_resumes(place: Place) -> None:
    fleet = LocalFleet(place.directory / "fleet")
    fleet.kill("node2")
    file, report = str(PLAYBOOKS / "nightly-verify.yaml"), place.directory / "report.xml"
    code, _, err = place.iotctl("playbook", "run", file, "--junit", str(report))
    assert code == 6 and "node2" in err and "next for healthy: iotctl local up" in err, err
    suite = ElementTree.parse(report).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    fleet.start(["node2"])
    assert place.iotctl("cluster", "wait", "--for", "healthy", "--timeout", "60s")[0] == 0
    code, out, err = place.iotctl("playbook", "run", file, "--resume", "-o", "json")
    assert code == 0 and [s["state"] for s in json.loads(out)["steps"]] == ["ok"] * 2, err


def test_the_example_workflow_verifies_the_cluster(place: Place) -> None:
    """Its command runs in a checkout that contains only cluster.yaml and the playbooks."""
    job = yaml.safe_load((EXAMPLES / "nightly.yml").read_text())["jobs"]["verify"]
    command = next(step["run"] for step in job["steps"] if step.get("name") == "Verify").split()
    fleet, checkout = LocalFleet(place.directory / "fleet"), place.directory / "checkout"
    checkout.mkdir()
    shutil.copytree(PLAYBOOKS, checkout / "playbooks")
    spec = fleet.spec_path.read_text()
    assert "transport: local" in spec and "identity: operator" in spec
    (checkout / "cluster.yaml").write_text(spec.replace("transport: local", "transport: ssh"))
    operator = operator_dir(fleet.source(), {})
    pem = {"CA": "ca.pem", "CERT": "node.pem", "KEY": "node.key"}
    assert set(job["env"]) == {f"IOTCTL_{name}" for name in pem}
    secrets = {f"IOTCTL_{name}": (operator / file).read_text() for name, file in pem.items()}
    summary = checkout / "summary.md"
    env = {**os.environ, "HOME": str(checkout), "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    assert command[0] == "iotctl"
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=checkout, env=env | secrets, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verify" in summary.read_text()
    assert ElementTree.parse(checkout / "report.xml").getroot()[0].get("failures") == "0"
    assert json.loads((checkout / "report.json").read_text())["changed"] == 0


def test_a_dead_node_is_replaced(place: Place) -> None:
    """It is replaced only after enough silence; a second run changes nothing."""
    LocalFleet(place.directory / "fleet").kill("node4")
    look = ("cluster", "replace-node", "node4", "node6", "--dead", "--dry-run")
    until(lambda: place.iotctl(*look)[0] == 0, 60.0, lambda: place.iotctl(*look)[2], poll_s=0.5)
    given = ("old=node4", "new=node6", "confirm=plant", "depth=manifest")
    assert place.playbook("check", "replace-dead-node", *given)["changed"] == 1
    assert place.resumed("replace-dead-node", "intent:replace", *given)["changed"] == 1
    assert place.playbook("run", "replace-dead-node", *given)["changed"] == 0
