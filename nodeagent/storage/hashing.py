"""XXH3-128 of files, and copies for disks that cannot link."""

import contextlib
import errno

import xxhash

from nodeagent.model.disk import Disk, File
from nodeagent.model.limits import MIB
from nodeagent.storage.layout import PART

_PIECE_BYTES = 1 * MIB
"""Large enough that xxhash releases the interpreter lock, small enough not to hold it for long."""


def hash_open_file(file: File, length: int) -> "xxhash.xxh3_128":
    """Hash state after the first `length` bytes (fewer if the file is shorter)."""
    state = xxhash.xxh3_128()
    offset = 0
    while offset < length and (piece := file.pread(offset, min(_PIECE_BYTES, length - offset))):
        state.update(piece)
        offset += len(piece)
    return state


def hash_file(disk: Disk, path: str) -> str:
    """32 hex digits. Raises `FileNotFoundError`."""
    with disk.open(path, read_only=True) as file:
        return hash_open_file(file, file.size()).hexdigest()


def link_or_copy(disk: Disk, old: str, new: str) -> None:
    """Create a hard link, or a synced copy if the disk cannot link (EXDEV, EMLINK, EPERM, ENOTSUP).

    The name is durable only after `sync_dir` of its directory.
    """
    try:
        disk.link(old, new)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP):
            raise
        _copy(disk, old, new)


def _copy(disk: Disk, old: str, new: str) -> None:
    """Copy a file; its name appears only when the bytes are durable. After a failed sync the page cache shows
    bytes that the disk does not have, so a reader that hashes the file would accept it."""
    part = new + PART
    if disk.exists(part):
        disk.unlink(part)
    try:
        with disk.open(old, read_only=True) as source, disk.create(part) as target:
            offset = 0
            while piece := source.pread(offset, _PIECE_BYTES):
                target.pwrite(offset, piece)
                offset += len(piece)
            target.sync()
        disk.rename(part, new)
    except OSError:
        with contextlib.suppress(OSError):  # otherwise the next copy, or a sweep at start, removes it
            disk.unlink(part)
        raise
