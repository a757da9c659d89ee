"""Whole clusters under a swarm of faults. A failure prints the command that replays it."""

from unittest import mock

import pytest

from nodeagent.testing.cluster_swarm import ClusterSwarm, run
from nodeagent.testing.parallel import whys
from tests.sim.spread import SPREAD, spread

SEEDS = (6,)
MORE = (4, 5, *range(7, 14))
SPOILED = (
    1,  # it knows nothing of the cluster any more, and told the newcomer that their seeds differ
    9,  # a bit of node.id turns over, and what is left is no UTF-8
    *range(11, 15),
)

ROTTEN = (2, 4, 6)


def test_no_seed_breaks_an_invariant() -> None:
    """Safety after every turn, every operation ends, and nothing is left over."""
    failed = [why for why in whys(run, [(seed,) for seed in SEEDS], 2) if why]
    assert not failed, "\n\n".join(failed)


@SPREAD
def test_no_later_seed_breaks_an_invariant() -> None:
    failed = [why for why in whys(run, [(seed,) for seed in MORE], 2) if why]
    assert not failed, "\n\n".join(failed)


@pytest.mark.long
@pytest.mark.parametrize("seed", spread(SPOILED))
def test_a_node_that_lost_a_part_of_its_directory_is_replaced(seed: int) -> None:
    """By a newcomer that has it among its seeds."""
    swarm = ClusterSwarm(seed)
    swarm.wanted = 2
    with mock.patch.object(swarm, "choices", lambda: [swarm.spoil_one]):
        swarm.report()
    assert len(swarm.done) == 2


@pytest.mark.parametrize("seed", spread(ROTTEN))
def test_a_file_that_turned_over_is_repaired(seed: int) -> None:
    """By an operator, from what a majority holds, also where slots moved meanwhile."""
    swarm = ClusterSwarm(seed)
    swarm.wanted = 2
    with mock.patch.object(swarm, "choices", lambda: [swarm.rot_one]):
        swarm.report()
    assert len(swarm.done) == 2 and swarm.operator.repaired


@SPREAD
def test_a_seed_is_a_run() -> None:
    reports = [run(17), run(17)]
    assert reports[0] == reports[1]
