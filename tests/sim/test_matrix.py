"""Kills at failpoints in the simulator; `make matrix` runs every case."""

import pytest

from nodeagent.scaling.failpoints import POINTS
from nodeagent.testing.matrix import cases, run_case
from nodeagent.testing.parallel import whys
from tests.sim.spread import spread

KINDS = ("add-node", "remove-node", "replace-node")


@pytest.mark.long
@pytest.mark.parametrize("every", spread([97, 29]))
def test_a_spread_of_the_kill_matrix_passes(every: int) -> None:
    chosen = [case for case in cases() if not case.skipped][::every]
    assert {c.kind for c in chosen} == set(KINDS) and len(chosen) >= 350 // every
    results = whys(run_case, [(case, 1) for case in chosen], 2)
    failed = [f"{case}: {why}" for case, why in zip(chosen, results, strict=True) if why]
    assert not failed, "\n".join(failed)


def test_every_point_of_every_stage_is_in_the_matrix() -> None:
    """There are twelve failpoints, each with an early and a late restart; a skipped case states its reason.
    Programs other than agents do not run in the simulator."""
    assert len(POINTS) == 12 and {c.point for c in cases() if not c.skipped} == set(POINTS)
    run = {(c.role, c.back) for c in cases() if not c.skipped}
    assert {c.role for c in cases()} - {role for role, _ in run} == {"iotctl", "Spark driver"}
    assert len(run) == 2 * 6
