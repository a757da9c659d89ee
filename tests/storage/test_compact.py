"""A compaction of many files has the same bytes on every node and the rows of a merge of everything, and
never wrong rows."""

import errno
import random
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from nodeagent.model.files import FileMeta, Tombstone
from nodeagent.model.jobs import CompactFiles, CompactUnit, Failed, FilesClosed, Scan, Scanned
from nodeagent.model.schema import Column, TableSchema
from nodeagent.runtime.disk import RealDisk
from nodeagent.storage.executor import Storage
from nodeagent.storage.worker import WorkerEngine
from nodeagent.table.arrow import decode
from nodeagent.table.merge import merge
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.volume import Fault

from .test_executor import cut_everywhere
from .units import (
    EVERY_TYPE,
    GROUP,
    KEY,
    SIMPLE,
    close,
    every_type_rows,
    path_of,
    room,
    rows,
    spec,
    table,
    unit,
)

WIDER = TableSchema(
    "sg", "t", 2, (*SIMPLE.columns, Column("w", "STRING", False), Column("x", "INT64", False))
)
Part = tuple[int, pa.Table]


def closed(storage: Storage, name: str, index: int, batch: pa.Table, schema: TableSchema) -> FileMeta:
    one = unit(name, (index, batch), schema=schema)
    made = close(
        storage, msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, order=(index,)))
    )
    return made[0]


def compact_job(
    files: list[FileMeta], schema: TableSchema, tombstones: tuple[Tombstone, ...] = ()
) -> CompactFiles:
    base = unit("00005-000000000099-0000.tsfile", schema=schema).spec
    merged = msgspec.structs.replace(base, order=files[-1].order)
    return CompactFiles(GROUP, CompactUnit(merged, (99,), tuple(files), tombstones))


def random_parts(seed: int) -> list[Part]:
    """Parts with overwrites, nulls and two versions of the schema."""
    rng = random.Random(seed)
    parts: list[Part] = []
    for index in range(10, 70, 10):
        wide = index > 30
        keys = sorted({(f"d{rng.randrange(3)}", rng.randrange(40)) for _ in range(25)})
        values: dict[str, list[object]] = {
            "time": [t for _, t in keys],
            "dev": [d for d, _ in keys],
            "v": [rng.choice((None, rng.random())) for _ in keys],
            "w": [rng.choice((None, "", "x\0y")) for _ in keys],
            "x": [rng.choice((None, index)) for _ in keys],
        }
        parts.append((index, table(values, WIDER if wide else SIMPLE)))
    return parts


DELETES = (
    Tombstone((35,), KEY, "t", (("dev", "d1"),), 0, 20),
    Tombstone((45,), KEY, "t", (), 30, 33),
    Tombstone((80,), KEY, "t", (("dev", "d0"),), 5, 9),
)


def make(root: Path, parts: list[Part]) -> tuple[FileMeta, bytes, pa.Table]:
    """The output of real TsFiles: its row in the manifest, its bytes, and the rows that a scan of it
    returns."""
    disk = RealDisk(root)
    engine = WorkerEngine(str(root), 60)
    storage = Storage(disk, engine)
    storage.prepare()
    try:
        files = [closed(storage, f"f{i}", i, batch, WIDER if i > 30 else SIMPLE) for i, batch in parts]
        result = storage.run(compact_job(files, WIDER, DELETES))
        assert isinstance(result, FilesClosed), result
        (meta,) = result.files
        assert meta is not None
        assert all(storage.files.hash(GROUP, f) == f.xxh3 for f in files), "an input was changed"
        scanned = storage.run(Scan(GROUP, spec(WIDER), (meta,), (), ()))
        assert isinstance(scanned, Scanned), scanned
        return meta, disk.read(path_of(meta)), decode(scanned.ipc)
    finally:
        engine.stop()


def test_a_compaction_has_the_same_bytes_on_every_node_and_the_rows_of_a_merge(tmp_path: Path) -> None:
    """Two nodes make one file from six real TsFiles; deletes, overwrites, nulls and added columns are as in a
    merge of the rows."""
    parts = random_parts(1)
    first, second = (make(tmp_path / name, parts) for name in ("one", "two"))
    assert first[:2] == second[:2]
    meta, _, found = first
    want = merge([((i,), batch) for i, batch in parts], DELETES, WIDER)
    assert found.equals(want)
    assert (meta.order, meta.clean, meta.rows) == ((60,), (99,), want.num_rows)


