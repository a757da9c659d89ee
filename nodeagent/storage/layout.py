"""Paths under a node's root, and which names are accepted from the wire.

    groups/<group>/checkpoint
    groups/<group>/checkpoint.delta
    groups/<group>/image.<log index>                 instead of a checkpoint (`storage.images`)
    groups/<group>/slots/<slot>/<file>
    staging/<operation>/<group>/<slot>-<file>        verified; with `.part` until complete
    staging/<operation>/<group>/unit.<slot>          description of the files of a unit that begins at <slot>
    snapshots/<id>/index, payload, files/<file>
    quarantine/<group>/<slot>-<file>.<hash>          damaged files that a repair replaced; retained
    tmp/                                             emptied at start

Paths are never sent; names are, and each is checked here before it becomes part of a path.
"""

import re

from nodeagent.model.errors import InvalidName
from nodeagent.model.ids import GroupId
from nodeagent.model.limits import SLOTS_MAX
from nodeagent.model.requests.files import PAYLOAD as PAYLOAD

GROUPS, STAGING, SNAPSHOTS, TMP = "groups", "staging", "snapshots", "tmp"
QUARANTINE = "quarantine"
INDEX = "index"
PART = ".part"
IMAGE = "image."
UNIT = "unit."
CHECKPOINT, DELTA = "checkpoint", "checkpoint.delta"

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_SNAPSHOT = re.compile(r"[0-9a-f]{1,64}")


def check_name(name: str) -> str:
    """Return `name` if it may be a path component, otherwise raise `InvalidName`."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidName(
            f"name {name[:80]!r} is not allowed (1-200 of A-Z a-z 0-9 . _ -; no '.' at the start, no '..')"
        )
    return name


def check_file(name: str) -> str:
    """As `check_name`, for data files: their names must differ from those of our own files."""
    if check_name(name) in (INDEX, PAYLOAD) or name.endswith(PART):
        raise InvalidName(f"file name {name!r} is reserved")
    return name


def check_snapshot(snapshot: str) -> str:
    if not is_snapshot(snapshot):
        raise InvalidName(f"snapshot id {snapshot[:80]!r} is not allowed (1-64 lower-case hex digits)")
    return snapshot


def is_snapshot(name: str) -> bool:
    return _SNAPSHOT.fullmatch(name) is not None


def group_dir(group: GroupId) -> str:
    return f"{GROUPS}/{check_name(group)}"


def checkpoint_path(group: GroupId) -> str:
    return f"{group_dir(group)}/{CHECKPOINT}"


def delta_path(group: GroupId) -> str:
    """Path of the changes since the checkpoint."""
    return f"{group_dir(group)}/{DELTA}"


def image_path(group: GroupId, index: int) -> str:
    """Path of the image of the group's state at log index `index`."""
    return f"{group_dir(group)}/{IMAGE}{index}"


def image_index(name: str) -> int | None:
    """The log index in the name of an image; None if the file is no image."""
    index = name.removeprefix(IMAGE)
    return int(index) if name.startswith(IMAGE) and index.isascii() and index.isdecimal() else None


def slots_dir(group: GroupId) -> str:
    return f"{group_dir(group)}/slots"


def slot_dir(group: GroupId, slot: int) -> str:
    if not 0 <= slot < SLOTS_MAX:
        raise InvalidName(f"slot {slot} is out of range")
    return f"{slots_dir(group)}/{slot:05d}"


def file_path(group: GroupId, slot: int, name: str) -> str:
    return f"{slot_dir(group, slot)}/{check_file(name)}"


def operation_dir(operation: str) -> str:
    return f"{STAGING}/{check_name(operation)}"


def staging_dir(operation: str, group: GroupId) -> str:
    return f"{operation_dir(operation)}/{check_name(group)}"


def staged_path(operation: str, group: GroupId, slot: int, name: str) -> str:
    """The slot is part of the name, because files of different old groups may have equal names."""
    if not 0 <= slot < SLOTS_MAX:
        raise InvalidName(f"slot {slot} is out of range")
    return f"{staging_dir(operation, group)}/{slot:05d}-{check_file(name)}"


def unit_path(operation: str, group: GroupId, slot: int) -> str:
    """Path of the description of the staged unit whose first slot is `slot`."""
    return f"{staging_dir(operation, group)}/{UNIT}{slot:05d}"


def quarantine_dir(group: GroupId) -> str:
    return f"{QUARANTINE}/{check_name(group)}"


def quarantine_path(group: GroupId, slot: int, name: str, found: str) -> str:
    """`found` is the hash of the damaged bytes (`unreadable-<number>` if they cannot be read), so that copies
    with different damage get different names."""
    if not 0 <= slot < SLOTS_MAX:
        raise InvalidName(f"slot {slot} is out of range")
    return f"{quarantine_dir(group)}/{slot:05d}-{check_file(name)}.{check_name(found)}"


def snapshot_dir(snapshot: str) -> str:
    return f"{SNAPSHOTS}/{check_snapshot(snapshot)}"


def snapshot_path(snapshot: str, name: str) -> str:
    """Path of `name` in a snapshot: its index, its payload or one of its files."""
    if name in (INDEX, PAYLOAD):
        return f"{snapshot_dir(snapshot)}/{name}"
    return f"{snapshot_dir(snapshot)}/files/{check_file(name)}"


def tmp_path(name: str) -> str:
    return f"{TMP}/{check_name(name)}"
