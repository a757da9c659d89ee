"""Rows that no file format takes, in a whole cluster: one partition must not hold up a group or a change."""

from collections.abc import Mapping

import pyarrow as pa
import pytest

from nodeagent.model.errors import FileCorrupt
from nodeagent.model.files import PARKED, TSFILE, CloseSpec
from nodeagent.storage.arrow_format import ArrowFormat
from nodeagent.testing.checks import check_converged
from nodeagent.testing.scenario import Scenario
from tests.sim.test_cases import formed


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """No TsFile is ever made of the rows of two slots in three."""
    encode = ArrowFormat.encode

    def choosy(self: ArrowFormat, table: pa.Table, spec: CloseSpec, properties: Mapping[str, bytes]) -> bytes:
        if spec.name.endswith(TSFILE) and spec.slot % 3:
            raise FileCorrupt(f"{spec.name}: not these rows")
        return encode(self, table, spec, properties)

    monkeypatch.setattr(ArrowFormat, "encode", choosy)


def parked(scenario: Scenario) -> dict[str, set[str]]:
    """Per live node, what it has parked."""
    nodes = [n for n in scenario.sim.nodes.values() if n.alive]
    return {n.node: {f for r in n.host.data.values() for f in r.state.manifest.parked} for n in nodes}


def test_rows_that_no_file_takes_are_parked_and_move_with_their_slots(poison: None) -> None:
    """Every member parks them alike; a change whose seal closes such rows ends, their copies go to the new
    holders, and all that was acknowledged is read back, also after a restart."""
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
    troubles = {r.trouble for n in scenario.sim.nodes.values() if n.alive for r in n.host.data.values()}
    assert any("not these rows" in t and "time partition" in t for t in troubles), troubles
