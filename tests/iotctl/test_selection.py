"""Selected, shown, confirmed and deleted rows are the same rows (E2, E3, E9)."""

import io
import json
import os
import stat
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from iotctl.cli.data import ROWS_SHOWN
from iotctl.errors import Exit, UsageProblem
from iotctl.rows.selection import PARTS_MAX, Selection, parse_time, parse_where
from iotctl.spec.units import parse_duration_ms
from nodeagent.client.report import DeleteReport
from nodeagent.model.errors import Unavailable
from nodeagent.model.schema import Column, TableSchema
from tests.iotctl.fakes import NOW_MS, SPEC, FakeCluster, Tty, iotctl

DAY_MS = 86_400_000
COLUMNS = (Column("device", "STRING", True), Column("v", "DOUBLE", False))
NAMED = ("--storage-group", "root.a", "--table", "m")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


@pytest.fixture
def cluster() -> FakeCluster:
    rows = {"time": [3, 1, 2, 4], "device": ["c", "a", "b", "a"], "v": [3.0, 1.0, 2.0, 4.0]}
    return FakeCluster(tables=[TableSchema("root.a", "m", 1, COLUMNS)], answers=pa.table(rows))


def test_values_of_one_tag_are_alternatives_and_tags_are_combined() -> None:
    """The parts are disjoint, each with one value per tag; a repeated value counts once."""
    selection = Selection(parse_where(["Device=a", "device=b", "region=eu", "device=a", "room="]))
    assert selection.parts() == [
        {"device": "a", "region": "eu", "room": None},
        {"device": "b", "region": "eu", "room": None},
    ]
    assert selection.limits() == ["(device=a or device=b)", "region=eu", "room="]
    assert Selection().parts() == [{}]
    with pytest.raises(UsageProblem, match="combinations"):
        parse_where([f"d={i}" for i in range(PARTS_MAX + 1)])


def test_a_query_and_a_delete_select_the_same_rows(place: Path, cluster: FakeCluster) -> None:
    """E3: the rows read, counted by a dry run, confirmed and deleted are the same."""
    where = ("--where", "device=b", "--where", "device=a")
    done = iotctl(place, "data", "query", *NAMED, *where, "-o", "json", cluster=cluster)
    assert [(r["device"], r["time"]) for r in json.loads(done.out)["rows"]] == [("a", 1), ("a", 4), ("b", 2)]
    limited = iotctl(place, "data", "query", *NAMED, *where, "--limit", "2", "-o", "json", cluster=cluster)
    assert [r["time"] for r in json.loads(limited.out)["rows"]] == [1, 4]
    delete = ("data", "delete", *NAMED, *where)
    look = iotctl(place, *delete, "--dry-run", "-o", "json", cluster=cluster)
    assert json.loads(look.out)["would"] == ["delete 3 rows of root.a.m with (device=b or device=a)"]
    asked = iotctl(place, *delete, cluster=cluster)
    assert asked.code == Exit.REFUSED and "(device=b or device=a)" in asked.err and not cluster.deleted
    done = iotctl(place, *delete, "--confirm", "plant", "-o", "json", cluster=cluster)
    assert done.code == 0 and json.loads(done.out)["partitions"] == 6
    assert [tags for _, _, tags, _, _ in cluster.deleted] == [{"device": "b"}, {"device": "a"}]


def test_a_delete_that_fails_halfway_reports_the_deleted_parts(place: Path, cluster: FakeCluster) -> None:
    class Failing(FakeCluster):
        def delete(self, *words: object, **asked: object) -> DeleteReport:
            if asked["tags"] == {"device": "b"}:
                raise Unavailable("no quorum")
            return DeleteReport(1, 0.1)

    failing = Failing(tables=cluster.tables)
    words = ("data", "delete", *NAMED, "--where", "device=a", "--where", "device=b", "--confirm", "plant")
    done = iotctl(place, *words, cluster=failing)
    assert done.code == Exit.UNKNOWN and "rows of device=a were deleted, the rest may not be" in done.err
    alone = iotctl(place, "data", "delete", *NAMED, "--where", "device=b", *words[-2:], cluster=failing)
    assert alone.code == Exit.UNREACHABLE, "nothing was deleted"