def test_every_type_survives_being_merged_twice(tmp_path: Path) -> None:
    engine = WorkerEngine(str(tmp_path), 60)
    storage = Storage(RealDisk(tmp_path), engine)
    storage.prepare()
    try:
        whole = every_type_rows()
        files = [closed(storage, f"f{i}", i, whole.slice(i, 2), EVERY_TYPE) for i in (0, 2)]
        files.append(closed(storage, "f4", 4, whole.slice(4, 1), EVERY_TYPE))
        merged = files[0]
        for file in files[1:]:
            result = storage.run(compact_job([merged, file], EVERY_TYPE))
            assert isinstance(result, FilesClosed), result
            assert result.files[0] is not None
            merged = result.files[0]
        assert merged.logical == close(storage, unit("all", (1, whole), schema=EVERY_TYPE))[0].logical
    finally:
        engine.stop()


def test_no_file_is_written_if_everything_is_deleted() -> None:
    storage = room(SimDisk())
    files = [closed(storage, f"f{i}", i, rows(5, seed=i), SIMPLE) for i in (1, 2)]
    delete = Tombstone((9,), KEY, "t", (), 0, 99)
    assert storage.run(compact_job(files, SIMPLE, (delete,))) == FilesClosed((None,))


@pytest.mark.parametrize("how", ["flipped", "missing", "forged", "unreadable"])
def test_an_input_that_differs_from_its_manifest_is_not_opened(how: str) -> None:
    """No output is written, the damaged file is named, and after its repair the same job writes the
    output."""
    disk = SimDisk()
    storage = room(disk)
    files = [closed(storage, f"f{i}", i, rows(5, seed=i), SIMPLE) for i in (1, 2)]
    want = storage.run(compact_job(files, SIMPLE))
    other = closed(storage, "x", 3, rows(6), SIMPLE)
    path = path_of(files[0])
    good = disk.read(path)
    if how == "flipped":
        disk.flip(path, len(good) // 2)
    elif how == "missing":
        disk.unlink(path)
    elif how == "forged":
        disk.write_atomic(path, disk.read(path_of(other)))
    else:
        disk.faults.append(Fault("read", errno.EIO, path=path, times=1))
    failed = storage.run(compact_job(files, SIMPLE))
    assert isinstance(failed, Failed) and failed.code in ("file_corrupt", "not_found"), failed
    assert failed.file == files[0].name and failed.found
    assert failed.found == how or how not in ("missing", "unreadable")
    disk.write_atomic(path, good)
    assert storage.run(compact_job(files, SIMPLE)) == want


def test_wrongly_read_values_are_not_written_to_a_file() -> None:
    """The recorded checksums detect a schema without a column of the file, and a reader that returns wrong
    values."""
    storage = room(SimDisk())
    one, two = random_parts(2)[3:5]
    files = [closed(storage, f"f{i}", i, batch, WIDER) for i, batch in (one, two)]
    failed = storage.run(compact_job(files, SIMPLE))
    assert isinstance(failed, Failed) and "values read" in failed.what


def test_the_output_is_durable_when_it_is_answered_and_the_inputs_stay() -> None:
    """After a power cut at any operation, the inputs are whole, and the output is whole or has no name."""
    want = room(SimDisk())
    parts = [(i, rows(5, seed=i)) for i in (1, 2)]
    files = [closed(want, f"f{i}", i, batch, SIMPLE) for i, batch in parts]
    output = want.run(compact_job(files, SIMPLE))
    assert isinstance(output, FilesClosed) and output.files[0] is not None
    made = output.files[0]

    def work(storage: Storage) -> None:
        for i, batch in parts:
            closed(storage, f"f{i}", i, batch, SIMPLE)
        assert storage.run(compact_job(files, SIMPLE)) == output

    def check(storage: Storage, answered: bool) -> None:
        found = storage.files.hash(GROUP, made)
        assert found == made.xxh3 or (found == "missing" and not answered)
        if found == made.xxh3:
            assert all(storage.files.hash(GROUP, f) == f.xxh3 for f in files)

    assert cut_everywhere(work, check) > 5
