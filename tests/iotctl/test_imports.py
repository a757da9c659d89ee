"""A file is checked completely before its first row is written, and no value is changed silently.

E4, E6, E8 and E10 of the edges (docs/internals/testing.md).
"""

import json
import os
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iotctl.errors import Exit
from iotctl.rows import imports
from iotctl.rows.times import look_like_dates
from nodeagent.model.errors import NodeAgentError, OutcomeUnknown, Unavailable
from nodeagent.model.schema import Column, TableSchema
from nodeagent.table.arrow import ARROW_TYPES
from tests.iotctl.fakes import SPEC, FakeCluster, Ran, Wrote, iotctl

NAMED = ("--storage-group", "root.a", "--table", "m")
BIG = 9_007_199_254_740_993
"""2^53 + 1: no DOUBLE."""

NOON = 1_700_000_000


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def load(place: Path, file: str, *words: str, cluster: FakeCluster | None = None) -> tuple[Ran, FakeCluster]:
    cluster = cluster or FakeCluster()
    return iotctl(place, "data", "import", file, *NAMED, *words, "-o", "json", cluster=cluster), cluster


def csv(place: Path, text: str, *words: str, cluster: FakeCluster | None = None) -> tuple[Ran, FakeCluster]:
    (place / "a.csv").write_text(text)
    return load(place, "a.csv", *words, cluster=cluster)


def parquet(place: Path, rows: dict[str, Any], *words: str) -> tuple[Ran, FakeCluster]:
    pq.write_table(pa.table(rows), place / "a.parquet")
    return load(place, "a.parquet", *words)


def failure(done: Ran, code: Exit = Exit.INPUT) -> dict[str, str]:
    assert done.code == code, done.err
    return dict(json.loads(done.out)["error"])


def rows_of(cluster: FakeCluster) -> list[dict[str, Any]]:
    return list(pa.concat_tables([w[2] for w in cluster.written]).to_pylist())


# --- Parquet --------------------------------------------------------------------------------------


def test_a_bad_row_deep_in_a_parquet_file_stops_before_the_first_is_written(place: Path) -> None:
    """E4: its number counts from the start of the file; nothing was sent and no table was created."""
    times: list[int | None] = list(range(250_002))
    times[250_000] = None
    for words in ((), ("--dry-run",)):
        done, cluster = parquet(place, {"time": times, "v": [1.0] * 250_002}, *words)
        found = failure(done)
        assert found["where"] == f"{place}/a.parquet row 250001" and "time: no time" in found["what"]
        assert "nothing was written" in found["next"] and not cluster.written


def test_bad_rows_of_a_parquet_file_are_skipped_on_request(place: Path) -> None:
    """E4: null times, times outside the calendar and values that do not fit, each with its row."""
    rows = {"time": [1, None, 3, 10**17, 5], "v": ["1", "2", "x", "4", "5"]}
    words = ("--on-error", "skip", "--type", "v=INT64", "--time-unit", "ms")
    done, cluster = parquet(place, rows, *words)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert (report["rows"], report["skipped_rows"]) == (2, 3)
    assert [s["where"].rpartition(" ")[2] for s in report["skipped"]] == ["2", "3", "4"]
    assert rows_of(cluster) == [{"time": 1, "v": 1}, {"time": 5, "v": 5}]


def test_rows_that_a_node_would_refuse_are_bad_rows(place: Path) -> None:
    """The node's own rules decide: a row whose tag no file can hold is reported with its place."""
    done, cluster = parquet(place, {"time": [1, 2], "d": ["a", "b\0c"], "v": [1, 2]}, "--tag", "d")
    assert "NUL" in failure(done)["what"] and failure(done)["where"].endswith("row 2") and not cluster.written
    done, cluster = parquet(place, {"time": [1, 2], "d": ["a", "b\0c"], "v": [1, 2]}, "--tag", "d", *SKIP)
    assert done.code == 0 and [r["d"] for r in rows_of(cluster)] == ["a"]


SKIP = ("--on-error", "skip")


def test_a_column_is_only_converted_on_request(place: Path) -> None:
    """Text into DOUBLE and DOUBLE into FLOAT are refused by name unless --type requests it."""
    table = TableSchema("root.a", "m", 1, (Column("v", "FLOAT", False), Column("w", "DOUBLE", False)))
    for rows, name in (({"v": [0.1]}, "v=FLOAT"), ({"w": ["1.5"]}, "w=DOUBLE")):
        pq.write_table(pa.table({"time": [1], **rows}), place / "a.parquet")
        done, cluster = load(place, "a.parquet", cluster=FakeCluster(tables=[table]))
        assert f"--type {name}" in failure(done)["next"] and not cluster.written
        done, _ = load(place, "a.parquet", "--type", name, cluster=FakeCluster(tables=[table]))
        assert done.code == 0, done.err


def test_a_damaged_file_is_named(place: Path) -> None:
    rows = {"time": list(range(10_000)), "v": [f"x{i}" for i in range(10_000)]}
    pq.write_table(pa.table(rows), place / "a.parquet")
    whole = bytearray((place / "a.parquet").read_bytes())
    whole[100:2000] = b"\0" * 1900
    (place / "a.parquet").write_bytes(whole)
    done, cluster = load(place, "a.parquet")
    assert "cannot be read" in failure(done)["what"] and not cluster.written


# --- reports --------------------------------------------------------------------------------------