def test_a_row_has_one_value_per_tag(place: Path) -> None:
    words = ("data", "write", "v=1", *NAMED, "--tag", "device=a", "--tag", "device=b")
    done = iotctl(place, *words, cluster=FakeCluster())
    assert done.code == Exit.USAGE and "--tag device has 2 values" in done.err


def test_a_ttl_that_expires_rows_counts_them_and_asks(place: Path, cluster: FakeCluster) -> None:
    """E2: as for a delete, the dry run counts the rows and the operator must type the cluster's name; --yes
    is not enough. The cut-off follows the latest clock of all nodes, because rows expire by their clocks."""
    words = ("data", "schema", *NAMED, "--set-ttl", "30d")
    look = iotctl(place, *words, "--dry-run", "-o", "json", cluster=cluster)
    keeps, deletes = json.loads(look.out)["would"]
    assert keeps == "retain rows of root.a.m for 30d" and deletes.startswith(
        "delete 4 rows of root.a.m older than "
    )
    (asked,) = cluster.scanned
    assert asked["time_to"] >= NOW_MS - 30 * DAY_MS and asked["fields"] == ()
    unsaid = iotctl(place, *words, cluster=cluster)
    assert unsaid.code == Exit.REFUSED and "delete 4 rows" in unsaid.err and "--confirm plant" in unsaid.err
    typed = iotctl(place, *words, cluster=cluster, stdin=Tty("other\n"))
    assert typed.code == Exit.REFUSED and cluster.tables[0].ttl_ms == 0
    assert iotctl(place, *words, "--confirm", "plant", cluster=cluster).code == 0
    assert cluster.tables[0].ttl_ms == 30 * DAY_MS


def test_a_ttl_that_expires_nothing_new_asks_nothing(place: Path, cluster: FakeCluster) -> None:
    """This holds for a longer TTL, no TTL, an equal TTL, and a table whose rows are all younger."""
    young = FakeCluster(tables=list(cluster.tables))
    words = ("data", "schema", *NAMED, "--set-ttl")
    for ttl in ("30d", "30d", "60d", "none"):
        assert iotctl(place, *words, ttl, cluster=young).code == 0, ttl
    cluster.tables = [TableSchema("root.a", "m", 1, COLUMNS, 30 * DAY_MS)]
    assert iotctl(place, *words, "60d", cluster=cluster).code == 0 and not cluster.scanned
    assert iotctl(place, *words, "29d", cluster=cluster).code == Exit.REFUSED
    look = iotctl(place, *words, "none", "--dry-run", "-o", "json", cluster=cluster)
    assert json.loads(look.out)["would"] == ["retain rows of root.a.m indefinitely"]


def test_a_node_ahead_of_the_operator_decides_what_expires(place: Path, cluster: FakeCluster) -> None:
    """An operator whose clock is behind sees what the nodes will do."""
    later = NOW_MS * 2
    ahead = FakeCluster(tables=cluster.tables, answers=cluster.answers, clock_ms=later)
    iotctl(place, "data", "schema", *NAMED, "--set-ttl", "1d", "--dry-run", cluster=ahead)
    assert ahead.scanned[0]["time_to"] == later - DAY_MS - 1


@pytest.mark.parametrize(
    ("read", "ages", "age_ms", "said"),
    [
        ("strong", (), 0, ""),
        ("weak", (200, 4_000, 30), 4_000, "read weak: writes of the last 4 s may be missing"),
        ("bounded", (0, 700), 700, "read bounded: writes of the last 700 ms may be missing"),
        ("mid", (0, 700), 700, "read mid: writes of the last 700 ms may be missing"),
        ("weak", (5_000, -1, 9_000), None, "warning: read weak: no leader confirmed how old these rows are"),
    ],
)
def test_a_read_that_is_not_strong_shows_its_age(
    place: Path, cluster: FakeCluster, read: str, ages: tuple[int, ...], age_ms: int | None, said: str
) -> None:
    """A11: the age is that of the oldest answer of all parts of a selection; it is on stderr beside the rows,
    and in JSON."""
    cluster.ages_ms = ages
    words = ("data", "query", *NAMED, "--where", "device=a", "--where", "device=b", "--read", read)
    assert iotctl(place, *words, cluster=cluster).err.strip() == said
    body = json.loads(iotctl(place, *words, "-o", "json", cluster=cluster).out)
    assert (body["read"], body["age_ms"]) == (read, age_ms)
    export = ("data", "export", *NAMED, "--read", read, "--to")
    body = json.loads(iotctl(place, *export, "x.csv", "-o", "json", cluster=cluster).out)
    assert (body["read"], body["age_ms"]) == (read, age_ms)
    assert said in iotctl(place, *export, "-", cluster=cluster, out=Bytes()).err


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (-62_135_596_799_999, "0001-01-01T00:00:00.001Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_714_521_600_000, "2024-05-01T00:00:00Z"),
    ],
)
def test_times_are_shown_to_the_millisecond(place: Path, cluster: FakeCluster, time: int, shown: str) -> None:
    """The exact time of the row, at both ends of the calendar."""
    cluster.answers = pa.table({"time": [time], "device": ["a"], "v": [1.0]})
    assert shown in iotctl(place, "data", "query", *NAMED, cluster=cluster).out.split()


