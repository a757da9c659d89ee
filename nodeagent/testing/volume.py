"""The content of a simulated disk, and its faults: failed calls, power cuts, bit rot and lack of space."""

import copy
import errno
import os
import random
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Self

import msgspec

from nodeagent.model.disk import Buffer
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


@lru_cache(maxsize=1 << 14)
def path_parts(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in PurePosixPath(path).parts if part != ".")
    if path.startswith("/") or "\0" in path or ".." in parts:
        raise ValueError(f"path {path!r} is not below the root")
    return parts


class Volume:
    """Files and directories in memory. Each change has a number (`operations`).

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

    def copied(self) -> Self:
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

    def _node(self, path: str) -> Node:
        node: Node = self._root
        for part in path_parts(path):
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
        parts = path_parts(path)
        if not parts:
            raise ValueError("the root has no name")
        return self._dir("/".join(parts[:-1])), parts[-1]

    def _commit(self, directory: Directory) -> None:
        """Make the pending changes of `directory` durable, and the earlier changes of any other directory
        that these touch."""
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
