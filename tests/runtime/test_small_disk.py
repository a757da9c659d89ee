"""What a node does about a small disk, or a full one, outside of its log."""

import errno
import io
import os
from pathlib import Path

import pytest

from nodeagent.model.config import ClusterSettings, NodeConfig
from nodeagent.model.limits import MIB
from nodeagent.model.space import fitted, floor_of, log_keep, refuse_below, reserve, zero_step
from nodeagent.runtime.disk import RealDisk
from nodeagent.runtime.notes import Notes

CONFIG = NodeConfig("n", "h", 1, 2, (), ClusterSettings("c"))


class FullStream(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_notes_that_cannot_be_written_are_counted() -> None:
    """The agent's own log lies on the disk that is full: that ends nothing."""
    notes = Notes(FullStream())
    notes.write("writes_refused", {"why": "full"})
    assert notes.dropped == 1 and [e.event for e in notes.recent] == ["writes_refused"]


def test_lock_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its content is for a message only."""

    def full(*words: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = RealDisk(tmp_path)
    with monkeypatch.context() as now:
        now.setattr(os, "pwrite", full)
        disk.lock()
    disk.unlock()


@pytest.mark.parametrize("total", [64 * MIB, 160 * MIB, 1 << 40])
def test_sizes_follow_the_disk(total: int) -> None:
    """On a small disk three groups' rows, log and what is laid by leave room to refuse in time; on a large
    one every setting is as it was given, and the watermarks stop at a fixed size."""
    found = fitted(CONFIG, total)
    assert 0 < floor_of(total) < refuse_below(total) <= total // 8
    laid_by = reserve(total) + zero_step(total) + 3 * log_keep(total) + 2 * found.segment_bytes
    assert laid_by + 3 * found.memtable_bytes_max + refuse_below(total) < total // 2
    assert (found == CONFIG) == (total == 1 << 40)
