"""Imports: types, times, and every bad row with its line."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iotctl.errors import Exit
from iotctl.humanize import bytes_text
from iotctl.rows.csv_rows import infer_types, read_csv
from nodeagent.model.schema import Column, TableSchema
from tests.iotctl.fakes import SPEC, FakeCluster, Ran, Wrote, iotctl


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def load(spec: Path, text: str, *words: str, cluster: FakeCluster | None = None) -> tuple[Ran, FakeCluster]:
    (spec / "a.csv").write_text(text)
    cluster = cluster or FakeCluster()
    base = ("data", "import", "a.csv", "--storage-group", "root.plant", "--table", "m")
    return iotctl(spec, *base, *words, "-o", "json", cluster=cluster), cluster


def test_columns_times_and_types(spec: Path) -> None:
    """Integer and ISO times, with or without zone, mean UTC milliseconds; NA is no value."""
    text = (
        "Time,Device,Temp,On,Note\n"
        "1000,d1,20,true,a\n"
        "1970-01-01T00:00:02Z,d1,20.5,false,\n"
        "1970-01-01 00:00:03,d2,NA,true,NA\n"
        "1970-01-01T02:00:04.5+02:00,,1e3,,x\n"
    )
    done, cluster = load(spec, text, "--time", "Time", "--tag", "Device")
    assert done.code == 0, done.err
    ((group, table, rows, tags),) = cluster.written
    assert (group, table, tags) == ("root.plant", "m", ("device",))
    assert set(rows.schema.names) == {"time", "device", "temp", "on", "note"}
    assert rows.column("time").to_pylist() == [1000, 2000, 3000, 4500]
    assert rows.column("temp").to_pylist() == [20.0, 20.5, None, 1000.0]
    assert rows.column("on").to_pylist() == [True, False, True, None]
    assert rows.column("note").to_pylist() == ["a", None, "NA", "x"]
    assert rows.column("device").to_pylist() == ["d1", "d1", "d2", None]
    assert json.loads(done.out)["rows"] == 4


BAD = "time,device,v\n1,a,1.5\n\n2,a\n3,b,abc\n4,b,2\nnever,c,3\n,c,4\n9,c,5\n"


def test_bad_rows_stop_before_anything_is_written(spec: Path) -> None:
    """Exit 3 with file:line of the first and the lines of the others; not one row was sent."""
    done, cluster = load(spec, BAD, "--tag", "device")
    assert done.code == Exit.INPUT
    failure = json.loads(done.out)["error"]
    assert failure["where"] == f"{spec}/a.csv:4"
    assert "2 values, the header has 3" in failure["what"]
    for line in ("line 5: v: not a DOUBLE: 'abc'", "line 7: time", "line 8: time"):
        assert line in failure["why"]
    assert "line 3" not in failure["why"], "an empty line is not a bad row"
    assert not cluster.written


def test_bad_rows_are_skipped_on_request(spec: Path) -> None:
    """The good rows are written; the others are counted and named."""
    done, cluster = load(spec, BAD, "--tag", "device", "--on-error", "skip")
    assert done.code == 0
    rows = pa.concat_tables([w[2] for w in cluster.written])
    assert rows.column("time").to_pylist() == [1, 4, 9]
    report = json.loads(done.out)
    assert (report["rows"], report["skipped_rows"]) == (3, 4)
    assert {s["where"].rpartition(":")[2] for s in report["skipped"]} == {"4", "5", "7", "8"}
    assert f"{spec}/a.csv:5: v: not a DOUBLE: 'abc'" in done.err


def test_lines_stay_right_over_block_borders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad value and a ragged row far into a file of many blocks."""
    monkeypatch.setattr("iotctl.rows.csv_rows.BLOCK_BYTES", 2000)
    lines = ["time,v", *(f"{i},{i}.5" for i in range(3000))]
    lines[1500], lines[2500] = "7,oops", "1,2,3"
    path = tmp_path / "b.csv"
    path.write_text("\n".join(lines) + "\n")
    blocks = list(read_csv(path, {"v": "DOUBLE"}, "time"))
    assert len(blocks) > 3
    assert sorted(b.line for block in blocks for b in block.bad) == [1501, 2501]
    assert sum(b.rows.num_rows for b in blocks) == 2998


