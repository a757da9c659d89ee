"""A group's checkpoint: one payload, stored in one file or as a file and a delta.

    checkpoint         the payload with the metadata of all files that the group had then; replaced as a whole
    checkpoint.delta   a later payload without its list of files, and the files added and removed since the
                       `checkpoint` whose digest it names; replaced as a whole too

A delta that names another checkpoint is ignored: a crash followed the write of a newer whole checkpoint. A
reader always gets one payload. Payload and state are msgpack maps. Of their keys, this module knows only
`state` of the payload and `files` of the state.
"""

import errno
from collections.abc import Iterable

import msgspec
import xxhash

from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.disk import UNFINISHED, Disk
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
    """Digest of the whole checkpoint that the delta applies to."""

    payload: bytes
    """Without files."""

    files: msgspec.Raw
    """Added files, a list of `FileMeta`."""

    gone: tuple[str, ...]
    """Names of removed files."""


def save_checkpoint(disk: Disk, group: GroupId, payload: bytes, changes: FileChanges | None = None) -> str:
    """Save a checkpoint, durable on return; a crash leaves either the old or the new one.

    Returns:
        the digest of the current whole checkpoint, for the next `changes`.

    Raises:
        NotFound: the stored whole checkpoint is missing or not the one that `changes` apply to; nothing was
            changed.
        Damaged: the stored whole checkpoint is too short to have a header.
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


def drop_unfinished(disk: Disk, group: str) -> None:
    """Delete the temporary file of a checkpoint or delta whose write a crash interrupted. The next write
    would replace it, but there may be none."""
    for name in (layout.CHECKPOINT, layout.DELTA):
        path = f"{layout.GROUPS}/{group}/{name}{UNFINISHED}"
        if disk.exists(path):
            disk.unlink(path)


def _save_delta(disk: Disk, group: GroupId, payload: bytes, changes: FileChanges) -> str:
    path = layout.checkpoint_path(group)
    if not disk.exists(path) or _digest(disk, path) != changes.base:
        raise NotFound(f"{path} is not the checkpoint that the changes apply to; nothing was changed")
    delta = _Delta(changes.base, payload, msgspec.Raw(encode_files(changes.files)), changes.gone)
    disk.write_atomic(layout.delta_path(group), seal(_DELTA_MAGIC, _encoder.encode(delta)))
    return changes.base


def _digest(disk: Disk, path: str) -> str:
    with disk.open(path, read_only=True) as file:
        return digest_of(file.pread(0, HEADER_BYTES), path)


def load_checkpoint(disk: Disk, group: GroupId) -> bytes | None:
    """The payload saved last, with all its files; None if none was ever saved.

    Raises:
        Damaged: the checkpoint or its delta exists but does not verify.
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
    """Read a file. Raises `Damaged` if the disk cannot read it (EIO)."""
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
    """Encode a msgpack list. Each file is encoded by a call of its own: a single call for a hundred thousand
    files would hold the GIL throughout, and the event loop's thread would wait for it."""
    encoded = [_encoder.encode(file) for file in files]
    return b"\xdd" + len(encoded).to_bytes(4, "big") + b"".join(encoded)
