"""Files being pulled from other nodes: not in a manifest yet, verified, resumable.

A file gets its name in staging only after its size and XXH3-128 were verified and its bytes synced; until
then it is `<name>.part`, and a pull continues at the end of that file.

An area is dropped only if no pull writes to it: a running pull is asked to stop, and the drop is refused as
busy until it has stopped. So no file appears in an area after the area was dropped.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from nodeagent.model.disk import Disk, File
from nodeagent.model.errors import Busy, Damaged, FileCorrupt, NotFound
from nodeagent.model.files import FileMeta, StagedUnit
from nodeagent.model.ids import GroupId
from nodeagent.model.jobs import Adoption
from nodeagent.storage import layout
from nodeagent.storage.envelope import seal, unseal
from nodeagent.storage.hashing import hash_file, hash_open_file, link_or_copy

_UNIT_MAGIC = b"NASU"


class StagingWriter:
    """One `.part` file. Invariant: `offset` bytes are in the file and in the running hash."""

    def __init__(self, disk: Disk, path: str, meta: FileMeta) -> None:
        self._disk = disk
        self._path = path
        self._meta = meta
        self._file: File = disk.open(path + layout.PART, create=True)
        self.offset = self._file.size()
        if self.offset > meta.size:
            self._file.truncate(0)
            self.offset = 0
        self._hash = hash_open_file(self._file, self.offset)

    @property
    def missing(self) -> int:
        """Bytes still to come."""
        return self._meta.size - self.offset

    def append(self, chunk: bytes) -> None:
        """Append a chunk. Raises `FileCorrupt` if it has more bytes than are missing."""
        if len(chunk) > self.missing:
            raise FileCorrupt(f"{self._meta.name}: received {len(chunk)} bytes, {self.missing} were missing")
        self._file.pwrite(self.offset, chunk)
        self._hash.update(chunk)
        self.offset += len(chunk)

    def finish(self) -> None:
        """Verify, sync and name the file; the caller syncs the directory.

        Raises:
            FileCorrupt: size or hash differ; the part is deleted, because the wrong bytes are unknown.
            OSError: the sync failed; the part is deleted too. A second sync would succeed without the bytes
                that the first could not write.
        """
        found = self._hash.hexdigest()
        if self.missing or found != self._meta.xxh3:
            self.close()
            self._disk.unlink(self._path + layout.PART)
            raise FileCorrupt(
                f"{self._meta.name}: {self.offset} of {self._meta.size} bytes, XXH3 {found},"
                f" wanted {self._meta.xxh3}",
                file=self._meta.name,
                expected=self._meta.xxh3,
                found=found,
            )
        try:
            self._file.sync()
        except OSError:
            self.close()
            self._disk.unlink(self._path + layout.PART)
            raise
        self.close()
        self._disk.rename(self._path + layout.PART, self._path)

    def close(self) -> None:
        """Close the part; it stays, so that a later pull can resume."""
        self._file.close()


class Staging:
    """Pulls and drops may come from several threads."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._pulls: Counter[str] = Counter()
        """Operation -> number of running pulls."""

        self._closed: set[str] = set()
        """Operations whose area is being dropped, or will be when its pulls have stopped."""

    @contextmanager
    def pulling(self, operation: str) -> Iterator[None]:
        """The context of a pull that writes to the area. Raises `Busy` while the area is being dropped."""
        with self._lock:
            self._check_open(operation)
            self._pulls[operation] += 1
        try:
            yield
        finally:
            with self._lock:
                self._pulls[operation] -= 1
                if not self._pulls[operation]:
                    del self._pulls[operation]
                    self._closed.discard(operation)

    def check_open(self, operation: str) -> None:
        """Raise `Busy` if the calling pull must stop because its area will be dropped."""
        with self._lock:
            self._check_open(operation)

    def _check_open(self, operation: str) -> None:
        if operation in self._closed:
            raise Busy(f"{layout.operation_dir(operation)} is being dropped")

    def prepare(self, operation: str, group: GroupId) -> None:
        self._disk.mkdirs(layout.staging_dir(operation, group))

    def sync(self, operation: str, group: GroupId) -> None:
        """Make the names of finished files durable: once per job."""
        self._disk.sync_dir(layout.staging_dir(operation, group))

    def describe(self, operation: str, group: GroupId, unit: StagedUnit) -> None:
        """Store the description of staged files, durable on return. `sync` first: it promises the files."""
        path = layout.unit_path(operation, group, unit.slots[0][0])
        self._disk.write_atomic(path, seal(_UNIT_MAGIC, msgspec.msgpack.encode(unit)))

    def units(self, operation: str, group: GroupId) -> tuple[StagedUnit, ...]:
        """The stored descriptions, without damaged ones: their files are pulled again."""
        directory = layout.staging_dir(operation, group)
        names = self._disk.listdir(directory) if self._disk.exists(directory) else []
        paths = (f"{directory}/{name}" for name in sorted(names) if _is_unit(name))
        return tuple(unit for path in paths if (unit := self._unit(path)) is not None)

    def _unit(self, path: str) -> StagedUnit | None:
        try:
            return msgspec.msgpack.decode(unseal(_UNIT_MAGIC, self._disk.read(path), path), type=StagedUnit)
        except (Damaged, OSError, msgspec.MsgspecError):
            return None

    def has(self, operation: str, group: GroupId, meta: FileMeta) -> bool:
        """Whether the file is staged; reads it, and removes it if its bytes differ."""
        path = layout.staged_path(operation, group, meta.slot, meta.name)
        if not self._disk.exists(path):
            return False
        if hash_file(self._disk, path) == meta.xxh3:
            return True
        self._disk.unlink(path)
        return False

    def writer(self, operation: str, group: GroupId, meta: FileMeta) -> StagingWriter:
        """Open or resume a part. Call `prepare` first."""
        path = layout.staged_path(operation, group, meta.slot, meta.name)
        return StagingWriter(self._disk, path, meta)

    def link_local(self, operation: str, group: GroupId, meta: FileMeta, local: GroupId) -> None:
        """Stage the file that this node holds as a member of `local`, after verifying it.

        Raises:
            NotFound, FileCorrupt: the file is missing, or its bytes differ.
        """
        source = layout.file_path(local, meta.slot, meta.name)
        try:
            found = hash_file(self._disk, source)
        except FileNotFoundError as error:
            raise NotFound(f"{source}: no such file", file=meta.name) from error
        if found != meta.xxh3:
            raise FileCorrupt(
                f"{source}: XXH3 {found}, wanted {meta.xxh3}",
                file=meta.name,
                expected=meta.xxh3,
                found=found,
            )
        link_or_copy(self._disk, source, layout.staged_path(operation, group, meta.slot, meta.name))

    def adopt(self, operation: str, group: GroupId, files: Iterable[Adoption]) -> None:
        """Link staged files into the group under their new names; durable on return.

        The staged names stay until `drop`, which follows the checkpoint with the new names, so that a crash
        in between loses nothing. No change for files that are adopted already.

        Raises:
            NotFound: neither the staged nor the adopted file is there.
        """
        directories: dict[str, None] = {}
        for item in files:
            meta = item.meta
            directory = layout.slot_dir(group, meta.slot)
            if directory not in directories:
                self._disk.mkdirs(directory)
                directories[directory] = None
            source = layout.staged_path(operation, group, meta.slot, item.staged)
            self._place(source, layout.file_path(group, meta.slot, meta.name), meta)
        for directory in directories:
            self._disk.sync_dir(directory)

    def _place(self, source: str, target: str, meta: FileMeta) -> None:
        if self._disk.exists(target):
            if hash_file(self._disk, target) == meta.xxh3:
                return
            self._disk.unlink(target)
        if not self._disk.exists(source):
            raise NotFound(f"{source}: not staged", file=meta.name)
        link_or_copy(self._disk, source, target)

    def names(self, operation: str, group: GroupId) -> tuple[str, ...]:
        """Names of the finished files, as `<slot>-<name>`."""
        directory = layout.staging_dir(operation, group)
        names = self._disk.listdir(directory) if self._disk.exists(directory) else []
        return tuple(n for n in names if not n.endswith(layout.PART) and not n.startswith(layout.UNIT))

    def operations(self) -> tuple[str, ...]:
        return tuple(self._disk.listdir(layout.STAGING)) if self._disk.exists(layout.STAGING) else ()

    def drop(self, operation: str) -> None:
        """Remove the area; a missing area is not an error.

        Raises:
            Busy: a pull writes to the area; it stops before its next chunk. Retry the drop.
            OSError: part of the area may be left.
        """
        directory = layout.operation_dir(operation)
        with self._lock:
            self._closed.add(operation)
            if self._pulls[operation]:
                raise Busy(f"a pull still writes into {directory}")
        try:
            self._disk.rmtree(directory)
        finally:
            with self._lock:
                self._closed.discard(operation)


def _is_unit(name: str) -> bool:
    return name.startswith(layout.UNIT) and name.removeprefix(layout.UNIT).isdecimal()
