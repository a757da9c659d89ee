"""Files from other nodes are resumed, verified, fetched again from another source, adopted and installed."""

import contextlib
import errno
import random
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import pytest

from nodeagent.model.errors import NotFound, Unavailable
from nodeagent.model.files import FileMeta, FileRef, PulledSlot, StagedUnit
from nodeagent.model.jobs import (
    AdoptFiles,
    Adoption,
    CheckpointSaved,
    Done,
    DropStaging,
    Failed,
    FilesStaged,
    Installed,
    InstallSnapshot,
    MakeSnapshot,
    ReadStaged,
    SaveCheckpoint,
    StagedFile,
    StagedRead,
    StageFiles,
    install_area,
)
from nodeagent.model.limits import CHUNK_BYTES
from nodeagent.runtime.disk import RealDisk
from nodeagent.storage import layout
from nodeagent.storage import pull as pull_module
from nodeagent.storage.executor import Storage
from nodeagent.storage.files import read_checked
from nodeagent.storage.pull import Fetch, FetchChunk
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.volume import Fault, PowerCut

from .units import GROUP, close, path_of, room, rows, unit

OLD, NEW, SNAP, OP = GROUP, "node9.4", "5a", "op-1"


class Node:
    """A node's storage with its disk, as a source for other nodes."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.storage: Storage = room(self.disk)


def source(n_rows: int = 200, files: int = 2) -> tuple[Node, tuple[FileMeta, ...]]:
    node = Node()
    units = [unit(f"f{i}", (1, rows(n_rows, seed=i)), slot=5 + i) for i in range(files)]
    metas = tuple(close(node.storage, *units, group=OLD))
    assert node.storage.run(MakeSnapshot(SNAP, OLD, metas, b"state")) == Done()
    return node, metas


def job(
    metas: tuple[FileMeta, ...], nodes: tuple[str, ...] = ("a", "b"), local: str | None = None
) -> StageFiles:
    files = [
        StagedFile(m, tuple(FileRef(n, SNAP, m.name, m.size, m.xxh3) for n in nodes), local) for m in metas
    ]
    return StageFiles(OP, NEW, tuple(files))


def fetch_from(
    nodes: dict[str, Node], spoil: Callable[[str, str, int, bytes], bytes] = lambda n, f, o, c: c
) -> Fetch:
    def fetch(node: str, snapshot: str, name: str, offset: int, length: int) -> bytes:
        if node not in nodes:
            raise Unavailable(f"no contact with {node}")
        return spoil(node, name, offset, nodes[node].storage.read_chunk(snapshot, name, offset, length))

    return fetch


def staged(node: Node, metas: tuple[FileMeta, ...]) -> list[bytes]:
    return [node.disk.read(f"staging/{OP}/{NEW}/{m.slot:05d}-{m.name}") for m in metas]


def test_files_are_staged_adopted_and_dropped() -> None:
    """Files arrive whole, their bytes are counted, they are adopted under new names, and every step can be
    repeated."""
    (a, metas), target = source(), Node()
    result = target.storage.run_pull(job(metas), fetch_from({"a": a}))
    size = sum(m.size for m in metas)
    assert result == FilesStaged(tuple(m.name for m in metas), (), size)
    assert staged(target, metas) == [a.disk.read(path_of(m)) for m in metas]
    assert target.storage.run_pull(job(metas), fetch_from({})) == FilesStaged(("f0", "f1"), (), 0)
    assert target.storage.plan_pull(job(metas)).names == ("f0", "f1")
    renamed = [msgspec.structs.replace(m, name=f"new-{m.name}", order=(50, *m.order)) for m in metas]
    adopt = AdoptFiles(OP, NEW, tuple(Adoption(m.name, r) for m, r in zip(metas, renamed, strict=True)))
    assert target.storage.run(adopt) == Done() == target.storage.run(adopt)
    assert target.storage.run(DropStaging(OP)) == Done() == target.storage.run(DropStaging(OP))
    assert target.storage.run(adopt) == Done()
    for old, new in zip(metas, renamed, strict=True):
        place = layout.file_path(NEW, new.slot, new.name)
        assert read_checked(target.disk.read, place, new) == a.disk.read(path_of(old))


UNIT = StagedUnit(((5, 7),), (PulledSlot(5, (), ()), PulledSlot(6, (), ())))


def described(metas: tuple[FileMeta, ...]) -> StageFiles:
    return msgspec.structs.replace(job(metas), unit=UNIT)


def test_a_description_is_read_as_it_was_stored_and_never_if_it_is_damaged() -> None:
    (a, metas), target = source(), Node()
    assert target.storage.run(ReadStaged(OP, NEW)) == StagedRead(())
    target.storage.run_pull(described(metas), fetch_from({"a": a}))
    assert target.storage.run(ReadStaged(OP, NEW)) == StagedRead((UNIT,))
    assert target.storage.staging.names(OP, NEW) == ("00005-f0", "00006-f1")
    path = f"staging/{OP}/{NEW}/unit.00005"
    whole = target.disk.read(path)
    for at in range(len(whole)):
        target.disk.write_atomic(path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert target.storage.run(ReadStaged(OP, NEW)) == StagedRead(()), at
    target.disk.write_atomic(path, whole[:-1])
    assert target.storage.run(ReadStaged(OP, NEW)) == StagedRead(())
    target.disk.write_atomic(path, whole)
    target.disk.faults.append(Fault("read", path=path))
    assert target.storage.run(ReadStaged(OP, NEW)) == StagedRead(())


def test_nothing_is_described_unless_all_of_it_is_staged() -> None:
    """After a power cut at any change of the disk, too: an `Adopt` would name files that are missing."""
    (a, metas), target = source(), Node()
    assert target.storage.run_pull(described(metas), fetch_from({})) != FilesStaged(("f0", "f1"), (), 0)
    assert target.storage.run(ReadStaged(OP, NEW)) == StagedRead(())
    clean = Node()
    clean.storage.run_pull(described(metas), fetch_from({"a": a}))
    results = []
    for cut in range(1, clean.disk.operations + 2):
        target = Node()
        target.disk.cut_power_at = cut
        _until_power_cut(lambda t=target: t.storage.run_pull(described(metas), fetch_from({"a": a})))  # type: ignore[misc]
        target.disk.crash(random.Random(cut))
        results.append(room(target.disk).run(ReadStaged(OP, NEW)))
        if results[-1] != StagedRead(()):
            assert staged(target, metas) == [a.disk.read(path_of(m)) for m in metas]
    assert results[0] == StagedRead(()) and results[-1] == StagedRead((UNIT,))


def test_a_file_that_cannot_be_examined_is_not_staged() -> None:
    (a, metas), target = source(), Node()
    target.storage.run_pull(job(metas), fetch_from({"a": a}))
    target.disk.faults.append(Fault("read", path=f"staging/{OP}/{NEW}/{metas[0].slot:05d}-{metas[0].name}"))
    result = target.storage.run_pull(job(metas), fetch_from({"a": a}))
    assert isinstance(result, FilesStaged)
    assert result.names == ("f1",) and [name for name, _ in result.failed] == ["f0"]


def test_the_adoption_of_a_missing_file_is_an_error() -> None:
    """A missing staged file is NotFound, never an empty file."""
    metas = source()[1]
    result = Node().storage.run(AdoptFiles(OP, NEW, (Adoption("f0", metas[0]),)))
    assert isinstance(result, Failed) and result.code == "not_found"


def test_a_pull_resumes_at_the_byte_where_it_stopped() -> None:
    """After a break the next pull requests only the rest, even within a chunk and from another source."""
    (a, metas), target = source(n_rows=150_000, files=1), Node()
    assert metas[0].size > 2 * CHUNK_BYTES
    asked: list[tuple[str, int]] = []

    def cut(node: str, name: str, offset: int, chunk: bytes) -> bytes:
        asked.append((node, offset))
        if len(asked) == 2:
            return chunk[:1000]
        if 2 < len(asked) < 6:
            raise Unavailable("cut")
        return chunk

    first = target.storage.run_pull(job(metas), fetch_from({"a": a, "b": a}, cut))
    assert isinstance(first, FilesStaged) and first.names == () and "cut" in first.failed[0][1]
    at = CHUNK_BYTES + 1000
    assert asked == [("a", 0), ("a", CHUNK_BYTES), ("a", at), ("b", at), ("a", at)]
    second = target.storage.run_pull(job(metas), fetch_from({"a": a}, cut))
    assert second == FilesStaged(("f0",), (), metas[0].size - at)
    assert staged(target, metas) == [a.disk.read(path_of(metas[0]))]


def test_a_corrupted_chunk_is_fetched_again_from_the_next_source() -> None:
    """A file that does not verify is discarded, counted and fetched from the other holder."""
    (a, metas), target = source(), Node()

    def flip(node: str, name: str, offset: int, chunk: bytes) -> bytes:
        return bytes([chunk[0] ^ 1]) + chunk[1:] if node == "a" else chunk

    result = target.storage.run_pull(job(metas), fetch_from({"a": a, "b": a}, flip))
    assert result == FilesStaged(
        ("f0", "f1"), (), 2 * sum(m.size for m in metas), 2, (("a", "f0"), ("a", "f1"))
    )
    assert staged(target, metas) == [a.disk.read(path_of(m)) for m in metas]


def test_a_damaged_part_does_not_exclude_the_only_source() -> None:
    """A partial file that was damaged on the own disk costs one refetch, even with a single source."""
    (a, metas), target = source(files=1), Node()
    target.storage.run_pull(
        job(metas, ("a",)), fetch_from({"a": a}, lambda n, f, o, c: c[:100] if not o else b"")
    )
    target.disk.flip(f"staging/{OP}/{NEW}/{metas[0].slot:05d}-f0.part", 50)
    result = target.storage.run_pull(job(metas, ("a",)), fetch_from({"a": a}))
    assert isinstance(result, FilesStaged) and (result.names, result.refetched) == (("f0",), 1)


@pytest.mark.parametrize("fault", ["gone", "truncated", "longer", "flipped everywhere"])
def test_failures_are_reported_per_file_and_other_files_are_staged(fault: str) -> None:
    """A file that no source can provide fails alone, with the reason of every source."""
    (a, metas), target = source(), Node()

    def spoil(node: str, name: str, offset: int, chunk: bytes) -> bytes:
        if name != "f0":
            return chunk
        if fault == "gone":
            raise NotFound("purged")
        return {"truncated": b"" if offset else chunk[:50], "longer": chunk + b"x"}.get(
            fault, b"\0" * len(chunk)
        )

    result = target.storage.run_pull(job(metas), fetch_from({"a": a, "b": a}, spoil))
    assert isinstance(result, FilesStaged)
    assert result.names == ("f1",)
    assert [name for name, _ in result.failed] == ["f0"]
    assert "a:" in result.failed[0][1] and "b:" in result.failed[0][1]


def test_a_source_of_bytes_that_do_not_verify_is_suspected() -> None:
    """A source is suspected if it sent the whole file: not if a part existed locally, and not if the file was
    never received."""
    (a, metas), (b, _), target = source(), source(), Node()
    a.disk.flip(path_of(metas[0]), 30)
    result = target.storage.run_pull(job(metas), fetch_from({"a": a, "b": b}))
    assert isinstance(result, FilesStaged) and result.names == ("f0", "f1")
    assert result.suspects == (("a", "f0"),)
    result = Node().storage.run_pull(job(metas, nodes=("a", "c")), fetch_from({"a": a}))
    assert isinstance(result, FilesStaged) and result.suspects == (("a", "f0"),) and result.failed
    target = Node()
    target.storage.staging.prepare(OP, NEW)
    with target.disk.open(f"staging/{OP}/{NEW}/{metas[1].slot:05d}-f1.part", create=True) as part:
        part.pwrite(0, b"rotten")
    result = target.storage.run_pull(job(metas[1:]), fetch_from({"a": a}))
    assert isinstance(result, FilesStaged) and result.refetched == 1 and not result.suspects
    result = a.storage.run_pull(job(metas, local=OLD), fetch_from({"b": b}))
    assert isinstance(result, FilesStaged) and result.suspects == (("", "f0"),)
    installed = Node().storage.run_pull(InstallSnapshot(OLD, "a", SNAP), fetch_from({"a": a}))
    assert isinstance(installed, Failed) and installed.file == "f0"


def test_own_copy_is_linked_after_a_hash_check() -> None:
    """A member of the old group links its file without traffic; a damaged file is fetched instead."""
    a, metas = source()
    result = a.storage.run_pull(job(metas, local=OLD), fetch_from({}))
    assert result == FilesStaged(("f0", "f1"), (), 0)
    a.storage.run(DropStaging(OP))
    b, _ = source()
    a.disk.flip(path_of(metas[0]), 30)
    result = a.storage.run_pull(job(metas, local=OLD), fetch_from({"b": b}))
    assert result == FilesStaged(("f0", "f1"), (), metas[0].size, 0, (("", "f0"),))


def test_an_install_writes_files_and_checkpoint() -> None:
    """The files are written first, then the payload as the checkpoint; other files of the group do not
    change, and a repetition changes nothing."""
    (a, metas), target = source(), Node()
    stale = close(target.storage, unit("stale", (1, rows(4)), slot=7), unit("more", (1, rows(4))), group=OLD)
    result = target.storage.run_pull(InstallSnapshot(OLD, "a", SNAP), fetch_from({"a": a}))
    assert isinstance(result, Installed) and result.payload == b"state"
    assert result.bytes_received > sum(m.size for m in metas)
    assert target.storage.checkpoint(OLD) == b"state"
    assert target.storage.files.names(OLD) == {5: ("f0", "more"), 6: ("f1",), 7: ("stale",)}
    assert target.storage.files.hash(OLD, stale[0]) == stale[0].xxh3
    assert all(target.storage.files.hash(OLD, m) == m.xxh3 for m in metas)
    assert target.storage.run(DropStaging(install_area(SNAP))) == Done()
    assert target.storage.staging.operations() == ()
    again = target.storage.run_pull(InstallSnapshot(OLD, "a", SNAP), fetch_from({"a": a}))
    assert isinstance(again, Installed) and again.bytes_received < metas[0].size


def test_a_staging_area_is_dropped_when_no_pull_writes_to_it_and_stays_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At whichever chunk the drop begins, it waits for the pull, which ends at its next step and requests no
    more chunks; no file appears afterwards. Other pulls continue."""
    a, metas = source(n_rows=100, files=3)
    monkeypatch.setattr(pull_module, "CHUNK_BYTES", metas[0].size // 2)
    chunks = sum(-(-m.size // (metas[0].size // 2)) for m in metas)
    assert chunks >= 6
    other = msgspec.structs.replace(job(metas), operation="op-2")
    for drop_at in range(chunks):
        target = Node()
        others = target.storage.pull(other)
        want, pull = next(others), target.storage.pull(job(metas))
        asked = [next(pull)]
        for _ in range(drop_at):
            asked.append(pull.send(chunk_of(a, asked[-1])))
        dropped = target.storage.run(DropStaging(OP))
        assert isinstance(dropped, Failed) and dropped.code == "busy", dropped
        late = target.storage.run_pull(job(metas), fetch_from({"a": a}))
        assert isinstance(late, Failed) and late.code == "busy", "a pull began during the drop"
        with pytest.raises(StopIteration) as stopped:
            pull.send(chunk_of(a, asked[-1]))
        is_last = drop_at == chunks - 1
        assert isinstance(stopped.value.value, FilesStaged if is_last else Failed)
        assert target.storage.run(DropStaging(OP)) == Done()
        assert target.storage.staging.operations() == ("op-2",)
        others.send(chunk_of(a, want))
    assert isinstance(target.storage.run_pull(job(metas), fetch_from({"a": a})), FilesStaged), (
        "a pull after the drop failed"
    )


def chunk_of(node: Node, want: FetchChunk) -> bytes:
    return node.storage.read_chunk(want.snapshot, want.name, want.offset, want.length)


def test_drops_and_pulls_of_several_threads_leave_no_files() -> None:
    """The test runs on a real disk."""
    (a, metas), lock = source(n_rows=500, files=20), threading.Lock()

    def fetch(node: str, snapshot: str, name: str, offset: int, length: int) -> bytes:
        with lock:  # the simulated source is used by one thread
            return a.storage.read_chunk(snapshot, name, offset, length)

    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(4) as pool:
        target = room(RealDisk(directory))
        for turn in range(20):
            pulls = [pool.submit(target.run_pull, job(metas), fetch) for _ in range(3)]
            while turn % 2 and not target.staging.operations():
                pass
            while not isinstance(target.run(DropStaging(OP)), Done):
                pass
            ended = [p.result() for p in pulls]
            assert all(r.code == "busy" for r in ended if isinstance(r, Failed)), ended
            assert target.run(DropStaging(OP)) == Done()
            assert target.staging.operations() == ()


def test_a_failed_drop_does_not_fail_a_completed_install() -> None:
    """An installed snapshot stays, even if its staging area cannot be removed; only the drop of the area
    fails."""
    (a, _), target = source(), Node()
    target.disk.faults.append(Fault("unlink", errno.EIO, "staging", times=2))
    result = target.storage.run_pull(InstallSnapshot(OLD, "a", SNAP), fetch_from({"a": a}))
    assert isinstance(result, Installed)
    for _ in range(2):
        assert isinstance(target.storage.run(DropStaging(install_area(SNAP))), Failed)
        assert target.storage.staging.operations() == (install_area(SNAP),)
    assert target.storage.run(DropStaging(install_area(SNAP))) == Done()


@pytest.mark.parametrize("name", ["index", "payload", "f0"])
def test_a_snapshot_that_does_not_verify_changes_nothing(name: str) -> None:
    """A damaged index, payload or file fails the install; checkpoint and files do not change."""
    (a, _), target = source(), Node()
    mine = close(target.storage, unit("mine", (1, rows(4))), group=OLD)

    def flip(node: str, wanted: str, offset: int, chunk: bytes) -> bytes:
        return chunk[:-1] + bytes([chunk[-1] ^ 1]) if wanted == name else chunk

    result = target.storage.run_pull(InstallSnapshot(OLD, "a", SNAP), fetch_from({"a": a}, flip))
    assert isinstance(result, Failed)
    assert target.storage.checkpoint(OLD) is None
    assert target.storage.files.hash(OLD, mine[0]) == mine[0].xxh3


def test_a_pull_stages_whole_files_after_a_power_cut_at_any_step() -> None:
    """After a power cut at any operation and a retry, every staged file verifies; no name is ever a broken
    file."""
    a, metas = source(n_rows=30)
    clean = Node()
    clean.storage.run_pull(job(metas), fetch_from({"a": a}))
    for cut in range(1, clean.disk.operations + 1):
        target, rng = Node(), random.Random(cut)
        target.disk.cut_power_at = cut
        _until_power_cut(lambda t=target: t.storage.run_pull(job(metas), fetch_from({"a": a})))  # type: ignore[misc]
        target.disk.crash(rng)
        target.storage = room(target.disk)
        result = target.storage.run_pull(job(metas), fetch_from({"a": a}))
        assert isinstance(result, FilesStaged) and result.names == ("f0", "f1"), cut
        assert staged(target, metas) == [a.disk.read(path_of(m)) for m in metas]


def test_files_reported_as_staged_exist_after_a_power_cut() -> None:
    """The copy is recorded after the answer, and the source may delete the file."""
    a, metas = source(n_rows=30)
    for seed in range(20):
        target = Node()
        assert isinstance(target.storage.run_pull(job(metas), fetch_from({"a": a})), FilesStaged)
        target.disk.crash(random.Random(seed))
        assert staged(target, metas) == [a.disk.read(path_of(m)) for m in metas]


def test_files_reported_as_adopted_exist_after_a_power_cut() -> None:
    """A checkpoint may name the file after the answer, and the staged name may be deleted."""
    a, metas = source(n_rows=30)
    for seed in range(10):
        target = Node()
        assert isinstance(target.storage.run_pull(job(metas), fetch_from({"a": a})), FilesStaged)
        adopt = AdoptFiles(OP, NEW, tuple(Adoption(m.name, m) for m in metas))
        assert target.storage.run(adopt) == Done()
        target.disk.crash(random.Random(seed))
        assert [target.storage.files.hash(NEW, m) for m in metas] == [m.xxh3 for m in metas]


def test_a_file_with_other_bytes_under_an_adopted_name_is_replaced() -> None:
    """A power cut or a damaged disk made such a file; the staged file was verified."""
    (a, metas), target = source(files=1), Node()
    assert isinstance(target.storage.run_pull(job(metas), fetch_from({"a": a})), FilesStaged)
    target.disk.mkdirs(layout.slot_dir(NEW, metas[0].slot))
    target.disk.write_atomic(layout.file_path(NEW, metas[0].slot, "f0"), bytes(metas[0].size))
    assert target.storage.run(AdoptFiles(OP, NEW, (Adoption("f0", metas[0]),))) == Done()
    assert target.storage.files.hash(NEW, metas[0]) == metas[0].xxh3


def test_a_power_cut_at_any_step_of_an_install_leaves_the_old_or_the_new_state() -> None:
    """If there is a checkpoint, every file that it names exists."""
    a, metas = source(n_rows=30)
    install = InstallSnapshot(OLD, "a", SNAP)
    found: list[bytes | None] = []
    done = False
    while not done:
        target = Node()
        assert isinstance(target.storage.run(SaveCheckpoint(OLD, b"old")), CheckpointSaved)
        target.disk.cut_power_at = target.disk.operations + len(found) + 1
        with contextlib.suppress(PowerCut):
            done = isinstance(target.storage.run_pull(install, fetch_from({"a": a})), Installed)
        target.disk.crash(random.Random(len(found)))
        found.append(target.storage.checkpoint(OLD))
        if found[-1] != b"old":
            assert [target.storage.files.hash(OLD, m) for m in metas] == [m.xxh3 for m in metas]
    assert len(found) > 20 and set(found) == {b"old", b"state"} and found[-1] == b"state"


def _until_power_cut(call: Callable[[], object]) -> None:
    try:
        call()
    except PowerCut:
        return


def test_a_file_whose_sync_failed_is_fetched_again() -> None:
    """The disk reports the error once; a second sync of the file succeeds although bytes of the first are
    lost."""
    (a, metas), target = source(files=1), Node()
    target.disk.faults.append(Fault("sync", errno.EIO, layout.PART))
    result = target.storage.run_pull(job(metas), fetch_from({"a": a, "b": a}))
    assert isinstance(result, FilesStaged) and result.names == ("f0",)
    assert result.bytes_received == 2 * metas[0].size
    target.disk.crash(random.Random(1))
    assert staged(target, metas) == [a.disk.read(path_of(m)) for m in metas]


def _staged_by_copy(node: Node, meta: FileMeta) -> bool:
    wanted = StagedFile(meta, (), local=GROUP)
    done = node.storage.run_pull(StageFiles(OP, NEW, (wanted,)), fetch_from({}))
    return isinstance(done, FilesStaged) and done.names == (meta.name,)


def _adopted_by_copy(node: Node, meta: FileMeta) -> bool:
    return node.storage.run(AdoptFiles(OP, NEW, (Adoption(meta.name, meta),))) == Done()


@pytest.mark.parametrize("begin", [_staged_by_copy, _adopted_by_copy])
def test_a_copy_whose_sync_failed_is_made_again(begin: Callable[[Node, FileMeta], bool]) -> None:
    """The disk cannot link. The page cache shows bytes that are not on the disk."""
    node = Node()
    (meta,) = close(node.storage, unit("a", (1, rows(50))))
    if begin is _adopted_by_copy:
        assert _staged_by_copy(node, meta)
    node.disk.faults += [Fault("link", errno.EXDEV, times=9), Fault("sync", errno.EIO)]
    assert not begin(node, meta)
    assert begin(node, meta)
    node.disk.crash(random.Random(1))
    place = layout.file_path if begin is _adopted_by_copy else partial(layout.staged_path, OP)
    assert read_checked(node.disk.read, place(NEW, meta.slot, meta.name), meta)
