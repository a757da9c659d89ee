"""Whole clusters under faults. A failure prints the command that replays it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nodeagent
from nodeagent.testing.mutants import MUTANTS, hunt
from nodeagent.testing.node import SimNode
from nodeagent.testing.parallel import whys
from nodeagent.testing.replay import replayable
from nodeagent.testing.scenario import run
from nodeagent.testing.sim import Sim

PINNED = (
    14,  # an answer of an earlier membership arrives late
    87,  # a node rejoins a group it has just left, while its old replica is being removed
    234,  # a slot leaves and comes back while the close of its seal is still under way
)
SEEDS = sorted({*range(1, 4), *PINNED})
"""`.ci/run` goes on from 4, when it has run the tests."""


def test_no_seed_breaks_an_invariant() -> None:
    """Safety after every event, convergence and nothing left over at the end, for each seed."""
    failed = [why for why in whys(run, [(seed,) for seed in SEEDS], 2) if why]
    assert not failed, "\n\n".join(failed)


def test_a_seed_is_a_run() -> None:
    """The same seed gives the same trace in another process with another hash seed."""
    lines = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "nodeagent.testing", "3", "1"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        lines.add(done.stdout.split("} ")[0])
    assert len(lines) == 1, lines


def test_a_failure_says_how_it_is_run_again_and_what_happened_last() -> None:
    sim: Sim[SimNode] = Sim(7)
    sim.tell("the last thing")
    with pytest.raises(AssertionError) as failed, replayable(7, "some.module 7", sim, lambda: "the plan"):
        raise KeyError("why")
    first, *others = str(failed.value).splitlines()
    assert first == "seed 7: KeyError('why')"
    assert others == ["replay: python -m some.module 7", "the plan", "       0 the last thing"]


def test_every_mutant_still_fits_the_code() -> None:
    """`make mutants` takes long; that its bugs can be planted is quickly seen."""
    package = Path(nodeagent.__file__).parent
    places = {m.name: (package / m.file).read_text().count(m.old) for m in MUTANTS}
    assert {name: count for name, count in places.items() if count != 1} == {}


def test_the_command_plants_a_bug_and_says_by_what_it_was_found() -> None:
    command = [sys.executable, "-m", "nodeagent.testing.mutants", "--seeds", "3", "votes are not persisted"]
    done = subprocess.run([*command, "--net", "seeds"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "votes are not persisted: seeds (" in done.stdout, done.stderr


def test_each_net_looks_for_a_planted_bug_by_itself() -> None:
    mutant = next(m for m in MUTANTS if m.name == "one vote too few wins")
    by_tests, by_scopes = hunt(mutant, 0, ["tests", "scopes"])
    assert by_tests.by.startswith("tests/raft/"), by_tests
    assert "S1: " in by_scopes.by, by_scopes


@pytest.mark.parametrize(
    "name",
    [
        "sessions do not move with their slots",
        "half of the voters are a majority",
        "segments go before what replaced them is durable",
    ],
)
def test_a_planted_bug_is_found(name: str) -> None:
    """A simulator that cannot see a bug proves nothing; `make mutants` plants all of them."""
    mutant = next(m for m in MUTANTS if m.name == name)
    (found,) = hunt(mutant, 12, ["seeds"])
    assert found.by, f"{name}: survived"
