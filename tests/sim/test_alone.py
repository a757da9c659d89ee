"""One node alone under a swarm of faults. A failure prints the command that replays it."""

import pytest

from nodeagent.host.data_machine import DataMachine
from nodeagent.testing.single_node import run


def test_a_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is dropped although some of its rows exist only in memory."""
    monkeypatch.setattr(DataMachine, "log_needed_after", lambda machine: machine._held.state.applied)
    with pytest.raises(AssertionError, match=r"replay: python -m nodeagent.testing.single_node \d+"):
        for seed in range(1, 9):
            run(seed)
