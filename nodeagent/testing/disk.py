"""An in-memory disk that can lose power, fill up and corrupt data.

Each file has two versions: what a reader sees and what is durable. Writes since the last sync are pending.
`crash` draws the fate of each pending write: kept, lost, torn at any byte, or kept by 512-byte sectors in any
combination. Changes of names are pending until `sync_dir`. After a failed sync the pending writes count as
clean although they are not durable, as on Linux (Rebello et al., ATC 2020).

Each call that changes the disk has a number (`operations`). With `cut_power_at = n`, call number n raises
`PowerCut` before it completes, and so does every later call until `crash`; a test tries each n of a workload.
"""

import copy
import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Self

import msgspec

from nodeagent.model.disk import Buffer, File, FileStat
from nodeagent.testing.inodes import Change, Directory, Inode, Node, Used, apply, named_files, overwrite

ENDLESS_BYTES = 1 << 40


class PowerCut(Exception):
    """The machine lost power during this call. Not an `OSError`, so that no code under test handles it."""


class Fault(msgspec.Struct):
    """Make `times` calls of `operation` on paths that contain `path` fail, after `skip` successful calls.

    `operation` is one of: read, write, sync, truncate, create, rename, link, unlink, mkdirs, sync_dir.
    """

    operation: str
    errno: int = errno.EIO
    path: str = ""
    skip: int = 0
    times: int = 1


