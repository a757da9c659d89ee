"""Cancels at hold points in the simulator; `make matrix` runs every case."""

from nodeagent.scaling.holds import POINTS
from nodeagent.testing.cancels import KINDS, WAYS, cases, run_case
from nodeagent.testing.parallel import whys

EVERY = 11


def test_a_spread_of_cancels_ends_in_the_old_or_the_new_state() -> None:
    chosen = [case for case in cases() if not case.skipped][::EVERY]
    assert {c.kind for c in chosen} == set(KINDS) and {c.way for c in chosen} == set(WAYS)
    results = whys(run_case, [(case, 1) for case in chosen], 2)
    failed = [f"{case}: {why}" for case, why in zip(chosen, results, strict=True) if why]
    assert not failed, "\n".join(failed)


def test_every_point_is_cancelled_at_in_every_way() -> None:
    assert {(c.point, c.way) for c in cases() if not c.skipped} == {(p, w) for p in POINTS for w in WAYS}
