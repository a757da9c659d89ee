"""A group's checkpoint: one payload, in a file of its own or as a file and what changed since.

    checkpoint         the payload with all files the group had then; replaced as a whole
    checkpoint.delta   a later payload without files, and which files came and went since the `checkpoint`
                       of the digest it names; replaced as a whole too

A delta that names another checkpoint was overtaken by a new whole one in the moment of a crash, and counts
for nothing. Whoever reads gets one payload. Of it only the names `state` (of the payload) and `files` (of the
state) are known here: both are msgpack maps.
"""

import errno
from collections.abc import Iterable

import msgspec
import xxhash

from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.disk import Disk
from nodeagent.model.errors import Damaged, NotFound
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import GroupId
from nodeagent.model.jobs import FileChanges
from nodeagent.storage import layout
from nodeagent.storage.envelope import HEADER_BYTES, digest_of, seal, unseal

_MAGIC = b"NACP"
_DELTA_MAGIC = b"NACD"

_encoder = msgspec.msgpack.Encoder()
_map_decoder = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_files_decoder = msgspec.msgpack.Decoder(list[FileMeta])


class _Delta(msgspec.Struct, frozen=True):
    base: str
    """Digest of the whole checkpoint it goes on from."""

    payload: bytes
    """Without files."""

    files: msgspec.Raw
    """Those that came, a list of `FileMeta`."""

    gone: tuple[str, ...]
    """Names of those that left."""


def save_checkpoint(disk: Disk, group: GroupId, payload: bytes, changes: FileChanges | None = None) -> str:
    """Durable when it returns; after a crash either the old or the new one is there.

    Returns:
        the digest of the whole checkpoint that is there now, for the next `changes`.

    Raises:
        NotFound: `changes` go on from a checkpoint that is not there; nothing was changed.
    """
    disk.mkdirs(layout.group_dir(group))
    if changes is not None and changes.base:
        return _save_delta(disk, group, payload, changes)
    if changes is not None:
        payload = with_files(payload, changes.files)
    disk.write_atomic(layout.checkpoint_path(group), seal(_MAGIC, payload))
    if disk.exists(layout.delta_path(group)):
        disk.unlink(layout.delta_path(group))
    return xxhash.xxh3_128_hexdigest(payload)


def _save_delta(disk: Disk, group: GroupId, payload: bytes, changes: FileChanges) -> str:
    path = layout.checkpoint_path(group)
    if not disk.exists(path) or _digest(disk, path) != changes.base:
        raise NotFound(f"{path} is not the one that was saved last")
    delta = _Delta(changes.base, payload, msgspec.Raw(encode_files(changes.files)), changes.gone)
    disk.write_atomic(layout.delta_path(group), seal(_DELTA_MAGIC, _encoder.encode(delta)))
    return changes.base


def _digest(disk: Disk, path: str) -> str:
    with disk.open(path, read_only=True) as file:
        return digest_of(file.pread(0, HEADER_BYTES), path)


def load_checkpoint(disk: Disk, group: GroupId) -> bytes | None:
    """The payload saved last, with all its files; None if none was ever saved.

    Raises:
        Damaged: there is a checkpoint, or what changed since, and it does not verify.
    """
    path = layout.checkpoint_path(group)
    if not disk.exists(path):
        return None
    whole = unseal(_MAGIC, _read(disk, path), path)
    later = layout.delta_path(group)
    if not disk.exists(later):
        return whole
    try:
        delta = msgspec.msgpack.decode(unseal(_DELTA_MAGIC, _read(disk, later), later), type=_Delta)
        if delta.base != xxhash.xxh3_128_hexdigest(whole):
            return whole
        files = {f.name: f for f in _files_decoder.decode(_state_of(whole)["files"])}
        files |= {f.name: f for f in _files_decoder.decode(delta.files)}
    except UNDECODABLE as error:
        raise Damaged(f"{later}: {error}") from error
    gone = set(delta.gone)
    return with_files(delta.payload, (f for name, f in files.items() if name not in gone))


def _read(disk: Disk, path: str) -> bytes:
    """Raises `Damaged` where the disk gives no bytes."""
    try:
        return disk.read(path)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise Damaged(f"{path} cannot be read: {error}") from error


def _state_of(payload: bytes) -> dict[str, msgspec.Raw]:
    return _map_decoder.decode(msgspec.msgpack.decode(_map_decoder.decode(payload)["state"], type=bytes))


def with_files(payload: bytes, files: Iterable[FileMeta]) -> bytes:
    """The payload with these files in place of its own."""
    state = _state_of(payload)
    state["files"] = msgspec.Raw(encode_files(files))
    saved = _map_decoder.decode(payload)
    saved["state"] = msgspec.Raw(_encoder.encode(_encoder.encode(state)))
    return _encoder.encode(saved)


def encode_files(files: Iterable[FileMeta]) -> bytes:
    """As msgpack's list of them. One call for each: a single one for a hundred thousand files would keep the
    loop's thread waiting for all that time."""
    encoded = [_encoder.encode(file) for file in files]
    return b"\xdd" + len(encoded).to_bytes(4, "big") + b"".join(encoded)
