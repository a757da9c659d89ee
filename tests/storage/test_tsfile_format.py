"""The TsFile library, as we use it, returns what was written, and equal rows make equal bytes."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from nodeagent.model.errors import FileCorrupt, Refused, Unavailable
from nodeagent.model.files import PageSpec, ScanSpec, Tombstone
from nodeagent.model.jobs import CloseUnit
from nodeagent.model.schema import Column, TableSchema
from nodeagent.storage.format import ClosedUnit, close_unit, read_footer, scan_rows
from nodeagent.storage.sources import ContentSources
from nodeagent.storage.tsfile_format import TsFileFormat
from nodeagent.table.arrow import decode
from nodeagent.table.checksum import checksum, total
from nodeagent.table.merge import merge
from nodeagent.table.paging import Source

from .units import EVERY_TYPE, KEY, SIMPLE, every_type_rows, rows, spec, table, unit


@pytest.fixture(scope="module")
def tsfile(tmp_path_factory: pytest.TempPathFactory) -> TsFileFormat:
    return TsFileFormat(str(tmp_path_factory.mktemp("scratch")))


def test_every_type_comes_back_bit_for_bit(tsfile: TsFileFormat) -> None:
    """NaN, infinities, -0.0, extreme integers, NUL, Unicode, null and empty tags, and a column of nulls."""
    closed = close_unit(unit("a", (1, every_type_rows()), schema=EVERY_TYPE), tsfile)
    assert closed is not None
    got = merge([((1,), tsfile.decode(closed.content, spec(EVERY_TYPE)))], (), EVERY_TYPE)
    want = merge([((1,), every_type_rows())], (), EVERY_TYPE)
    assert got.drop_columns(["f4", "f8"]).equals(want.drop_columns(["f4", "f8"]))
    for name, kind in (("f4", pa.int32()), ("f8", pa.int64())):
        assert (
            got.column(name).combine_chunks().view(kind).equals(want.column(name).combine_chunks().view(kind))
        )
    assert total(checksum(got, EVERY_TYPE)) == closed.meta.logical


def test_footer_describes_the_content(tsfile: TsFileFormat) -> None:
    """The footer contains partition, order, slot, rows and checksums; the sums of the days add up to the
    total."""
    closed = close_unit(unit("a", (1, rows(300))), tsfile)
    assert closed is not None
    footer = read_footer(closed.content, tsfile)
    assert footer == closed.footer
    assert (footer.slot, footer.partition, footer.order, footer.rows) == (5, ("sg", 7, 0), (100,), 300)
    assert sum(d[1] for d in footer.days) == footer.logical[0] == 300
    assert (closed.meta.time_min, closed.meta.time_max, closed.meta.size) == (0, 299, len(closed.content))


_OTHER_PROCESS = """
import sys
import msgspec
from nodeagent.model.jobs import CloseUnit
from nodeagent.storage.format import close_unit
from nodeagent.storage.tsfile_format import TsFileFormat
unit = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=CloseUnit)
sys.stdout.buffer.write(close_unit(unit, TsFileFormat(sys.argv[1])).content)
"""


def test_bytes_do_not_depend_on_process_directory_or_history(tsfile: TsFileFormat, tmp_path: Path) -> None:
    """Another process in another directory writes the same file, whatever this process wrote before."""
    one = unit("a", (2, every_type_rows()), (1, every_type_rows()), schema=EVERY_TYPE)
    close_unit(unit("other", (1, rows(1000))), tsfile)
    here = close_unit(one, tsfile)
    again = close_unit(msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=CloseUnit), tsfile)
    there = subprocess.run(
        [sys.executable, "-c", _OTHER_PROCESS, str(tmp_path / "else" / "where")],
        input=msgspec.msgpack.encode(one),
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert here is not None and again is not None
    assert here.content == again.content == there.stdout


def test_the_bytes_do_not_depend_on_the_division_into_batches(tsfile: TsFileFormat) -> None:
    """The bytes are a function of the rows in log order, and do not depend on how entries divide them."""
    whole = rows(500, devices=7)
    one = close_unit(unit("a", (1, whole)), tsfile)
    many = close_unit(unit("a", *((i, whole.slice(i * 50, 50)) for i in range(10))), tsfile)
    assert one is not None and many is not None and one.content == many.content


def test_without_rows_there_is_no_file(tsfile: TsFileFormat) -> None:
    """A delete of everything, and no batch at all, return None."""
    tomb = Tombstone((9,), KEY, "t", (), -(1 << 63), (1 << 63) - 1)
    assert close_unit(unit("a", (1, rows(5)), tombstones=(tomb,)), tsfile) is None
    assert close_unit(unit("a"), tsfile) is None


@pytest.mark.parametrize("shape", ["no tags", "no fields"])
def test_tables_without_tags_or_fields_keep_their_rows(tsfile: TsFileFormat, shape: str) -> None:
    """Tables without tags and tables without fields keep their rows."""
    column = Column("a", "STRING", shape == "no fields")
    schema = TableSchema("sg", "t", 1, (column,))
    given = table({"time": [1, 2, 3], "a": ["x", None, "x"]}, schema)
    closed = close_unit(unit("a", (1, given), schema=schema), tsfile)
    assert closed is not None and closed.meta.rows == 3
    got = merge([((1,), tsfile.decode(closed.content, spec(schema)))], (), schema)
    assert got.equals(merge([((1,), given)], (), schema))


def _source(closed: ClosedUnit, one: ScanSpec, tsfile: TsFileFormat) -> Source:
    return ContentSources(lambda _: closed.content, tsfile).of("p", closed.meta, one)


def test_scan_pushes_down_columns_times_and_tags(tsfile: TsFileFormat) -> None:
    """A scan of some fields, a time range and one series returns the same rows as a filter on the whole
    scan."""
    closed = close_unit(unit("a", (1, every_type_rows()), schema=EVERY_TYPE), tsfile)
    assert closed is not None
    everything = merge([((1,), every_type_rows())], (), EVERY_TYPE)
    tags = [(), (("site", None),), (("site", ""),), (("dev", "q"), ("site", "\u00e9")), (("dev", "a\0"),)]
    for wanted_tags in tags:
        for fields in (None, (), ("i4",), ("none",), ("te", "f4")):
            for low, high in ((-(1 << 63), (1 << 63) - 1), (2, 3)):
                one = spec(EVERY_TYPE, fields=fields, time_from=low, time_to=high, tags=wanted_tags)
                found = scan_rows(one, PageSpec(), [_source(closed, one, tsfile)], (), ())
                want = merge([((1,), everything)], (), EVERY_TYPE, one)
                assert repr(decode(found.ipc).to_pylist()) == repr(want.to_pylist()), one


def test_columns_missing_in_a_file_of_an_older_schema_are_null(tsfile: TsFileFormat) -> None:
    """Columns that were added later, tags or fields, are null in rows of older files."""
    closed = close_unit(unit("a", (1, rows(4))), tsfile)
    assert closed is not None
    newer = (*SIMPLE.columns, Column("site", "STRING", True), Column("w", "INT64", False))
    schema = TableSchema("sg", "t", 2, newer)
    for one in (spec(schema), spec(schema, fields=("w",)), spec(schema, tags=(("site", None),))):
        found = scan_rows(one, PageSpec(), [_source(closed, one, tsfile)], (), ())
        got = decode(found.ipc)
        assert got.num_rows == 4 and got.column("site").null_count == got.column("w").null_count == 4


def test_a_flipped_byte_is_detected_before_the_file_is_parsed(tsfile: TsFileFormat) -> None:
    """The hash detects any flip as FileCorrupt; the native reader never gets the bytes."""
    closed = close_unit(unit("a", (1, rows(50))), tsfile)
    assert closed is not None

    class NeverParses(TsFileFormat):
        def decode(self, content: bytes, spec: object) -> pa.Table:
            raise AssertionError("parsed unverified bytes")

    guard = NeverParses(tsfile._scratch)
    for at in range(0, len(closed.content), 97):
        bad = bytearray(closed.content)
        bad[at] ^= 4
        with pytest.raises(FileCorrupt):
            ContentSources(lambda _, b=bytes(bad): b, guard).of("p", closed.meta, spec())  # type: ignore[misc]


def test_a_failed_writer_leaves_no_file(tmp_path: Path) -> None:
    """Rows that the writer refuses (times out of order) raise an error, and the scratch directory is
    empty."""
    scratch = TsFileFormat(str(tmp_path))
    twice = table({"time": [2, 1], "dev": ["a", "a"], "v": [1.0, 2.0]})
    with pytest.raises(Unavailable):
        scratch.encode(twice, unit("a").spec, {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_wrong_counts_is_refused(tsfile: TsFileFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the library drops rows or values silently, the new file is FileCorrupt and is not published."""
    import nodeagent.storage.tsfile_format as module

    write = module._write
    monkeypatch.setattr(module, "_write", lambda path, given, *rest: write(path, given.slice(1), *rest))
    with pytest.raises(FileCorrupt, match="wrote 5 rows"):
        close_unit(unit("a", (1, rows(5))), tsfile)


def test_unknown_compression_and_version_are_refused(tsfile: TsFileFormat) -> None:
    """An option that is not on the allow-list never reaches the writer."""
    one = unit("a", (1, rows(5)))
    for change in ({"compression": "LZO"}, {"format_version": 2}):
        bad = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, **change))
        with pytest.raises(Refused):
            close_unit(bad, tsfile)