def test_a_dry_run_shows_the_table_samples_and_series(place: Path) -> None:
    """E4: schema, first rows, series, time range, and notes."""
    done, cluster = csv(place, "time,dev,v,c\n1,a,1.5,007\n2,b,2,008\n", "--tag", "dev", "--dry-run")
    assert done.code == 0 and not cluster.written
    body = json.loads(done.out)
    assert body["would"] == ["write 2 rows to root.a.m"]
    found = "\n".join(body["found"])
    for text in (
        "root.a.m is a new table: dev STRING tag, v DOUBLE, c STRING",
        "2 rows in 2 series from 1970-01-01T00:00:00",
        "such as time=1, dev=a, v=1.5, c=007",
        "c is a STRING because it has leading zeros (--type c=INT64 drops them)",
    ):
        assert text in found, (text, found)


def test_rows_past_the_ttl_and_tags_without_a_column_are_reported(place: Path) -> None:
    columns = (Column("dev", "STRING", True), Column("room", "STRING", True), Column("v", "INT64", False))
    cluster = FakeCluster(tables=[TableSchema("root.a", "m", 1, columns, ttl_ms=86_400_000)])
    done, _ = csv(place, "time,dev,v\n1,a,1\n2,b,2\n", cluster=cluster)
    report = json.loads(done.out)
    assert report["expired_rows"] == 2 and report["series"] == 2
    assert "2 rows are older than the table's TTL" in done.err
    assert "no column for tag room" in done.err
    quiet, _ = csv(place, "time,dev,v\n1,a,1\n2,b,2\n", "-q", cluster=cluster)
    assert quiet.err == "warning: 2 rows are older than the table's TTL and are deleted at once\n"
    dry, _ = csv(place, "time,dev,v\n1,a,1\n2,b,2\n", "--dry-run", cluster=cluster)
    assert "2 rows are older than the table's TTL and are deleted at once" in json.loads(dry.out)["found"]


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (Unavailable("no quorum"), Exit.PARTLY, "200000 of 200010 rows were written, the others were not"),
        (
            OutcomeUnknown("lost", rows_acknowledged=4),
            Exit.UNKNOWN,
            "200004 of 200010 rows were written, others may be",
        ),
    ],
)
def test_a_write_that_fails_halfway_says_how_much_is_written(
    place: Path, error: NodeAgentError, code: Exit, says: str
) -> None:
    class Failing(FakeCluster):
        def write(
            self, group: str, table: str, data: pa.Table, *, tags: Sequence[str] | None = None
        ) -> Wrote:
            if self.written:
                raise error
            return super().write(group, table, data, tags=tags)

    pq.write_table(pa.table({"time": range(200_010), "v": range(200_010)}), place / "a.parquet")
    done, _ = load(place, "a.parquet", cluster=Failing())
    found = failure(done, code)
    assert found["what"] == says and "repeat the command" in found["next"]
    done, _ = load(place, "a.parquet", cluster=FakeCluster(error=Unavailable("no quorum")))
    assert failure(done, Exit.UNREACHABLE)


def test_csv_gives_back_what_was_exported(place: Path) -> None:
    """F15: every type, formulas and empty text; null and empty text differ; digits of a TIMESTAMP stay."""
    kinds = {"d": "STRING", "s": "STRING", "i": "INT64", "x": "DOUBLE", "b": "BOOLEAN", "t": "TIMESTAMP"}
    kinds |= {"day": "DATE", "f": "FLOAT", "n": "INT32"}
    columns = tuple(Column(n, k, n == "d") for n, k in kinds.items())
    stamp = 1_577_836_800_123_456_789
    values: dict[str, list[Any]] = {
        "d": ["a", "", None],
        "s": ["=1+1", "", None],
        "i": [BIG, -1, None],
        "x": [0.1, 1e300, None],
        "b": [True, False, None],
        "t": [stamp, 0, None],
        "day": [1, 2, None],
        "f": [1.5, 2.5, None],
        "n": [7, -7, None],
    }
    given = {n: pa.array(values[n], ARROW_TYPES[k]) for n, k in kinds.items()}
    rows = pa.table({"time": [1, 2, 3], **given})
    table = TableSchema("root.a", "m", 1, columns)
    source = FakeCluster(tables=[table], answers=rows)
    done = iotctl(place, "data", "export", *NAMED, "--to", "x.csv", cluster=source)
    assert done.code == 0, done.err
    cluster = FakeCluster(tables=[TableSchema("root.a", "m", 1, columns)])
    done, cluster = load(place, "x.csv", "--tag", "d", cluster=cluster)
    assert done.code == 0, done.err
    assert cluster.written[0][2].select(rows.column_names).equals(rows.take([2, 1, 0])), "sorted by tags"


# --- numbers --------------------------------------------------------------------------------------


def test_integers_stay_integers(place: Path) -> None:
    """E6: their values are exact, and the same data gives the same schema in CSV and Parquet."""
    text, table = f"time,v\n1,{BIG}\n2,-5\n", {"time": [1, 2], "v": [BIG, -5]}
    for done, cluster in (csv(place, text), parquet(place, table)):
        assert done.code == 0, done.err
        assert cluster.written[0][2].column("v").type == pa.int64()
        assert rows_of(cluster) == [{"time": 1, "v": BIG}, {"time": 2, "v": -5}]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (f"1.5\n2,{BIG}", f"a DOUBLE cannot hold it exactly (--type v=INT64 can): '{BIG}'"),
        ("1\n2,9223372036854775808", "v: not an INT64: '9223372036854775808'"),
        ("1.5\n2,123456789012345678901", "a DOUBLE cannot hold it exactly"),
    ],
)
def test_an_integer_that_does_not_fit_is_refused_by_name(place: Path, values: str, reason: str) -> None:
    """E6: this includes columns with other numbers; a number never changes."""
    done, cluster = csv(place, f"time,v\n1,{values}\n")
    assert reason in failure(done)["what"] and failure(done)["where"].endswith(":3") and not cluster.written


