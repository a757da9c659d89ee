"""How a node handles a small or full disk, except for its log."""

import errno
import io
import os
from pathlib import Path

import pytest

from nodeagent.model.config import ClusterSettings, NodeConfig
from nodeagent.model.limits import MIB
from nodeagent.model.space import fitted, floor_of, log_keep, refuse_below, reserve, zero_step
from nodeagent.runtime.disk import RealDisk
from nodeagent.runtime.notes import EventLog

CONFIG = NodeConfig("n", "h", 1, 2, (), ClusterSettings("c"))


class FullStream(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_log_lines_that_cannot_be_written_are_counted() -> None:
    """If the agent's own log lines go to a full disk, the agent continues."""
    notes = EventLog(FullStream())
    notes.write("writes_refused", {"why": "full"})
    assert notes.dropped == 1 and [e.event for e in notes.recent] == ["writes_refused"]


def test_lock_works_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content of the lock file is used only in a message."""

    def full(*words: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = RealDisk(tmp_path)
    with monkeypatch.context() as now:
        now.setattr(os, "pwrite", full)
        disk.lock()
    disk.unlock()


@pytest.mark.parametrize("total", [64 * MIB, 160 * MIB, 1 << 40])
def test_sizes_follow_the_disk(total: int) -> None:
    """On a small disk the rows of three groups, the log and the reserve leave room to refuse writes in time.
    On a large disk every setting is unchanged, and the watermarks have a fixed size."""
    found = fitted(CONFIG, total)
    assert 0 < floor_of(total) < refuse_below(total) <= total // 8
    laid_by = reserve(total) + zero_step(total) + 3 * log_keep(total) + 2 * found.segment_bytes
    assert laid_by + 3 * found.memtable_bytes_max + refuse_below(total) < total // 2
    assert (found == CONFIG) == (total == 1 << 40)
