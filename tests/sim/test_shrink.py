"""Failing seeds become short scripts, which are kept as tests (`scripts`)."""

from pathlib import Path

import pytest

from nodeagent.model.errors import InvalidInput
from nodeagent.testing.script import Changes, Script
from nodeagent.testing.shrink import GroupsShrinker, failure, main
from nodeagent.testing.swarm import Swarm

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_a_script_of_a_fixed_failure_passes(path: Path) -> None:
    script = Script.from_text(path.read_text())
    assert failure(Swarm(script.seed, script).run) == ("", "")


def test_every_fault_of_a_seed_can_be_written_down() -> None:
    kinds: set[type] = set()
    for seed in range(1, 7):
        swarm = Swarm(seed)
        assert failure(swarm.run) == ("", "")
        plan = Changes(clients=1, limits={"nodeagent.raft.appends.APPEND_ENTRIES_MAX": 1})
        script = Script(seed, tuple(swarm.nemesis.done), 3, 500, plan, "S4: because")
        assert Script.from_text(script.to_text()) == script
        kinds |= {type(injection) for _, injection in script.faults}
    assert len(kinds) > 6


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("seed x", "line 2: "),
        ('plan {"clinets": 1}', r"line 2: .*unknown field `clinets`"),
        ("  12 dwon node=m1", "line 2: not an injection: '12 dwon node=m1'"),
        ("  12 down node=m1 power=true", "line 2: .*back_ms"),
        ("  12 down node=m1 power=true back_ms=1.5", "line 2: .*back_ms"),
        ("soon sleep node=m1 ms=2", "line 2: not an injection"),
    ],
)
def test_a_script_with_a_mistake_is_refused_by_line(line: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Script.from_text(f"seed 1\n{line}\n")


def test_a_script_without_a_seed_is_refused() -> None:
    with pytest.raises(InvalidInput, match="seed"):
        Script.from_text("length_ms 12\n")


def test_a_seed_that_fails_becomes_a_short_script_that_fails_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few faults lose entries that only half of the voters hold."""
    with monkeypatch.context() as planted:
        planted.setattr("nodeagent.raft.leader.majority_value", lambda held: sorted(held)[len(held) // 2])
        swarm = next(
            s for s in map(Swarm, range(1, 40)) if failure(s.run)[0] == "S6" and len(s.nemesis.done) > 8
        )
        shrinker = GroupsShrinker(swarm.seed, 60)
        script = shrinker.shrink()
        assert shrinker.fails_again and len(script.faults) <= 4, script.to_text()
        path = tmp_path / "short.txt"
        path.write_text(script.to_text())
        assert main([str(path)]) == 1 and capsys.readouterr().out.startswith(shrinker.kind)
    assert main([str(path)]) == 0, "without the bug it passes"


def test_a_seed_that_passes_is_not_shrunk() -> None:
    with pytest.raises(LookupError, match="seed 1 does not fail"):
        GroupsShrinker(1)
