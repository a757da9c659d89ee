"""What a directory contains beside the files that its groups name."""

from nodeagent.storage import layout
from nodeagent.storage.leftovers import (
    FOREIGN,
    LINKED,
    ORPHAN,
    QUARANTINED,
    SNAPSHOT,
    STAGED,
    TEMPORARY,
    Leftover,
    leftovers,
)
from nodeagent.testing.disk import SimDisk

from .units import GROUP, close, path_of, room, rows, unit


def test_an_idle_node_has_no_leftovers() -> None:
    """Empty directories of the node, checkpoints and named files are not leftovers."""
    disk = SimDisk()
    storage = room(disk)
    metas = close(storage, unit("a", (1, rows(10))), unit("b", (2, rows(10))))
    disk.write_atomic(layout.checkpoint_path(GROUP), b"x")
    for name in (layout.STAGING, layout.SNAPSHOTS, layout.QUARANTINE, layout.TMP, layout.slot_dir(GROUP, 9)):
        disk.mkdirs(name)
    assert list(leftovers(disk, {GROUP: metas})) == []


def test_every_other_file_is_reported_with_its_probable_kind() -> None:
    disk = SimDisk()
    storage = room(disk)
    named, orphan = close(storage, unit("a", (1, rows(10))), unit("b", (2, rows(10))))
    links = {
        f"{layout.STAGING}/op/g/1": STAGED,
        f"{layout.SNAPSHOTS}/5a/f": SNAPSHOT,
        f"{layout.QUARANTINE}/g/f": QUARANTINED,
        f"{layout.TMP}/f": TEMPORARY,
        "notes.txt": FOREIGN,
        "groups/nobody/slots/1/f": FOREIGN,
        f"groups/{GROUP}/readme": FOREIGN,
    }
    for path in links:
        disk.mkdirs(path.rpartition("/")[0] or ".")
        disk.write_atomic(path, b"x")
    disk.mkdirs("mine")
    disk.mkdirs("theirs")
    disk.link(path_of(named), f"{layout.SNAPSHOTS}/5a/linked")
    wanted = {
        *links.items(),
        (f"{layout.SNAPSHOTS}/5a/linked", SNAPSHOT),
        (path_of(named), LINKED),
        (path_of(orphan), ORPHAN),
        ("theirs", FOREIGN),
    }
    found = list(leftovers(disk, {GROUP: [named]}, beside=("mine",)))
    assert set(found) == {Leftover(path, kind) for path, kind in wanted} and len(found) == len(wanted)
