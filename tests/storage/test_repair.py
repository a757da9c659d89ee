"""A damaged file makes room for a good one: never neither, and the damaged bytes are kept."""

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
"""Crashes per cut: what was not synced may stay or go, each for itself."""


def healthy() -> tuple[Storage, FileMeta, bytes]:
    """Another replica: its room with a snapshot of the one file, the file's row, its bytes."""
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
    """The same file with one bit flipped."""
    disk = SimDisk()
    storage = room(disk)
    close(storage, unit("f", (1, rows(60))))
    disk.flip(path_of(META), 40)
    return disk, storage, disk.read(path_of(META))


def kept(disk: SimDisk) -> list[bytes]:
    directory = layout.quarantine_dir(GROUP)
    names = disk.listdir(directory) if disk.exists(directory) else []
    return [disk.read(f"{directory}/{name}") for name in names]


def test_the_damaged_file_is_kept_and_the_good_one_in_place() -> None:
    """Also once more, which changes nothing; nothing is left in staging."""
    disk, storage, bad = damaged()
    first = repair(storage)
    assert disk.read(path_of(META)) == GOOD and disk.read(first.quarantined) == bad
    assert first.quarantined.startswith(f"quarantine/{GROUP}/00005-f.")
    assert repair(storage) == FileReplaced("")
    assert kept(disk) == [bad] and not storage.staging.operations()


def test_power_cut_anywhere_leaves_one_of_both_and_never_loses_the_damaged_bytes() -> None:
    """Until the good file is durable the damaged one is, under either name; asking again ends it."""
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
            assert found in (GOOD, bad), f"neither after cut {cut}"
            assert bad in (found, *kept(disk)), f"the damaged bytes are lost after cut {cut}"
            assert found == GOOD or not answered
            assert not storage.staging.operations()
            seen.add(found == GOOD)
            repair(storage)
            assert disk.read(path_of(META)) == GOOD and kept(disk) == [bad]
    assert cut > 8 and seen == {True, False}


def test_a_missing_file_and_a_missing_directory_are_filled() -> None:
    """There is nothing to keep."""
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


def test_a_full_quarantine_refuses_and_throws_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept stays kept until a person removes it."""
    monkeypatch.setattr(quarantine, "QUARANTINE_FILES_MAX", 1)
    disk, storage, bad = damaged()
    repair(storage)
    disk.flip(path_of(META), 90)
    other = disk.read(path_of(META))
    stage(storage)
    result = storage.run(ReplaceFile(GROUP, META))
    assert isinstance(result, Failed) and result.code == "overloaded" and "quarantine" in result.what
    assert disk.read(path_of(META)) == other and kept(disk) == [bad]


def test_a_file_the_disk_cannot_read_is_told_and_replaced() -> None:
    """A bad sector fails neither the check of the other files nor the repair of this one."""
    disk, storage, _ = damaged()
    disk.faults.append(Fault("read", errno.EIO, path="slots/", times=1))
    assert storage.run(HashFiles(GROUP, (META,))) == FilesHashed(((META.name, "unreadable"),))
    disk.faults.append(Fault("read", errno.EIO, path="slots/", times=1))
    assert repair(storage).quarantined.endswith(".unreadable-0")
    assert disk.read(path_of(META)) == GOOD


def test_a_copy_cut_short_in_quarantine_is_made_again() -> None:
    """Where the disk cannot link, an earlier release left parts of files in quarantine."""
    disk, storage, bad = damaged()
    found = storage.files.hash(GROUP, META)
    disk.mkdirs(layout.quarantine_dir(GROUP))
    with disk.create(layout.quarantine_path(GROUP, META.slot, META.name, found)) as part:
        part.pwrite(0, bad[:10])
    disk.faults.append(Fault("link", errno.EXDEV, times=9))
    repair(storage)
    assert kept(disk) == [bad]


def test_a_repair_is_done_also_when_its_area_cannot_be_removed() -> None:
    """It says so, and whoever asked has it dropped later."""
    disk, storage, bad = damaged()
    disk.faults.append(Fault("unlink", errno.EIO, path="staging/"))
    found = repair(storage)
    assert "Input/output error" in found.left
    assert disk.read(path_of(META)) == GOOD and disk.read(found.quarantined) == bad
    assert storage.run(DropStaging(repair_area(GROUP))) == Done() and not storage.staging.operations()
