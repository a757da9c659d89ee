"""Fixtures shared by the log's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.model.disk import Disk
from nodeagent.runtime.disk import RealDisk
from nodeagent.testing.disk import SimDisk


@pytest.fixture(params=["real", "sim"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """Each test runs once on files and once in memory."""
    yield RealDisk(tmp_path / "root") if request.param == "real" else SimDisk()
