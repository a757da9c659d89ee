"""Real agents on real disks that are filled on all three at once."""

from pathlib import Path

import pytest

from tests.cluster.full_disk import run, why_not

pytestmark = pytest.mark.real


def test_disks_that_fill_together_stop_nobody_for_good(tmp_path: Path) -> None:
    """All agents live, lead and refuse rows with the reason, also one that is killed and started meanwhile;
    with more room they take rows again by themselves, and nothing acknowledged is missing."""
    why = why_not()
    if why:
        pytest.skip(why)
    run(tmp_path / "fleet", 4.0)