def test_types_are_inferred_from_the_whole_file(tmp_path: Path) -> None:
    """Whole numbers stay whole; a column of mostly numbers is a number column; given types win."""
    path = tmp_path / "c.csv"
    path.write_text("time,i,f,b,s,mixed,x\n1,1,1.5,true,a,1,1\n2,2,2,false,b,2,2\n3,,NA,,1,x,3\n")
    types = infer_types(path, {"x": "INT64"}, "time").types
    assert types == {
        "i": "INT64",
        "f": "DOUBLE",
        "b": "BOOLEAN",
        "s": "STRING",
        "mixed": "INT64",
        "x": "INT64",
    }


def test_an_existing_table_decides_the_types(spec: Path) -> None:
    """A value that does not fit the table's type is a bad row of that line."""
    columns = (Column("device", "STRING", True), Column("v", "INT32", False))
    cluster = FakeCluster(tables=[TableSchema("root.plant", "m", 1, columns)])
    done, _ = load(spec, "time,device,v\n1,a,3\n2,a,2.5\n", "--tag", "device", cluster=cluster)
    assert done.code == Exit.INPUT
    assert json.loads(done.out)["error"]["where"].endswith("a.csv:3")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--time", "when"), Exit.INPUT),
        (("--tag", "nothing"), Exit.INPUT),
        (("--type", "v=NUMBER"), Exit.USAGE),
        (("--on-error", "explode"), Exit.USAGE),
    ],
)
def test_wrong_options(spec: Path, words: tuple[str, ...], code: Exit) -> None:
    done, cluster = load(spec, "time,v\n1,2\n", *words)
    assert done.code == code
    assert not cluster.written


def test_unreadable_files(spec: Path) -> None:
    """Missing and empty files, bytes that are not text, and unknown extensions are refused."""
    base = ("data", "import")
    rest = ("--storage-group", "root.a", "--table", "m")
    (spec / "empty.csv").write_text("")
    (spec / "bytes.csv").write_bytes(b"\xff\xfe\x00\x01\n\x00")
    (spec / "x.parquet").write_bytes(b"not parquet at all")
    for name, code in (
        ("missing.csv", Exit.INPUT),
        ("empty.csv", Exit.INPUT),
        ("bytes.csv", Exit.INPUT),
        ("x.parquet", Exit.INPUT),
        ("x.doc", Exit.USAGE),
    ):
        assert iotctl(spec, *base, name, *rest, cluster=FakeCluster()).code == code, name


def test_parquet_with_timestamps(spec: Path) -> None:
    """Other units and text-like tags are converted to the table's types."""
    table = pa.table(
        {
            "at": pa.array([1_000_000, 2_000_000], pa.timestamp("us", "UTC")),
            "dev": pa.array(["a", "b"]).dictionary_encode(),
            "v": [1, 2],
        }
    )
    pq.write_table(table, spec / "a.parquet")
    cluster = FakeCluster()
    words = ("--storage-group", "root.a", "--table", "m", "--time", "at", "--tag", "dev")
    done = iotctl(spec, "data", "import", "a.parquet", *words, cluster=cluster)
    assert done.code == 0, done.err
    rows = cluster.written[0][2]
    assert rows.column("time").to_pylist() == [1000, 2000]
    assert rows.column("dev").to_pylist() == ["a", "b"]


