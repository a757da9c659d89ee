"""Hard links all-or-nothing, served in chunks, gone after their time."""

import errno
import random

import pytest

from nodeagent.model.errors import InvalidInput, NotFound
from nodeagent.model.files import FileMeta
from nodeagent.model.jobs import DeleteFiles, Done, DropSnapshot, Failed, MakeSnapshot
from nodeagent.storage.executor import Storage
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.volume import Fault

from .units import GROUP, close, path_of, room, rows, unit

ID = "abc123"


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def storage(disk: SimDisk) -> Storage:
    return room(disk)


def two_files(storage: Storage) -> tuple[FileMeta, ...]:
    return tuple(close(storage, unit("a", (1, rows(20))), unit("b", (1, rows(9)), slot=6)))


def read_all(storage: Storage, name: str, step: int = 100) -> bytes:
    content = b""
    while chunk := storage.read_chunk(ID, name, len(content), step):
        content += chunk
    return content


def test_links_keep_the_bytes_after_a_delete(disk: SimDisk, storage: Storage) -> None:
    """A snapshot serves its files by name and offset, whatever is deleted in the group."""
    files = two_files(storage)
    want = [disk.read(path_of(m)) for m in files]
    assert storage.run(MakeSnapshot(ID, GROUP, files, b"payload")) == Done()
    assert storage.run(MakeSnapshot(ID, GROUP, files, b"payload")) == Done()
    storage.run(DeleteFiles(GROUP, files))
    storage.run(DeleteFiles(GROUP, files))
    assert storage.files.hash(GROUP, files[0]) == "missing"
    assert [read_all(storage, m.name) for m in files] == want
    assert read_all(storage, "payload") == b"payload"
    assert storage.snapshots.index(ID).files == files


def test_what_was_answered_as_a_snapshot_is_whole_after_a_power_cut() -> None:
    """Also when the group's own names are gone: nobody may find an index and not the files."""
    for seed in range(10):
        disk = SimDisk()
        storage = room(disk)
        files = two_files(storage)
        want = [disk.read(path_of(m)) for m in files]
        assert storage.run(MakeSnapshot(ID, GROUP, files, b"payload")) == Done()
        storage.run(DeleteFiles(GROUP, files))
        disk.crash(random.Random(seed))
        storage = room(disk)
        assert storage.snapshots.index(ID).files == files
        assert [read_all(storage, m.name) for m in files] == want
        assert read_all(storage, "payload") == b"payload"


def test_ends_are_empty_and_absences_are_errors(storage: Storage) -> None:
    """Offset == size is b""; beyond it, an unknown name or an unknown snapshot is never an empty read."""
    files = two_files(storage)
    storage.run(MakeSnapshot(ID, GROUP, files))
    assert storage.read_chunk(ID, files[0].name, files[0].size, 10) == b""
    for offset, length in ((files[0].size + 1, 10), (-1, 10), (0, -1)):
        with pytest.raises(InvalidInput):
            storage.read_chunk(ID, files[0].name, offset, length)
    for snapshot, name in ((ID, "zz"), ("dead", files[0].name)):
        with pytest.raises(NotFound):
            storage.read_chunk(snapshot, name, 0, 10)


def test_missing_file_undoes_all(disk: SimDisk, storage: Storage) -> None:
    """One missing file fails the snapshot and leaves nothing of it."""
    files = two_files(storage)
    disk.unlink(path_of(files[1]))
    result = storage.run(MakeSnapshot(ID, GROUP, files))
    assert isinstance(result, Failed) and result.code == "not_found"
    assert storage.snapshots.ids() == ()


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EMLINK])
def test_a_disk_that_cannot_link_copies(disk: SimDisk, storage: Storage, number: int) -> None:
    """EXDEV and EMLINK fall back to a copy with the same bytes."""
    files = two_files(storage)
    disk.faults.append(Fault("link", number, times=9))
    assert storage.run(MakeSnapshot(ID, GROUP, files)) == Done()
    assert [read_all(storage, m.name) for m in files] == [disk.read(path_of(m)) for m in files]


