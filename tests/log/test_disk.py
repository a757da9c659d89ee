"""Both disks fulfil the disk contract; further tests cover what only one of them can do."""

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.model.disk import Disk
from nodeagent.model.errors import Refused
from nodeagent.runtime.disk import RealDisk
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.volume import Fault, PowerCut


def test_file_reads_what_was_written_at_any_offset(disk: Disk) -> None:
    """Offsets are explicit, gaps read as zeros, and reads stop at the end."""
    with disk.create("f") as file:
        file.pwrite(4, b"abc")
        file.pwritev(7, [b"d", bytearray(b"ef"), memoryview(b"g")])
        file.zero_fill(11, 3)
        assert file.size() == 14
        assert file.pread(0, 100) == b"\0\0\0\0abcdefg\0\0\0"
        file.truncate(5)
        file.sync()
        assert file.pread(3, 10) == b"\0a"
    assert disk.read("f") == b"\0\0\0\0a"


def test_errors_are_those_of_the_system(disk: Disk) -> None:
    """Missing, existing and escaping paths raise the usual errors."""
    disk.mkdirs("d/e")
    disk.write_atomic("d/f", b"1")
    with pytest.raises(FileNotFoundError):
        disk.read("nothing")
    with pytest.raises(FileNotFoundError):
        disk.open("nothing")
    with pytest.raises(FileExistsError):
        disk.create("d/f")
    with pytest.raises(FileExistsError):
        disk.link("d/f", "d/f")
    for bad in ("../x", "/etc/passwd", "d/../../x", "a\0b"):
        with pytest.raises(ValueError):
            disk.exists(bad)


def test_a_read_that_fails_names_the_file(tmp_path: Path) -> None:
    """The system's error does not name it if the file is open."""
    disk = RealDisk(tmp_path)
    (tmp_path / "bad").symlink_to("/proc/self/mem")
    (tmp_path / "log").mkdir()
    with pytest.raises(OSError, match="Input/output error: 'bad'"):
        disk.read("bad")
    with disk.open("log", read_only=True) as file, pytest.raises(IsADirectoryError, match=": 'log'"):
        file.pread(0, 1)


def test_a_link_that_leads_nowhere_is_looked_at_itself(tmp_path: Path) -> None:
    """A foreign name in the directory must not abort a check of the directory."""
    (tmp_path / "link").symlink_to("nothing")
    found = RealDisk(tmp_path).stat("link")
    assert found.size == len("nothing") and not found.is_dir


def test_names(disk: Disk) -> None:
    """Rename replaces, a link is the same file, rmtree removes everything, listings are sorted."""
    disk.mkdirs("d/e")
    disk.mkdirs("d/e")
    disk.write_atomic("d/b", b"one")
    disk.write_atomic("d/b", b"two")
    disk.link("d/b", "d/a")
    assert disk.stat("d/a").links == 2 and disk.stat("d/a").size == 3 and disk.stat("d").is_dir
    assert disk.listdir("d") == ["a", "b", "e"]
    disk.write_atomic("d/c", b"three")
    disk.rename("d/c", "d/b")
    assert disk.read("d/b") == b"three" and disk.read("d/a") == b"two"
    disk.unlink("d/a")
    disk.rename("d", "moved")
    assert disk.read("moved/b") == b"three" and not disk.exists("d")
    disk.rmtree("moved")
    disk.rmtree("moved")
    assert disk.listdir("") == []
    disk.sync_dir("")
    assert disk.free_bytes() > 0


def test_second_process_is_refused(tmp_path: Path) -> None:
    """The error names the process that holds the lock; the lock ends with that process."""
    disk = RealDisk(tmp_path)
    script = (
        "import sys\nfrom nodeagent.model.errors import Refused\n"
        "from nodeagent.runtime.disk import RealDisk\n"
        "try: RealDisk(sys.argv[1]).lock()\n"
        "except Refused as e: print(e.details['holder']); sys.exit(3)\n"
    )
    call = [sys.executable, "-c", script, str(tmp_path)]
    disk.lock()
    refused = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout.strip()) == (3, str(os.getpid())), refused.stderr
    with pytest.raises(Refused):
        RealDisk(tmp_path).lock()
    disk.unlock()
    assert subprocess.run(call, check=False).returncode == 0
    disk.lock()
    disk.lock()
    disk.unlock()


