"""The history of a group, slot or operation of a seed can be printed."""

import re
from pathlib import Path

import pytest

from nodeagent.testing.history import LINES, Story, history, main
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.script import Script
from tests.sim.spread import SPREAD

STAGES = ("PLANNED", "SEALED", "OPEN", "RECONFIGURING", "COPYING", "CLEANUP", "DONE")


def test_the_history_of_a_group_has_every_change_of_leader() -> None:
    lines, failed = history("swarm", 2, "group", "g1", 10_000)
    assert not failed
    assert {word for line in lines for word in re.findall("leader|follower|candidate", line)} >= {"leader"}
    assert any("life 2" in line for line in lines) and all(
        re.match(r" *\d+ m\d: life", line) for line in lines
    )
    for line, following in zip(lines, lines[1:], strict=False):
        assert int(line.split()[0]) <= int(following.split()[0])


@SPREAD
def test_the_histories_of_an_operation_and_of_a_slot_that_it_moved() -> None:
    scenario = Scenario(1)
    scenario.run()
    operations = next(n for n in scenario.sim.nodes.values() if n.alive).host.cluster.meta.image.operations
    removal = next(o for o in operations if o.kind == "remove-node")
    move = removal.moves[0]
    again = Scenario(1)
    of_operation = Story(again.sim, "operation", removal.id, 10_000)
    of_slot = Story(again.sim, "slot", str(move.slots[0][0]), 10_000)
    again.run()
    stages = dict.fromkeys(s for line in of_operation.lines for s in re.findall("|".join(STAGES), line))
    assert list(stages) == [s for s in STAGES if s in stages] and "OPEN" in stages
    lines = of_slot.lines
    seals = [n for n, line in enumerate(lines) if f"{move.source}: sealed by {removal.id}" in line]
    opens = [
        n for n, line in enumerate(lines) if f"{move.target}: open, waits for rows by {removal.id}" in line
    ]
    assert seals and opens and seals[0] < opens[0]


def test_a_script_has_histories_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "script.txt"
    path.write_text(Script(2, (), length_ms=2_000).to_text())
    assert main([str(path), "group", "g1", "3"]) == 0
    *lines, end = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 < LINES and end == "the run passed"


def test_the_script_of_a_cluster_has_histories_of_its_slots(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parent / "scripts/clusters/released_before_all_adopted.txt"
    assert main([str(path), "slot", "0"]) == 0
    *lines, end = capsys.readouterr().out.splitlines()
    assert {line.split()[1] for line in lines} == {"node1", "node2", "node3"} and end == "the run passed"


@pytest.mark.parametrize(
    ("run", "what"), [("swarm", "slot"), ("no such file", "group"), ("swarm", "tree"), ("scenario", "tree")]
)
def test_an_unknown_subject_of_a_history_is_refused(run: str, what: str) -> None:
    with pytest.raises(LookupError):
        history(run, 1, what, "1")