@pytest.mark.parametrize("kind,value", [("DOUBLE", "1e400"), ("DOUBLE", "-1e309"), ("FLOAT", "1e39")])
def test_a_number_too_large_for_its_type_is_not_infinite(place: Path, kind: str, value: str) -> None:
    """E6: only text that means infinity becomes infinite."""
    done, cluster = csv(place, f"time,v\n1,inf\n2,-Infinity\n3,{value}\n", "--type", f"v={kind}")
    assert f"v: not a {kind}: '{value}'" in failure(done)["what"] and not cluster.written
    done, cluster = csv(place, "time,v\n1,inf\n2,-Infinity\n", "--type", f"v={kind}")
    assert [r["v"] for r in rows_of(cluster)] == [float("inf"), float("-inf")]


def test_large_numbers_that_a_double_can_hold_are_accepted(place: Path) -> None:
    done, cluster = csv(place, f"time,v\n1,1.5\n2,{2**60}\n3,-{2**53}\n")
    assert done.code == 0 and [r["v"] for r in rows_of(cluster)] == [1.5, 2.0**60, -(2.0**53)]


def test_leading_zeros_make_a_code(place: Path) -> None:
    """E6: `007` stays text, with a note; --type makes it a number."""
    done, cluster = csv(place, "time,c\n1,007\n2,12\n")
    assert [r["c"] for r in rows_of(cluster)] == ["007", "12"] and "--type c=INT64" in done.err
    done, cluster = csv(place, "time,c\n1,007\n2,12\n", "--type", "c=INT64")
    assert [r["c"] for r in rows_of(cluster)] == [7, 12]
    done, cluster = csv(place, "time,c\n1,0\n2,0.5\n")
    assert [r["c"] for r in rows_of(cluster)] == [0.0, 0.5]


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stamp", "unit"), [(NOON, "s"), (NOON * 1000, "ms"), (NOON * 10**6, "us"), (NOON * 10**9, "ns")]
)
def test_an_unlikely_unit_must_be_named(place: Path, stamp: int, unit: str) -> None:
    """E6: read as milliseconds, seconds are in 1970 and nanoseconds in the far future. Such times are refused
    until the unit is named, in CSV and in Parquet."""
    for suffix, load_it in (("csv", csv), ("parquet", parquet)):
        given: Any = f"time,v\n{stamp},1\n" if suffix == "csv" else {"time": [stamp], "v": [1]}
        done, cluster = load_it(place, given)
        if unit == "ms":
            assert done.code == 0
        else:
            assert "unit of the times is not clear" in failure(done)["what"]
            assert f"--time-unit {unit}" in failure(done)["next"] and not cluster.written
        done, cluster = load_it(place, given, "--time-unit", unit)
        assert done.code == 0 and rows_of(cluster)[0]["time"] == NOON * 1000, (suffix, done.err)


@pytest.mark.parametrize("sign", ["", "-"])
def test_the_reason_to_name_a_short_unit_is_true_before_1970_too(place: Path, sign: str) -> None:
    """Times such as -8640000000000000 µs are in 1696, not after 5138."""
    done, _ = csv(place, f"time,v\n{sign}8640000000000000,1\n")
    assert failure(done)["why"] == "as milliseconds most would be more than 3000 years before or after 1970"


def test_a_few_seconds_among_milliseconds_are_refused(place: Path) -> None:
    """E6: one device uses another unit; refused with the number of such rows until the unit is named."""
    text = f"time,v\n{NOON * 1000},1\n{NOON * 1000 + 1},2\n{NOON},3\n"
    done, cluster = csv(place, text)
    assert "1 of 3" in failure(done)["why"] and "--time-unit ms" in failure(done)["next"]
    assert not cluster.written
    done, cluster = csv(place, text, "--time-unit", "ms")
    assert done.code == 0 and len(rows_of(cluster)) == 3


def test_milliseconds_that_begin_in_1970_are_milliseconds(place: Path) -> None:
    """E6: some numbers of a series that begins at 0 look like seconds, but the others rule that out."""
    for weeks in (60, 3_000):
        _check_weeks(place, [week * 604_800_000 for week in range(weeks)])


def _check_weeks(place: Path, times: list[int]) -> None:
    done, cluster = csv(place, "time,v\n" + "".join(f"{t},1\n" for t in times))
    assert done.code == 0 and [r["time"] for r in rows_of(cluster)] == times