@pytest.mark.parametrize("operation", ["link", "write", "mkdirs", "sync_dir", "rename"])
def test_any_disk_error_undoes_and_a_retry_succeeds(disk: SimDisk, storage: Storage, operation: str) -> None:
    """No space or an IO error at any step is `Failed`; nothing is served; the same job then works."""
    files = two_files(storage)
    disk.faults.append(Fault(operation, errno.ENOSPC, path="snapshots"))
    result = storage.run(MakeSnapshot(ID, GROUP, files))
    assert isinstance(result, Failed) and result.code == "overloaded"
    with pytest.raises(NotFound):
        storage.read_chunk(ID, files[0].name, 0, 1)
    assert storage.run(MakeSnapshot(ID, GROUP, files)) == Done()


def test_names_must_differ(storage: Storage) -> None:
    """Two files of one name could not be told apart by the puller."""
    metas = close(storage, unit("a", (1, rows(3))), unit("a", (1, rows(4)), slot=6))
    result = storage.run(MakeSnapshot(ID, GROUP, tuple(metas)))
    assert isinstance(result, Failed) and result.code == "invalid_input"


def test_expiry_and_drop() -> None:
    """Snapshots go when nobody read from them for their time, and unfinished ones; dropping twice is fine.

    The time is the process's own: that of the disk, which a clock that jumped wrote, does not count.
    """
    now = 1000
    disk = SimDisk(now_ms=lambda: now + 3_600_000)
    storage = room(disk)
    storage.run(MakeSnapshot(ID, GROUP, ()))
    disk.mkdirs("snapshots/0ff/files")
    assert storage.expire_snapshots(now, 100) == ["0ff"]
    assert storage.snapshots.ids() == (ID,)
    assert storage.expire_snapshots(now + 100, 100) == []
    assert storage.expire_snapshots(now + 101, 100) == [ID]
    assert storage.run(DropSnapshot(ID)) == Done()


def test_a_snapshot_that_the_disk_does_not_remove_keeps_no_other(disk: SimDisk, storage: Storage) -> None:
    """Without its index it serves nobody; what is left of it goes at a later try."""
    for snapshot in ("0a", "0b"):
        storage.run(MakeSnapshot(snapshot, GROUP, (), b"state"))
    assert storage.expire_snapshots(0, 100) == []
    disk.faults.append(Fault("unlink", errno.EIO, "0a/payload"))
    disk.faults.append(Fault("unlink", errno.EIO, "0b/index"))
    assert storage.expire_snapshots(101, 100) == ["0a"] and storage.snapshots.ids() == ("0a", "0b")
    assert storage.expire_snapshots(102, 100) == ["0a", "0b"] and storage.snapshots.ids() == ()


def test_a_snapshot_lives_while_it_is_read_from() -> None:
    """A pull may take longer than the time to live."""
    disk = SimDisk(now_ms=lambda: 1000)
    storage = room(disk)
    storage.run(MakeSnapshot(ID, GROUP, ()))
    for now in range(1080, 2000, 80):
        storage.read_chunk(ID, "payload", 0, 1)
        assert storage.expire_snapshots(now, 100) == []
    assert storage.expire_snapshots(now + 100, 100) == []
    assert storage.expire_snapshots(now + 101, 100) == [ID]


def test_what_is_no_snapshot_stays_and_disturbs_no_other(disk: SimDisk, storage: Storage) -> None:
    disk.mkdirs("snapshots/lost+found")
    disk.write_atomic("snapshots/notes.txt", b"of a person")
    storage.run(MakeSnapshot(ID, GROUP, ()))
    assert storage.snapshots.ids() == (ID,)
    assert storage.expire_snapshots(0, 100) == [] and storage.expire_snapshots(101, 100) == [ID]
    assert sorted(disk.listdir("snapshots")) == ["lost+found", "notes.txt"]
