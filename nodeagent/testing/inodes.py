"""Files and directories of a simulated disk, each with its visible and its durable content."""

import random
from collections.abc import Iterator

SECTOR_BYTES = 512


class Used:
    """Total bytes of the files that have a name."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Inode:
    """A file: `seen` is the page cache, `durable` is on the platter, `waiting` are the writes not yet
    synced."""

    __slots__ = ("durable", "links", "modified_ms", "seen", "used", "waiting")

    def __init__(self, used: Used, modified_ms: int) -> None:
        self.used = used
        self.links = 0
        """Number of visible names."""

        self.modified_ms = modified_ms
        self.seen = bytearray()
        self.durable = bytearray()
        self.waiting: list[tuple[int, bytes | None]] = []
        """(offset, bytes) for a write; (size, None) for a truncation."""

    def named(self, more: int) -> None:
        """Count one more name (1) or one fewer (-1)."""
        before = self.links
        self.links += more
        if not before or not self.links:
            self.used.bytes += more * len(self.seen)

    def write(self, offset: int, data: bytes) -> None:
        before = len(self.seen)
        overwrite(self.seen, offset, data)
        self.resized(before)
        self.waiting.append((offset, data))

    def truncate(self, size: int) -> None:
        before = len(self.seen)
        _resize(self.seen, size)
        self.resized(before)
        self.waiting.append((size, None))

    def resized(self, before: int) -> None:
        if self.links:
            self.used.bytes += len(self.seen) - before

    def sync(self) -> None:
        for at, data in self.waiting:
            if data is None:
                _resize(self.durable, at)
            else:
                overwrite(self.durable, at, data)
        self.waiting.clear()

    def crash(self, rng: random.Random) -> None:
        for at, data in self.waiting:
            if data is not None:
                _write_partly(self.durable, at, data, rng)
            elif rng.random() < 0.5:
                _resize(self.durable, at)
        self.waiting.clear()
        self.seen = bytearray(self.durable)


class Directory:
    __slots__ = ("durable", "seen")

    def __init__(self) -> None:
        self.seen: dict[str, Directory | Inode] = {}
        self.durable: dict[str, Directory | Inode] = {}


Node = Directory | Inode

Change = list[tuple[Directory, str, Node | None]]
"""Names that are set or removed (None) in one atomic step."""


def apply(change: Change, *, durable: bool) -> None:
    for directory, name, node in change:
        names = directory.durable if durable else directory.seen
        before = names.get(name)
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
        if not durable:
            if isinstance(node, Inode):
                node.named(1)
            if isinstance(before, Inode):
                before.named(-1)


def overwrite(target: bytearray, offset: int, data: bytes) -> None:
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def _resize(target: bytearray, size: int) -> None:
    if len(target) > size:
        del target[size:]
    else:
        target.extend(bytes(size - len(target)))


def _write_partly(target: bytearray, offset: int, data: bytes, rng: random.Random) -> None:
    fate = rng.randrange(5)
    if fate == 0:
        return
    if fate == 1:  # the length reached the disk, the bytes did not
        _resize(target, max(len(target), offset + len(data)))
    elif fate == 2:
        overwrite(target, offset, data[: rng.randrange(len(data) + 1)])
    elif fate == 3:
        _write_sectors(target, offset, data, rng)
    else:
        overwrite(target, offset, data)


def _write_sectors(target: bytearray, offset: int, data: bytes, rng: random.Random) -> None:
    _resize(target, max(len(target), offset + len(data)))
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
        if rng.random() < 0.5:
            overwrite(target, offset + start, data[start:end])
        start = end


def named_files(directory: Directory) -> Iterator[Inode]:
    """Yield every file below `directory`, once per name."""
    for node in directory.seen.values():
        if isinstance(node, Directory):
            yield from named_files(node)
        else:
            yield node
