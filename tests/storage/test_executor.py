"""Jobs on a disk that fails: the result of an answered job is durable, and a failed job can be retried."""

import contextlib
import errno
import random
from collections.abc import Callable

import pytest

from nodeagent.model.disk import UNFINISHED
from nodeagent.model.files import Tombstone
from nodeagent.model.jobs import (
    CheckpointSaved,
    CloseFiles,
    Done,
    Failed,
    FileChanges,
    FilesClosed,
    RemoveGroup,
    SaveCheckpoint,
    Scan,
    Scanned,
)
from nodeagent.storage import executor, layout
from nodeagent.storage.checkpoint import save_checkpoint
from nodeagent.storage.executor import Storage
from nodeagent.table.arrow import decode
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.volume import Fault, PowerCut

from .units import GROUP, KEY, close, path_of, room, rows, spec, table, unit

UNITS = (unit("a", (1, rows(20))), unit("b", (2, rows(10)), slot=6), unit("c", (3, rows(5)), slot=6))


def cut_everywhere(work: Callable[[Storage], object], check: Callable[[Storage, bool], None]) -> int:
    """Run `work` with a power cut at its n-th disk change, for every n; `check` gets the disk after the crash
    and whether the work had answered. Return the number of cuts."""
    cut = 0
    while True:
        cut += 1
        disk = SimDisk()
        storage = room(disk)
        disk.cut_power_at = disk.operations + cut
        answered = False
        try:
            work(storage)
            answered = True
        except PowerCut:
            pass
        disk.crash(random.Random(cut))
        check(room(disk), answered)
        if answered:
            return cut


def test_closed_files_are_durable_and_every_name_is_a_whole_file() -> None:
    """After a power cut at any operation: all files verify if the job answered; otherwise each name is a
    whole file or does not exist."""
    want = close(room(SimDisk()), *UNITS)

    def check(storage: Storage, answered: bool) -> None:
        for meta in want:
            found = storage.files.hash(GROUP, meta)
            assert found == meta.xxh3 or (found == "missing" and not answered)
        assert close(storage, *UNITS) == want

    assert cut_everywhere(lambda s: close(s, *UNITS), check) > 10


def test_after_a_power_cut_the_checkpoint_is_the_old_or_the_new_one() -> None:
    """A torn checkpoint write leaves the previous checkpoint, which is neither missing nor damaged."""

    def work(storage: Storage) -> None:
        for payload in (b"one" * 100, b"two" * 500):
            assert isinstance(storage.run(SaveCheckpoint(GROUP, payload)), CheckpointSaved)

    seen = set()

    def check(storage: Storage, answered: bool) -> None:
        found = storage.checkpoint(GROUP)
        assert found in (None, b"one" * 100, b"two" * 500)
        assert not answered or found == b"two" * 500
        seen.add(found)

    cut_everywhere(work, check)
    assert len(seen) == 3


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_dir", "mkdirs", "create"])
def test_disk_errors_fail_the_job_and_a_retry_succeeds(operation: str) -> None:
    """A full disk is `overloaded`, an I/O error `unavailable`; the same job then succeeds."""
    for number, code in ((errno.ENOSPC, "overloaded"), (errno.EIO, "unavailable")):
        disk = SimDisk()
        storage = room(disk)
        disk.faults.append(Fault(operation, number))
        result = storage.run(CloseFiles(GROUP, UNITS))
        assert isinstance(result, Failed), operation
        assert result.code == code
        assert isinstance(storage.run(CloseFiles(GROUP, UNITS)), FilesClosed)


def test_scan_merges_files_memory_and_deletes() -> None:
    """The newest value per cell over files and memory wins; a delete masks older rows; small and large scans
    take different paths to the same answer."""
    storage = room(SimDisk())
    old = table({"time": [1, 2], "dev": ["x", "x"], "v": [1.0, 2.0]})
    new = table({"time": [2, 3], "dev": ["x", "x"], "v": [None, 3.0]})
    meta = close(storage, unit("a", (1, old)))[0]
    batches = unit("", (200, new)).batches
    tomb = Tombstone((150,), KEY, "t", (("dev", "x"),), 0, 1)
    result = storage.run(Scan(GROUP, spec(), (meta,), batches, (tomb,)))
    assert isinstance(result, Scanned)
    assert decode(result.ipc).to_pylist() == [
        {"time": 2, "dev": "x", "v": 2.0},
        {"time": 3, "dev": "x", "v": 3.0},
    ]
    memory = storage.run(Scan(GROUP, spec(), (), batches, ()))
    assert isinstance(memory, Scanned) and decode(memory.ipc).num_rows == 2


