"""Snapshots: links to closed files (or copies), an index and a payload, served by name and offset.

The index is written last: a directory without an index is not a snapshot, and is removed or made again.
"""

import contextlib
from collections.abc import Iterable

import msgspec
import xxhash

from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.disk import Disk
from nodeagent.model.errors import Damaged, InvalidInput, NotFound
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import GroupId
from nodeagent.model.limits import CHUNK_BYTES
from nodeagent.storage import layout
from nodeagent.storage.checkpoint import encode_files
from nodeagent.storage.envelope import seal, unseal
from nodeagent.storage.hashing import link_or_copy

_MAGIC = b"NASI"


class SnapshotIndex(msgspec.Struct, frozen=True):
    """Contents of a snapshot. Each file is served under its `name`."""

    group: GroupId
    files: tuple[FileMeta, ...]
    payload_size: int
    payload_xxh3: str


def decode_index(sealed: bytes, where: str) -> SnapshotIndex:
    """Decode an index. Raises `Damaged` if the bytes are not an index."""
    try:
        return msgspec.msgpack.decode(unseal(_MAGIC, sealed, where), type=SnapshotIndex)
    except UNDECODABLE as error:
        raise Damaged(f"{where}: {error}") from error


class Snapshots:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._read: set[str] = set()
        """Snapshots read from since the last `expire`."""

        self._used_ms: dict[str, int] = {}
        """When each snapshot was last read from, or first noticed by this process; not the file times,
        because the wall clock may jump."""

    def make(self, snapshot: str, group: GroupId, files: Iterable[FileMeta], payload: bytes) -> None:
        """Link all the files or none; durable on return. No change if the snapshot exists already.

        Raises:
            NotFound: a file is missing; nothing was left behind.
            InvalidInput: two files have the same name.
        """
        directory = layout.snapshot_dir(snapshot)
        if self._disk.exists(layout.snapshot_path(snapshot, layout.INDEX)):
            return
        index = SnapshotIndex(group, tuple(files), len(payload), xxhash.xxh3_128_hexdigest(payload))
        if len({meta.name for meta in index.files}) < len(index.files):
            raise InvalidInput(f"snapshot {snapshot}: two files of group {group} have the same name")
        try:
            self._fill(snapshot, index, payload)
        except OSError as error:
            self._disk.rmtree(directory)
            if isinstance(error, FileNotFoundError):
                raise NotFound(f"snapshot {snapshot} of group {group}: {error}") from error
            raise

    def _fill(self, snapshot: str, index: SnapshotIndex, payload: bytes) -> None:
        directory = layout.snapshot_dir(snapshot)
        self._disk.rmtree(directory)
        self._disk.mkdirs(f"{directory}/files")
        for meta in index.files:
            source = layout.file_path(index.group, meta.slot, meta.name)
            link_or_copy(self._disk, source, layout.snapshot_path(snapshot, meta.name))
        self._disk.sync_dir(f"{directory}/files")
        self._disk.write_atomic(layout.snapshot_path(snapshot, layout.PAYLOAD), payload)
        fields = msgspec.structs.asdict(index) | {"files": msgspec.Raw(encode_files(index.files))}
        sealed = seal(_MAGIC, msgspec.msgpack.encode(fields))
        self._disk.write_atomic(layout.snapshot_path(snapshot, layout.INDEX), sealed)

    def index(self, snapshot: str) -> SnapshotIndex:
        self._check(snapshot)
        path = layout.snapshot_path(snapshot, layout.INDEX)
        return decode_index(self._disk.read(path), path)

    def read_chunk(self, snapshot: str, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes (at most `CHUNK_BYTES`) from `offset`; empty only at the end.

        Raises:
            NotFound: the snapshot does not exist, or has no file of that name.
            InvalidInput: the offset is outside the file.
        """
        self._check(snapshot)
        self._read.add(snapshot)
        path = layout.snapshot_path(snapshot, name)
        try:
            file = self._disk.open(path, read_only=True)
        except FileNotFoundError as error:
            raise NotFound(f"snapshot {snapshot} has no {name}", snapshot=snapshot, file=name) from error
        with file:
            if length < 0 or not 0 <= offset <= file.size():
                raise InvalidInput(f"{name}: no {length} bytes at {offset} of {file.size()}")
            return file.pread(offset, min(length, CHUNK_BYTES))

    def drop(self, snapshot: str) -> None:
        """Remove a snapshot, its index first; a missing snapshot is not an error."""
        index = layout.snapshot_path(snapshot, layout.INDEX)
        if self._disk.exists(index):
            self._disk.unlink(index)
        self._disk.rmtree(layout.snapshot_dir(snapshot))

    def ids(self) -> tuple[str, ...]:
        """Ids of the snapshots on disk. Directories with other names are not ours, and stay."""
        present = self._disk.exists(layout.SNAPSHOTS)
        return tuple(filter(layout.is_snapshot, self._disk.listdir(layout.SNAPSHOTS) if present else ()))

    def expire(self, now_ms: int, ttl_ms: int) -> list[str]:
        """Drop snapshots that were not read from for `ttl_ms`, and unfinished ones: links keep deleted files
        on the disk.

        If the disk refuses to remove a snapshot, the others are still dropped. Once the index
        of a snapshot is removed, it is not served, and the next call removes what is left.

        Args:
            now_ms: monotonic.
        """
        ids = self.ids()
        read, self._read = self._read, set()
        used = self._used_ms | dict.fromkeys(read, now_ms)
        self._used_ms = {s: used.get(s, now_ms) for s in ids}
        gone = []
        for snapshot, used_ms in self._used_ms.items():
            is_whole = self._disk.exists(layout.snapshot_path(snapshot, layout.INDEX))
            if not is_whole or now_ms - used_ms > ttl_ms:
                with contextlib.suppress(OSError):
                    self.drop(snapshot)
                if not self._disk.exists(layout.snapshot_path(snapshot, layout.INDEX)):
                    gone.append(snapshot)
        return gone

    def _check(self, snapshot: str) -> None:
        if not self._disk.exists(layout.snapshot_path(snapshot, layout.INDEX)):
            raise NotFound(f"there is no snapshot {snapshot}", snapshot=snapshot)
