"""Failing seeds of whole clusters become short scripts, which are kept as tests (`scripts/clusters`)."""

from pathlib import Path

import pytest

from nodeagent.host.effect_queue import Effects
from nodeagent.model.errors import InvalidInput
from nodeagent.testing.cluster_plan import BURST_MS_MIN
from nodeagent.testing.cluster_script import ClusterChanges, ClusterScript
from nodeagent.testing.cluster_swarm import ClusterSwarm
from nodeagent.testing.machine import Machine
from nodeagent.testing.shrink import failure
from nodeagent.testing.shrink_cluster import ClusterShrinker, main
from nodeagent.testing.workload import PLAIN_HABITS, WriteProfile

SCRIPTS = sorted((Path(__file__).parent / "scripts" / "clusters").glob("*.txt"))
LIMIT = "nodeagent.raft.appends.APPEND_BYTES_MAX"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_a_script_of_a_fixed_failure_passes(path: Path) -> None:
    script = ClusterScript.from_text(path.read_text())
    assert failure(ClusterSwarm(script.seed, script=script).report) == ("", "")


def test_a_script_survives_a_round_trip() -> None:
    plan = ClusterChanges(
        steps=("add_one", "rot_one"),
        nodes=3,
        kinds={"power": 3},
        burst_ms=500,
        node={},
        limits={LIMIT: 1},
        restores=False,
        habits=WriteProfile(rows=4),
        staleness_ms=0,
    )
    script = ClusterScript(7, 2, plan, "S4: because", ("done: ['add-one']", "    1204 node1 goes"))
    assert ClusterScript.from_text(script.to_text()) == script


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("seed 1.5", "line 2: .*int"),
        ("noise x", "line 2: "),
        ("length_ms 12", "line 2: not a line of a script: 'length_ms 12'"),
        ('plan {"stpes": []}', "line 2: .*unknown field `stpes`"),
        ('plan {"steps": ["add_two"]}', "line 2: unknown names in steps: add_two"),
        ('plan {"kinds": {"power": 1, "flip": 1}}', "line 2: unknown names in kinds: flip"),
        ('plan {"kinds": {"power": 0}}', "line 2: .*>= 1"),
        ('plan {"limits": {"nodeagent.raft.leader.APPEND": 1}}', "line 2: unknown names in limits: .*APPEND"),
        ('plan {"node": {"idle_ms": 1}}', "line 2: unknown names in node: idle_ms"),
        ('plan {"habits": {"row": 1}}', "line 2: .*unknown field `row`"),
        ('plan {"restores": 1}', "line 2: .*bool"),
        ('plan {"nodes": 0}', "line 2: .*>= 1"),
        ('plan {"burst_ms": 499}', "line 2: .*>= 500"),
    ],
)
def test_a_script_with_a_mistake_is_refused_by_line(line: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        ClusterScript.from_text(f"seed 1\n{line}\n")


def test_a_script_without_a_seed_is_refused() -> None:
    with pytest.raises(InvalidInput, match="seed"):
        ClusterScript.from_text("noise 1\n")


def test_parts_that_a_failure_does_not_need_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster is simulated. Without a necessary part, the run fails differently or passes."""

    def report(swarm: ClusterSwarm) -> None:
        drawn = ("kill_one", "add_one", "restart_one", "rebalance_some", "remove_one", "kill_one")
        for step in drawn if swarm.plan.steps is None else swarm.plan.steps:
            swarm.steps.append(step)
            if step == "remove_one":
                assert "add_one" in swarm.steps, "S9: nobody came before"
                assert "power" not in swarm.plan.kinds or LIMIT not in swarm.plan.limits, "S4: they differ"

    monkeypatch.setattr(ClusterSwarm, "report", report)
    shrinker = ClusterShrinker(1, 200)
    assert (shrinker.kind, len(shrinker.best.plan.steps or ())) == ("S4", 5), "what comes after it is cut"
    plan = ClusterSwarm(1, script=shrinker.shrink()).plan
    assert shrinker.left > 0
    assert plan.steps == ("add_one", "remove_one")
    assert list(plan.kinds) == ["power"] and list(plan.limits) == [LIMIT]
    assert (plan.nodes, plan.groups, plan.node) == (plan.replicas, 1, {})
    assert plan.burst_ms < 2 * BURST_MS_MIN
    assert (plan.restores, plan.habits, plan.staleness_ms) == (False, PLAIN_HABITS, 0)


def test_a_seed_that_fails_becomes_a_script_that_fails_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails before the first operation, at an event that the script reaches too."""
    begin = ClusterSwarm.begin

    def begun(swarm: ClusterSwarm, *, reads: bool = True) -> None:
        def check(machine: Machine, effects: Effects) -> None:
            assert not swarm.nemesis.faults["power"], "S4: the power went"

        swarm.sim.checks.append(check)
        begin(swarm, reads=reads)

    monkeypatch.setattr(ClusterSwarm, "begin", begun)
    shrinker = ClusterShrinker(6, 4)
    seed = shrinker.best
    assert shrinker.ran(seed).script == seed
    script = shrinker.shrink()
    assert script.plan != seed.plan
    path = tmp_path / "short.txt"
    path.write_text(script.to_text())
    assert main([str(path)]) == 1 and capsys.readouterr().out == "S4: the power went\n"


def test_an_impossible_step_is_reported() -> None:
    script = ClusterScript(6, plan=ClusterChanges(steps=("return_one",)))
    assert failure(ClusterSwarm(6, script=script).report) == (
        "InvalidInput",
        "return_one is not possible after []",
    )
