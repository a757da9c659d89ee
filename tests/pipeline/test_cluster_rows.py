"""Rows of a cluster's files as a Spark task reads them, without Spark: in pieces, each row once."""

from pathlib import Path

import pyarrow as pa
import pytest

from iotctl.pipeline import windows
from iotctl.pipeline.cluster_rows import cluster_parts, part_rows
from iotctl.pipeline.tsfile_rows import Wanted
from iotctl.pipeline.windows import time_windows
from nodeagent.model.errors import Unavailable
from nodeagent.model.files import FileMeta, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.table.merge import merge
from tests.pipeline.fake import DirectoryCluster, Maker, create
from tests.pipeline.rows import MACHINES, machines, with_cell

GROUPS = {"n1.1": ("n1", "n2"), "n2.1": ("n2", "n1")}
KEY = PartitionKey("root.a", 7, 0)
DEAD = Tombstone((6,), KEY, "machines", (("device", "d0"),), 0, 0)


@pytest.fixture(params=[1 << 30, 9])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(windows, "WINDOW_ROWS", request.param)
    return int(request.param)


def _cluster(maker: Maker, root: Path, damaged: tuple[str, ...]) -> tuple[DirectoryCluster, pa.Table]:
    """Two partitions in two slots of one group; the old file of slot 7 is damaged on some holders."""
    cluster = create(root, GROUPS, (MACHINES,))
    rows = machines()
    newer = with_cell(rows, 1, "heat", 77.0).slice(1, 1)
    old, new = maker.file(MACHINES, rows, 7, (5,)), maker.file(MACHINES, newer, 7, (6,))
    other = maker.file(MACHINES, machines(seed=4), 8, (5,))
    for node in ("n1", "n2"):
        for made in (old, new, other):
            path = cluster.put(node, "n1.1", made)
            if node in damaged and made is old:
                path.write_bytes(made.content[:-9] + b"x" + made.content[-8:])
        replica = cluster.load(node, "n1.1")
        replica.tombstones = [DEAD]
        cluster.save(node, "n1.1", replica)
    want = [
        merge([((5,), rows), ((6,), newer)], [DEAD], MACHINES),
        merge([((5,), machines(seed=4))], (), MACHINES),
    ]
    return cluster, pa.concat_tables(want)


def _sorted(rows: pa.Table) -> list[object]:
    return sorted(rows.to_pylist(), key=repr)


def _read(cluster: DirectoryCluster) -> list[pa.Table]:
    return [
        rows
        for part in cluster_parts(cluster, (), "")
        for rows in part_rows(cluster, part, MACHINES, Wanted())
    ]


def test_another_holder_continues_after_a_holder_fails(maker: Maker, tmp_path: Path, pieces: int) -> None:
    """The pieces have the newest value per cell, no deleted row, no row twice, and a limited size."""
    cluster, want = _cluster(maker, tmp_path, ("n1",))
    got = _read(cluster)
    assert _sorted(pa.concat_tables(got)) == _sorted(want)
    assert max(rows.num_rows for rows in got) <= 3 * pieces


def test_without_an_undamaged_holder_reading_fails(maker: Maker, tmp_path: Path, pieces: int) -> None:
    cluster, _ = _cluster(maker, tmp_path, ("n1", "n2"))
    with pytest.raises(Unavailable, match="did not deliver all of the slots"):
        _read(cluster)


def test_windows_cover_all_times_exactly_once() -> None:
    """Whatever the manifests say, windows are adjacent, and none is much larger than requested."""
    metas = [
        FileMeta("f", 3, KEY, "t", (1,), 9, "0" * 32, 1000, a, b, (1, 1, 1)) for a, b in ((0, 9999), (5, 5))
    ]
    found = list(time_windows(metas, 100))
    assert found[0][0] == -(1 << 63) and found[-1][1] == (1 << 63) - 1
    assert all(a[1] + 1 == b[0] for a, b in zip(found, found[1:], strict=False)) and len(found) >= 10
