"""Planted bugs are found, by the command and by each net."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import nodeagent
from nodeagent.testing.mutants import MUTANTS, hunt, machine
from nodeagent.testing.mutants.hunt import Found, key_of, run_in, seen_by
from nodeagent.testing.seeds import WORLDS
from tests.sim.spread import spread

SOURCE = '''
"""1 of a module."""
LIMIT = 1 + 2

def count(found: list[int], left: int = 3) -> int:
    """Not 4 in a text."""
    assert left > 5
    if left < 6 and not found:
        effects.note("seven", at=7)
        found.append(left - 1)
    if left < 6:
        raise ValueError(f"{left + 8} äöü")
    return max(left, len(found))
'''


def test_generated_bugs_change_executed_code() -> None:
    """Messages, assertions and module constants are not mutated; each bug quotes a text that occurs once."""
    found = list(machine.mutants_of("room/file.py", SOURCE))
    assert [m.name.partition(":")[2] for m in found] == [
        "8 left < 6 and not found -> False",
        "8 < -> <=",
        "8 6 -> 7",
        "8 and -> or",
        "8 not -> nothing",
        "10 found.append(left - 1) -> pass",
        "10 - -> +",
        "10 1 -> 2",
        "11 left < 6 -> False",
        "11 < -> <=",
        "11 6 -> 7",
        "13 max -> min",
    ]
    for mutant in found:
        assert SOURCE.count(mutant.old) == 1 and mutant.room == "room"
        ast.parse(SOURCE.replace(mutant.old, mutant.new))


def test_the_sample_of_generated_bugs_is_fixed_and_covers_every_package() -> None:
    chosen = machine.sample(40)
    assert chosen == machine.sample(40) and {m.room for m in chosen} == set(machine.ROOMS)
    root = Path(nodeagent.__file__).parent
    for mutant in chosen:
        source = (root / mutant.file).read_text()
        assert source.count(mutant.old) == 1
        ast.parse(source.replace(mutant.old, mutant.new))


def test_every_mutant_still_fits_the_code() -> None:
    """`make mutants` takes long; this checks quickly that its bugs can be planted."""
    package = Path(nodeagent.__file__).parent
    places = {m.name: (package / m.file).read_text().count(m.old) for m in MUTANTS}
    assert {name: count for name, count in places.items() if count != 1} == {}


def test_every_package_and_every_invariant_of_safety_has_mutants() -> None:
    rooms = Counter(m.room for m in MUTANTS)
    assert len(rooms) == 9 and min(rooms.values()) >= 12, rooms
    broken = Counter(m.breaks for m in MUTANTS if m.breaks)
    assert broken.keys() == {f"S{n}" for n in range(1, 19)} and min(broken.values()) >= 2, broken


def test_recorded_seeds_name_existing_bugs_and_worlds() -> None:
    seen = seen_by()
    assert seen.keys() <= {key_of(m) for m in MUTANTS if not m.unseen}
    assert {world for world, _ in seen.values()} <= set(WORLDS) and min(seed for _, seed in seen.values()) > 0


@pytest.mark.parametrize(
    ("seeds", "tried"),
    [
        (0, [(7, 1, "walks")]),
        (6, [(1, 6, "groups"), (1, 6, "walks"), (1, 6, "")]),
        (7, [(7, 1, "walks"), (1, 7, "groups"), (1, 7, "walks"), (1, 7, "")]),
    ],
)
def test_the_recorded_seed_of_a_bug_is_tried_first(
    seeds: int, tried: list[tuple[int, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried if the wanted number of seeds includes it, or if no other seed is wanted."""
    module, runs = sys.modules[hunt.__module__], list[tuple[int, int, str]]()
    mutant = next(m for m in MUTANTS if m.room == "raft")
    monkeypatch.setattr(module, "seen_by", lambda: {key_of(mutant): ("walks", 7)})

    def by_some_seeds(where: Path, first: int, count: int, world: str, timeout_s: float) -> Found:
        runs.append((first, count, world))
        return Found("seeds")

    monkeypatch.setattr(module, "_by_some_seeds", by_some_seeds)
    hunt(mutant, seeds, ["seeds"])
    assert runs == tried


def test_the_command_plants_a_bug_and_reports_what_found_it() -> None:
    command = [sys.executable, "-m", "nodeagent.testing.mutants", "one vote too few wins", "--net", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0 and "one vote too few wins: tests: tests/raft/" in done.stdout, done.stderr


def test_a_run_that_does_not_end_is_reported_with_its_innermost_frame(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text("def look():\n    while True:\n        pass\n\n\nlook()\n")
    code, _, says = run_in(tmp_path, ["it.py"], 5)
    assert code == 1 and re.fullmatch(r'the run did not end: File ".*it\.py", line [23] in look', says), says


def test_each_net_looks_for_a_planted_bug_by_itself() -> None:
    mutant = next(m for m in MUTANTS if m.name == "one vote too few wins")
    by_tests, by_scopes = hunt(mutant, 0, ["tests", "scopes"])
    assert by_tests.by.startswith("tests/raft/"), by_tests
    assert "S1: " in by_scopes.by, by_scopes


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    spread(
        [
            "half of the voters are a majority",
            "segments are deleted before their replacement is durable",
            "sessions do not move with their slots",
        ],
        2,
    ),
)
def test_a_planted_bug_is_found(name: str) -> None:
    """A simulator that cannot see a bug proves nothing; `make mutants` plants all of them."""
    mutant = next(m for m in MUTANTS if m.name == name)
    (found,) = hunt(mutant, 12, ["seeds"])
    assert found.by, f"{name}: survived"