def test_scan_of_a_damaged_or_missing_file_fails() -> None:
    """A flipped byte is file_corrupt and a missing file not_found; a scan never returns fewer rows."""
    disk = SimDisk()
    storage = room(disk)
    meta = close(storage, unit("a", (1, rows(20))))[0]
    disk.flip(path_of(meta), meta.size // 2)
    result = storage.run(Scan(GROUP, spec(), (meta,), (), ()))
    assert isinstance(result, Failed) and result.code == "file_corrupt"
    disk.unlink(path_of(meta))
    result = storage.run(Scan(GROUP, spec(), (meta,), (), ()))
    assert isinstance(result, Failed) and result.code == "not_found"


def test_bad_memory_batch_is_an_error_of_the_job() -> None:
    """A batch that is not an Arrow stream fails its job, not the caller."""
    storage = room(SimDisk())
    bad = unit("a").batches + (unit("a", (1, rows(1))).batches[0].__class__((1,), b"junk"),)
    result = storage.run(Scan(GROUP, spec(), (), bad, ()))
    assert isinstance(result, Failed) and result.code == "invalid_input"


def test_an_exception_fails_a_read_and_is_raised_from_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that only reads can be answered as failed; a change may be half done, so the process must not
    continue."""
    storage = room(SimDisk())

    def fails(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(storage, "_scan", fails)
    monkeypatch.setattr(storage, "_save_checkpoint", fails)
    result = storage.run(Scan(GROUP, spec(), (), (), ()))
    assert isinstance(result, Failed) and result.code == "error" and "KeyError" in result.what
    with pytest.raises(KeyError):
        storage.run(SaveCheckpoint(GROUP, b"x"))


def test_orphans_are_deleted_and_other_files_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that no manifest names are deleted; named files, and groups that the job does not mention,
    stay."""
    disk = SimDisk()
    storage = room(disk)
    metas = close(storage, *UNITS)
    other = close(storage, unit("z", (1, rows(3))), group="node2.1")
    removed = storage.sweep({GROUP: {6: {"c"}}})
    assert removed == [path_of(metas[0]), path_of(metas[1])]
    assert storage.files.names(GROUP) == {6: ("c",)}
    assert storage.files.hash("node2.1", other[0]) == other[0].xxh3


def test_removed_group_stays_removed_after_a_crash() -> None:
    """After the answer, no crash restores the group; before it, a checkpoint means that the group is
    whole."""
    want = close(room(SimDisk()), *UNITS)

    def work(storage: Storage) -> None:
        close(storage, *UNITS)
        storage.run(SaveCheckpoint(GROUP, b"state"))
        assert storage.run(RemoveGroup(GROUP)) == Done() == storage.run(RemoveGroup(GROUP))

    def check(storage: Storage, answered: bool) -> None:
        if answered:
            assert storage.groups() == ()
        if storage.checkpoint(GROUP) is not None:
            assert all(storage.files.hash(GROUP, m) == m.xxh3 for m in want)

    cut_everywhere(work, check)


def test_the_removal_of_a_group_deletes_no_file_of_another_group() -> None:
    """This node may hold the same slots as a member of two groups (S11)."""
    storage = room(SimDisk())
    close(storage, *UNITS)
    (kept,) = close(storage, unit("z", (1, rows(3))), group="node2.1")
    storage.run(SaveCheckpoint("node2.1", b"state"))
    assert storage.run(RemoveGroup(GROUP)) == Done()
    assert storage.files.hash("node2.1", kept) == kept.xxh3 and storage.checkpoint("node2.1") == b"state"


def test_units_are_divided_into_calls_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are sent to the engine in bounded calls, and the results have the same order."""
    monkeypatch.setattr(executor, "UNITS_PER_CALL_MAX", 2)
    units = tuple(unit(f"u{i}", (1, rows(i + 1))) for i in range(5)) + (unit("none"),)
    assert [len(call) for call in executor._calls(units)] == [2, 2, 2]
    result = room(SimDisk()).run(CloseFiles(GROUP, units))
    assert isinstance(result, FilesClosed)
    assert [None if m is None else m.rows for m in result.files] == [1, 2, 3, 4, 5, None]


def test_temporary_files_are_deleted_at_the_next_start() -> None:
    """A process that stops during a close leaves temporary files; nothing else would ever delete or use
    them."""
    disk = SimDisk()
    storage, left = room(disk), 0
    for cut in range(1, 9):
        disk.cut_power_at = disk.operations + cut
        with pytest.raises(PowerCut):
            storage.run(CloseFiles(GROUP, UNITS))
        disk.restart()
        left += len(disk.listdir("tmp"))
        storage = room(disk)
        assert disk.listdir("tmp") == []
    assert left > 5


def test_an_unfinished_checkpoint_is_deleted_at_the_next_start() -> None:
    """The next checkpoint would replace the temporary file, but a group at rest makes none."""
    disk = SimDisk()
    base = save_checkpoint(disk, GROUP, b"state")
    left = set[str]()
    for cut in range(1, 9):
        for changes in (None, FileChanges(base, ())):
            disk.cut_power_at = disk.operations + cut
            with contextlib.suppress(PowerCut):
                save_checkpoint(disk, GROUP, b"state", changes)
            disk.restart()
            left |= {n for n in disk.listdir(layout.group_dir(GROUP)) if n.endswith(UNFINISHED)}
            room(disk)
            assert set(disk.listdir(layout.group_dir(GROUP))) <= {"checkpoint", "checkpoint.delta"}
    assert left == {"checkpoint.tmp", "checkpoint.delta.tmp"}


def test_a_close_that_fails_leaves_no_temporary_file() -> None:
    """Each retry would leave another file, and with a full disk there is a retry every second."""
    disk = SimDisk()
    storage = room(disk)
    for skip, fault in [(1, "write"), (0, "sync"), (1, "rename")]:
        disk.faults = [Fault(fault, errno.ENOSPC, "tmp/", skip=skip)]
        assert isinstance(storage.run(CloseFiles(GROUP, UNITS)), Failed)
        assert disk.listdir("tmp") == []
    assert isinstance(storage.run(CloseFiles(GROUP, UNITS)), FilesClosed)
    assert disk.listdir("tmp") == []
