"""Real agents are upgraded from a release to this build one by one, and downgraded, with a running writer."""

import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from iotctl.fleet.local import Command, LocalFleet
from nodeagent import __version__
from nodeagent.model.config import ClusterSettings
from nodeagent.model.features import FIRST, SPOKEN
from tests.cluster.world import World
from tests.compat import golden
from tests.waiting import until

pytestmark = pytest.mark.real
NODES = ("node1", "node2", "node3")


def command_of(release: Path, to: Path) -> Command:
    """The command that starts an agent of that release: its code with the locally installed packages."""
    with zipfile.ZipFile(release / golden.WHEEL) as wheel:
        wheel.extractall(to)

    def command(directory: Path) -> Sequence[str]:
        return ("env", f"PYTHONPATH={to}", sys.executable, "-m", "nodeagent", "run", str(directory))

    return command


@pytest.fixture
def old(tmp_path: Path) -> Iterator[World]:
    """Three running agents of the last release, with rows in files."""
    command = command_of(golden.releases()[-1], tmp_path / "code")
    fleet = LocalFleet(tmp_path / "fleet", command)
    fleet.create(ClusterSettings(name="plant"), len(NODES), node_settings={})
    world = World(fleet)
    try:
        world.up()
        yield world
    finally:
        world.close()


def versions(world: World) -> set[str]:
    return {s.version for s in world.statuses().values()}


def roll(world: World, fleet: LocalFleet) -> None:
    """Restart agents as `iotctl cluster upgrade` does: drain each, continue only when the cluster is
    healthy."""
    for name in NODES:
        assert world.iotctl("cluster", "drain", name).code == 0
        fleet.stop([name])
        fleet.start([name])
        world.wait_healthy()
        assert world.iotctl("cluster", "undrain", name).code == 0


def test_agents_of_the_last_release_are_upgraded_and_downgraded(old: World) -> None:
    """No write fails, no row is missing, replicas are equal; finally the level is raised permanently."""
    new = LocalFleet(old.fleet.directory)
    load = old.load()
    roll(old, new)
    assert versions(old) == {__version__}
    status = old.status()
    assert (status.feature_level, status.feature_level_possible) == (FIRST, SPOKEN.newest)
    roll(old, old.fleet)
    assert __version__ not in versions(old)
    roll(old, new)
    assert load.seen.failed == []
    assert old.iotctl("cluster", "finalize-upgrade", "--yes").code == 0
    old.wait_healthy()
    assert old.status().feature_level == SPOKEN.newest
    assert load.seen.failed == []
    assert old.check_load(load) > 0
    old.close_memtables()
    assert old.iotctl("verify", "--depth", "hash").code == 0


def test_an_agent_of_the_last_release_is_refused_once_the_level_is_raised(old: World) -> None:
    """It was downgraded by mistake: status suggests the upgrade, writes continue, and it rejoins once
    upgraded."""
    new = LocalFleet(old.fleet.directory)
    roll(old, new)
    assert old.iotctl("cluster", "finalize-upgrade", "--yes").code == 0
    new.stop(["node3"])
    load = old.load()
    old.fleet.start(["node3"])

    def problem() -> str:
        found = (p for p in old.status().problems if p.node == "node3" and "upgrade" in p.next)
        return next((p.message for p in found), "")

    why = until(problem, 60.0, lambda: f"no problem of node3: {old.status().problems}")
    refusal = f"feature level {SPOKEN.newest}, but node3 supports 1"
    assert refusal in why, why
    told = [(new.directory / n / "agent.log").read_text() for n in ("node1", "node2")]
    assert any(refusal in log for log in told)
    assert old.check_load(load) > 0
    new.stop(["node3"])
    new.start(["node3"])
    old.wait_healthy()
    assert versions(old) == {__version__}
    old.close_memtables()
    assert old.iotctl("verify", "--depth", "hash").code == 0
