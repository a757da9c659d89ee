"""A good file replaces a damaged one: one of both always exists, and the damaged bytes are kept."""

import errno
import random

import pytest

from nodeagent.model.files import FileMeta, FileRef
from nodeagent.model.jobs import (
    Done,
    DropStaging,
    Failed,
    FileReplaced,
    FilesHashed,
    FilesStaged,
    HashFiles,
    MakeSnapshot,
    ReplaceFile,
    StagedFile,
    StageFiles,
    repair_area,
)
from nodeagent.storage import layout, quarantine
from nodeagent.storage.executor import Storage
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.volume import Fault, PowerCut

from .units import GROUP, close, path_of, room, rows, unit

SNAP = "5a"
DICE = 12
"""Crashes per cut: each unsynced change may be kept or lost separately."""


def healthy() -> tuple[Storage, FileMeta, bytes]:
    """Another replica: its storage with a snapshot of the one file, the row of the file, and its bytes."""
    disk = SimDisk()
    storage = room(disk)
    (meta,) = close(storage, unit("f", (1, rows(60))))
    storage.run(MakeSnapshot(SNAP, GROUP, (meta,)))
    return storage, meta, disk.read(path_of(meta))


SOURCE, META, GOOD = healthy()


def stage(storage: Storage) -> None:
    wanted = StagedFile(META, (FileRef("a", SNAP, META.name, META.size, META.xxh3),))
    job = StageFiles(repair_area(GROUP), GROUP, (wanted,))
    result = storage.run_pull(job, lambda n, s, f, o, c: SOURCE.read_chunk(s, f, o, c))
    assert isinstance(result, FilesStaged) and not result.failed, result


def repair(storage: Storage) -> FileReplaced:
    stage(storage)
    result = storage.run(ReplaceFile(GROUP, META))
    assert isinstance(result, FileReplaced), result
    return result


def damaged() -> tuple[SimDisk, Storage, bytes]:
    """The same file with one flipped bit."""
    disk = SimDisk()
    storage = room(disk)
    close(storage, unit("f", (1, rows(60))))
    disk.flip(path_of(META), 40)
    return disk, storage, disk.read(path_of(META))


def kept(disk: SimDisk) -> list[bytes]:
    directory = layout.quarantine_dir(GROUP)
    names = disk.listdir(directory) if disk.exists(directory) else []
    return [disk.read(f"{directory}/{name}") for name in names]


def test_the_damaged_file_is_kept_and_the_good_one_replaces_it() -> None:
    """A repetition changes nothing; nothing remains in staging."""
    disk, storage, bad = damaged()
    first = repair(storage)
    assert disk.read(path_of(META)) == GOOD and disk.read(first.quarantined) == bad
    assert first.quarantined.startswith(f"quarantine/{GROUP}/00005-f.")
    assert repair(storage) == FileReplaced("")
    assert kept(disk) == [bad] and not storage.staging.operations()


def test_a_power_cut_leaves_one_of_both_files_and_never_loses_the_damaged_bytes() -> None:
    """Until the good file is durable, the damaged one exists under one of two names; a retry completes the
    repair."""
    seen = set()
    cut, answered = 0, False
    while not answered:
        cut += 1
        for die in range(DICE):
            disk, storage, bad = damaged()
            disk.cut_power_at = disk.operations + cut
            try:
                repair(storage)
                answered = True
            except PowerCut:
                pass
            disk.crash(random.Random(cut * DICE + die))
            storage = room(disk)
            found = disk.read(path_of(META))
            assert found in (GOOD, bad), f"neither file exists after cut {cut}"
            assert bad in (found, *kept(disk)), f"the damaged bytes are lost after cut {cut}"
            assert found == GOOD or not answered
            assert not storage.staging.operations()
            seen.add(found == GOOD)
            repair(storage)
            assert disk.read(path_of(META)) == GOOD and kept(disk) == [bad]
    assert cut > 8 and seen == {True, False}


def test_a_missing_file_and_a_missing_directory_are_restored() -> None:
    """There is no damaged file to keep."""
    disk = SimDisk()
    storage = room(disk)
    assert repair(storage) == FileReplaced("")
    assert disk.read(path_of(META)) == GOOD and not kept(disk)


def test_without_a_staged_file_nothing_changes() -> None:
    """The damaged file stays where it is."""
    disk, storage, bad = damaged()
    result = storage.run(ReplaceFile(GROUP, META))
    assert isinstance(result, Failed) and result.code == "not_found"
    assert disk.read(path_of(META)) == bad and not kept(disk)


def test_a_full_quarantine_refuses_the_repair_and_discards_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarantined file stays until an operator removes it."""
    monkeypatch.setattr(quarantine, "QUARANTINE_FILES_MAX", 1)
    disk, storage, bad = damaged()
    repair(storage)
    disk.flip(path_of(META), 90)
    other = disk.read(path_of(META))
    stage(storage)
    result = storage.run(ReplaceFile(GROUP, META))
    assert isinstance(result, Failed) and result.code == "overloaded" and "quarantine" in result.what
    assert disk.read(path_of(META)) == other and kept(disk) == [bad]


def test_an_unreadable_file_is_reported_and_replaced() -> None:
    """A bad sector fails neither the check of the other files nor the repair of this file."""
    disk, storage, _ = damaged()
    disk.faults.append(Fault("read", errno.EIO, path="slots/", times=1))
    assert storage.run(HashFiles(GROUP, (META,))) == FilesHashed(((META.name, "unreadable"),))
    disk.faults.append(Fault("read", errno.EIO, path="slots/", times=1))
    assert repair(storage).quarantined.endswith(".unreadable-0")
    assert disk.read(path_of(META)) == GOOD


def test_an_incomplete_copy_in_quarantine_is_replaced() -> None:
    """The disk cannot link, and an earlier release left parts of files in quarantine."""
    disk, storage, bad = damaged()
    found = storage.files.hash(GROUP, META)
    disk.mkdirs(layout.quarantine_dir(GROUP))
    with disk.create(layout.quarantine_path(GROUP, META.slot, META.name, found)) as part:
        part.pwrite(0, bad[:10])
    disk.faults.append(Fault("link", errno.EXDEV, times=9))
    repair(storage)
    assert kept(disk) == [bad]


def test_a_repair_succeeds_even_if_its_staging_area_cannot_be_removed() -> None:
    """The result contains the error, and the caller has the area dropped later."""
    disk, storage, bad = damaged()
    disk.faults.append(Fault("unlink", errno.EIO, path="staging/"))
    found = repair(storage)
    assert "Input/output error" in found.left
    assert disk.read(path_of(META)) == GOOD and disk.read(found.quarantined) == bad
    assert storage.run(DropStaging(repair_area(GROUP))) == Done() and not storage.staging.operations()
