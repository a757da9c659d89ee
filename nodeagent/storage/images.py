"""The images of a group's state: `image.<log index>`, the two newest ones that were validated.

An image is written aside, synced, read back and loaded; only then does it get its name. If the newest image
is damaged later, the node starts from the one before it and the log, which is retained from there on.
"""

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nodeagent.model.disk import Disk
from nodeagent.model.errors import Damaged
from nodeagent.model.ids import GroupId
from nodeagent.model.image_format import Header, ImageBytes, Section, encode_image
from nodeagent.model.jobs import ImageSaved
from nodeagent.storage import layout

SYNC_BYTES = 256 * 1024
"""An image is synced whenever this much of it was written: the log's syncs wait for a larger one."""

KEPT = 2
"""Validated images that a node retains."""

Load = Callable[[ImageBytes], object]
"""Loads the state of an image, to prove that a start can load it; raises if it cannot."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The newest saved state that verifies (None if none does), and what is wrong with newer ones."""

    content: bytes | None
    faults: tuple[str, ...] = ()


class Images:
    """
    Args:
        pause: called after each frame that is written. It may sleep, because the event loop of the process
            would otherwise wait for this thread again and again.
    """

    def __init__(self, disk: Disk, load: Load, pause: Callable[[], None] = lambda: None) -> None:
        self._disk = disk
        self._load = load
        self._pause = pause

    def save(self, header: Header, sections: Iterable[Section]) -> ImageSaved:
        """Make an image durable, and remove the images that are no longer needed.

        Raises:
            Damaged: what was read back is not what was written; the image got no name.
        """
        return self._put(header, encode_image(header, sections))

    def install(self, content: ImageBytes) -> ImageSaved:
        """As `save`, for an image that another node made for this node."""
        return self._put(content.header, (content.content,))

    def _put(self, header: Header, pieces: Iterable[bytes]) -> ImageSaved:
        group, index = header.group, header.base.index
        aside = layout.tmp_path(f"image-{group}")
        self._write(aside, pieces)
        try:
            content = ImageBytes(self._disk.read(aside), aside)
            content.verified()
            self._load(content)
        except Damaged:
            self._disk.unlink(aside)
            raise
        directory = layout.group_dir(group)
        self._disk.mkdirs(directory)
        self._disk.rename(aside, layout.image_path(group, index))
        self._disk.sync_dir(directory)
        return ImageSaved(self._retain(group, index), content.nbytes)

    def _write(self, path: str, pieces: Iterable[bytes]) -> None:
        if self._disk.exists(path):
            self._disk.unlink(path)
        with self._disk.create(path) as file:
            offset = synced = 0
            for piece in pieces:
                file.pwrite(offset, piece)
                offset += len(piece)
                if offset - synced >= SYNC_BYTES:
                    file.sync()
                    synced = offset
                self._pause()
            file.sync()

    def _retain(self, group: GroupId, newest: int) -> int:
        """Keep `newest` and the newest older image that still verifies; remove the others, also the
        checkpoint of an earlier release. Return the index of the older one, 0 if there is none.

        Without an older image everything stays. A damaged image is moved to the quarantine.
        """
        older = [i for i in reversed(image_indexes(self._disk, group)) if i < newest]
        damaged = [i for i in older if self._is_damaged(group, i)]
        fallback = next((i for i in older if i not in damaged), 0)
        if not fallback:
            return 0
        for index in damaged:
            self._quarantine(group, index)
        for index in set(older) - set(damaged) - {fallback}:
            self._disk.unlink(layout.image_path(group, index))
        if self._disk.exists(layout.checkpoint_path(group)):
            self._disk.unlink(layout.checkpoint_path(group))
        self._disk.sync_dir(layout.group_dir(group))  # a removed state must not return once the log is purged
        return fallback

    def _quarantine(self, group: GroupId, index: int) -> None:
        directory = layout.quarantine_dir(group)
        self._disk.mkdirs(directory)
        self._disk.rename(layout.image_path(group, index), f"{directory}/{layout.IMAGE}{index}")
        self._disk.sync_dir(directory)
        self._disk.sync_dir(layout.group_dir(group))

    def _is_damaged(self, group: GroupId, index: int) -> bool:
        try:
            read_image(self._disk, group, index).verified()
        except Damaged:
            return True
        return False


def image_indexes(disk: Disk, group: GroupId) -> list[int]:
    """Log indexes of the group's images, oldest first."""
    directory = layout.group_dir(group)
    names = disk.listdir(directory) if disk.exists(directory) else []
    found = (layout.image_index(name) for name in names)
    return sorted(index for index in found if index is not None)


def read_image(disk: Disk, group: GroupId, index: int) -> ImageBytes:
    """The image, its header verified.

    Raises:
        Damaged: the header does not verify or is that of another image, or the disk cannot read the file.
    """
    path = layout.image_path(group, index)
    try:
        content = ImageBytes(disk.read(path), path)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise Damaged(f"{path} cannot be read: {error}") from error
    base = content.header.base
    if (content.header.group, base.index) != (group, index):
        raise Damaged(f"{path} is the image of {content.header.group} at index {base.index}")
    return content


def load_image(disk: Disk, group: GroupId) -> Loaded:
    """The newest image that verifies."""
    faults: list[str] = []
    for index in reversed(image_indexes(disk, group)):
        try:
            content = read_image(disk, group, index)
            content.verified()
        except Damaged as error:
            faults.append(str(error))
        else:
            return Loaded(content.content, tuple(faults))
    return Loaded(None, tuple(faults))
