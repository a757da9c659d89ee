"""A group's checkpoint file: one opaque payload, replaced as a whole."""

from nodeagent.model.disk import Disk
from nodeagent.model.ids import GroupId
from nodeagent.storage import layout
from nodeagent.storage.envelope import seal, unseal

_MAGIC = b"NACP"


def save_checkpoint(disk: Disk, group: GroupId, payload: bytes) -> None:
    """Durable when it returns; after a crash either the old or the new one is there."""
    disk.mkdirs(layout.group_dir(group))
    disk.write_atomic(layout.checkpoint_path(group), seal(_MAGIC, payload))


def load_checkpoint(disk: Disk, group: GroupId) -> bytes | None:
    """The payload saved last; None if none was ever saved.

    Raises:
        Damaged: there is a checkpoint and it does not verify.
    """
    path = layout.checkpoint_path(group)
    if not disk.exists(path):
        return None
    return unseal(_MAGIC, disk.read(path), path)
