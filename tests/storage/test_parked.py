"""Rows that cannot become a TsFile are parked as an Arrow file, which is hashed, read, copied and
verified."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from iotctl.pipeline.digest import buckets, read_rows
from iotctl.pipeline.tsfile_rows import Wanted, read_table
from nodeagent.model.errors import FileCorrupt, InvalidName
from nodeagent.model.files import PageSpec, ScanSpec, Tombstone, parked_name
from nodeagent.model.jobs import CloseUnit, CompactFiles, CompactUnit, FilesClosed
from nodeagent.model.schema import Column, TableSchema
from nodeagent.storage.files import check_content
from nodeagent.storage.format import ClosedUnit, close_unit, compact_unit, scan_rows
from nodeagent.storage.sources import ContentSources
from nodeagent.storage.tsfile_format import TsFileFormat
from nodeagent.storage.tsfile_source import TsFileSources
from nodeagent.table.arrow import decode
from nodeagent.table.checksum import checksum, total
from nodeagent.table.merge import merge
from nodeagent.testing.disk import SimDisk

from .units import EVERY_TYPE, GROUP, KEY, SIMPLE, close, every_type_rows, room, rows, table, unit


def one_column(name: str) -> tuple[TableSchema, dict[str, list[object]]]:
    return TableSchema("sg", "t", 1, (Column(name, "INT64", False),)), {"time": [1], name: [1]}


POISON: dict[str, tuple[TableSchema, dict[str, list[object]]]] = {
    "two tags up to a NUL": (SIMPLE, {"time": [1, 1], "dev": ["a\0b", "a\0c"], "v": [1.0, 2.0]}),
    "no name": one_column(""),
    "a NUL in a name": one_column("a\0b"),
    "a long name": one_column("c" * 4096),
    "a table with a NUL": (
        TableSchema("sg", "a\0b", 1, SIMPLE.columns),
        {"time": [1], "dev": ["a"], "v": [1.0]},
    ),
}


@pytest.fixture(scope="module")
def tsfile(tmp_path_factory: pytest.TempPathFactory) -> TsFileFormat:
    return TsFileFormat(str(tmp_path_factory.mktemp("scratch")))


def parked(one: CloseUnit) -> CloseUnit:
    spec = msgspec.structs.replace(one.spec, name=parked_name(one.spec.name), parked="no")
    return msgspec.structs.replace(one, spec=spec)


def closed(one: CloseUnit, tsfile: TsFileFormat) -> ClosedUnit:
    made = close_unit(one, tsfile)
    assert made is not None
    return made


@pytest.mark.parametrize("case", POISON)
def test_rows_that_no_tsfile_can_hold_are_parked_and_read(
    tsfile: TsFileFormat, case: str, tmp_path: Path
) -> None:
    """Rows that an earlier release accepted fail as a TsFile before any job relies on the file; a scan and
    `verify` read them from the parked file."""
    schema, values = POISON[case]
    one = unit("00005-000000000100-0000.tsfile", (1, given := table(values, schema)), schema=schema)
    with pytest.raises((FileCorrupt, InvalidName)):
        close_unit(one, tsfile)
    made = closed(parked(one), tsfile)
    assert made.meta.parked == "no" and made.meta.name == "00005-000000000100-0000.arrow"
    want = merge([((1,), given)], (), schema)
    copy = check_content(bytes(made.content), made.meta, "copy")
    (tmp_path / "f").write_bytes(copy)
    for sources in (
        ContentSources(lambda _: copy, tsfile),
        TsFileSources(str(tmp_path), tsfile, lambda _: None),
    ):
        source = sources.of("f", made.meta, spec := ScanSpec(schema))
        found = scan_rows(spec, PageSpec(), [source], (), ())
        assert decode(found.ipc).to_pylist() == want.to_pylist()
    verified = read_rows(copy, schema, "copy")
    assert verified.sums == made.meta.logical == total(checksum(want, schema))
    assert buckets(verified.rows, schema) == buckets(want, schema)


def test_a_tsfile_becomes_the_same_parked_file_as_its_rows(tsfile: TsFileFormat) -> None:
    """A member that wrote the TsFile and a member that could not end with equal bytes, hashes and sums."""
    delete = Tombstone((2,), KEY, "every_type", (("dev", "q"),), -9, 9)
    batches = [(1, every_type_rows()), (3, every_type_rows().slice(2))]
    one = unit("a.tsfile", *batches, schema=EVERY_TYPE, tombstones=(delete,))
    direct, as_tsfile = closed(parked(one), tsfile), closed(one, tsfile)
    job = CompactUnit(parked(one).spec, (), (as_tsfile.meta,))
    turned = compact_unit(job, ["a"], lambda _: as_tsfile.content, tsfile)
    assert turned is not None
    assert (turned.content, turned.meta, turned.footer) == (direct.content, direct.meta, direct.footer)
    assert direct.meta.logical == as_tsfile.meta.logical


def test_a_parked_file_becomes_the_tsfile_of_its_rows(tsfile: TsFileFormat) -> None:
    """A later version of the library can write the TsFile; deletes since then are applied."""
    one = unit("a.tsfile", (1, every_type_rows()), schema=EVERY_TYPE)
    as_arrow = closed(parked(one), tsfile)
    target = msgspec.structs.replace(one.spec, name="b.tsfile")

    def turned(*deletes: Tombstone) -> ClosedUnit:
        job = CompactUnit(target, (9,), (as_arrow.meta,), deletes)
        made = compact_unit(job, ["a"], lambda _: as_arrow.content, tsfile)
        assert made is not None and not made.meta.parked
        return made

    direct = closed(msgspec.structs.replace(one, spec=target), tsfile)
    assert turned().content == direct.content and turned().meta.logical == as_arrow.meta.logical
    assert turned(Tombstone((150,), KEY, "every_type", (("dev", "q"),), -9, 9)).meta.rows < direct.meta.rows


def test_a_trial_leaves_no_file() -> None:
    disk = SimDisk()
    storage = room(disk)
    (made,) = close(storage, parked(unit("a.tsfile", (1, rows(50)))))
    job = CompactFiles(GROUP, CompactUnit(unit("b.tsfile").spec, (9,), (made,)), is_trial=True)
    assert storage.run(job) == FilesClosed((None,))
    assert not disk.listdir("tmp") and disk.listdir(f"groups/{GROUP}/slots/00005") == [made.name]


def test_a_parked_file_is_filtered_like_a_tsfile(tsfile: TsFileFormat) -> None:
    """With columns, times and tags in Spark tasks, both kinds of file return the same rows."""
    one = unit("a.tsfile", (1, every_type_rows()), schema=EVERY_TYPE)
    both = [closed(one, tsfile).content, closed(parked(one), tsfile).content]
    for wanted in (
        Wanted(),
        Wanted(("dev", "i4")),
        Wanted(("i4",), time_from=2, time_to=3),
        Wanted(None, tags=(("site", None),)),
        Wanted(("te",), tags=(("dev", "q"), ("site", "\u00e9"))),
        Wanted(tags=(("dev", "nobody"),)),
        Wanted(tags=(("later", "x"),)),
        Wanted(tags=(("later", None),)),
    ):
        found = [read_table(content, "every_type", wanted, "f") for content in both]
        as_rows = [[] if t is None else sorted(map(repr, t.to_pylist())) for t in found]
        assert as_rows[0] == as_rows[1], wanted
        assert len({tuple(t.column_names) for t in found if t is not None}) <= 1


def test_a_damaged_parked_file_is_named(tsfile: TsFileFormat) -> None:
    """Its hash is checked before it is opened, and a file that is not an Arrow file is an error."""
    made = closed(parked(unit("a.tsfile", (1, rows(50)))), tsfile)
    broken = made.content[:100] + b"X" + made.content[101:]
    with pytest.raises(FileCorrupt):
        ContentSources(lambda _: broken, tsfile).of("f", made.meta, ScanSpec(SIMPLE))
    with pytest.raises(FileCorrupt):
        read_table(made.content[:200], "t", Wanted(), "f")
    assert isinstance(read_table(made.content, "t", Wanted(), "f"), pa.Table)
