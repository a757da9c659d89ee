"""Names from the network become paths only after they are checked."""

from collections.abc import Callable

import pytest

from nodeagent.model.errors import Damaged, InvalidName
from nodeagent.model.jobs import (
    AdoptFiles,
    Adoption,
    DropSnapshot,
    DropStaging,
    Failed,
    MakeSnapshot,
    RemoveGroup,
    SaveCheckpoint,
)
from nodeagent.model.limits import SLOTS_MAX
from nodeagent.storage import layout
from nodeagent.storage.checkpoint import load_checkpoint, save_checkpoint
from nodeagent.storage.envelope import seal, unseal
from nodeagent.storage.files import SlotFiles
from nodeagent.testing.disk import SimDisk

from .units import GROUP, close, room, rows, unit

HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc",
    "a\\b",
    "a\0",
    "\u00e9",
    "a..b",
    ".hidden",
    "x" * 201,
    "a b",
    "a\n",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(name: str) -> None:
    """Separators, dots, control and foreign characters, and overlong names raise InvalidName everywhere."""
    makes: list[Callable[[], str]] = [
        lambda: layout.group_dir(name),
        lambda: layout.file_path("g", 1, name),
        lambda: layout.staged_path("op", "g", 1, name),
        lambda: layout.staged_path(name, "g", 1, "f"),
        lambda: layout.snapshot_dir(name),
        lambda: layout.snapshot_path("ab", name),
        lambda: layout.tmp_path(name),
    ]
    for make in makes:
        with pytest.raises(InvalidName):
            make()


def test_reserved_names_and_bad_slots_are_refused() -> None:
    """A data file must not have the name of an index, a payload or a part; snapshot ids are hex; slots are in
    range."""
    for name in ("index", "payload", "x.part"):
        with pytest.raises(InvalidName):
            layout.file_path("g", 1, name)
    paths: list[Callable[[int], str]] = [
        lambda slot: layout.slot_dir("g", slot),
        lambda slot: layout.staged_path("op", "g", slot, "f"),
        lambda slot: layout.quarantine_path("g", slot, "f", "0a"),
    ]
    for path in paths:
        assert path(0) and path(SLOTS_MAX - 1)
        for slot in (-1, SLOTS_MAX):
            with pytest.raises(InvalidName):
                path(slot)
    with pytest.raises(InvalidName):
        layout.snapshot_dir("xyz")


def test_hostile_jobs_fail_and_change_nothing() -> None:
    """A job with such a name is `Failed(invalid_name)`; files of other groups stay."""
    disk = SimDisk()
    storage = room(disk)
    meta = close(storage, unit("a", (1, rows(5))))[0]
    before = storage.files.names(GROUP)
    for job in (
        RemoveGroup(".."),
        SaveCheckpoint("../x", b""),
        DropSnapshot("../groups"),
        DropStaging("../groups"),
        MakeSnapshot("..", GROUP, (meta,)),
        AdoptFiles("op", GROUP, (Adoption("../../a", meta),)),
    ):
        result = storage.run(job)
        assert isinstance(result, Failed) and result.code == "invalid_name", job
    assert storage.files.names(GROUP) == before


def test_envelope_detects_every_flip_and_cut() -> None:
    """Every flipped bit, cut and added byte is detected."""
    sealed = seal(b"TEST", b"payload of some length")
    assert unseal(b"TEST", sealed, "x") == b"payload of some length"
    for at in range(len(sealed)):
        bad = bytearray(sealed)
        bad[at] ^= 1
        for broken in (bytes(bad), sealed[:at], sealed + b"x"):
            with pytest.raises(Damaged):
                unseal(b"TEST", broken, "x")
    with pytest.raises(Damaged):
        unseal(b"ELSE", sealed, "x")


def test_a_directory_that_is_not_a_group_is_ignored() -> None:
    """An operator's copies beside the groups do not stop a node, and the node does not use them as groups."""
    disk = SimDisk()
    own = ("meta", "node1.1", "n-1_a.20")
    others = ("lost+found", "node1.1 (copy)", "node1.1.bak", "node1.", ".1", "node1.\u0661", "old")
    for name in own + others:
        disk.mkdirs(f"groups/{name}/slots/00001")
    assert SlotFiles(disk).groups() == tuple(sorted(own))


def test_damaged_checkpoint_is_never_read_as_missing() -> None:
    """A missing checkpoint is None; any unreadable checkpoint is Damaged."""
    disk = SimDisk()
    assert load_checkpoint(disk, "g") is None
    save_checkpoint(disk, "g", b"one")
    save_checkpoint(disk, "g", b"two")
    assert load_checkpoint(disk, "g") == b"two"
    disk.flip("groups/g/checkpoint", 31)
    with pytest.raises(Damaged):
        load_checkpoint(disk, "g")
    with disk.open("groups/g/checkpoint") as file:
        file.truncate(0)
    with pytest.raises(Damaged):
        load_checkpoint(disk, "g")
