"""Seeds of the worlds that are smaller than a cluster. A failure prints the command that replays it."""

from collections.abc import Callable, Sequence

import pytest

from nodeagent.testing import files_swarm, log_swarm, single_node, swarm, swarm_plan, walks
from nodeagent.testing.parallel import whys
from tests.sim.spread import SPREAD


class Plain(swarm.Swarm):
    """A run of a seed without `hasten` and `straggle`."""

    def drawn(self) -> swarm_plan.Plan:
        return swarm_plan.Plan.draw(self.rng)


PINNED = (
    (Plain, 131),  # only a leaver held its own removal, another voter was dead: no leader
    (Plain, 159),  # a leaver with an old log was elected by members that had left and returned
    (swarm.Swarm, 1593),  # only a learner held the longest log, and refused its vote: no leader
)
WORLDS: dict[str, tuple[Callable[[int], object], Sequence[int], Sequence[int]]] = {
    "one log": (log_swarm.run, range(1, 9), range(9, 40)),
    "files": (files_swarm.run, range(1, 13), range(13, 60)),
    "walks": (walks.run, range(1, 4), range(4, 20)),
    "groups": (swarm.run, range(1, 13), range(13, 60)),
    "one node": (single_node.run, range(1, 4), range(4, 16)),
}
"""World -> (its function, the seeds that `make test` runs, those that `make spread` adds)."""


def failures(run: Callable[[int], object], seeds: Sequence[int]) -> str:
    return "\n\n".join(filter(None, whys(run, [(seed,) for seed in seeds], 2)))


@pytest.mark.parametrize("world", WORLDS)
def test_no_seed_breaks_an_invariant(world: str) -> None:
    """Safety holds after every event, and the world comes to rest at the end."""
    run, seeds, _ = WORLDS[world]
    failed = failures(run, seeds)
    assert not failed, failed


@pytest.mark.parametrize("world,seed", PINNED)
def test_a_seed_that_found_a_bug_passes(world: type[swarm.Swarm], seed: int) -> None:
    world(seed).run()


@SPREAD
@pytest.mark.parametrize("world", WORLDS)
def test_no_later_seed_breaks_an_invariant(world: str) -> None:
    run, _, seeds = WORLDS[world]
    failed = failures(run, seeds)
    assert not failed, failed


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_repeats_its_run(world: str) -> None:
    run, _, _ = WORLDS[world]
    assert run(2) == run(2)
