"""Pages that are read from TsFiles in place contain the right rows; a damaged file is not parsed."""

import os
import random
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pytest

import nodeagent.storage.tsfile_source as module
from nodeagent.model.errors import FileCorrupt
from nodeagent.model.files import FileMeta, PageSpec, RowKey, ScanSpec, Tombstone
from nodeagent.model.jobs import MemBatch
from nodeagent.model.schema import Column, TableSchema
from nodeagent.storage.files import check_stream
from nodeagent.storage.format import close_unit, scan_rows
from nodeagent.storage.tsfile_format import TsFileFormat
from nodeagent.storage.tsfile_source import TsFileSources
from nodeagent.table.arrow import decode, encode
from nodeagent.table.merge import merge
from tests.table.rows import random_row
from tests.table.rows import table as rows_of

from .units import EVERY_TYPE, KEY, SIMPLE, every_type_rows, rows, spec, table, unit

WIDE = TableSchema(
    "sg",
    "t",
    1,
    (
        Column("site", "STRING", True),
        Column("d", "DOUBLE", False),
        Column("dev", "STRING", True),
        Column("i", "INT32", False),
        Column("s", "STRING", False),
    ),
)


class Room:
    """Files in a directory, and the sources that read them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.format = TsFileFormat(str(root / "tmp"))
        self.opening: list[str] = []
        self.sources = TsFileSources(str(root), self.format, self.opening.append)

    def close(self, name: str, given: pa.Table, order: int, schema: TableSchema) -> tuple[str, FileMeta]:
        made = close_unit(unit(name, (1, given), schema=schema), self.format)
        assert made is not None
        (self.root / name).write_bytes(made.content)
        return name, msgspec.structs.replace(made.meta, order=(order,))

    def page(
        self,
        files: list[tuple[str, FileMeta]],
        one: ScanSpec,
        page: PageSpec,
        batches: tuple[MemBatch, ...] = (),
        dead: tuple[Tombstone, ...] = (),
    ) -> tuple[pa.Table, RowKey | None]:
        found = scan_rows(one, page, [self.sources.of(p, m, one) for p, m in files], batches, dead)
        self.sources.trim()
        return decode(found.ipc), found.after


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    monkeypatch.setattr(module, "SMALL_BYTES", 0)
    return Room(tmp_path)


@pytest.mark.parametrize("seed", range(25))
def test_pages_of_files_are_the_merge(room: Room, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any page size, with deletes, rows in memory, null and empty tags, and files closed in
    between."""
    rng = random.Random(seed)
    monkeypatch.setattr(module, "OPEN_FILES_MAX", rng.choice([1, 2, 64]))
    monkeypatch.setattr(module, "BATCH_ROWS_MAX", rng.choice([1, 7, 8192]))

    def some(n: int) -> pa.Table:
        found = [random_row(rng, 6) | {"site": rng.choice([None, "", "a", "\u00e9"])} for _ in range(n)]
        return rows_of(found, WIDE)

    given = [(10 * at, some(rng.randrange(1, 40))) for at in range(1, rng.randrange(2, 5))]
    files = [room.close(f"f{order}", content, order, WIDE) for order, content in given]
    memory = some(rng.randrange(3))
    dead = (Tombstone((rng.randrange(60),), KEY, "t", (("dev", "x"),), -2, 3),)
    one = ScanSpec(WIDE, fields=rng.choice([None, (), ("i",)]))
    if rng.random() < 0.4:
        at = (("site", "a"), ("dev", None))
        one = msgspec.structs.replace(one, tags=rng.choice([at, at[:1], at[1:]]), time_to=4)
    batches = (MemBatch((100,), encode(memory)),) if memory.num_rows else ()
    bytes_max = rng.choice([1, 100, 1000, 1 << 20])
    got: list[pa.Table] = []
    after: RowKey | None = None
    while True:
        found, after = room.page(files, one, PageSpec(after, bytes_max=bytes_max), batches, dead)
        got.append(found)
        if after is None:
            break
    want = merge([*(((o,), t) for o, t in given), ((100,), memory)], dead, WIDE, one)
    assert pa.concat_tables(got).to_pylist() == want.to_pylist()


