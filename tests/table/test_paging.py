"""The pages of a partition contain together what one merge of everything contains."""

import random
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pytest

from nodeagent.model.files import PageSpec, RowKey, ScanSpec, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.schema import Column, TableSchema
from nodeagent.table import paging
from nodeagent.table.arrow import arrow_schema
from nodeagent.table.memory_source import TableSource
from nodeagent.table.merge import Part, merge
from nodeagent.table.paging import Source, page
from tests.table.rows import SCHEMA, random_row, table

KEY = PartitionKey("sg", 0, 0)
UNTAGGED = TableSchema("sg", "t", 1, (Column("v", "DOUBLE", False),))


def _files(rng: random.Random, times: int) -> list[Part]:
    """Sorted files of random age, as a close writes them."""
    found: list[Part] = []
    for at in range(rng.randrange(5)):
        rows = table([random_row(rng, times) for _ in range(rng.randrange(40))])
        found.append(((10 * at + rng.randrange(30),), merge([((1,), rows)], (), SCHEMA)))
    return found


def _tombstones(rng: random.Random, times: int) -> list[Tombstone]:
    return [_tombstone(rng, times) for _ in range(rng.randrange(3))]


def _tombstone(rng: random.Random, times: int) -> Tombstone:
    order = (rng.randrange(60),)
    tags = (("dev", rng.choice([None, "x"])),) if rng.random() < 0.5 else ()
    first, last = sorted((rng.randrange(-times, times), rng.randrange(-times, times)))
    return Tombstone(order, KEY, "t", tags, first, last)


