"""A checkpoint is one payload to whoever reads it, whole or with what changed since beside it."""

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


def test_what_changed_goes_on_from_the_whole_one() -> None:
    """Files come and go; each save replaces the one before; what an earlier release wrote is read as ever."""
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


def test_what_changed_costs_what_changed() -> None:
    """The whole checkpoint is not written again, whatever it names."""
    disk = SimDisk()
    base = save_checkpoint(disk, GROUP, payload(2), FileChanges("", FILES))
    before = disk.read(layout.checkpoint_path(GROUP))
    save_checkpoint(disk, GROUP, payload(3), FileChanges(base, (), names_of(FILES[3])))
    assert disk.read(layout.checkpoint_path(GROUP)) == before
    assert len(disk.read(layout.delta_path(GROUP))) < len(before) // 3


def test_changes_of_another_checkpoint_are_not_saved() -> None:
    """An installed snapshot may have taken the place of the one they go on from."""
    disk = SimDisk()
    base = save_checkpoint(disk, GROUP, payload(2), FileChanges("", FILES[:4]))
    save_checkpoint(disk, GROUP, payload(7, FILES[4:6]))
    with pytest.raises(NotFound):
        save_checkpoint(disk, GROUP, payload(3), FileChanges(base, FILES[8:]))
    assert loaded(disk) == (7, names(*FILES[4:6]))


def test_after_a_power_cut_the_old_or_the_new_is_there() -> None:
    """At every operation on disk, of a delta and of a whole one that ends it."""
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


def test_damage_is_never_taken_for_nothing() -> None:
    """Every byte of what changed is proved, as every byte of the whole one."""
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


def test_a_disk_that_gives_no_bytes_is_damage_of_that_group() -> None:
    """It stops no other. Any other error of the disk is its own."""
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
