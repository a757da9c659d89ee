"""A reader gets a checkpoint as one payload, whether it is stored as a whole or as a base with a delta."""

import errno
import random

import msgspec
import pytest

from nodeagent.data.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from nodeagent.data.state import initial
from nodeagent.host.saved import Saved
from nodeagent.model.entries import Base, Config
from nodeagent.model.errors import Damaged, NotFound
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import FileChanges
from nodeagent.storage import layout
from nodeagent.storage.checkpoint import load_checkpoint, save_checkpoint
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.volume import Fault, PowerCut

GROUP = "node1.1"
PARTITIONS = [PartitionKey("sg", i, 0) for i in range(20)]
FILES = tuple(
    FileMeta(f"00003-{i:012d}-0000.tsfile", 3, p, "t", (i,), 10, f"{i:032x}", 1, i, i, (1, 1, 1))
    for i, p in enumerate(PARTITIONS)
)


def payload(applied: int, files: tuple[FileMeta, ...] = ()) -> bytes:
    state = initial(GROUP, ((0, 5),)).checkpoint()
    state.applied, state.files = applied, list(files)
    return msgspec.msgpack.encode(Saved(Base(1, 0, Config(("a",))), encode_checkpoint(state)))


def loaded(disk: SimDisk) -> tuple[int, set[str]]:
    found = load_checkpoint(disk, GROUP)
    assert found is not None
    state: Checkpoint = decode_checkpoint(msgspec.msgpack.decode(found, type=Saved).state)
    assert len({f.name for f in state.files}) == len(state.files)
    return state.applied, {f.name for f in state.files}


def names(*files: FileMeta) -> set[str]:
    return {f.name for f in files}


def test_a_delta_applies_to_the_whole_checkpoint() -> None:
    """Files are added and removed, each save replaces the previous one, and checkpoints of an earlier release
    are readable."""
    disk = SimDisk()
    save_checkpoint(disk, GROUP, payload(1, FILES[:2]))
    assert loaded(disk) == (1, names(*FILES[:2]))
    base = save_checkpoint(disk, GROUP, payload(2), FileChanges("", FILES[:10]))
    assert loaded(disk) == (2, names(*FILES[:10]))
    assert base == save_checkpoint(
        disk, GROUP, payload(3), FileChanges(base, FILES[10:12], names_of(FILES[0]))
    )
    assert loaded(disk) == (3, names(*FILES[1:12]))
    save_checkpoint(disk, GROUP, payload(4), FileChanges(base, FILES[10:11], names_of(FILES[0], FILES[11])))
    assert loaded(disk) == (4, names(*FILES[1:11]))
    save_checkpoint(disk, GROUP, payload(5), FileChanges("", FILES[5:]))
    assert loaded(disk) == (5, names(*FILES[5:])) and not disk.exists(layout.delta_path(GROUP))


def names_of(*files: FileMeta) -> tuple[str, ...]:
    return tuple(f.name for f in files)


def test_a_delta_is_as_small_as_the_changes() -> None:
    """The whole checkpoint is not rewritten, however many files it names."""
    disk = SimDisk()
    base = save_checkpoint(disk, GROUP, payload(2), FileChanges("", FILES))
    before = disk.read(layout.checkpoint_path(GROUP))
    save_checkpoint(disk, GROUP, payload(3), FileChanges(base, (), names_of(FILES[3])))
    assert disk.read(layout.checkpoint_path(GROUP)) == before
    assert len(disk.read(layout.delta_path(GROUP))) < len(before) // 3


def test_changes_of_another_checkpoint_are_not_saved() -> None:
    """An installed snapshot may have replaced the checkpoint that the changes are based on."""
    disk = SimDisk()
    base = save_checkpoint(disk, GROUP, payload(2), FileChanges("", FILES[:4]))
    save_checkpoint(disk, GROUP, payload(7, FILES[4:6]))
    with pytest.raises(NotFound):
        save_checkpoint(disk, GROUP, payload(3), FileChanges(base, FILES[8:]))
    assert loaded(disk) == (7, names(*FILES[4:6]))


def test_after_a_power_cut_the_old_or_the_new_checkpoint_exists() -> None:
    """This holds at every disk operation of a delta and of the whole checkpoint that replaces the delta."""
    steps: list[tuple[str, tuple[FileMeta, ...], tuple[str, ...]]] = [
        ("", FILES[:10], ()),
        ("base", FILES[10:12], ()),
        ("base", FILES[10:13], names_of(FILES[5])),
        ("", FILES[4:12], ()),
    ]
    states: list[set[str] | None] = [None, names(*FILES[:10]), names(*FILES[:12])]
    states += [names(*FILES[:5], *FILES[6:13]), names(*FILES[4:12])]
    cuts = 0
    for cut in range(1, 60):
        disk = SimDisk()
        disk.cut_power_at = disk.operations + cut
        base, done = "", 0
        try:
            for number, (kind, files, gone) in enumerate(steps):
                base = save_checkpoint(
                    disk, GROUP, payload(number), FileChanges(base if kind else "", files, gone)
                )
                done = number + 1
        except PowerCut:
            cuts += 1
        else:
            break
        disk.crash(random.Random(cut))
        found = load_checkpoint(disk, GROUP)
        assert (None if found is None else loaded(disk)[1]) in (states[done], states[done + 1]), (cut, done)
    assert cuts > 12


def test_a_damaged_checkpoint_is_an_error() -> None:
    """Every byte of a delta is verified, like every byte of a whole checkpoint."""
    disk = SimDisk()
    base = save_checkpoint(disk, GROUP, payload(2), FileChanges("", FILES[:4]))
    save_checkpoint(disk, GROUP, payload(3), FileChanges(base, FILES[4:5]))
    for path in (layout.delta_path(GROUP), layout.checkpoint_path(GROUP)):
        good = disk.read(path)
        for at in range(0, len(good), 7):
            disk.write_atomic(path, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(Damaged):
                load_checkpoint(disk, GROUP)
        disk.write_atomic(path, good)
    assert loaded(disk) == (3, names(*FILES[:5]))


def test_an_unreadable_checkpoint_is_damage_of_its_group() -> None:
    """The error stops no other group. Any other error of the disk is raised unchanged."""
    disk = SimDisk()
    base = save_checkpoint(disk, GROUP, payload(2), FileChanges("", FILES[:4]))
    save_checkpoint(disk, GROUP, payload(3), FileChanges(base, FILES[4:5]))
    for path in (layout.delta_path(GROUP), layout.checkpoint_path(GROUP)):
        disk.faults.append(Fault("read", errno.EIO, path))
        with pytest.raises(Damaged, match="cannot be read"):
            load_checkpoint(disk, GROUP)
    disk.faults.append(Fault("read", errno.EMFILE, layout.checkpoint_path(GROUP)))
    with pytest.raises(OSError):
        load_checkpoint(disk, GROUP)
    assert loaded(disk) == (3, names(*FILES[:5]))