@pytest.mark.parametrize(("rows", "is_cut"), [(ROWS_SHOWN, False), (ROWS_SHOWN + 1, True)])
def test_a_table_says_if_it_does_not_show_all_rows(
    place: Path, cluster: FakeCluster, rows: int, is_cut: bool
) -> None:
    cluster.answers = pa.table({"time": range(rows), "device": ["a"] * rows, "v": [1.0] * rows})
    done = iotctl(place, "data", "query", *NAMED, cluster=cluster)
    assert done.out.count(" a ") == ROWS_SHOWN and ("only the first" in done.err) == is_cut
    whole = iotctl(place, "data", "query", *NAMED, "-o", "json", cluster=cluster)
    assert len(json.loads(whole.out)["rows"]) == rows


@pytest.mark.parametrize("command", [("query",), ("delete", "--dry-run"), ("delete", "--confirm", "plant")])
def test_a_time_range_that_ends_before_it_begins_is_refused(
    place: Path, cluster: FakeCluster, command: tuple[str, ...]
) -> None:
    """It is a mistake that would go unnoticed: no rows, or nothing deleted."""
    times = ("--from", "2025-01-01", "--to", "2024-01-01")
    done = iotctl(place, "data", *command, *NAMED, *times, cluster=cluster)
    assert done.code == Exit.USAGE and "--from" in done.err and not cluster.deleted
    done = iotctl(place, "data", *command, *NAMED, "--from", "5", "--to", "5", cluster=cluster)
    assert done.code == 0


def test_bytes_are_hex_where_they_are_shown_and_refused_in_an_exported_csv(
    place: Path, cluster: FakeCluster
) -> None:
    """A CSV with bytes could not be imported again; the other formats can hold them."""
    columns = (*COLUMNS, Column("raw", "BLOB", False))
    cluster.tables = [TableSchema("root.a", "m", 1, columns)]
    cluster.answers = pa.table({"time": [1], "device": ["a"], "v": [1.0], "raw": [b"\xff\x00"]})
    for kind in ("table", "csv", "json"):
        assert "ff00" in iotctl(place, "data", "query", *NAMED, "-o", kind, cluster=cluster).out
    words = ("data", "export", *NAMED, "--to")
    done = iotctl(place, *words, "x.csv", cluster=cluster)
    assert done.code == Exit.INPUT and "raw" in done.err and "--fields" in done.err
    assert not list(place.glob("*x.csv*"))
    assert iotctl(place, *words, "x.parquet", cluster=cluster).code == 0


