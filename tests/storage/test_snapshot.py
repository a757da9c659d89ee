"""A snapshot hard-links all files or none, serves them in chunks, and is removed after its time to live."""

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


def test_a_snapshot_keeps_its_files_after_a_delete(disk: SimDisk, storage: Storage) -> None:
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


def test_a_reported_snapshot_is_whole_after_a_power_cut() -> None:
    """This includes a group whose own names are deleted: an index never exists without its files."""
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


def test_a_read_at_the_end_is_empty_and_a_missing_file_is_an_error(storage: Storage) -> None:
    """A read at offset == size returns b""; an offset beyond it, an unknown name and an unknown snapshot are
    errors."""
    files = two_files(storage)
    storage.run(MakeSnapshot(ID, GROUP, files))
    assert storage.read_chunk(ID, files[0].name, files[0].size, 10) == b""
    for offset, length in ((files[0].size + 1, 10), (-1, 10), (0, -1)):
        with pytest.raises(InvalidInput):
            storage.read_chunk(ID, files[0].name, offset, length)
    for snapshot, name in ((ID, "zz"), ("dead", files[0].name)):
        with pytest.raises(NotFound):
            storage.read_chunk(snapshot, name, 0, 10)


def test_a_missing_file_undoes_the_snapshot(disk: SimDisk, storage: Storage) -> None:
    """One missing file fails the snapshot, of which nothing remains."""
    files = two_files(storage)
    disk.unlink(path_of(files[1]))
    result = storage.run(MakeSnapshot(ID, GROUP, files))
    assert isinstance(result, Failed) and result.code == "not_found"
    assert storage.snapshots.ids() == ()


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EMLINK])
def test_a_disk_that_cannot_link_copies(disk: SimDisk, storage: Storage, number: int) -> None:
    """EXDEV and EMLINK lead to a copy with the same bytes."""
    files = two_files(storage)
    disk.faults.append(Fault("link", number, times=9))
    assert storage.run(MakeSnapshot(ID, GROUP, files)) == Done()
    assert [read_all(storage, m.name) for m in files] == [disk.read(path_of(m)) for m in files]


@pytest.mark.parametrize("operation", ["link", "write", "mkdirs", "sync_dir", "rename"])
def test_any_disk_error_undoes_the_snapshot_and_a_retry_succeeds(
    disk: SimDisk, storage: Storage, operation: str
) -> None:
    """A full disk or an I/O error at any step is `Failed`; nothing is served; the same job then succeeds."""
    files = two_files(storage)
    disk.faults.append(Fault(operation, errno.ENOSPC, path="snapshots"))
    result = storage.run(MakeSnapshot(ID, GROUP, files))
    assert isinstance(result, Failed) and result.code == "overloaded"
    with pytest.raises(NotFound):
        storage.read_chunk(ID, files[0].name, 0, 1)
    assert storage.run(MakeSnapshot(ID, GROUP, files)) == Done()


def test_two_files_of_one_name_are_refused(storage: Storage) -> None:
    """The receiver could not distinguish two files of one name."""
    metas = close(storage, unit("a", (1, rows(3))), unit("a", (1, rows(4)), slot=6))
    result = storage.run(MakeSnapshot(ID, GROUP, tuple(metas)))
    assert isinstance(result, Failed) and result.code == "invalid_input"


def test_snapshots_expire_and_are_dropped() -> None:
    """Snapshots that were not read for their time to live are removed, and so are incomplete ones; a second
    drop succeeds.

    The clock is that of the process: timestamps on the disk do not count, because the system clock may jump.
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


def test_a_snapshot_that_cannot_be_removed_keeps_no_other_snapshot(disk: SimDisk, storage: Storage) -> None:
    """Without its index it is not served; the rest of it is removed at a later attempt."""
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


def test_a_directory_that_is_not_a_snapshot_stays_and_does_no_harm(disk: SimDisk, storage: Storage) -> None:
    disk.mkdirs("snapshots/lost+found")
    disk.write_atomic("snapshots/notes.txt", b"of a person")
    storage.run(MakeSnapshot(ID, GROUP, ()))
    assert storage.snapshots.ids() == (ID,)
    assert storage.expire_snapshots(0, 100) == [] and storage.expire_snapshots(101, 100) == [ID]
    assert sorted(disk.listdir("snapshots")) == ["lost+found", "notes.txt"]
