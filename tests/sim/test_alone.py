"""One node alone under a swarm of faults. A failure prints the command that replays it."""

import pytest

from nodeagent.host.data_replica import DataReplica
from nodeagent.testing.alone import run
from nodeagent.testing.parallel import whys
from tests.sim.spread import SPREAD

SEEDS = range(1, 4)
MORE = range(4, 16)


def test_no_seed_breaks_an_invariant() -> None:
    """It comes up by itself after every burst of faults, and holds what it acknowledged."""
    failed = [why for why in whys(run, [(seed,) for seed in SEEDS], 2) if why]
    assert not failed, "\n\n".join(failed)


@SPREAD
def test_no_later_seed_breaks_an_invariant() -> None:
    failed = [why for why in whys(run, [(seed,) for seed in MORE], 2) if why]
    assert not failed, "\n\n".join(failed)


def test_a_seed_is_a_run() -> None:
    assert run(2) == run(2)


def test_a_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log goes although rows of it are in memory alone."""
    monkeypatch.setattr(DataReplica, "log_needed_after", lambda replica: replica.state.applied)
    with pytest.raises(AssertionError, match=r"replay: python -m nodeagent.testing.alone \d+"):
        for seed in SEEDS:
            run(seed)