def test_every_type_is_read_in_place(room: Room) -> None:
    """Odd values of every type are read correctly from a file in place, by series and as a whole."""
    file = room.close("a", every_type_rows(), 1, EVERY_TYPE)
    want = merge([((1,), every_type_rows())], (), EVERY_TYPE)
    for bytes_max in (1, 1 << 20):
        got: list[object] = []
        after: RowKey | None = None
        while True:
            found, after = room.page([file], spec(EVERY_TYPE), PageSpec(after, bytes_max=bytes_max))
            got += found.to_pylist()
            if after is None:
                break
        assert repr(got) == repr(want.to_pylist())


@pytest.mark.parametrize("shape", ["no tags", "no fields"])
def test_tables_without_tags_or_fields_are_read_in_pages(room: Room, shape: str) -> None:
    """Tables without tags and tables without fields can be read in pages of one row."""
    schema = TableSchema("sg", "t", 1, (Column("a", "STRING", shape == "no fields"),))
    given = table({"time": [1, 2, 3], "a": ["x", None, "x"]}, schema)
    file = room.close("a", given, 1, schema)
    got: list[object] = []
    after: RowKey | None = None
    while True:
        found, after = room.page([file], spec(schema), PageSpec(after, bytes_max=1))
        got += found.to_pylist()
        if after is None:
            break
    assert got == merge([((1,), given)], (), schema).to_pylist()


def test_a_file_of_an_older_schema_is_read_in_pages(room: Room) -> None:
    """A tag that was added later is null in the rows of older files, and the next page continues after it."""
    file = room.close("a", rows(9), 1, SIMPLE)
    newer = TableSchema("sg", "t", 2, (Column("new", "STRING", True), *SIMPLE.columns))
    got: list[object] = []
    after: RowKey | None = None
    while True:
        found, after = room.page([file], spec(newer), PageSpec(after, bytes_max=1))
        got += found.to_pylist()
        if after is None:
            break
    assert got == merge([((1,), rows(9))], (), newer).to_pylist() and len(got) == 9


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def record_hashes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that are hashed from now on."""
    hashed: list[str] = []

    def check(file: BinaryIO, meta: FileMeta, path: str) -> None:
        hashed.append(path)
        check_stream(file, meta, path)

    monkeypatch.setattr(module, "check_stream", check)
    return hashed


def test_a_damaged_file_is_hashed_once(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not parsed, and until it changes the next reads do not hash it again."""
    file = room.close("a", rows(50), 1, SIMPLE)
    _flip(room.root / "a")
    hashed = record_hashes(monkeypatch)
    for _ in range(3):
        with pytest.raises(FileCorrupt):
            room.page([file], spec(), PageSpec(bytes_max=1))
    assert hashed == ["a"] and room.opening == []
    made = close_unit(unit("a", (1, rows(50))), room.format)
    assert made is not None
    (room.root / "good").write_bytes(made.content)
    os.replace(room.root / "good", room.root / "a")
    assert room.page([file], spec(), PageSpec())[0].num_rows == 50
    assert hashed == ["a", "a"]


def test_a_verified_file_is_not_hashed_at_every_page(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is hashed again if it seems to have changed, and in any case after some time."""
    file = room.close("a", rows(50), 1, SIMPLE)
    hashed = record_hashes(monkeypatch)
    for _ in range(3):
        room.page([file], spec(), PageSpec(bytes_max=1))
    assert len(hashed) == 1
    monkeypatch.setattr(module, "VERIFIED_S", -1.0)
    room.page([file], spec(), PageSpec(bytes_max=1))
    assert len(hashed) >= 2
    monkeypatch.setattr(module, "VERIFIED_S", 60.0)
    _flip(room.root / "a")
    with pytest.raises(FileCorrupt):
        room.page([file], spec(), PageSpec(bytes_max=1))


def test_open_files_are_bounded_and_deleted_ones_closed(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted file occupies disk space while it is open: it is closed soon."""
    monkeypatch.setattr(module, "OPEN_FILES_MAX", 3)
    files = [room.close(f"f{n}", rows(20), n, SIMPLE) for n in range(5)]
    room.page(files, spec(), PageSpec(bytes_max=1))
    assert len(room.sources._open) == 3
    monkeypatch.setattr(module, "SWEEP_S", -1.0)
    for name, _ in files:
        (room.root / name).unlink()
    room.sources.trim()
    assert not room.sources._open