@pytest.mark.parametrize(
    ("stamp", "kept"),
    [
        ("2020-01-01T00:00:00.123456Z", 1_577_836_800_123),
        ("1577836800123456789", 1_577_836_800_123),
        ("2020-01-01T00:00:00.123400001+01:00", 1_577_833_200_123),
    ],
)
def test_digits_below_a_millisecond_are_refused_unless_cut_on_request(
    place: Path, stamp: str, kept: int
) -> None:
    """E6: refused with their line, unless the option allows it."""
    words = ("--time-unit", "ns") if stamp.isdigit() else ()
    done, cluster = csv(place, f"time,v\n{stamp},1\n", *words)
    assert "digits below a millisecond" in failure(done)["what"] and not cluster.written
    done, cluster = csv(place, f"time,v\n{stamp},1\n", *words, "--truncate-times")
    assert done.code == 0 and rows_of(cluster)[0]["time"] == kept


def test_numbers_with_a_fraction_are_not_times(place: Path) -> None:
    """A column that pandas made DOUBLE because of gaps is accepted if its times are whole numbers."""
    done, cluster = parquet(place, {"time": [1.0, 2.0], "v": [1, 2]})
    assert done.code == 0 and [r["time"] for r in rows_of(cluster)] == [1, 2]
    done, cluster = parquet(place, {"time": [1.0, 2.5], "v": [1, 2]})
    assert "not a whole number" in failure(done)["what"] and not cluster.written


def test_zeros_below_a_millisecond_are_accepted(place: Path) -> None:
    done, cluster = csv(place, "time,v\n2020-01-01T00:00:00.120000000Z,1\n2020-01-01T00:00:00.5,1\n")
    assert done.code == 0, done.err
    assert [r["time"] for r in rows_of(cluster)] == [1_577_836_800_120, 1_577_836_800_500]


def test_timestamps_of_parquet_keep_their_precision_or_are_refused(place: Path) -> None:
    """E6: nanoseconds were formerly cut."""
    for unit, value in (("ns", 1_577_836_800_123_456_789), ("us", 1_577_836_800_123_456)):
        rows = {"time": pa.array([value], pa.timestamp(unit, "UTC")), "v": [1]}
        done, cluster = parquet(place, rows)
        assert "digits below a millisecond" in failure(done)["what"] and not cluster.written
        done, cluster = parquet(place, rows, "--truncate-times")
        assert done.code == 0 and rows_of(cluster)[0]["time"] == 1_577_836_800_123


def test_times_without_a_zone_are_read_in_the_named_zone(place: Path) -> None:
    """E6: UTC unless --time-zone names another zone; the output counts them; other times keep their zone."""
    text = "time,v\n2020-07-01T12:00:00,1\n2020-01-01T12:00:00,2\n2020-01-01T12:00:01Z,3\n"
    done, cluster = csv(place, text)
    assert "2 times have no zone and are read in UTC (--time-zone)" in done.err
    utc = [r["time"] for r in rows_of(cluster)]
    done, cluster = csv(place, text, "--time-zone", "Europe/Berlin")
    berlin = [r["time"] for r in rows_of(cluster)]
    assert [u - b for u, b in zip(utc, berlin, strict=True)] == [7_200_000, 3_600_000, 0]
    assert json.loads(done.out)["naive_times"] == 2 and json.loads(done.out)["time_zone"] == "Europe/Berlin"
    naive = {"time": pa.array([1_577_880_000_000], pa.timestamp("ms")), "v": [1]}
    done, cluster = parquet(place, naive, "--time-zone", "+02:00")
    assert rows_of(cluster)[0]["time"] == 1_577_880_000_000 - 7_200_000 and "1 times have no zone" in done.err
    assert csv(place, text, "--time-zone", "Mars/Base")[0].code == Exit.USAGE
    assert csv(place, text, "--time-unit", "hours")[0].code == Exit.USAGE


@pytest.mark.parametrize("local", ["2020-03-29T02:30:00", "2020-10-25T02:30:00"])
def test_nonexistent_and_ambiguous_local_times_are_refused(place: Path, local: str) -> None:
    done, cluster = csv(place, f"time,v\n{local},1\n", "--time-zone", "Europe/Berlin")
    assert "this local time does not exist in Europe/Berlin, or exists twice" in failure(done)["what"]
    assert failure(done)["where"].endswith(":2") and not cluster.written


@pytest.mark.parametrize("stamp", ["-62135596800001", "253402300800000"])
def test_times_out_of_the_calendar_are_refused_by_line(place: Path, stamp: str) -> None:
    done, cluster = csv(place, f"time,v\n1,1\n{stamp},1\n3,1\n")
    assert "outside the years 1 to 9999" in failure(done)["what"] and not cluster.written
    assert failure(done)["where"].endswith(":3")


# --- headers, names and series --------------------------------------------------------------------


@pytest.mark.parametrize("header", ['time,"a\nb",v', 'time,"a', 'time,"v\r\n"'])
def test_a_header_with_a_line_break_is_refused(place: Path, header: str) -> None:
    """E8: by name, and not as an internal error."""
    done, cluster = csv(place, f"{header}\n1,2,3\n")
    found = failure(done)
    assert "second line" in found["what"] and found["where"].endswith("a.csv:1") and not cluster.written


@pytest.mark.parametrize("group", ["../../etc", "root..z", "x" * 70_000, "root.\x1b", "root."])
def test_an_invalid_name_is_refused_with_the_grammar(place: Path, group: str) -> None:
    """E10: this holds for imports and for `data write`; nothing is sent."""
    (place / "a.csv").write_text("time,v\n1,2\n")
    for words in (("data", "import", "a.csv"), ("data", "write", "v=1", "--create")):
        cluster = FakeCluster()
        done = iotctl(place, *words, "--storage-group", group, "--table", "m", cluster=cluster)
        assert done.code == Exit.INPUT and "storage group" in done.err and "next: " in done.err
        assert not cluster.written and len(done.err) < 1000


