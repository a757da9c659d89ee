"""Rows that fit no TsFile, in a whole cluster: one partition must not block a group or a change."""

from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest

from nodeagent.model.errors import FileCorrupt
from nodeagent.model.files import PARKED, TSFILE, CloseSpec, FileMeta
from nodeagent.storage.arrow_format import ArrowFormat
from nodeagent.storage.format import ClosedUnit
from nodeagent.storage.handler import Handler, TemporaryFile
from nodeagent.testing.checks import check_converged
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario
from tests.sim.spread import SPREAD
from tests.sim.test_cases import formed


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of two slots in three never become a TsFile."""
    encode = ArrowFormat.encode

    def choosy(self: ArrowFormat, table: pa.Table, spec: CloseSpec, properties: Mapping[str, bytes]) -> bytes:
        if spec.name.endswith(TSFILE) and spec.slot % 3:
            raise FileCorrupt(f"{spec.name}: not these rows")
        return encode(self, table, spec, properties)

    monkeypatch.setattr(ArrowFormat, "encode", choosy)


class Library:
    """The TsFile library on all machines; the test decides which files it fails to make."""

    def __init__(self) -> None:
        self.fails: Callable[[object, FileMeta], bool] = lambda disk, file: False
        self.failed = 0

    def check(self, disk: object, file: FileMeta) -> None:
        if file.name.endswith(TSFILE) and self.fails(disk, file):
            self.failed += 1
            raise FileCorrupt(f"{file.name}: not these rows")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    put = Handler._put

    def choosy(self: Handler, closed: ClosedUnit | None) -> TemporaryFile | None:
        if closed is not None:
            found.check(self._place._disk, closed.meta)  # type: ignore[attr-defined]
        return put(self, closed)

    monkeypatch.setattr(Handler, "_put", choosy)
    return found


def alive(scenario: Scenario) -> list[SimNode]:
    return [n for n in scenario.sim.nodes.values() if n.alive]


def troubles(node: SimNode) -> str:
    return " ".join(r.trouble for r in node.host.replicas.data.values())


def parked(scenario: Scenario) -> dict[str, set[str]]:
    """The parked files of each running node."""
    nodes = [n for n in scenario.sim.nodes.values() if n.alive]
    return {
        n.node: {f for r in n.host.replicas.data.values() for f in r.state.files.manifest.parked}
        for n in nodes
    }


def test_rows_that_fit_no_file_are_parked_and_move_with_their_slots(poison: None) -> None:
    """Every member parks them alike; a change whose seal closes such rows ends, their copies go to the new
    holders, and all acknowledged rows are read back, also after a restart."""
    scenario = formed(51)
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    scenario.finish(scenario.change("add-node", newcomer))
    assert parked(scenario)[newcomer], parked(scenario)
    assert all(name.endswith(PARKED) for names in parked(scenario).values() for name in names)
    victim = next(n for n in scenario.sim.nodes.values() if n.alive and n.node != newcomer)
    victim.stop(power=True)
    victim.start()
    scenario.quiet()
    check_converged(scenario.sim)
    scenario.read_everything()
    troubles = {
        r.trouble for n in scenario.sim.nodes.values() if n.alive for r in n.host.replicas.data.values()
    }
    assert any("not these rows" in t and "time partition" in t for t in troubles), troubles


@pytest.mark.long
def test_a_file_that_one_member_cannot_write_comes_from_another(library: Library) -> None:
    """Closes and merges fail on one machine, whether it follows or leads: nothing is parked, its log is not
    pinned, changes end, and its status names the partition and the reason."""
    scenario = formed(52)
    victim = alive(scenario)[0]
    library.fails = lambda disk, file: disk is victim.disk
    scenario.until(lambda: "not these rows" in troubles(victim), "it cannot make a file")
    assert "time partition" in troubles(victim)
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    scenario.finish(scenario.change("add-node", newcomer))
    scenario.sim.pause(60_000)
    assert library.failed and any(r.leads for r in victim.host.replicas.data.values())
    scenario.quiet()
    check_converged(scenario.sim)
    assert not any(parked(scenario).values())
    assert any(f.clean for r in victim.host.replicas.data.values() for f in r.state.files.manifest.files())
    assert all(not r.failures.failing and not r.failures.stuck for r in victim.host.replicas.data.values())
    assert "another member" in troubles(victim)
    scenario.read_everything()


@SPREAD
def test_a_merge_that_fails_everywhere_is_parked(library: Library) -> None:
    """It delays no change, no other merge and no delete; every member parks the same rows."""
    scenario = formed(53)
    library.fails = lambda disk, file: bool(file.clean and file.slot % 3)
    scenario.until(lambda: all(parked(scenario).values()), "merges are parked")
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    scenario.finish(scenario.change("add-node", newcomer))
    assert any("not these rows" in troubles(n) and "time partition" in troubles(n) for n in alive(scenario))
    victim = alive(scenario)[0]
    victim.stop(power=True)
    victim.start()
    scenario.quiet()
    check_converged(scenario.sim)
    scenario.read_everything()
    files = [
        f
        for n in alive(scenario)
        for r in n.host.replicas.data.values()
        for f in r.state.files.manifest.files()
    ]
    assert any(f.parked and f.clean for f in files)
    assert all(not r.failures.stuck for n in alive(scenario) for r in n.host.replicas.data.values())


@pytest.mark.long
def test_parked_rows_become_a_tsfile_with_a_later_version(library: Library) -> None:
    """Closes and merges fail on machines with the earlier version, which are upgraded one after the other
    during a change. A member that lags copies the files of upgraded members."""
    scenario = formed(54)
    old = {id(n.disk) for n in scenario.sim.nodes.values()}
    library.fails = lambda disk, file: id(disk) in old and bool(file.slot % 3)
    scenario.until(lambda: all(parked(scenario).values()), "rows are parked")
    newcomer = scenario.newcomers[0]
    old.discard(id(scenario.sim.nodes[newcomer].disk))
    scenario.sim.nodes[newcomer].start()
    operation = scenario.change("add-node", newcomer)
    for node in alive(scenario):
        if node.node != newcomer:
            scenario.sim.pause(4_000)
            node.stop(power=False)
            old.discard(id(node.disk))
            node.start()
    scenario.finish(operation)
    scenario.until(lambda: not any(parked(scenario).values()), "no file is parked")
    scenario.quiet()
    check_converged(scenario.sim)
    scenario.read_everything()
    assert not any("not these rows" in troubles(n) for n in alive(scenario))