@pytest.mark.parametrize(
    "header,words,says",
    [
        ("time,v,v", (), "two columns are named 'v'"),
        ("time,Temp,temp", (), "columns 'Temp' and 'temp' have the same name"),
        ("ts,time,v", ("--time", "ts"), "column 'time' has the name of the time column"),
        ("when,v,w", (), "name columns of the file with --time"),
        ("Time,v,w", (), "did you mean 'Time'?"),
        ("time;v;w", (), "separate the columns with commas"),
        ("time,v,w", ("--tag", "dev"), "--tag and --type"),
        ("time,v,w", ("--type", "v=BLOB"), "a BLOB cannot be read from a CSV file"),
    ],
)
def test_an_invalid_header_is_reported_with_its_line(
    spec: Path, header: str, words: tuple[str, ...], says: str
) -> None:
    """No column is lost silently; each message has the place once and the fix."""
    done, cluster = load(spec, f"{header}\n1,2,3\n", *words)
    assert done.code == Exit.INPUT and not cluster.written
    failure = json.loads(done.out)["error"]
    assert failure["where"] == f"{spec}/a.csv:1"
    assert says in f"{failure['what']} {failure['next']}" and str(spec) not in failure["what"]


def test_a_path_that_is_not_a_file_is_reported_once(spec: Path) -> None:
    (spec / "d.csv").mkdir()
    where = ("--storage-group", "root.a", "--table", "m")
    for name, says in (("d.csv", "is a directory, not a file"), ("x.csv", "no such file")):
        done = iotctl(spec, "data", "import", name, *where, cluster=FakeCluster())
        assert done.code == Exit.INPUT
        assert done.err.splitlines()[0] == f"error: {spec}/{name}: {says}"


def test_types_are_given_to_parquet_too(spec: Path) -> None:
    """Otherwise the option would have no effect; a value that does not fit writes nothing."""
    pq.write_table(pa.table({"time": [1, 2], "a": [1, 2], "b": ["1", "x"]}), spec / "a.parquet")
    words = ("data", "import", "a.parquet", "--storage-group", "root.a", "--table", "m", "--type")
    cluster = FakeCluster()
    done = iotctl(spec, *words, "a=DOUBLE", cluster=cluster)
    assert done.code == 0, done.err
    assert cluster.written[0][2].column("a").type == pa.float64()
    for given, says in (("b=DOUBLE", "a.parquet row 2: b: not a DOUBLE: 'x'"), ("c=DOUBLE", "no column 'c'")):
        cluster = FakeCluster()
        done = iotctl(spec, *words, given, cluster=cluster)
        assert done.code == Exit.INPUT and says in done.err and not cluster.written


