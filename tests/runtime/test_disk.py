"""The system calls of the real disk, in order: they decide what survives a crash of the machine."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeagent.runtime.disk import RealDisk

CHANGES = ("pwrite", "pwritev", "fdatasync", "fsync", "rename", "makedirs", "unlink")


class Calls:
    """Records the calls that change the disk, by file name; the call `fail` fails."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.made: list[str] = []
        self.fail = ""
        for name in CHANGES:
            monkeypatch.setattr(os, name, self._told(name, getattr(os, name)))

    def _told(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def told(first: int | str, *others: Any, **options: Any) -> Any:
            path = first if isinstance(first, str) else os.readlink(f"/proc/self/fd/{first}")
            self.made.append(f"{name} {os.path.relpath(path, self.root)}")
            if self.fail and self.made[-1].startswith(self.fail):
                raise OSError(errno.EIO, "planned", path)
            return call(first, *others, **options)

        return told


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RealDisk, Calls]:
    disk = RealDisk(tmp_path)
    return disk, Calls(tmp_path, monkeypatch)


def test_a_file_is_synced_before_it_gets_its_name_and_its_name_after(calls: tuple[RealDisk, Calls]) -> None:
    disk, seen = calls
    disk.mkdirs("a")
    seen.made.clear()
    disk.write_atomic("a/file", b"content")
    assert seen.made == ["pwrite a/file.tmp", "fdatasync a/file.tmp", "rename a/file.tmp", "fsync a"]
    assert disk.read("a/file") == b"content"


@pytest.mark.parametrize("fails", ["pwrite", "fdatasync", "rename"])
def test_a_file_that_could_not_be_written_whole_replaces_nothing(
    calls: tuple[RealDisk, Calls], fails: str
) -> None:
    disk, seen = calls
    disk.write_atomic("file", b"old")
    seen.fail = fails
    with pytest.raises(OSError, match="planned"):
        disk.write_atomic("file", b"new")
    assert disk.read("file") == b"old" and disk.listdir("") == ["file"]


def test_a_name_that_could_not_be_synced_is_an_error(calls: tuple[RealDisk, Calls]) -> None:
    disk, seen = calls
    seen.fail = "fsync"
    with pytest.raises(OSError, match="planned"):
        disk.write_atomic("file", b"new")
    with pytest.raises(OSError, match="planned"):
        disk.sync_dir("")


def test_each_new_directory_is_synced_in_the_one_above(calls: tuple[RealDisk, Calls]) -> None:
    disk, seen = calls
    disk.mkdirs("a/b/c")
    assert seen.made == ["makedirs a", "fsync .", "makedirs a/b", "fsync a", "makedirs a/b/c", "fsync a/b"]
    seen.made.clear()
    disk.mkdirs("a/b/c")
    assert seen.made == []


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes a write of many parts, which is repeated as one buffer."""
    whole_write, whole_writev = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole_write(fd, bytes(data)[:3], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: whole_writev(fd, [b"".join(parts)[:3]], at))
    disk = RealDisk(tmp_path)
    with disk.create("file") as file:
        file.pwrite(0, b"0123456789")
        file.pwritev(10, [b"abcd", b"efgh"])
        file.zero_fill(18, 7)
    assert disk.read("file") == b"0123456789abcdefgh" + bytes(7)
