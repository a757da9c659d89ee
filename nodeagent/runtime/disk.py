"""The real disk: system calls below one root directory."""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Sequence
from typing import Self

from nodeagent.model.disk import UNFINISHED, Buffer, File, FileStat
from nodeagent.model.errors import Refused

LOCK_NAME = "LOCK"
_ZEROS = bytes(1 << 20)
_FILE_MODE = 0o640
_DIR_MODE = 0o750


class RealFile:
    """One open file descriptor. `path` is the path at the time of opening; a rename does not change it."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def pread(self, offset: int, length: int) -> bytes:
        try:
            piece = os.pread(self._fd, length, offset)
            if len(piece) == length or not piece:
                return piece
            pieces = [piece]
            have = len(piece)
            while have < length and (piece := os.pread(self._fd, length - have, offset + have)):
                pieces.append(piece)
                have += len(piece)
            return b"".join(pieces)
        except OSError as error:
            error.filename = self._path
            raise

    def pwrite(self, offset: int, data: Buffer) -> None:
        written = os.pwrite(self._fd, data, offset)
        if written == len(data):
            return
        with memoryview(data) as view:
            while written < len(data):
                written += os.pwrite(self._fd, view[written:], offset + written)

    def pwritev(self, offset: int, parts: Sequence[Buffer]) -> None:
        total = sum(map(len, parts))
        if len(parts) <= 1000 and os.pwritev(self._fd, parts, offset) == total:
            return
        # A short write, or more parts than one system call takes: write again from one buffer.
        self.pwrite(offset, b"".join(parts))

    def zero_fill(self, offset: int, length: int) -> None:
        with memoryview(_ZEROS) as zeros:
            while length > 0:
                step = min(length, len(zeros))
                self.pwrite(offset, zeros[:step])
                offset += step
                length -= step

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class RealDisk:
    """`Disk` over the directory `root`, which is created if it is missing.

    Every call is a blocking system call; the lock is the only state, so threads may share the object.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(os.fspath(root))
        self._lock_fd = -1
        os.makedirs(self._root, mode=_DIR_MODE, exist_ok=True)

    @property
    def root(self) -> str:
        return self._root

    def real_path(self, path: str) -> str:
        """The absolute path, for a worker process that opens the file itself."""
        return self._at(path)

    def _at(self, path: str) -> str:
        if path.startswith("/") or "\0" in path or ".." in path.split("/"):
            raise ValueError(f"path {path!r} is not below the root")
        return os.path.join(self._root, path) if path else self._root

    # The lock against a second process.

    def lock(self) -> None:
        """Lock the directory for this process; the system releases the lock when the process ends.

        Raises:
            Refused: another process holds the lock.
        """
        if self._lock_fd >= 0:
            return
        fd = os.open(self._at(LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 64, 0).decode("ascii", "replace").strip()
            os.close(fd)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise Refused(
                f"directory {self._root} is in use by process {holder or 'unknown'}",
                next_step="stop the node agent that runs on this directory, then try again",
                directory=self._root,
                holder=holder,
            ) from None
        with contextlib.suppress(OSError):  # the pid is for messages only: start even on a full disk
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = fd

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            fd, self._lock_fd = self._lock_fd, -1
            os.close(fd)

    # Files.

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create and not read_only:
            flags |= os.O_CREAT
        return RealFile(os.open(self._at(path), flags | os.O_CLOEXEC, _FILE_MODE), path)

    def create(self, path: str) -> File:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return RealFile(os.open(self._at(path), flags, _FILE_MODE), path)

    def read(self, path: str) -> bytes:
        try:
            with open(self._at(path), "rb", buffering=0) as file:
                return file.readall()
        except OSError as error:
            error.filename = error.filename or path
            raise

    def write_atomic(self, path: str, data: Buffer) -> None:
        target = self._at(path)
        temporary = target + UNFINISHED
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            with RealFile(os.open(temporary, flags, _FILE_MODE), path) as file:
                file.pwrite(0, data)
                file.sync()
            os.rename(temporary, target)
        except OSError:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            raise
        _sync_dir(os.path.dirname(target))

    # Names.

    def rename(self, old: str, new: str) -> None:
        os.rename(self._at(old), self._at(new))

    def link(self, old: str, new: str) -> None:
        os.link(self._at(old), self._at(new))

    def unlink(self, path: str) -> None:
        os.unlink(self._at(path))

    def mkdirs(self, path: str) -> None:
        at = self._at(path)
        missing: list[str] = []
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        for made in reversed(missing):
            os.makedirs(made, mode=_DIR_MODE, exist_ok=True)
            _sync_dir(os.path.dirname(made))

    def rmtree(self, path: str) -> None:
        at = self._at(path)
        if at == self._root:
            raise ValueError("the root itself must not be removed")
        if os.path.lexists(at):
            shutil.rmtree(at)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(self._at(path)))

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._at(path))

    def stat(self, path: str) -> FileStat:
        found = os.stat(self._at(path), follow_symlinks=False)
        is_dir = (found.st_mode & 0o170000) == 0o040000
        return FileStat(found.st_size, is_dir, found.st_nlink, found.st_mtime_ns // 1_000_000)

    def sync_dir(self, path: str) -> None:
        _sync_dir(self._at(path))

    def free_bytes(self) -> int:
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def total_bytes(self) -> int:
        found = os.statvfs(self._root)
        return found.f_blocks * found.f_frsize


def _sync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