class Bytes(io.StringIO):
    """Standard output that is a pipe."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = io.BytesIO()

    @property
    def buffer(self) -> io.BytesIO:
        return self._bytes


def test_a_dash_exports_to_standard_output(place: Path, cluster: FakeCluster) -> None:
    """E9: rows and nothing else, exactly; no file is named `-`; a terminal gets no bytes."""
    words = ("data", "export", *NAMED, "--to", "-")
    out = Bytes()
    done = iotctl(place, *words, cluster=cluster, out=out)
    assert done.code == 0 and not out.getvalue() and "4 rows" in done.err
    assert pacsv.read_csv(io.BytesIO(out.buffer.getvalue())).num_rows == 4
    assert not (place / "-").exists()
    out = Bytes()
    assert iotctl(place, *words, "--format", "parquet", cluster=cluster, out=out).code == 0
    assert out.buffer.getvalue()[:4] == b"PAR1"
    assert iotctl(place, *words, cluster=cluster, out=Tty()).code == Exit.REFUSED


def test_csv_export_is_exact(place: Path, cluster: FakeCluster) -> None:
    """F15: nothing is put before what a spreadsheet may take for a formula: import reads the same rows."""
    text = "=1+1"
    cluster.answers = pa.table({"time": [1], "device": ["-a"], "note": [text]})
    assert iotctl(place, "data", "export", *NAMED, "--to", "x.csv", cluster=cluster).code == 0
    assert pacsv.read_csv(place / "x.csv").column("note").to_pylist() == [text]


def test_a_table_is_dropped_with_its_rows_by_name_only(place: Path, cluster: FakeCluster) -> None:
    """E4: a table with rows asks for the cluster's name; its rows are deleted before and after it is dropped,
    as rows may be written in between. An empty table asks an ordinary question."""
    cluster.counts = [{"storage_group": "root.a", "table": "m", "rows": 4}]
    words = ("data", "drop", *NAMED)
    look = iotctl(place, *words, "--dry-run", "-o", "json", cluster=cluster)
    assert json.loads(look.out)["would"] == ["drop table root.a.m and delete 4 rows"]
    for more in ((), ("--yes",)):
        unsaid = iotctl(place, *words, *more, cluster=cluster)
        assert unsaid.code == Exit.REFUSED and "--confirm plant" in unsaid.err
    assert not cluster.deleted and not cluster.dropped
    done = iotctl(place, *words, "--confirm", "plant", cluster=cluster)
    assert done.code == 0 and "root.a.m is dropped" in done.out
    ((before, request),) = cluster.dropped
    assert (before, request.version, len(cluster.deleted)) == (1, 1, 2)
    assert iotctl(place, *words, "--confirm", "plant", cluster=cluster).code == Exit.INPUT, (
        "the table was dropped"
    )
    empty = FakeCluster(tables=[TableSchema("root.a", "m", 1, COLUMNS)])
    assert iotctl(place, *words, cluster=empty).code == Exit.REFUSED
    assert iotctl(place, *words, "--yes", cluster=empty).code == 0 and not empty.tables


def test_a_storage_group_is_dropped_with_all_its_tables(place: Path, cluster: FakeCluster) -> None:
    """By name only if there are rows. Tables of other storage groups stay, and a failure says what was
    dropped, so that a repeat can drop the rest."""
    cluster.tables = [
        TableSchema(g, t, 1, COLUMNS) for g, t in (("root.a", "n"), ("root.a", "m"), ("root.b", "m"))
    ]
    cluster.counts = [{"storage_group": "root.a", "table": "m", "rows": 4}]
    words = ("data", "drop", "--storage-group", "root.A")
    for wrong in ((), ("--all-tables", "--table", "m")):
        assert iotctl(place, *words, *wrong, "--yes", cluster=cluster).code == Exit.USAGE
    look = iotctl(place, *words, "--all-tables", "--dry-run", "-o", "json", cluster=cluster)
    assert json.loads(look.out)["would"] == ["drop all 2 tables of root.a (m, n) and delete 4 rows"]
    assert iotctl(place, *words, "--all-tables", "--yes", cluster=cluster).code == Exit.REFUSED
    assert not cluster.dropped
    cluster.fail_drop = "n"
    failed = iotctl(place, *words, "--all-tables", "--confirm", "plant", "-o", "json", cluster=cluster)
    assert failed.code == Exit.PARTLY, failed.err
    error = json.loads(failed.out)["error"]
    assert (
        "1 of 2 tables" in error["what"] and error["why"].startswith("n: ") and error["outcome"] == "partial"
    )
    cluster.fail_drop = ""
    done = iotctl(place, *words, "--all-tables", "--confirm", "plant", "-o", "json", cluster=cluster)
    assert done.code == 0 and json.loads(done.out)["tables"] == ["n"], done.err
    assert [(t.storage_group, t.table) for t in cluster.tables] == [("root.b", "m")]
    assert iotctl(place, *words, "--all-tables", "--yes", cluster=cluster).code == Exit.INPUT
    cluster.tables = [TableSchema("root.a", f"t{i:03}", 1, COLUMNS) for i in range(300)]
    look = iotctl(place, *words, "--all-tables", "--dry-run", cluster=cluster)
    assert "t009 and 290 more)" in look.out and "t010" not in look.out, "the question stays readable"


def test_an_export_only_replaces_a_file_on_request(place: Path, cluster: FakeCluster) -> None:
    words = ("data", "export", *NAMED, "--to")
    (place / "x.csv").write_text("of an operator")
    (place / "empty.csv").touch()
    done = iotctl(place, *words, "x.csv", cluster=cluster)
    assert done.code == Exit.REFUSED and "replace" in done.err and "--yes" in done.err
    assert (place / "x.csv").read_text() == "of an operator"
    for more in (("x.csv", "--yes"), ("empty.csv",)):
        assert iotctl(place, *words, *more, cluster=cluster).code == 0
        assert (place / more[0]).read_text().startswith('"time"')


def test_an_export_goes_where_a_link_points_and_into_a_pipe(place: Path, cluster: FakeCluster) -> None:
    words = ("data", "export", *NAMED, "--format", "csv", "--to")
    (place / "disk").mkdir()
    (place / "x.csv").symlink_to("disk/y.csv")
    assert iotctl(place, *words, "x.csv", cluster=cluster).code == 0
    assert (place / "x.csv").is_symlink() and (place / "disk" / "y.csv").read_text().startswith('"time"')
    os.mkfifo(place / "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((place / "pipe").read_bytes()), daemon=True)
    reader.start()
    assert iotctl(place, *words, "pipe", cluster=cluster).code == 0
    reader.join(10)
    assert not reader.is_alive(), "nothing was written into the pipe"
    assert got[0] == (place / "x.csv").read_bytes() and stat.S_ISFIFO((place / "pipe").stat().st_mode)


@pytest.mark.parametrize("to", ["circle.csv", "/", "d" * 300 + ".csv", "no/such/x.csv"])
def test_an_export_that_cannot_be_written_is_reported(place: Path, cluster: FakeCluster, to: str) -> None:
    (place / "circle.csv").symlink_to("circle.csv")
    done = iotctl(place, "data", "export", *NAMED, "--format", "csv", "--to", to, cluster=cluster)
    assert done.code == Exit.INPUT and "cannot be written" in done.err


def test_an_export_can_write_to_an_open_descriptor(place: Path, cluster: FakeCluster) -> None:
    """A shell passes such paths: `--to >(gzip)`, `--to /dev/stdout`."""
    out, into = os.pipe()
    words = ("data", "export", *NAMED, "--format", "csv", "--to", f"/dev/fd/{into}")
    done = iotctl(place, *words, cluster=cluster)
    assert done.code == 0, done.err
    assert os.read(out, 100).startswith(b'"time"')
    os.close(out)
    os.close(into)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", 0),
        ("-5", -5),
        (" 1700000000000 ", 1_700_000_000_000),
        ("2024-05-01T00:00:00.123Z", 1_714_521_600_123),
        ("2024-05-01T00:00:00.123000Z", 1_714_521_600_123),
        ("1969-12-31T23:59:59.999Z", -1),
        ("0001-01-01", -62_135_596_800_000),
    ],
)
def test_times_are_parsed_exactly(text: str, found: int) -> None:
    assert parse_time(text) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("20240501", "looks like a date"),
        ("20240501120000", "looks like a date"),
        ("1700000000", "looks like"),
        ("2024-05-01T00:00:00.0006Z", "below a millisecond"),
        ("2024-05-01T00:00:00.0009999Z", "below a millisecond"),
        ("0001-01-01T00:00+14:00", "outside the years"),
        ("9" * 23, "outside the years"),
        ("9" * 5000, "outside the years"),
        ("1_000", "is not a time"),
        ("\u00b2", "is not a time"),
    ],
)
def test_an_ambiguous_time_is_refused(text: str, why: str) -> None:
    """A delete would begin in 1970, or delete a millisecond more than requested."""
    with pytest.raises(UsageProblem, match=why):
        parse_time(text)


@pytest.mark.parametrize("text", ["9" * 400 + "d", "1" * 30 + "w"])
def test_a_duration_without_bounds_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="too large"):
        parse_duration_ms(text)
