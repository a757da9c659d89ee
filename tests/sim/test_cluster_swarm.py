"""Whole clusters under a swarm of faults. A failure prints the command that replays it."""

import random
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest

from nodeagent.testing.cluster_plan import Plan
from nodeagent.testing.cluster_swarm import ClusterSwarm, run
from nodeagent.testing.parallel import whys
from nodeagent.testing.workload import PLAIN_HABITS
from tests.sim.spread import SPREAD, spread

SEEDS = (6,)
MORE = (4, 5, *range(7, 14))
SPOILED = (
    1,  # the node had lost its cluster state, and told the newcomer that their seeds differ
    9,  # a bit of node.id flips, so that it is not valid UTF-8
    *range(11, 15),
)

ROTTEN = (1, 3, 6)
PUT_BACK = (0, 3, 11, 2, 6, 7)


def test_no_seed_breaks_an_invariant() -> None:
    """Safety holds after every turn, every operation ends, and nothing is left over."""
    failed = [why for why in whys(run, [(seed,) for seed in SEEDS], 2) if why]
    assert not failed, "\n\n".join(failed)


@SPREAD
def test_no_later_seed_breaks_an_invariant() -> None:
    failed = [why for why in whys(run, [(seed,) for seed in MORE], 2) if why]
    assert not failed, "\n\n".join(failed)


class Plain(ClusterSwarm):
    """A swarm whose seeds draw the same plans as when the seeds above found bugs."""

    def drawn(self, rng: random.Random) -> Plan:
        plan = replace(super().drawn(rng), habits=PLAIN_HABITS, staleness_ms=0)
        plan.kinds.pop("straggle", None)
        return plan


def after_two(seed: int, kind: str) -> ClusterSwarm:
    """A cluster after two operations of one kind, as `ClusterSwarm.choices` names it."""
    swarm = Plain(seed)
    swarm.wanted = 2
    with mock.patch.object(swarm, "choices", lambda: [getattr(swarm, kind)]):
        swarm.report()
    assert len(swarm.done) == 2
    return swarm


@pytest.mark.long
@pytest.mark.parametrize("seed", spread(SPOILED))
def test_a_node_that_lost_a_part_of_its_directory_is_replaced(seed: int) -> None:
    """It is replaced by a newcomer whose seeds include it."""
    after_two(seed, "spoil_one")


@pytest.mark.parametrize("seed", spread(ROTTEN))
def test_a_corrupted_file_is_repaired(seed: int) -> None:
    """An operator repairs it from the copies of a majority, even if slots moved in the meantime."""
    assert after_two(seed, "rot_one").operator.repaired


@pytest.mark.parametrize("seed", spread(PUT_BACK))
def test_a_directory_restored_from_an_older_copy_is_noticed(seed: int) -> None:
    """The node learns this from its peers, also after a restart; then it is replaced."""
    after_two(seed, "restore_one")


@pytest.mark.parametrize("seed", spread((3, 4, 1)))
def test_a_machine_that_left_is_not_added_again(seed: int) -> None:
    """It starts with its old directory, and no node accepts its messages."""
    swarm = ClusterSwarm(seed)
    swarm.wanted = 3

    def choices() -> list[Callable[[], bool]]:
        if swarm.departed():
            return [swarm.return_one]
        return [swarm.remove_dead if len(swarm._names()) > swarm.replicas + 1 else swarm.add_one]

    with mock.patch.object(swarm, "choices", choices):
        swarm.report()
    assert "return-one" in swarm.done


@SPREAD
def test_a_seed_repeats_its_run() -> None:
    reports = [run(17), run(17)]
    assert reports[0] == reports[1]
