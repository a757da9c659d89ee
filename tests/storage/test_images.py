"""Images of the meta state: two validated ones are kept, and a start loads the newest that verifies."""

import errno
import random
from functools import partial

import pytest

from nodeagent.meta import commands as c
from nodeagent.meta.sections import KINDS, check_image, image_of, sections_of
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Base, Config
from nodeagent.model.errors import Damaged, Refused
from nodeagent.model.features import SPOKEN, Levels
from nodeagent.model.ids import META, Owner
from nodeagent.model.image_format import (
    END,
    FRAME_BYTES,
    FRAME_HEAD_BYTES,
    Header,
    ImageBytes,
    encode_image,
    is_image,
)
from nodeagent.model.schema import Column, TableSchema
from nodeagent.storage import layout
from nodeagent.storage.images import SYNC_BYTES, Images, image_indexes, load_image, read_image
from nodeagent.testing.disk import SimDisk, SimFile
from nodeagent.testing.volume import Fault, PowerCut
from tests.meta.test_changes import Meta


def rich_meta() -> Meta:
    """A state with records in every section, an open operation and an open run among them."""
    meta = Meta()
    schema = TableSchema("sg", "t", 1, (Column("dev", "STRING", True), Column("v", "DOUBLE", False)))
    meta.do(c.PutSchema(2, schema, 1_000))
    meta.do(c.TakeLock(3, "me@host", "a test", "me", 10_000))
    record(meta, 0, b"begun")
    meta.state.image.retired.append("i-old")
    meta.begin()
    return meta


def record(meta: Meta, number: int, entry: bytes, *, ended: bool = False) -> None:
    lock = meta.state.image.lock
    assert lock is not None
    meta.do(c.RecordRun(3, "run-1", "nightly", number, entry, lock.serial, "me", ended))


def header(state: MetaState, owner: str = "a") -> Header:
    return Header(Base(state.applied, 1, Config(("a", "b", "c"))), META, Owner(owner, f"i-{owner}", 1))


def content(state: MetaState, owner: str = "a") -> ImageBytes:
    return ImageBytes(b"".join(encode_image(header(state, owner), sections_of(state.image))))


def images(disk: SimDisk) -> Images:
    disk.mkdirs(layout.TMP)
    return Images(disk, check_image)


def grow(meta: Meta) -> None:
    meta.do(c.SetDraining(9, "a", not meta.state.image.nodes["a"].draining, "me"))


def loaded(disk: SimDisk) -> MetaState | None:
    found = load_image(disk, META).content
    return MetaState.decode(found) if found is not None else None


def test_an_image_holds_the_whole_state() -> None:
    """The loaded state is equal, continues like the original, and no section was empty in this test."""
    meta = rich_meta()
    image = content(meta.state)
    frames = list(image.frames(image.sections_at))
    assert [f.name for f in frames] == [*KINDS, END] and all(f.records for f in frames)
    again = MetaState.decode(image.content)
    assert again.image == meta.state.image
    assert image_of(image, SPOKEN) == meta.state.image
    again.apply(again.applied + 1, [])
    assert again.encode() == meta.state.encode()


def test_the_digest_depends_on_the_state_alone() -> None:
    """Images of one state have one digest on every node; each change of the state changes it."""
    meta = rich_meta()
    digest = content(meta.state).verified().digest
    assert content(meta.state, "b").verified().digest == digest
    moved = ImageBytes(content(meta.state).with_header(header(meta.state, "b")))
    assert moved.header.owner.node == "b" and moved.verified().digest == digest
    grow(meta)
    assert content(meta.state).verified().digest != digest


def test_later_entries_do_not_change_sections_that_wait_to_be_written() -> None:
    meta = rich_meta()
    kept, sections = content(meta.state).content, sections_of(meta.state.image)
    first = header(meta.state)
    record(meta, 1, b"more", ended=True)
    meta.do(c.MetaReady(4, meta.op.id))
    meta.do(c.GroupReady(4, meta.op.id, meta.op.created_group or ""))
    grow(meta)
    assert b"".join(encode_image(first, sections)) == kept


