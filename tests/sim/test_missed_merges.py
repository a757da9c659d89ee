"""A member lacks a file that the others merged while it was down, so that no member has it any more."""

from functools import partial

import pytest

from nodeagent.data.commands import Compact, decode
from nodeagent.host.data_replica import DataReplica
from nodeagent.model.entries import EntryKind
from nodeagent.model.files import FileMeta
from nodeagent.storage import layout
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario
from tests.sim.spread import spread
from tests.sim.test_cases import _forgeable, finish_all, formed

pytestmark = pytest.mark.long


class Absence:
    """A follower goes down, and one of its files is lost or damaged."""

    def __init__(self, scenario: Scenario, fault: str) -> None:
        self.scenario = scenario
        self.victim, self.group, self.file = self._saved()
        self.victim.stop(power=True)
        disk, path = self.victim.disk, layout.file_path(self.group, self.file.slot, self.file.name)
        disk.restart()
        if fault == "missing":
            disk.unlink(path)
            disk.sync_dir(path.rpartition("/")[0])
        else:
            disk.flip(path, self.file.size // 2)

    def _saved(self) -> tuple[SimNode, str, FileMeta]:
        """Wait for a file that a checkpoint names; a restart would write any other again from the log."""
        before: list[tuple[SimNode, str, FileMeta]] = []
        while True:
            self.scenario.sim.pause(3_000)
            now = _forgeable(self.scenario)
            for found in before:
                if found in now:
                    return found
            before = now

    def others(self) -> list[DataReplica]:
        nodes = [n for n in self.scenario.sim.nodes.values() if n.alive and n is not self.victim]
        return [n.host.replicas.data[self.group] for n in nodes if self.group in n.host.replicas.data]

    def merged_into(self, name: str) -> str:
        """The file into which the log merges this one; "" if no merge of it is logged yet."""
        log = self.others()[0].raft.log
        for index, entry in enumerate(log.slice(log.first_index, log.last_index, 1 << 60), log.first_index):
            command = decode(entry.data) if entry.kind == EntryKind.COMMAND else None
            if isinstance(command, Compact) and name in dict(command.inputs):
                return f"{command.slot:05d}-{index:012d}-0000.tsfile"
        return ""

    def is_merged(self, name: str) -> bool:
        states = [r.state for r in self.others()]
        is_left = any(name in s.files.manifest for s in states)
        is_left |= any(name in c.names for s in states for c in s.compactions.active)
        return bool(self.merged_into(name)) and not is_left

    @property
    def replica(self) -> DataReplica:
        return self.victim.host.replicas.data[self.group]


@pytest.mark.parametrize(
    ("fault", "merges"),
    spread(
        [("missing", 1), ("damaged", 2), ("damaged", 1), ("missing", 2), ("damaged", 3), ("missing", 3)], 2
    ),
)
def test_a_member_without_a_file_takes_the_merged_file_of_the_others(fault: str, merges: int) -> None:
    """This also holds if their merged file was merged again: the member is not stuck, and ends with equal
    files."""
    scenario = formed(60 + merges)
    absence = Absence(scenario, fault)
    name = absence.file.name
    for _ in range(merges):
        scenario.until(partial(absence.is_merged, name), f"{name} is merged")
        name = absence.merged_into(name)
    absence.victim.start()
    scenario.until(lambda: bool(absence.replica.failures.stuck), "it fails to merge")
    scenario.until(lambda: absence.file.name not in absence.replica.state.files.manifest, "it is merged here")
    finish_all(scenario)
    assert not absence.replica.failures.stuck and not absence.replica.damaged_files.named()
