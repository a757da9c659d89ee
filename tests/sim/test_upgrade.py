"""Clusters of several releases, upgraded and downgraded node by node under a swarm of faults."""

import pytest

from nodeagent.model.features import FIRST, Feature
from nodeagent.testing.builds import NEXT, PREVIOUS, THIS
from nodeagent.testing.parallel import whys
from nodeagent.testing.upgrade import UpgradeSwarm, run
from tests.sim.spread import SPREAD

SEEDS = (
    22,
    5,  # a close logged before the raise is made after a start with another library
)
MORE = (
    3,  # others have merged or expired files that this node's library cannot make
    8,  # a node starts with another library and does not know yet that the level was raised
    *range(10, 16),
    59,  # merges fell behind in a cluster with two libraries
    64,  # a node whose monotonic clock is slow states the age of a weak read
)


def test_no_seed_breaks_an_invariant() -> None:
    failed = [why for why in whys(run, [(seed,) for seed in SEEDS], 2) if why]
    assert not failed, "\n\n".join(failed)


@SPREAD
@pytest.mark.timeout(1_800)  # some nine minutes on two processors
def test_no_later_seed_breaks_an_invariant() -> None:
    failed = [why for why in whys(run, [(seed,) for seed in MORE], 2) if why]
    assert not failed, "\n\n".join(failed)


def test_all_nodes_begin_with_the_previous_release_and_the_level_is_raised_after_the_last_upgrade() -> None:
    swarm = UpgradeSwarm(SEEDS[0])
    assert {n.build for n in swarm.sim.nodes.values()} == {PREVIOUS}
    raised = []

    def raise_level() -> bool:
        assert swarm.level == FIRST
        raised.append({n.build for n in swarm._members()})
        return UpgradeSwarm.raise_level(swarm)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(swarm, "raise_level", raise_level, raising=False)
        swarm.report()
    assert raised == [{THIS}] and swarm.level == Feature.FILE_WRITER
    assert {n.build for n in swarm._members()} <= {THIS, NEXT}
