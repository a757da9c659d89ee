"""Find files below a node's data directory that no group needs.

A node at rest has, for each of its groups, a checkpoint (or images) and the files that its manifest names,
each under one name, and nothing else. Other files are reported with a kind that is guessed from their place;
nothing here removes them.
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from nodeagent.model.disk import UNFINISHED, Disk
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import GroupId
from nodeagent.storage import layout
from nodeagent.storage.images import image_indexes

ORPHAN, STAGED, SNAPSHOT, QUARANTINED = "orphan", "staged", "snapshot", "quarantined"
TEMPORARY, FOREIGN, LINKED = "temporary", "foreign", "linked"
KINDS = (ORPHAN, STAGED, SNAPSHOT, QUARANTINED, TEMPORARY, FOREIGN, LINKED)

_LOOKS = {
    layout.STAGING: STAGED,
    layout.SNAPSHOTS: SNAPSHOT,
    layout.QUARANTINE: QUARANTINED,
    layout.TMP: TEMPORARY,
}


class Leftover(msgspec.Struct, frozen=True, order=True):
    """`path` below the data directory, a file or an empty directory, and its kind:

    orphan       in a slot directory, but not named by a manifest
    staged       of an operation or an install
    snapshot     offered to another node
    quarantined  damaged, and replaced by a repair
    temporary    an unfinished write
    foreign      not created by a node, or of a group that the node is not a member of
    linked       named by a manifest, and the same bytes have another name
    """

    path: str
    kind: str


def leftovers(
    disk: Disk, manifests: Mapping[GroupId, Collection[FileMeta]], beside: Collection[str] = ()
) -> Iterator[Leftover]:
    """Everything below the root of `disk` that a node with these manifests does not need at rest.

    Args:
        manifests: every group the node is a member of, the meta group with no files.
        beside: names in the root that do not belong to storage.
    """
    for name in disk.listdir("."):
        if name in beside:
            continue
        if name == layout.GROUPS:
            for group in disk.listdir(name):
                yield from _in_group(disk, group, manifests.get(group))
        else:
            for path in _below(disk, name):
                if path != name or name not in _LOOKS:
                    yield Leftover(path, _LOOKS.get(name, FOREIGN))


def _in_group(disk: Disk, group: GroupId, manifest: Collection[FileMeta] | None) -> Iterator[Leftover]:
    root = f"{layout.GROUPS}/{group}"
    if manifest is None:
        yield from (Leftover(path, FOREIGN) for path in _below(disk, root))
        return
    checkpoints = (layout.checkpoint_path(group), layout.delta_path(group))
    images = [layout.image_path(group, index) for index in image_indexes(disk, group)]
    named = {layout.file_path(group, meta.slot, meta.name) for meta in manifest}
    for path in _below(disk, root):
        if path in named:
            if disk.stat(path).links > 1:
                yield Leftover(path, LINKED)
        elif path.startswith(layout.slots_dir(group) + "/"):
            if not disk.stat(path).is_dir:  # an empty directory waits for the next start
                yield Leftover(path, ORPHAN)
        elif path not in (root, layout.slots_dir(group), *checkpoints, *images):
            yield Leftover(path, TEMPORARY if path in [f"{c}{UNFINISHED}" for c in checkpoints] else FOREIGN)


def _below(disk: Disk, path: str) -> Iterator[str]:
    """Files and empty directories at and below `path`."""
    names = disk.listdir(path) if disk.stat(path).is_dir else []
    if not names:
        yield path
    for name in names:
        yield from _below(disk, f"{path}/{name}")
