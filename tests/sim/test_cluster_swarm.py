"""Whole clusters under a swarm of faults. A failure prints the command that replays it."""

from nodeagent.testing.cluster_swarm import run
from nodeagent.testing.coverage import report, universe
from nodeagent.testing.parallel import whys

from .spread import SPREAD

SEEDS = (4, 5, 7)
MORE = range(8, 14)


def test_no_seed_breaks_an_invariant() -> None:
    """Safety after every turn, every operation ends, and nothing is left over."""
    failed = [why for why in whys(run, [(seed,) for seed in SEEDS], 2) if why]
    assert not failed, "\n\n".join(failed)


@SPREAD
def test_no_later_seed_breaks_an_invariant() -> None:
    failed = [why for why in whys(run, [(seed,) for seed in MORE], 2) if why]
    assert not failed, "\n\n".join(failed)


def test_a_seed_is_a_run() -> None:
    reports = [run(17), run(17)]
    assert reports[0] == reports[1]


def test_coverage_names_what_was_reached_and_what_was_not() -> None:
    (fault, *others) = sorted(universe()["fault"])
    text = report({("fault", fault): 3})
    assert f"fault: 1 of {1 + len(others)} reached" in text and f"never: {others[0]}, " in text