def _spec(rng: random.Random, times: int) -> ScanSpec:
    spec = ScanSpec(SCHEMA, fields=rng.choice([None, (), ("i",), ("s", "d")]))
    if rng.random() < 0.3:
        spec = msgspec.structs.replace(spec, time_from=rng.randrange(-times, times), time_to=times // 2)
    if rng.random() < 0.3:
        spec = msgspec.structs.replace(spec, tags=(("site", rng.choice([None, "a", "\u00e9"])),))
    return spec


def _sources(parts: Sequence[Part], spec: ScanSpec, memory: Sequence[Part] = ()) -> list[Source]:
    files = [TableSource([part], spec) for part in parts]
    return [*files, TableSource(memory, spec)] if memory else [*files]


def _compacted(rng: random.Random, files: list[Part], dead: Sequence[Tombstone]) -> list[Part]:
    """Files that are adjacent in age, merged into one."""
    aged = sorted(files, key=lambda part: part[0])
    if len(aged) < 2 or rng.random() < 0.5:
        return aged
    at = rng.randrange(len(aged) - 1)
    older, newer = aged[at], aged[at + 1]
    if any(older[0] < t.order <= newer[0] for t in dead):
        return aged
    return [*aged[:at], (newer[0], merge([older, newer], (), SCHEMA)), *aged[at + 2 :]]


@pytest.mark.parametrize("seed", range(150))
def test_pages_together_are_the_merge(seed: int) -> None:
    """This holds for any page size, files, deletes and rows in memory; files are compacted between two
    pages."""
    rng = random.Random(seed)
    times = rng.choice([3, 6, 200])
    files, dead, spec = _files(rng, times), _tombstones(rng, times), _spec(rng, times)
    memory: list[Part] = [
        ((100 + i,), table([random_row(rng, times)])) for i in range(rng.choice([0, 0, 3, 20]))
    ]
    wanted = merge([*files, *memory], dead, SCHEMA, spec)
    bytes_max = rng.choice([1, 60, 300, 2000, 1 << 20])
    got: list[pa.Table] = []
    after: RowKey | None = None
    while True:
        one = page(_sources(files, spec, memory), dead, spec, PageSpec(after=after, bytes_max=bytes_max))
        got.append(one.rows)
        assert one.rows.num_rows == 1 or one.rows.nbytes <= 2 * bytes_max
        if one.after is None:
            break
        assert after is None or _place(one.after) > _place(after), "a page makes progress"
        after = one.after
        files = _compacted(rng, files, dead)
    assert pa.concat_tables(got).combine_chunks().equals(wanted.combine_chunks())


def _place(key: RowKey) -> tuple[tuple[bytes, ...], int]:
    return paging.key_of(key.tags), key.time


@pytest.mark.parametrize("seed", range(60))
def test_a_page_ends_at_the_requested_key(seed: int) -> None:
    """The rows up to a key and the rows after it are all rows; no row is in both."""
    rng = random.Random(seed)
    files, dead, spec = _files(rng, 6), _tombstones(rng, 6), _spec(rng, 6)
    wanted = merge(files, dead, SCHEMA, spec)
    key = RowKey((rng.choice([None, "", "a", "b\0", "z"]), rng.choice([None, "x"])), rng.randrange(-6, 6))
    sources = _sources(files, spec)
    upto = page(sources, dead, spec, PageSpec(until=key, bytes_max=1 << 20))
    after_key = page(sources, dead, spec, PageSpec(after=key, bytes_max=1 << 20))
    assert upto.after is None and after_key.after is None
    assert pa.concat_tables([upto.rows, after_key.rows]).combine_chunks().equals(wanted.combine_chunks())


@pytest.mark.parametrize("seed", range(40))
def test_the_first_rows_end_the_partition(seed: int) -> None:
    """If a number of rows is requested, the page has that many rows from the beginning, and no page
    follows."""
    rng = random.Random(seed)
    files, dead, spec = _files(rng, 6), _tombstones(rng, 6), _spec(rng, 6)
    rows_max = rng.randrange(1, 9)
    one = page(
        _sources(files, spec), dead, spec, PageSpec(bytes_max=rng.choice([800, 1 << 20]), rows_max=rows_max)
    )
    wanted = merge(files, dead, SCHEMA, spec).slice(0, rows_max)
    assert one.after is None and one.rows.combine_chunks().equals(wanted.combine_chunks())


def test_parts_of_a_large_table_count_with_their_own_size() -> None:
    """Parts are not counted with the buffers that they share: rows that fit into one page are read as one
    page."""
    large = table([{"time": at, "dev": "x", "s": "y" * 50} for at in range(20_000)])
    parts: list[Part] = [((at,), large.slice(100 * at, 5)) for at in range(40)]
    nbytes = sum(rows.nbytes for _, rows in parts)
    spec = ScanSpec(SCHEMA)
    wanted = merge(parts, (), SCHEMA)
    for bytes_max, fits in ((nbytes, True), (nbytes // 2 + 1, True), (nbytes // 2 - 1, False)):
        whole = paging.read_whole(_sources([], spec, parts), (), spec, PageSpec(bytes_max=bytes_max))
        assert (whole is not None) == fits, bytes_max
        assert whole is None or whole.equals(wanted)


class _Counting(TableSource):
    """A file that counts what was read from it."""

    by_time = True

    def __init__(self, parts: Sequence[Part], spec: ScanSpec) -> None:
        super().__init__(parts, spec)
        self.rows_read = 0

    def read(self, series: paging.SeriesKey, time_from: int, time_to: int) -> Iterator[Part]:
        for order, rows in super().read(series, time_from, time_to):
            for at in range(0, rows.num_rows, 10):
                piece = rows.slice(at, 10)
                self.rows_read += piece.num_rows
                yield order, piece


def _untagged(times: Sequence[int]) -> pa.Table:
    return pa.table({"time": times, "v": [0.0] * len(times)}, schema=arrow_schema(UNTAGGED))


def test_a_page_reads_only_the_rows_that_it_returns() -> None:
    """A page over files that follow each other in time reads only its own rows, wherever it begins."""
    spec = ScanSpec(UNTAGGED)
    files = [_Counting([((at,), _untagged(range(1000 * at, 1000 * at + 1000)))], spec) for at in range(20)]
    one = page(files, (), spec, PageSpec(after=RowKey((), 7_499), bytes_max=100 * 16))
    assert one.rows.column("time").to_pylist() == list(range(7_500, 7_500 + one.rows.num_rows))
    assert 80 <= one.rows.num_rows <= 110
    assert sum(f.rows_read for f in files) <= 2 * one.rows.num_rows


def test_rows_that_are_close_in_time_do_not_exceed_the_page_size() -> None:
    """The time span of a series does not show how its rows are distributed: reading stops before memory is
    exceeded."""
    spec = ScanSpec(UNTAGGED)
    times = [0, *range(500_000, 600_000), 1_000_000_000]
    source = _Counting([((1,), _untagged(times))], spec)
    got: list[int] = []
    after: RowKey | None = None
    while True:
        source.rows_read = 0
        one = page([source], (), spec, PageSpec(after=after, bytes_max=16_000))
        got += one.rows.column("time").to_pylist()
        assert one.rows.nbytes <= 2 * 16_000 and source.rows_read <= 5_000
        if one.after is None:
            break
        after = one.after
    assert got == times


def test_the_next_window_begins_at_the_key_where_reading_stopped() -> None:
    """Even if deletes leave no row of what was read, the rows after it are not skipped."""
    spec = ScanSpec(UNTAGGED)
    source = _Counting([((1,), _untagged([0, *range(500_000, 600_000), 1_000_000_000]))], spec)
    dead = Tombstone((5,), KEY, "t", (), 500_000, 599_990)
    got: list[int] = []
    after: RowKey | None = None
    while True:
        one = page([source], [dead], spec, PageSpec(after, bytes_max=16_000))
        got += one.rows.column("time").to_pylist()
        if one.after is None:
            break
        after = one.after
    assert got == [0, *range(599_991, 600_000), 1_000_000_000]


def test_a_page_of_deleted_rows_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that deletes hide count as work: a page may end without a row, and then names the key to continue
    after."""
    monkeypatch.setattr(paging, "ROWS_READ_MAX", 100)
    spec = ScanSpec(UNTAGGED)
    source = _Counting([((1,), _untagged(range(10_000)))], spec)
    dead = Tombstone((5,), KEY, "t", (), 0, 9_998)
    pages = 0
    after: RowKey | None = None
    got: list[int] = []
    while True:
        source.rows_read = 0
        one = page([source], [dead], spec, PageSpec(after=after, bytes_max=1600))
        pages += 1
        got += one.rows.column("time").to_pylist()
        assert source.rows_read <= 400
        if one.after is None:
            break
        after = one.after
    assert got == [9_999] and pages > 10
