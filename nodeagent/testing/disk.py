"""An in-memory disk that can lose power, fill up and corrupt data.

Each file has two versions: what a reader sees and what is durable. Writes since the last sync are pending.
`crash` draws the fate of each pending write: kept, lost, kept only as a length, torn at any byte, or kept by
512-byte sectors in any combination. Changes of names are pending until `sync_dir`. After a failed sync the
pending writes count as clean although they are not durable, as on Linux (Rebello et al., ATC 2020).

Each call that changes the disk has a number (`operations`). With `cut_power_at = n`, call number n raises
`PowerCut` before it completes, and so does every later call until `crash`; a test tries each n of a workload.
"""

import errno
from collections.abc import Sequence
from typing import Self

from nodeagent.model.disk import UNFINISHED, Buffer, File, FileStat
from nodeagent.testing.inodes import Change, Directory, Inode, apply
from nodeagent.testing.volume import PowerCut, Volume, path_parts


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


class SimDisk(Volume):
    """`Disk` in memory.

    Args:
        capacity_bytes: when this is exceeded, a write that makes a file longer fails with ENOSPC.
        now_ms: the simulator's clock, for `FileStat.modified_ms`.
    """

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
        temporary = path + UNFINISHED
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
        self.sync_dir("/".join(path_parts(path)[:-1]))

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
        for part in path_parts(path):
            node = directory.seen.get(part)
            if isinstance(node, Inode):
                raise FileExistsError(errno.EEXIST, "exists", path)
            if node is None:
                node = Directory()
                self._change_names("mkdirs", path, [(directory, part, node)])
                self._commit(directory)
            directory = node

    def rmtree(self, path: str) -> None:
        if not path_parts(path):
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

    def total_bytes(self) -> int:
        return self.capacity_bytes
