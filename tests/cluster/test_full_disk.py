"""Three real agents on real disks that fill up at the same time."""

from pathlib import Path

import pytest

from tests.cluster.full_disk import run, why_not

pytestmark = pytest.mark.real


def test_agents_resume_after_all_disks_were_full(tmp_path: Path) -> None:
    """All agents run, lead and reject rows with the reason, including an agent that is killed and restarted.
    With more space they accept rows again, and no acknowledged row is missing."""
    why = why_not()
    if why:
        pytest.skip(why)
    run(tmp_path / "fleet", 4.0)
