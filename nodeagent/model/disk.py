"""The disk as a protocol: one root directory and relative POSIX paths.

The packages `log` and `storage` use the disk only through this protocol; `RealDisk` implements it with system
calls and `SimDisk` with a model that can lose power. No call is asynchronous, and no two threads use the same
file at once.

Errors: every call raises `OSError` with the errno the system would give (ENOENT, EEXIST, ENOSPC, EIO,
EXDEV...). A path that leaves the root is a `ValueError`.

Durability, the same promise as a POSIX file system and no more:

- bytes are durable after `File.sync` on that file, a file's length too;
- a name (create, rename, link, unlink) is durable after `sync_dir` on the directory that holds it;
- only the effects of `write_atomic` and `mkdirs` are durable when the call returns.
"""

from collections.abc import Sequence
from typing import Protocol, Self

import msgspec

Buffer = bytes | bytearray | memoryview

UNFINISHED = ".tmp"
"""Suffix of the file that `write_atomic` renames at its end; a crash can leave it."""


class FileStat(msgspec.Struct, frozen=True):
    """`size` in bytes, `modified_ms` in milliseconds since the epoch."""

    size: int
    is_dir: bool
    links: int
    modified_ms: int


class File(Protocol):
    """One open file. Offsets are explicit; there is no position."""

    @property
    def path(self) -> str: ...

    def pread(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; shorter only at the end of the file."""
        ...

    def pwrite(self, offset: int, data: Buffer) -> None:
        """Write all of `data`. On error any prefix of it may have been written."""
        ...

    def pwritev(self, offset: int, parts: Sequence[Buffer]) -> None:
        """Write all parts, one after the other, from `offset` on."""
        ...

    def zero_fill(self, offset: int, length: int) -> None:
        """Write zeros, so that a later `sync` of this region writes no metadata."""
        ...

    def sync(self) -> None:
        """fdatasync. After an error the caller may not assume that anything is durable."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class Disk(Protocol):
    """All paths are relative to the root; "" is the root itself."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open for reading and writing. `create` makes a missing file and leaves an existing one as it is."""
        ...

    def create(self, path: str) -> File:
        """Make a new file and open it; `FileExistsError` if the file exists."""
        ...

    def read(self, path: str) -> bytes:
        """The whole file."""
        ...

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace the file as a whole: temporary file (`path` + `UNFINISHED`), sync, rename, sync of the
        directory."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename `old`; replaces `new` if it exists."""
        ...

    def link(self, old: str, new: str) -> None:
        """Make a hard link. `FileExistsError` if `new` exists; EXDEV if the system cannot link there."""
        ...

    def unlink(self, path: str) -> None: ...

    def mkdirs(self, path: str) -> None:
        """Make the directory and its missing parents; each parent that changed is synced."""
        ...

    def rmtree(self, path: str) -> None:
        """Remove the directory and everything below it. A missing directory is not an error."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Names, sorted. A missing directory is `FileNotFoundError`."""
        ...

    def exists(self, path: str) -> bool: ...

    def stat(self, path: str) -> FileStat: ...

    def sync_dir(self, path: str) -> None: ...

    def free_bytes(self) -> int: ...

    def total_bytes(self) -> int:
        """Size of the file system."""
        ...