def large_meta() -> Meta:
    meta = rich_meta()
    columns = tuple(Column(f"f{i}", "DOUBLE", False) for i in range(50))
    meta.state.image.schemas = [TableSchema("sg", f"t{i}", 1, columns) for i in range(2_000)]
    return meta


def test_a_large_image_is_made_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs of the log wait for one large sync, and the event loop for a thread that never pauses."""
    disk, meta, unsynced, most = SimDisk(), large_meta(), [0], [0]
    pauses: list[int] = []
    pwrite, sync = SimFile.pwrite, SimFile.sync

    def counted(file: SimFile, offset: int, data: bytes) -> None:
        unsynced[0] += len(data)
        most[0] = max(most[0], unsynced[0])
        pwrite(file, offset, data)

    def synced(file: SimFile) -> None:
        unsynced[0] = 0
        sync(file)

    monkeypatch.setattr(SimFile, "pwrite", counted)
    monkeypatch.setattr(SimFile, "sync", synced)
    disk.mkdirs(layout.TMP)
    pause = partial(pauses.append, 1)
    maker = Images(disk, partial(check_image, pause=pause), pause)
    size = maker.save(header(meta.state), sections_of(meta.state.image)).nbytes
    assert size > 3 * SYNC_BYTES and most[0] <= SYNC_BYTES + 2 * FRAME_BYTES
    assert len(pauses) > 1.5 * size / (FRAME_BYTES + 4_096), "after each frame that is written or decoded"


def test_a_long_section_has_several_frames() -> None:
    """A frame, and the memory that a reader needs, stays bounded; the records are the same."""
    meta = large_meta()
    image = content(meta.state)
    frames = [f for f in image.frames(image.sections_at) if f.name == "schemas"]
    assert len(frames) > 2 and max(len(f.payload) for f in frames) < FRAME_BYTES + 4_096
    assert image_of(image, SPOKEN) == meta.state.image


def test_two_images_are_kept_and_the_log_is_needed_from_the_older() -> None:
    disk, meta, saved, needed = SimDisk(), rich_meta(), [0], []
    for _ in range(4):
        grow(meta)
        saved.append(meta.state.applied)
        needed.append(images(disk).save(header(meta.state), sections_of(meta.state.image)).fallback)
        assert image_indexes(disk, META) == [i for i in saved[-2:] if i]
    assert needed == saved[:-1]


def test_every_flip_is_found_and_the_image_before_is_loaded() -> None:
    """One bit in each frame head, name, checksum and payload of the newest image; then in both images."""
    disk, meta = SimDisk(), rich_meta()
    images(disk).save(header(meta.state), sections_of(meta.state.image))
    older = meta.state.encode()
    grow(meta)
    images(disk).save(header(meta.state), sections_of(meta.state.image))
    path = layout.image_path(META, meta.state.applied)
    whole = disk.read(path)
    offsets = {0, len(whole) - 1}
    for frame in ImageBytes(whole).frames():
        end = frame.offset + FRAME_HEAD_BYTES + len(frame.payload)
        offsets |= {frame.offset + i for i in (0, 5, 21, 25, 35, 49)} | {end - 1}
    for offset in sorted(offsets):
        disk.flip(path, offset)
        found = load_image(disk, META)
        assert found.content is not None and len(found.faults) == 1, offset
        assert path in found.faults[0]
        assert MetaState.decode(found.content).encode() == older
        disk.flip(path, offset)
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        with disk.open(path) as file:
            file.truncate(cut)
        found = load_image(disk, META)
        assert found.content is not None and found.faults, cut
    first = layout.image_path(META, image_indexes(disk, META)[0])
    disk.flip(first, 60)
    found = load_image(disk, META)
    assert found.content is None and len(found.faults) == 2


def test_a_damaged_image_is_quarantined_once_two_others_exist() -> None:
    """Until then it stays where it is, and no older image or checkpoint is removed."""
    disk, meta = SimDisk(), rich_meta()
    indexes = []
    for number in range(4):
        grow(meta)
        indexes.append(meta.state.applied)
        fallback = images(disk).save(header(meta.state), sections_of(meta.state.image)).fallback
        if number == 0:
            disk.flip(layout.image_path(META, indexes[0]), 70)
        if number == 1:
            assert fallback == 0 and image_indexes(disk, META) == indexes
        if number == 2:
            assert fallback == indexes[1] and image_indexes(disk, META) == indexes[1:]
            assert disk.listdir(layout.quarantine_dir(META)) == [f"image.{indexes[0]}"]


def test_an_image_that_cannot_be_loaded_gets_no_name() -> None:
    disk, meta = SimDisk(), rich_meta()
    disk.mkdirs(layout.TMP)
    for older in (Levels(1, 1), Levels(3, 3)):
        strict = Images(disk, partial(check_image, levels=older))
        meta.state.image.level = 2
        with pytest.raises(Refused):
            strict.save(header(meta.state), sections_of(meta.state.image))
    assert image_indexes(disk, META) == []


def test_a_disk_that_returns_other_bytes_makes_no_image() -> None:
    """What is read back after the sync decides, not what was written."""
    disk, meta = SimDisk(), rich_meta()
    images(disk).save(header(meta.state), sections_of(meta.state.image))
    kept = image_indexes(disk, META)
    grow(meta)
    read = disk.read
    disk.read = lambda path: read(path)[:-1] + b"?" if path.startswith(layout.TMP) else read(path)  # type: ignore[method-assign]
    with pytest.raises(Damaged):
        images(disk).save(header(meta.state), sections_of(meta.state.image))
    assert image_indexes(disk, META) == kept and disk.listdir(layout.TMP) == []


@pytest.mark.parametrize("seed", range(4))
def test_after_a_power_cut_at_any_step_a_state_is_served(seed: int) -> None:
    """Cut at every disk operation of three saves and one install: the newest named image or the one before it
    is loaded, never an older state than the last one that was acknowledged."""
    cuts = 0
    for cut in range(1, 200):
        disk, meta, acknowledged = SimDisk(), rich_meta(), 0
        disk.mkdirs(layout.TMP)
        disk.cut_power_at = disk.operations + cut
        try:
            for number in range(4):
                grow(meta)
                if number == 2:
                    images(disk).install(content(meta.state))
                else:
                    images(disk).save(header(meta.state), sections_of(meta.state.image))
                acknowledged = meta.state.applied
        except PowerCut:
            cuts += 1
            disk.crash(random.Random(seed * 1_000 + cut))
        else:
            assert cuts > 20
            return
        state = loaded(disk)
        assert (state.applied if state is not None else 0) >= acknowledged
        assert not load_image(disk, META).faults
    raise AssertionError("the workload never ended")


def test_the_rest_of_an_unfinished_image_is_not_continued() -> None:
    """A crash left it; it is longer than the new image."""
    disk, meta = SimDisk(), Meta()
    aside = layout.tmp_path(f"image-{META}")
    disk.mkdirs(layout.TMP)
    with disk.create(aside) as file:
        file.pwrite(0, bytes(1 << 20))
        file.sync()
    images(disk).save(header(meta.state), sections_of(meta.state.image))
    (index,) = image_indexes(disk, META)
    assert read_image(disk, META, index).verified() and not disk.exists(aside)


def test_an_unreadable_sector_counts_as_damage() -> None:
    disk, meta = SimDisk(), rich_meta()
    images(disk).save(header(meta.state), sections_of(meta.state.image))
    disk.faults.append(Fault("read", errno.EIO, layout.image_path(META, meta.state.applied)))
    found = load_image(disk, META)
    assert found.content is None and "cannot be read" in found.faults[0]


def test_a_checkpoint_is_not_taken_for_an_image() -> None:
    assert not is_image(MetaState().encode()) and not is_image(b"") and not is_image(b"NAI")