class SimFile:
    def __init__(self, disk: "SimDisk", inode: Inode, path: str, read_only: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._read_only = read_only
        self._life = disk.crashes
        self.is_open = True

    @property
    def path(self) -> str:
        return self._path

    def _check(self) -> None:
        if not self.is_open:
            raise OSError(errno.EBADF, "file is closed", self._path)
        if self._life != self._disk.crashes:
            raise PowerCut(f"{self._path} was opened before the crash")

    def _change(self, operation: str) -> None:
        self._check()
        if self._read_only:
            raise OSError(errno.EBADF, "opened for reading", self._path)
        self._disk.step(operation, self._path)

    def pread(self, offset: int, length: int) -> bytes:
        self._check()
        self._disk.fail("read", self._path)
        return bytes(self._inode.seen[offset : offset + length])

    def pwrite(self, offset: int, data: Buffer) -> None:
        self._change("write")
        self._disk.reserve(self._inode, offset, data)
        self._inode.write(offset, bytes(data))
        self._inode.modified_ms = self._disk.now_ms()
        self._disk.settle()

    def pwritev(self, offset: int, parts: Sequence[Buffer]) -> None:
        self.pwrite(offset, b"".join(parts))

    def zero_fill(self, offset: int, length: int) -> None:
        self.pwrite(offset, bytes(length))

    def sync(self) -> None:
        try:
            self._change("sync")
        except OSError:
            self._inode.waiting.clear()
            raise
        self._disk.settle()
        self._inode.sync()

    def truncate(self, size: int) -> None:
        self._change("truncate")
        self._inode.truncate(size)
        self._inode.modified_ms = self._disk.now_ms()
        self._disk.settle()

    def size(self) -> int:
        self._check()
        return len(self._inode.seen)

    def close(self) -> None:
        self.is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SimDisk:
    """`Disk` in memory.

    Args:
        capacity_bytes: when this is exceeded, a write that makes a file longer fails with ENOSPC.
        now_ms: the simulator's clock, for `FileStat.modified_ms`.
    """

    def __init__(self, capacity_bytes: int = ENDLESS_BYTES, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.capacity_bytes = capacity_bytes
        self.operations = 0
        self.cut_power_at: int | None = None
        self.crashes = 0
        self.faults: list[Fault] = []
        self.failed: Counter[str] = Counter()
        """How many calls failed because of `faults`, by `operation directory`."""

        self.trace: list[str] = []
        """`operation path` of every change, for failure messages."""

        self.now_ms = now_ms
        self._dead = False
        self._root = Directory()
        self._used = Used()
        self._waiting: list[Change] = []

    # Faults.

    def crash(self, rng: random.Random) -> None:
        """Lose power and restart: each unsynced change is kept, torn or lost, as `rng` draws."""
        kept = [change for change in self._waiting if rng.random() < 0.5]
        self._waiting.clear()
        for change in kept:
            apply(change, durable=True)
        self._used = Used()
        for inode in self._forget_unsynced(self._root):
            inode.crash(rng)
            inode.used, inode.links = self._used, 0
        for inode in named_files(self._root):
            inode.named(1)
        self._revive()

    def restart(self) -> None:
        """End only the process: no data is lost, but its open files become invalid."""
        self._revive()

    def copied(self) -> "SimDisk":
        """A copy of the current content, like a snapshot of the volume."""
        taken = copy.deepcopy(self)
        taken.faults.clear()
        taken.cut_power_at = None
        return taken

    def _revive(self) -> None:
        self._dead = False
        self.cut_power_at = None
        self.crashes += 1

    def _forget_unsynced(self, directory: Directory) -> list[Inode]:
        """Make the durable names the visible ones; returns every inode below `directory` once."""
        directory.seen = dict(directory.durable)
        found: dict[int, Inode] = {}
        for node in directory.seen.values():
            for inode in self._forget_unsynced(node) if isinstance(node, Directory) else [node]:
                found[id(inode)] = inode
        return list(found.values())

    def flip(self, path: str, offset: int, bit: int = 0) -> None:
        """Bit rot: one bit of the stored file changes."""
        inode = self._file(path)
        inode.seen[offset] ^= 1 << bit
        if offset < len(inode.durable):
            inode.durable[offset] ^= 1 << bit

    def written(self, path: str) -> int:
        """Length of the file without the zeros at its end, which are preallocated."""
        return len(self._file(path).seen.rstrip(b"\0"))

    def misdirect(self, source: str, at: int, path: str, to: int, length: int) -> None:
        """Copy bytes to another place of the same or another file, as a misdirected write does."""
        stray, inode = bytes(self._file(source).seen[at : at + length]), self._file(path)
        before = len(inode.seen)
        overwrite(inode.seen, to, stray)
        inode.resized(before)
        if to + len(stray) <= len(inode.durable):
            overwrite(inode.durable, to, stray)

    def fail(self, operation: str, path: str) -> None:
        """Raise the fault planned for this call, if there is one."""
        for fault in self.faults:
            if fault.operation != operation or fault.path not in path or not fault.times:
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.times -= 1
            self.failed[f"{operation} {(fault.path or path).partition('/')[0]}"] += 1
            raise OSError(fault.errno, os.strerror(fault.errno), path)

    def step(self, operation: str, path: str) -> None:
        """Begin a numbered change."""
        if self._dead:
            raise PowerCut("the power is off")
        self.operations += 1
        self.trace.append(f"{operation} {path}")
        self.fail(operation, path)

    def settle(self) -> None:
        """End the change; the power may fail here."""
        if self.cut_power_at is not None and self.operations >= self.cut_power_at:
            self._dead = True
            raise PowerCut(f"operation {self.operations}: {self.trace[-1]}")

    def reserve(self, inode: Inode, offset: int, data: Buffer) -> None:
        """Write what fits of `data` and raise ENOSPC if the file would grow beyond the capacity."""
        growth = offset + len(data) - len(inode.seen)
        if growth <= 0 or self.capacity_bytes >= ENDLESS_BYTES:
            return
        room = self.free_bytes() - growth
        if room < 0:
            fits = max(0, len(data) + room)
            inode.write(offset, bytes(data[:fits]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # Looking up.

    def _node(self, path: str) -> Node:
        node: Node = self._root
        for part in _parts(path):
            if isinstance(node, Inode):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            found = node.seen.get(part)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
            node = found
        return node

    def _file(self, path: str) -> Inode:
        node = self._node(path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return node

    def _dir(self, path: str) -> Directory:
        node = self._node(path)
        if isinstance(node, Inode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return node

    def _place(self, path: str) -> tuple[Directory, str]:
        parts = _parts(path)
        if not parts:
            raise ValueError("the root has no name")
        return self._dir("/".join(parts[:-1])), parts[-1]

    # Files.

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        if create and not read_only and not self.exists(path):
            return self.create(path)
        if self._dead:
            raise PowerCut("the power is off")
        return SimFile(self, self._file(path), path, read_only)

    def create(self, path: str) -> File:
        directory, name = self._place(path)
        if name in directory.seen:
            raise FileExistsError(errno.EEXIST, "exists", path)
        inode = Inode(self._used, self.now_ms())
        self._change_names("create", path, [(directory, name, inode)])
        return SimFile(self, inode, path, False)

    def read(self, path: str) -> bytes:
        self.fail("read", path)
        return bytes(self._file(path).seen)

    def write_atomic(self, path: str, data: Buffer) -> None:
        temporary = path + ".tmp"
        try:
            with self.open(temporary, create=True) as file:
                file.truncate(0)
                file.pwrite(0, data)
                file.sync()
            self.rename(temporary, path)
        except OSError:
            if self.exists(temporary):
                self.unlink(temporary)
            raise
        self.sync_dir("/".join(_parts(path)[:-1]))

    # Names.

    def _change_names(self, operation: str, path: str, change: Change) -> None:
        self.step(operation, path)
        apply(change, durable=False)
        self._waiting.append(change)
        self.settle()

    def rename(self, old: str, new: str) -> None:
        node = self._node(old)
        source, source_name = self._place(old)
        target, target_name = self._place(new)
        there = target.seen.get(target_name)
        if isinstance(there, Directory) and there.seen:
            raise OSError(errno.ENOTEMPTY, "directory not empty", new)
        if there is not node:
            change: Change = [(source, source_name, None), (target, target_name, node)]
            self._change_names("rename", f"{old} {new}", change)

    def link(self, old: str, new: str) -> None:
        inode = self._file(old)
        directory, name = self._place(new)
        if name in directory.seen:
            raise FileExistsError(errno.EEXIST, "exists", new)
        self._change_names("link", f"{old} {new}", [(directory, name, inode)])

    def unlink(self, path: str) -> None:
        self._file(path)
        directory, name = self._place(path)
        self._change_names("unlink", path, [(directory, name, None)])

    def mkdirs(self, path: str) -> None:
        directory = self._root
        for part in _parts(path):
            node = directory.seen.get(part)
            if isinstance(node, Inode):
                raise FileExistsError(errno.EEXIST, "exists", path)
            if node is None:
                node = Directory()
                self._change_names("mkdirs", path, [(directory, part, node)])
                self._commit(directory)
            directory = node

    def rmtree(self, path: str) -> None:
        if not _parts(path):
            raise ValueError("the root directory cannot be removed")
        if not self.exists(path):
            return
        node = self._node(path)
        directory, name = self._place(path)
        if isinstance(node, Directory):
            for child in sorted(node.seen):
                self.rmtree(f"{path}/{child}")
        self._change_names("unlink", path, [(directory, name, None)])

    def listdir(self, path: str) -> list[str]:
        return sorted(self._dir(path).seen)

    def exists(self, path: str) -> bool:
        try:
            self._node(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def stat(self, path: str) -> FileStat:
        node = self._node(path)
        if isinstance(node, Directory):
            return FileStat(0, True, 1, self.now_ms())
        return FileStat(len(node.seen), False, node.links, node.modified_ms)

    def sync_dir(self, path: str) -> None:
        directory = self._dir(path)
        self.step("sync_dir", path)
        self.settle()
        self._commit(directory)

    def _commit(self, directory: Directory) -> None:
        """Make the names of `directory` durable, and all names that share a change with them or precede
        it."""
        tied = {id(directory)}
        chosen: list[Change] = []
        rest: list[Change] = []
        for change in reversed(self._waiting):
            if tied.isdisjoint(id(place) for place, _, _ in change):
                rest.append(change)
            else:
                tied.update(id(place) for place, _, _ in change)
                chosen.append(change)
        for change in reversed(chosen):
            apply(change, durable=True)
        self._waiting = rest[::-1]

    def free_bytes(self) -> int:
        return self.capacity_bytes - self._used.bytes

    def total_bytes(self) -> int:
        return self.capacity_bytes


@lru_cache(maxsize=1 << 14)
def _parts(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in PurePosixPath(path).parts if part != ".")
    if path.startswith("/") or "\0" in path or ".." in parts:
        raise ValueError(f"path {path!r} is not below the root")
    return parts