def test_an_interrupted_import_reports_its_progress(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are idempotent, so the next step is the same command."""
    monkeypatch.setattr("iotctl.rows.csv_rows.BLOCK_BYTES", 1000)

    class Interrupting(FakeCluster):
        def write(
            self, storage_group: str, table: str, data: pa.Table, *, tags: Sequence[str] | None = None
        ) -> Wrote:
            if len(self.written) == 2:
                raise KeyboardInterrupt
            return FakeCluster.write(self, storage_group, table, data, tags=tags)

    cluster = Interrupting()
    done, _ = load(spec, "time,v\n" + "".join(f"{i},1\n" for i in range(1000)), cluster=cluster)
    failure = json.loads(done.out)["error"]
    rows = sum(w[2].num_rows for w in cluster.written)
    assert (done.code, failure["why"]) == (130, f"{rows} rows were written, perhaps more")
    assert failure["next"] == "run the same command again; equal rows overwrite each other"


def test_progress_of_an_import_is_in_bytes_up_to_the_files_size(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iotctl.rows.csv_rows.BLOCK_BYTES", 1000)
    text = "time,v\n" + "".join(f"{i},1\n" for i in range(1000))
    done, _ = load(spec, text)
    size = bytes_text(len(text))
    assert f"checking rows {size}/{size}" in done.err and f"writing rows {size}/{size}" in done.err


def test_write_one_row(spec: Path) -> None:
    """Fields are given by name, each with the type that its text suggests, separately from tags."""
    cluster = FakeCluster()
    words = (
        "--storage-group",
        "root.a",
        "--table",
        "m",
        "--tag",
        "device=d1",
        "--time",
        "1970-01-01T00:00:01Z",
        "--create",
    )
    fields = ("t=21.5", "up=+1", "on=true", "note=x", "range=+-5")
    done = iotctl(spec, "data", "write", *fields, *words, cluster=cluster)
    assert done.code == 0, done.err
    ((_, _, rows, tags),) = cluster.written
    found = {"time": 1000, "device": "d1", "t": 21.5, "up": 1, "on": True, "note": "x", "range": "+-5"}
    assert rows.to_pylist() == [found]
    assert tags == ("device",)


def test_rows_are_deleted_by_name_only(spec: Path) -> None:
    """A delete cannot be undone, so the cluster's name is required; with --dry-run the rows are counted."""
    schema = TableSchema("root.a", "m", 1, (Column("device", "STRING", True), Column("v", "INT32", False)))
    cluster = FakeCluster(tables=[schema], answers=pa.table({"time": [5, 6], "device": ["d1", "d1"]}))
    chosen = ("--storage-group", "root.a", "--table", "m", "--where", "device=d1")
    words = ("data", "delete", *chosen, "--from", "5", "--to", "1970-01-01T00:00:01Z")
    look = iotctl(spec, *words, "--dry-run", "-o", "json", cluster=cluster)
    assert json.loads(look.out)["would"] == [
        "delete 2 rows of root.a.m with device=d1 from 5 to 1970-01-01T00:00:01Z"
    ]
    unsaid = iotctl(spec, *words, cluster=cluster)
    assert unsaid.code == Exit.REFUSED and "--confirm plant" in unsaid.err and not cluster.deleted
    done = iotctl(spec, *words, "--confirm", "plant", "-o", "json", cluster=cluster)
    assert done.code == 0 and json.loads(done.out)["partitions"] == 3
    assert cluster.deleted == [("root.a", "m", {"device": "d1"}, 5, 1000)]
    unknown = iotctl(spec, *words[:5], "x", "--confirm", "plant", cluster=cluster)
    assert unknown.code == Exit.INPUT and len(cluster.deleted) == 1


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.arrow"])
def test_export_can_be_imported_again(spec: Path, name: str) -> None:
    """What export writes, import reads as the same rows."""
    rows = pa.table({"time": pa.array([1, 2]), "device": ["a", "b"], "v": [1.5, None]})
    where = ("--storage-group", "root.a", "--table", "m")
    schema = TableSchema("root.a", "m", 1, (Column("device", "STRING", True), Column("v", "DOUBLE", False)))
    holder = FakeCluster(answers=rows, tables=[schema])
    done = iotctl(spec, "data", "export", *where, "--to", name, cluster=holder)
    assert done.code == 0, done.err
    cluster = FakeCluster()
    back = iotctl(spec, "data", "import", name, *where, "--tag", "device", cluster=cluster)
    assert back.code == 0, back.err
    assert cluster.written[0][2].to_pylist() == rows.to_pylist()


def test_a_ttl_is_set_shown_and_removed(spec: Path) -> None:
    """It requires an existing table and a valid duration."""
    columns = (Column("device", "STRING", True), Column("v", "INT32", False))
    cluster = FakeCluster(tables=[TableSchema("root.plant", t, 1, columns) for t in ("m", "n")])
    named = ("data", "schema", "--storage-group", "root.plant", "--table", "m")
    done = iotctl(spec, *named, "--set-ttl", "30d", "-o", "json", cluster=cluster)
    assert done.code == 0 and json.loads(done.out)["tables"][0]["ttl_ms"] == 30 * 86_400_000
    assert [t.ttl_ms for t in cluster.tables] == [30 * 86_400_000, 0]
    assert "root.plant.m: rows are retained for" in iotctl(spec, *named, cluster=cluster).out
    for words, code in (
        ((*named, "--set-ttl", "soon"), Exit.USAGE),
        ((*named, "--set-ttl", "0s"), Exit.USAGE),
        (("data", "schema", "--set-ttl", "30d"), Exit.USAGE),
        ((*named[:-1], "x", "--set-ttl", "30d"), Exit.INPUT),
    ):
        assert iotctl(spec, *words, cluster=cluster).code == code, words
    assert iotctl(spec, *named, "--set-ttl", "none", cluster=cluster).code == 0
    assert [t.ttl_ms for t in cluster.tables] == [0, 0]