def test_an_upper_case_name_is_reported_as_lower_case(place: Path) -> None:
    """E10: it was formerly changed silently."""
    (place / "a.csv").write_text("time,v\n1,2\n")
    named = ("--storage-group", "Root.A", "--table", "M")
    done = iotctl(place, "data", "import", "a.csv", *named, cluster=FakeCluster())
    assert done.code == 0 and "names are stored in lower case: root.a.m" in done.err


def test_series_that_collapse_without_a_tag_are_refused(place: Path) -> None:
    """E10: two devices, one time: without --tag, a value would be lost. The dry run shows one series."""
    text = "time,dev,v\n1,a,1\n1,b,2\n2,a,3\n"
    for words in ((), ("--dry-run",)):
        done, cluster = csv(place, text, *words)
        found = failure(done)
        assert found["what"] == "2 rows have the same time as another row but different values"
        assert "--tag" in found["next"] and "--on-duplicate last" in found["next"] and not cluster.written
    done, cluster = csv(place, text, "--on-duplicate", "last")
    assert done.code == 0 and json.loads(done.out)["series"] == 1
    assert "in 1 series, because no column is a tag (--tag)" in done.err and "the last is kept" in done.err
    done, _ = csv(place, text, "--tag", "dev")
    assert done.code == 0 and json.loads(done.out)["series"] == 2


def test_rows_with_the_same_key_and_no_conflict_are_accepted(place: Path) -> None:
    """Equal rows, and rows that fill different cells: nothing is lost."""
    done, cluster = csv(place, "time,dev,v,w\n1,a,1,\n1,a,,2\n1,a,1,2\n2,a,3,\n", "--tag", "dev")
    assert done.code == 0 and len(rows_of(cluster)) == 4, done.err
    assert "3 rows share time and tags with another row without" in done.err


# --- one row --------------------------------------------------------------------------------------


def test_a_mistyped_name_creates_no_table_and_no_column(place: Path) -> None:
    """E10: `data write` only creates on request."""
    table = TableSchema("root.a", "m", 1, (Column("dev", "STRING", True), Column("v", "INT64", False)))
    cluster = FakeCluster(tables=[table])
    for words, says in (
        (("v=1", "--storage-group", "root.a", "--table", "n"), "there is no table root.a.n"),
        (("w=1", *NAMED), "table root.a.m has no column 'w'"),
        (("v=1", *NAMED, "--tag", "devv=a"), "table root.a.m has no column 'devv'"),
    ):
        done = iotctl(place, "data", "write", *words, cluster=cluster)
        assert done.code == Exit.INPUT and says in done.err and "--create" in done.err
    assert not cluster.written
    done = iotctl(place, "data", "write", f"v={BIG}", *NAMED, "--tag", "dev=a", cluster=cluster)
    assert done.code == 0, done.err
    assert rows_of(cluster)[0]["v"] == BIG, "by the table's type, not through a DOUBLE"
    done = iotctl(place, "data", "write", "v=1.5", *NAMED, cluster=cluster)
    assert done.code == Exit.INPUT and "v: '1.5' is not of type INT64" in done.err


# --- files with nothing to write -------------------------------------------------------------------


def test_a_file_without_a_good_row_writes_nothing_and_says_so(place: Path) -> None:
    """E4: an empty file is not an error and creates no table; a file with only bad rows is refused, even if
    bad rows may be skipped: then its types are wrong, not its rows."""
    done, cluster = csv(place, "time,v\n")
    assert done.code == 0 and not cluster.written
    assert "no rows" in done.err and "new table" not in done.err
    done, cluster = csv(place, "time,v\n1,x\n2,y\n", "--type", "v=INT64", "--on-error", "skip")
    assert "no row can be written" in failure(done)["what"] and failure(done)["where"].endswith(":2")
    assert not cluster.written


@pytest.mark.parametrize(
    "column,kind",
    [
        (pa.nulls(2), "null"),
        (pa.array([[1], [2]]), "list"),
        (pa.array([1, 2]).cast(pa.decimal128(30, 2)), "decimal"),
    ],
)
def test_an_unsupported_type_is_reported_with_the_fix(place: Path, column: pa.Array, kind: str) -> None:
    """E4: the error has the file, the column and the option."""
    done, cluster = parquet(place, {"time": [1, 2], "odd": column})
    found = failure(done)
    assert "'odd'" in found["what"] and kind in found["what"] and found["where"].endswith("a.parquet")
    assert "--type odd=" in found["next"] and not cluster.written


def test_text_that_is_not_utf_8_is_reported_with_the_fix(place: Path) -> None:
    (place / "a.csv").write_bytes("time,city\n1,M\u00fcnchen\n".encode("latin-1"))
    done, _ = load(place, "a.csv")
    assert "UTF-8" in failure(done)["next"]


# --- untidy files ---------------------------------------------------------------------------------


