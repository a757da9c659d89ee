"""Rows are split by (time partition, shard) as by a row-by-row reference implementation."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import SchemaMismatch
from nodeagent.model.ids import PartitionKey
from nodeagent.partition.hash import shard_of, time_partition
from nodeagent.partition.rows import check_rows, split_rows

TAGS = ("site", "dev")
Row = tuple[int, str | None, str | None]


def batch_of(rows: list[Row], dictionary: bool = False) -> pa.RecordBatch:
    site = pa.array([r[1] for r in rows], pa.string())
    dev = pa.array([r[2] for r in rows], pa.string())
    if dictionary:
        dev = dev.dictionary_encode()
    times = pa.array([r[0] for r in rows], pa.int64())
    return pa.RecordBatch.from_arrays(
        [times, site, dev, pa.array(range(len(rows)), pa.int64())], ["time", "site", "dev", "row"]
    )


tag = st.sampled_from([None, "", "a", "b", "ü"])


@given(
    rows=st.lists(st.tuples(st.integers(-50, 50), tag, tag), max_size=40),
    mode=st.sampled_from(["murmur3", "legacy"]),
    shards=st.sampled_from([1, 3, 8]),
    dictionary=st.booleans(),
)
@hypothesis_settings(max_examples=150, deadline=None)
def test_split_equals_row_by_row(rows: list[Row], mode: str, shards: int, dictionary: bool) -> None:
    """Every row is in the piece of its key, in its original order; every piece passes its check."""
    settings = ClusterSettings(name="c", shards=shards, time_partition_interval_ms=10, hash_mode=mode)
    expected: dict[tuple[int, int], list[int]] = {}
    for i, (t, site, dev) in enumerate(rows):
        key = (time_partition(t, 10, mode), shard_of((site, dev), shards))
        expected.setdefault(key, []).append(i)
    pieces = split_rows(batch_of(rows, dictionary), TAGS, settings)
    assert [(k, p["row"].to_pylist()) for k, p in pieces] == sorted(expected.items())
    for (partition, shard), piece in pieces:
        times = piece["time"].to_pylist()
        span = (min(times), max(times))
        assert check_rows(piece, TAGS, PartitionKey("root.a", partition, shard), settings, span)
        assert not check_rows(piece, TAGS, PartitionKey("root.a", partition + 1, shard), settings, span)
        assert not check_rows(piece, TAGS, PartitionKey("root.a", partition, shard + 1), settings, span)


def test_tag_missing_from_the_batch_is_null() -> None:
    """A batch written before a tag column existed is routed with nulls in that column."""
    settings = ClusterSettings(name="c", time_partition_interval_ms=10)
    rows: list[Row] = [(1, "a", None), (2, "b", None), (3, "c", None)]
    with_nulls = split_rows(batch_of(rows), TAGS, settings)
    without = split_rows(batch_of(rows).select(["time", "site", "row"]), TAGS, settings)
    assert [(k, p["row"].to_pylist()) for k, p in with_nulls] == [
        (k, p["row"].to_pylist()) for k, p in without
    ]


def test_dictionary_with_repeated_and_null_values() -> None:
    """Equal values under two dictionary codes are one device; a null inside the dictionary is null."""
    settings = ClusterSettings(name="c", time_partition_interval_ms=10)
    dev = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None]), pa.array(["a", "a", None]))
    batch = pa.RecordBatch.from_arrays([pa.array([0] * 4, pa.int64()), dev], ["time", "dev"])
    found = {k[1]: p.num_rows for k, p in split_rows(batch, ["dev"], settings)}
    expected: dict[int, int] = {}
    for value in ("a", "a", None, None):
        shard = shard_of((value,), 8)
        expected[shard] = expected.get(shard, 0) + 1
    assert found == expected


def test_sliced_batch() -> None:
    """Offsets of a slice are respected."""
    settings = ClusterSettings(name="c", time_partition_interval_ms=10)
    rows: list[Row] = [(i, f"s{i}", "d") for i in range(30)]
    pieces = split_rows(batch_of(rows).slice(7, 11), TAGS, settings)
    assert sorted(r for _, p in pieces for r in p["row"].to_pylist()) == list(range(7, 18))


def test_one_piece_is_not_copied() -> None:
    """The common case, one device and one week, returns the batch itself."""
    batch = batch_of([(1, "a", "b"), (2, "a", "b")])
    ((_, piece),) = split_rows(batch, TAGS, ClusterSettings(name="c"))
    assert piece is batch


@pytest.mark.parametrize(
    "time", [pa.array([1, None], pa.int64()), pa.array([1, 2], pa.int32()), pa.array([1.0, 2.0])]
)
def test_bad_time_column_is_refused(time: pa.Array) -> None:
    """Nulls and other types in `time` are a named error, not a wrong partition."""
    batch = pa.RecordBatch.from_arrays([time], ["time"])
    with pytest.raises(SchemaMismatch):
        split_rows(batch, (), ClusterSettings(name="c"))


def test_many_tags_do_not_overflow_the_codes() -> None:
    """Eight tags of 1 000 distinct values each still distinguish all devices."""
    n = 1000
    names = [f"t{i}" for i in range(8)]
    rng = np.random.default_rng(1)
    columns = [pa.array([str(v) for v in rng.permutation(n)]) for _ in names]
    batch = pa.RecordBatch.from_arrays([pa.array([0] * n, pa.int64()), *columns], ["time", *names])
    settings = ClusterSettings(name="c", shards=64)
    expected = [shard_of(tuple(c[i].as_py() for c in columns), 64) for i in range(n)]
    found = {k[1]: p.num_rows for k, p in split_rows(batch, names, settings)}
    assert found == {s: expected.count(s) for s in set(expected)}
