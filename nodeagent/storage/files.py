"""Closed files of the groups on this node. A file never changes, and has its name only when complete."""

import errno
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import BinaryIO

import xxhash

from nodeagent.model.disk import Disk
from nodeagent.model.errors import FileCorrupt, NotFound
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import GroupId, is_group
from nodeagent.model.limits import CHUNK_BYTES
from nodeagent.storage import layout
from nodeagent.storage.hashing import hash_file

MISSING = "missing"
UNREADABLE = "unreadable"
"""The disk cannot read the file (EIO): a bad sector damages one file, and must not fail the whole check."""


def check_content(content: bytes, meta: FileMeta, where: str) -> bytes:
    """Return `content` if it matches the manifest, otherwise raise `FileCorrupt`.

    Every TsFile is checked before it is parsed: most flipped bits would be read as wrong values, and some
    crash the native reader.
    """
    _check(len(content), xxhash.xxh3_128_hexdigest(content), meta, where)
    return content


def read_checked(read: Callable[[str], bytes], path: str, meta: FileMeta) -> bytes:
    """All bytes of a file that a manifest names.

    Raises:
        NotFound: there is no such file.
        FileCorrupt: the bytes do not match the manifest, or the disk cannot read them.
    """
    try:
        content = read(path)
    except FileNotFoundError as error:
        raise NotFound(f"{path}: no such file", file=meta.name, found=MISSING) from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise FileCorrupt(f"{path} cannot be read: {error}", file=meta.name, found=UNREADABLE) from error
    return check_content(content, meta, path)


def check_stream(file: BinaryIO, meta: FileMeta, where: str) -> None:
    """As `check_content`, for a file that is not held in memory."""
    state = xxhash.xxh3_128()
    size = 0
    while piece := file.read(CHUNK_BYTES):
        state.update(piece)
        size += len(piece)
    _check(size, state.hexdigest(), meta, where)


def _check(size: int, found: str, meta: FileMeta, where: str) -> None:
    if size != meta.size or found != meta.xxh3:
        raise FileCorrupt(
            f"{where} has {size} bytes and XXH3 {found}; "
            f"the manifest says {meta.size} bytes and XXH3 {meta.xxh3}",
            file=meta.name,
            expected=meta.xxh3,
            found=found,
        )


class SlotFiles:
    """The slot directories of all groups."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def publish(self, group: GroupId, made: Iterable[tuple[str, FileMeta]]) -> None:
        """Give synced temporary files (path, meta) their names; one directory sync per slot."""
        directories: dict[str, None] = {}
        for path, meta in made:
            directory = layout.slot_dir(group, meta.slot)
            if directory not in directories:
                self._disk.mkdirs(directory)
                directories[directory] = None
            self._disk.rename(path, layout.file_path(group, meta.slot, meta.name))
        for directory in directories:
            self._disk.sync_dir(directory)

    def hash(self, group: GroupId, meta: FileMeta) -> str:
        """XXH3-128 of the bytes now on disk, `MISSING` or `UNREADABLE`."""
        try:
            return hash_file(self._disk, layout.file_path(group, meta.slot, meta.name))
        except FileNotFoundError:
            return MISSING
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return UNREADABLE

    def delete(self, group: GroupId, metas: Iterable[FileMeta]) -> None:
        """Delete files; a missing file is not an error. Empty slot directories stay for a sweep."""
        directories = set()
        for meta in metas:
            path = layout.file_path(group, meta.slot, meta.name)
            if self._disk.exists(path):
                self._disk.unlink(path)
                directories.add(layout.slot_dir(group, meta.slot))
        for directory in sorted(directories):
            self._disk.sync_dir(directory)

    def groups(self) -> tuple[GroupId, ...]:
        """Groups with a directory. Other directories there belong to the operator, perhaps a backup, and are
        left alone."""
        return tuple(filter(is_group, self._list(layout.GROUPS)))

    def names(self, group: GroupId) -> dict[int, tuple[str, ...]]:
        """Slot -> names in the group's slot directories."""
        slots = [s for s in self._list(layout.slots_dir(group)) if s.isdecimal()]
        return {int(s): tuple(self._list(f"{layout.slots_dir(group)}/{s}")) for s in slots}

    def sweep(self, known: Mapping[GroupId, Mapping[int, Collection[str]]]) -> list[str]:
        """Remove the files that the manifests do not name, and return their paths.

        Only groups that are keys of `known` are swept.
        """
        removed = []
        for group in sorted(known):
            for slot, names in self.names(group).items():
                keep = known[group].get(slot, ())
                directory = f"{layout.slots_dir(group)}/{slot:05d}"
                orphans = [f"{directory}/{name}" for name in names if name not in keep]
                for path in orphans:
                    self._disk.unlink(path)
                if len(orphans) == len(names):
                    self._disk.rmtree(directory)
                elif orphans:
                    self._disk.sync_dir(directory)
                removed += orphans
        return removed

    def remove_group(self, group: GroupId) -> None:
        """Delete a group's files, its checkpoint first: a group with a checkpoint must be complete; a group
        without one is a leftover."""
        checkpoint = layout.checkpoint_path(group)
        if self._disk.exists(checkpoint):
            self._disk.unlink(checkpoint)
            self._disk.sync_dir(layout.group_dir(group))
        if self._disk.exists(layout.group_dir(group)):
            self._disk.rmtree(layout.group_dir(group))
            self._disk.sync_dir(layout.GROUPS)

    def _list(self, path: str) -> list[str]:
        return self._disk.listdir(path) if self._disk.exists(path) else []