def test_crash_keeps_the_synced_and_plays_dice_with_the_rest() -> None:
    """Synced bytes and names survive every crash; unsynced ones survive some crashes and are torn in
    others."""
    outcomes = set()
    for seed in range(60):
        disk = SimDisk()
        disk.mkdirs("d")
        file = disk.create("d/f")
        file.pwrite(0, b"a" * 100)
        file.sync()
        disk.sync_dir("d")
        file.pwrite(50, b"b" * 100)
        disk.create("d/g")
        disk.crash(random.Random(seed))
        content = disk.read("d/f")
        assert content[:50] == b"a" * 50
        outcomes.add((content[50:].count(b"b") in (0, 100), disk.exists("d/g")))
        with pytest.raises(PowerCut):
            file.sync()
    assert outcomes == {(True, True), (True, False), (False, True), (False, False)}


def test_rename_is_whole_or_not_at_all() -> None:
    """After a crash a renamed file has exactly one of its two names, even across directories."""
    seen = set()
    for seed in range(30):
        disk = SimDisk()
        disk.mkdirs("a")
        disk.mkdirs("b")
        disk.write_atomic("a/f", b"1")
        disk.rename("a/f", "b/f")
        disk.crash(random.Random(seed))
        found = (disk.exists("a/f"), disk.exists("b/f"))
        assert found in ((True, False), (False, True))
        seen.add(found)
    assert len(seen) == 2


def test_failed_sync_lies_afterwards() -> None:
    """After EIO the next sync succeeds although the bytes are not durable."""
    disk = SimDisk()
    disk.mkdirs("d")
    with disk.create("d/f") as file:
        disk.sync_dir("d")
        file.pwrite(0, b"lost")
        disk.faults.append(Fault("sync"))
        with pytest.raises(OSError):
            file.sync()
        file.sync()
        assert file.pread(0, 4) == b"lost"
    disk.crash(random.Random(1))
    assert disk.read("d/f") == b""


def test_full_disk_and_power_cut() -> None:
    """ENOSPC leaves a partial write; after a power cut every operation fails until the crash is simulated."""
    disk = SimDisk(capacity_bytes=10)
    with disk.create("f") as file:
        with pytest.raises(OSError) as error:
            file.pwrite(0, b"x" * 20)
        assert error.value.errno == errno.ENOSPC and file.size() == 10
        file.pwrite(0, b"y" * 10)
    disk.cut_power_at = disk.operations + 1
    with pytest.raises(PowerCut):
        disk.unlink("f")
    with pytest.raises(PowerCut):
        disk.create("g")
    disk.crash(random.Random(0))
    disk.create("g")


def test_what_is_free_is_what_no_named_file_holds() -> None:
    """After every write, truncation, link, rename, removal and crash, the running count equals the total over
    all files."""
    rng = random.Random(7)
    disk = SimDisk(capacity_bytes=1 << 20)
    names = ["a", "b", "d/a", "d/b", "d/c"]
    disk.mkdirs("d")
    for step in range(2_000):
        one, other = rng.sample(names, 2)
        try:
            match rng.randrange(8):
                case 0 | 1 | 2:
                    with disk.open(one, create=True) as file:
                        file.pwrite(rng.randrange(100), bytes(rng.randrange(50)))
                        if rng.random() < 0.3:
                            file.truncate(rng.randrange(100))
                        if rng.random() < 0.3:
                            disk.unlink(one)
                            file.pwrite(0, bytes(200))
                case 3:
                    disk.link(one, other)
                case 4:
                    disk.rename(one, other)
                case 5:
                    disk.unlink(one)
                case 6:
                    disk.sync_dir(rng.choice(["", "d"]))
                case _:
                    disk.rename("d", "e")
                    disk.rename("e", "d")
        except (FileNotFoundError, FileExistsError):
            pass
        if rng.random() < 0.05:
            disk.sync_dir("")
            disk.sync_dir("d")
            disk.crash(rng)
        found = [disk.stat(name) for name in names if disk.exists(name)]
        assert disk.total_bytes() - disk.free_bytes() == round(sum(f.size / f.links for f in found)), step
