"""Replace damaged files with good ones, and retain the damaged files in quarantine for analysis.

The damaged file gets a second, durable name in quarantine before the good file replaces it, so the place
always holds one of the two, and the damaged bytes always have a name. Nothing here deletes complete files in
quarantine; if a group has `QUARANTINE_FILES_MAX` files there, repairs that would add one are refused.
"""

from nodeagent.model.disk import Disk
from nodeagent.model.errors import NotFound, Overloaded
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import GroupId
from nodeagent.model.jobs import repair_area
from nodeagent.model.limits import QUARANTINE_FILES_MAX
from nodeagent.storage import layout
from nodeagent.storage.files import MISSING, UNREADABLE, SlotFiles
from nodeagent.storage.hashing import hash_file, link_or_copy


def replace_file(disk: Disk, files: SlotFiles, group: GroupId, meta: FileMeta) -> str:
    """Put the staged file in place, durable on return; no change if it is in place already. The caller drops
    the repair area.

    Returns:
        The path of the damaged file in quarantine, "" if there was none.

    Raises:
        NotFound: nothing is staged.
        Overloaded: quarantine is full; nothing changed.
    """
    found = files.hash(group, meta)
    place = layout.file_path(group, meta.slot, meta.name)
    staged = layout.staged_path(repair_area(group), group, meta.slot, meta.name)
    kept = ""
    if found != meta.xxh3:
        if not disk.exists(staged):
            raise NotFound(f"{staged}: not staged", file=meta.name)
        if found != MISSING:
            kept = _keep(disk, group, meta, place, found)
        disk.mkdirs(layout.slot_dir(group, meta.slot))
        disk.rename(staged, place)
    disk.sync_dir(layout.slot_dir(group, meta.slot))
    return kept


def _keep(disk: Disk, group: GroupId, meta: FileMeta, place: str, found: str) -> str:
    """Give the file at `place` a durable name in quarantine."""
    directory = layout.quarantine_dir(group)
    disk.mkdirs(directory)
    count = len(disk.listdir(directory))
    if found == UNREADABLE:  # it is unknown whether these bytes are in quarantine already
        path = layout.quarantine_path(group, meta.slot, meta.name, f"{found}-{count}")
    else:
        path = layout.quarantine_path(group, meta.slot, meta.name, found)
        if disk.exists(path) and hash_file(disk, path) != found:
            disk.unlink(path)  # an incomplete copy by an earlier release, on a disk that cannot link
    if not disk.exists(path):
        if count >= QUARANTINE_FILES_MAX:
            raise Overloaded(f"{directory} holds {count} damaged files already; analyse and remove them")
        link_or_copy(disk, place, path)
    disk.sync_dir(directory)
    return path