def test_text_with_line_breaks_is_kept_and_later_lines_are_counted(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes text that crosses the border of two blocks, and ragged rows in between."""
    monkeypatch.setattr("iotctl.rows.csv_rows.BLOCK_BYTES", 64)
    rows = [f'{n},"one\ntwo\r\nthree {n}"' for n in range(20)]
    done, cluster = csv(place, "\n".join(["time,s", *rows, "20,x"]) + "\n")
    assert done.code == 0, done.err
    assert [r["s"] for r in rows_of(cluster)] == [*(f"one\ntwo\r\nthree {n}" for n in range(20)), "x"]
    assert "20 rows have a line break" in done.err
    text = 'time,s\n1,"a\nb"\n2,c,d\n3,"e\nf",g\nx,h\n4,"i\r\nj"\ny,k\n'
    done, cluster = csv(place, text, *SKIP)
    assert done.code == 0, done.err
    assert [s["where"].rpartition(":")[2] for s in json.loads(done.out)["skipped"]] == ["4", "5", "7", "10"]
    assert [r["time"] for r in rows_of(cluster)] == [1, 4]


@pytest.mark.parametrize("rest", ["", "\n", "\n4,j\n", "\r\n"])
@pytest.mark.parametrize("first", ["z", '5" pipe', '"a\nb"'])
@pytest.mark.parametrize("words", [(), SKIP])
def test_an_unclosed_quote_loses_no_row(place: Path, rest: str, first: str, words: Sequence[str]) -> None:
    done, cluster = csv(place, f'time,s\n0,{first}\n1,"abc\n2,def\n3,ghi{rest}', *words)
    assert failure(done)["what"] == "a quote is not closed"
    assert failure(done)["where"].endswith(":4" if "b" in first else ":3") and not cluster.written


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("last", ["2,b", '2,"b"', '2,"b\nc"', '2,5" pipe', "2,b,c", '2,"b",c'])
@pytest.mark.parametrize("block", [64, 8 << 20])
def test_the_last_row_is_treated_like_any_other(
    place: Path, end: str, last: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a row with too many values, and a row after a literal quote."""
    monkeypatch.setattr("iotctl.rows.csv_rows.BLOCK_BYTES", block)
    done, cluster = csv(place, f'time,s\n1,6" pipe\n{last}{end}', *SKIP)
    assert done.code == 0, done.err
    is_ragged = last.endswith(",c")
    assert [r["time"] for r in rows_of(cluster)] == ([1] if is_ragged else [1, 2])
    assert json.loads(done.out)["skipped_rows"] == is_ragged
    done, cluster = csv(place, f"time,s{end}")
    assert done.code == 0 and not cluster.written, done.err


def test_an_unclosed_quote_in_a_long_file_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotctl.rows.csv_rows.BLOCK_BYTES", 64)
    done, cluster = csv(place, 'time,s\n0,z\n1,"abc\n' + "".join(f"{n},def\n" for n in range(2, 50)))
    assert "a quote is not closed" in failure(done)["what"] and not cluster.written


def test_a_quote_within_a_value_is_text(place: Path) -> None:
    done, cluster = csv(place, 'time,s\n1,5" pipe\n2,"a ""b"""\n')
    assert done.code == 0 and [r["s"] for r in rows_of(cluster)] == ['5" pipe', 'a "b"']


@pytest.mark.parametrize(
    "fields", [{"v": [1.0, 2.0]}, {"s": ["a", "b"]}, {"b": [True, False]}, {"i": [0, 1]}]
)
def test_rows_that_overwrite_each_other_are_found_however_far_apart(
    place: Path, fields: dict[str, Any]
) -> None:
    """The file is sorted by a device column that is not a tag."""
    count = 150_000
    (name, (one, other)), *_ = fields.items()
    times = [*range(count), *range(count)]
    for second, code in ((other, Exit.INPUT), (one, 0)):
        done, cluster = parquet(place, {"time": times, name: [one] * count + [second] * count})
        assert done.code == code, done.err
        assert bool(cluster.written) == (code == 0)
        if cluster.written:
            assert f"{2 * count} rows share time and tags with another row without" in done.err
        else:
            assert f"{2 * count} rows have the same time" in failure(done)["what"]
            assert "time=0" in failure(done)["why"]


def test_rows_with_the_same_key_and_different_fields_do_not_conflict(place: Path) -> None:
    done, cluster = csv(place, "time,a,b\n1,1,\n1,,2\n1,1,2\n2,5,\n")
    assert done.code == 0 and cluster.written
    assert "3 rows share time and tags with another row without" in done.err
    done, cluster = csv(place, "time,a,b\n1,1,\n1,,2\n1,,3\n2,5,\n")
    assert "3 rows have the same time" in failure(done)["what"] and not cluster.written


@pytest.mark.parametrize("change", ["grown", "emptied", "replaced", "gone"])
def test_a_file_that_changes_after_it_was_checked_is_not_written(
    place: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only checked rows are written; the error says how many were."""
    checked = imports._check

    def check(*args: Any) -> Any:
        found = checked(*args)
        file = place / "a.csv"
        if change == "grown":
            file.write_text(file.read_text() + "3,x\n4,5\n")
        elif change == "emptied":
            file.write_text("time,v\n")
        elif change == "replaced":
            (place / "b").write_text("time,v\n1,7\n2,8\n")
            (place / "b").replace(file)
        else:
            file.unlink()
        return found

    monkeypatch.setattr(imports, "_check", check)
    done, cluster = csv(place, "time,v\n1,1\n2,2\n")
    assert ("cannot be read" if change == "gone" else "was changed") in failure(done)["what"], done.err
    assert not cluster.written


@pytest.mark.parametrize("change", ["grown", "gone"])
def test_a_file_that_changes_during_the_write_reports_the_rows_written(
    place: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iotctl.rows.csv_rows.BLOCK_BYTES", 1024)
    cluster = FakeCluster()
    write = FakeCluster.write

    def written(*args: Any, **named: Any) -> Any:
        if change == "grown":
            with (place / "a.csv").open("a") as file:
                file.write("9999,9\n")
        else:
            (place / "a.csv").unlink()
        return write(*args, **named)

    monkeypatch.setattr(FakeCluster, "write", written)
    done, _ = csv(place, "time,v\n" + "".join(f"{n},{n}\n" for n in range(2000)), cluster=cluster)
    found = failure(done, Exit.PARTLY)
    assert 0 < len(rows_of(cluster)) < 2000 and f"{len(rows_of(cluster))} of 2000 rows" in found["what"]


@pytest.mark.parametrize("value", ["x", "9" * 20])
def test_every_bad_row_and_no_other_is_left_out(place: Path, value: str) -> None:
    """However many there are, whether found by pattern or only by value."""
    text = "".join(f"{n},{value if n % 4 == 0 else n}\n" for n in range(12_000))
    done, cluster = csv(place, "time,v\n" + text, "--type", "v=INT64", *SKIP)
    assert done.code == 0 and json.loads(done.out)["skipped_rows"] == 3000
    assert len(rows_of(cluster)) == 9000 and all(r["v"] == r["time"] for r in rows_of(cluster))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("FLOAT", "16777217"),
        ("FLOAT", "16777217.0"),
        ("DOUBLE", "9007199254740993.0"),
        ("DOUBLE", "-9007199254740993"),
        ("DOUBLE", "123456789012345678901"),
        ("DOUBLE", "000000000123456789012345678901"),
        ("FLOAT", "1234567890123456789012345678901"),
    ],
)
def test_a_whole_number_that_a_type_would_change_is_refused(place: Path, kind: str, value: str) -> None:
    done, cluster = csv(place, f"time,v\n1,0.1\n2,{value}\n", "--type", f"v={kind}")
    found = failure(done)
    assert f"a {kind} cannot hold it exactly" in found["what"] and found["where"].endswith(":3")
    assert ("=INT64 can" in found["what"]) == (value[1:].isdigit() and len(value) < 20)
    assert not cluster.written
    table = TableSchema("root.a", "m", 1, (Column("v", kind, False),))
    words = ("data", "write", *NAMED, "--time", "1", f"v={value}")
    done = iotctl(place, *words, cluster=FakeCluster(tables=[table]))
    assert done.code == Exit.INPUT and f"a {kind} cannot hold {value}" in done.err


@pytest.mark.parametrize(
    "value", ["100000000000000000000", "9007199254740992", "1e300", "0.1", "0" * 5000 + "7", "-0"]
)
def test_a_number_that_a_double_can_hold_is_accepted(place: Path, value: str) -> None:
    done, cluster = csv(place, f"time,v\n1,0.5\n2,{value}\n")
    assert done.code == 0 and rows_of(cluster)[1]["v"] == float(value)


@pytest.mark.parametrize(
    "kind,value",
    [
        ("FLOAT", "1e39"),
        ("FLOAT", "9" * 40),
        ("DOUBLE", "1e999"),
        ("DOUBLE", "-1e309"),
        ("DOUBLE", "9" * 5000),
    ],
)
def test_one_row_with_a_number_too_large_is_refused(place: Path, kind: str, value: str) -> None:
    table = TableSchema("root.a", "m", 1, (Column("v", kind, False),))
    cluster = FakeCluster(tables=[table])
    done = iotctl(place, "data", "write", *NAMED, "--time", "1", f"v={value}", cluster=cluster)
    assert done.code == Exit.INPUT and f"a {kind} cannot hold {value}" in done.err and not cluster.written


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1e300], "FLOAT"),
        ([16777217.0], "FLOAT"),
        (["9007199254740993"], "DOUBLE"),
        (["1e400"], "DOUBLE"),
        ([Decimal("9007199254740993")], "DOUBLE"),
        ([1_700_000_000_000], "TIMESTAMP"),
        ([2], "BOOLEAN"),
        ([0.5], "BOOLEAN"),
        ([datetime(2024, 5, 1, 12, 30)], "DATE"),
        (pa.array([20_000], pa.int32()), "DATE"),
    ],
)
def test_a_requested_type_changes_no_value(place: Path, values: Any, kind: str) -> None:
    done, cluster = parquet(place, {"time": [1], "v": values}, "--type", f"v={kind}")
    assert failure(done)["what"].startswith("v: ") and not cluster.written


@pytest.mark.parametrize("first", [20240501, 202405011200, 20240501120000])
def test_dates_without_separators_are_not_milliseconds(place: Path, first: int) -> None:
    done, cluster = csv(place, f"time,v\n{first},1\n{first + 1},2\n")
    assert "most times look like dates" in failure(done)["what"] and not cluster.written
    done, cluster = csv(place, f"time,v\n{first},1\n{first + 1},2\n", "--time-unit", "ms")
    assert done.code == 0 and rows_of(cluster)[0]["time"] == first


def test_only_numbers_of_the_calendar_look_like_dates() -> None:
    dates = [20240501, 202405012359, 20240501235959]
    others = [20241301, 20240532, 202405012400, 202405011260, 20240501126000, 20240501120060, 5, 1 << 62, -1]
    found = look_like_dates(np.array([*dates, *others], np.int64))
    assert found.tolist() == [True] * len(dates) + [False] * len(others)


def test_a_type_given_twice_is_refused(place: Path) -> None:
    done, _ = csv(place, "time,v\n1,1\n", "--type", "v=DOUBLE", "--type", "v=STRING")
    assert done.code == Exit.USAGE and "two types" in done.err


def test_a_tag_is_not_added_later(place: Path) -> None:
    """The leader of the meta group would refuse it, so the dry run refuses it too."""
    table = TableSchema("root.a", "m", 1, (Column("d", "STRING", True), Column("v", "INT64", False)))
    for words in ((), ("--dry-run",)):
        cluster = FakeCluster(tables=[table])
        done, _ = csv(place, "time,d,e,v\n1,a,b,1\n", "--tag", "e", *words, cluster=cluster)
        assert "tag e cannot be added" in failure(done)["what"] and "d" in failure(done)["why"]
        assert not cluster.written


def test_times_that_python_cannot_represent_are_bad_rows(place: Path) -> None:
    far = pa.array([10**15, 1], pa.timestamp("ms"))
    for rows in ({"time": far, "v": [1, 2]}, {"time": [1, 2], "v": far}):
        done, cluster = parquet(place, rows, *SKIP)
        assert done.code == 0, done.err
        assert json.loads(done.out)["skipped_rows"] == 1 and len(rows_of(cluster)) == 1


def test_rows_bad_in_two_columns_are_counted_once(place: Path) -> None:
    text = "".join("1,x,y\n" for _ in range(6))
    done, _ = csv(place, "time,a,b\n" + text, "--type", "a=INT64", "--type", "b=INT64")
    assert "-" not in failure(done)["why"].rpartition("and ")[2]


def test_an_arrow_file_is_read_batch_by_batch(place: Path) -> None:
    rows = pa.table({"time": list(range(500_000)), "v": list(range(500_000))})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(place / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, rows.schema, options=options) as w,
    ):
        w.write_table(rows, max_chunksize=300_000)
    done, cluster = load(place, "a.arrow")
    assert done.code == 0, done.err
    assert pa.concat_tables([w[2] for w in cluster.written]).equals(rows)


def test_a_row_too_large_for_a_log_entry_is_a_bad_row(place: Path) -> None:
    """It is refused with its place before the table is created, although each of its values is allowed."""
    rows = {"time": [1, 2], **{name: ["x", name * (3 << 20)] for name in "abc"}}
    done, cluster = parquet(place, rows)
    assert "bytes; the limit is" in failure(done)["what"] and failure(done)["where"].endswith("row 2")
    assert not cluster.written
    done, cluster = parquet(place, rows, *SKIP)
    assert done.code == 0 and [r["time"] for r in rows_of(cluster)] == [1]


def test_a_date_outside_the_range_of_files_is_a_bad_row(place: Path) -> None:
    days = pa.array([-400_000, 1], pa.date32())
    done, cluster = parquet(place, {"time": [1, 2], "v": days})
    assert "is not between 1000-01-01" in failure(done)["what"] and failure(done)["where"].endswith("row 1")
    done, cluster = parquet(place, {"time": [1, 2], "v": days}, *SKIP)
    assert done.code == 0 and [r["time"] for r in rows_of(cluster)] == [2]


def test_a_path_that_is_not_a_regular_file_is_refused(place: Path) -> None:
    os.mkfifo(place / "pipe.csv")
    done, _ = load(place, "pipe.csv")
    assert "no such" not in failure(done)["what"] and "read twice" in failure(done)["what"]
    (place / "a.csv").write_bytes("time,v\n1,2\n".encode("utf-16"))
    done, _ = load(place, "a.csv")
    assert "iconv -f UTF-16" in failure(done)["next"]


@pytest.mark.parametrize("value", ["9" * 40, "9" * 5000])
def test_a_number_of_any_length_is_a_bad_row(place: Path, value: str) -> None:
    for kind in ("FLOAT", "DOUBLE", "INT64"):
        done, cluster = csv(place, f"time,v\n1,{value}\n2,3\n", "--type", f"v={kind}", *SKIP)
        assert done.code == 0, done.err
        assert len(rows_of(cluster)) == 1


def test_small_floats_are_read(place: Path) -> None:
    halves = pa.array(np.array([1.5, 2.0], np.float16))
    for words in ((), ("--type", "v=DOUBLE")):
        done, cluster = parquet(place, {"time": [1, 2], "v": halves}, *words)
        assert done.code == 0 and [r["v"] for r in rows_of(cluster)] == [1.5, 2.0], done.err


def test_the_two_zeros_and_all_nans_are_equal(place: Path) -> None:
    strange = np.array([0x7FF8000000000000, 0x7FF8000000000001], np.uint64).view(np.float64)
    for values in ([0.0, -0.0], strange):
        done, _ = parquet(place, {"time": [1, 1], "v": values})
        assert done.code == 0, done.err


def test_a_few_rows_that_a_node_refuses_are_left_out_beside_many_others(place: Path) -> None:
    rows: dict[str, list[Any]] = {
        "time": list(range(3000)),
        "d": ["a"] * 3000,
        "v": ["1"] * 1500 + ["x"] * 1500,
    }
    rows["d"][0] = "b\0"
    done, cluster = parquet(place, rows, "--tag", "d", "--type", "v=INT64", *SKIP)
    assert done.code == 0 and len(rows_of(cluster)) == 1499, done.err
