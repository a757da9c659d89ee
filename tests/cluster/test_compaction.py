"""Three real agents that close frequently: few files remain, deletes and a TTL take effect, replicas are
equal."""

import time
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from iotctl.fleet.local import LocalFleet
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import InvalidInput
from nodeagent.model.files import FileMeta
from nodeagent.model.requests import DeleteRows, OpenSession, SessionOpened
from tests.cluster.world import World
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.real]

GROUP, TABLE = "root.plant", "m"
DAY_MS = 86_400_000
ROUNDS = 10
OFTEN: dict[str, object] = {
    "idle_close_ms": 100,
    "compact_every_ms": 200,
    "compact_deletes_ms": 300,
    "expire_every_ms": 300,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    fleet = LocalFleet(tmp_path_factory.mktemp("compaction") / "fleet")
    fleet.create(ClusterSettings(name="plant", slots=60, shards=1), 3, node_settings=OFTEN)
    made = World(fleet)
    try:
        made.up()
        yield made
    finally:
        made.close()


def replicas(world: World) -> list[list[FileMeta]]:
    """The files of every replica, by group."""
    return [
        [f for group in world.cluster.meta().groups for f in world.manifest(group.members[i], group.group)]
        for i in range(3)
    ]


def settled(world: World, rows: int) -> list[FileMeta]:
    """Wait until all replicas have the same files, few per partition, with about `rows` rows; return them.

    Rows that are in two files count twice.
    """

    def there() -> list[FileMeta] | None:
        first, *others = [sorted(files, key=lambda f: f.name) for files in replicas(world)]
        few = max(Counter(f.partition for f in first).values(), default=0) < 4
        equal = all(files == first for files in others)
        return first if few and equal and rows <= sum(f.rows for f in first) <= 1.3 * rows else None

    def state() -> str:
        return str([[(f.name, f.rows, f.clean) for f in files] for files in replicas(world)])

    return until(there, 120.0, state)  # the compacting process has low priority


def check_drop(world: World, now: int) -> None:
    """A table with rows is dropped only after confirmation by name; it rejects writes, is not listed, stays
    empty."""
    words = ("data", "drop", "--storage-group", GROUP, "--table", TABLE)
    unasked = world.iotctl(*words, "--yes")
    assert unasked.code == 5 and "delete 1 rows" in unasked.err, unasked.err
    dropped = world.iotctl(*words, "--confirm", world.fleet.source().name)
    assert dropped.code == 0, dropped.err
    assert not world.iotctl("data", "count", "-o", "json").json["tables"]
    late = pa.table({"time": pa.array([now + 1], pa.int64()), "device": ["a"], "v": [2.5], "w": [8]})
    with pytest.raises(InvalidInput, match="was dropped"):  # by a client that has cached the table
        world.cluster.write(GROUP, TABLE, late)
    world.cluster.write(GROUP, TABLE, late, tags=["device"])
    assert found(world) == {("a", now + 1): (2.5, 8)}
    checked = world.iotctl("verify", "--depth", "hash")
    assert checked.code == 0, checked.err


def found(world: World) -> dict[tuple[str, int], tuple[object, object]]:
    rows = world.cluster.scan(GROUP, TABLE).to_pylist()
    return {(r["device"], r["time"]): (r["v"], r["w"]) for r in rows}


def check_bad_deletes_are_refused(world: World) -> None:
    """Invalid deletes of a client that does not check them are refused: in the log they would break
    compaction."""
    group, file = next(
        (g.group, f) for g in world.cluster.meta().groups for f in world.manifest(g.owner, g.group)
    )
    opened = world.cluster.call_group(group, OpenSession(group))
    assert isinstance(opened, SessionOpened)
    for n, tag in enumerate(("nosuch", "w", "time"), 1):
        bad = DeleteRows(
            group, file.slot, file.partition, TABLE, opened.session, n, n - 1, ((tag, "1"),), 0, 1 << 62
        )
        with pytest.raises(InvalidInput, match=tag):
            world.cluster.call_group(group, bad)


def test_many_small_closes_leave_few_files_and_every_row(world: World) -> None:
    """Each round is closed separately and overwrites a part of the previous one; a device is deleted, and all
    rows except those of today expire."""
    now = int(time.time() * 1000)
    start = now - 3 * DAY_MS
    want: dict[tuple[str, int], tuple[object, object]] = {}
    made: set[str] = set()
    for i in range(ROUNDS):
        times = [start + 1000 * k for k in range(5 * i, 5 * i + 10)]
        keys = [(device, at) for device in ("a", "b") for at in times]
        values = [float(i) if k % 3 else None for k in range(len(keys))]
        others = [i * 100 + k for k in range(len(keys))]
        columns = {
            "time": pa.array([at for _, at in keys], pa.int64()),
            "device": [device for device, _ in keys],
            "v": pa.array(values, pa.float64()),
            "w": pa.array(others, pa.int64()),
        }
        world.cluster.write(GROUP, TABLE, pa.table(columns), tags=["device"])
        for key, v, w in zip(keys, values, others, strict=True):
            before = want.get(key, (None, None))
            want[key] = (before[0] if v is None else v, w)
        until(
            lambda: all(g.memtable_bytes == 0 for s in world.statuses().values() for g in s.groups),
            20.0,
            lambda: "the rows are not closed",
        )
        made |= {f.name for f in replicas(world)[0]}
    assert len(made) > ROUNDS / 2
    files = settled(world, len(want))
    assert any(f.clean for f in files), "nothing was compacted"
    assert found(world) == want

    check_bad_deletes_are_refused(world)
    words = ("data", "delete", "--storage-group", GROUP, "--table", TABLE, "--where", "device=b")
    deleted = world.iotctl(*words, "--confirm", world.fleet.source().name)
    assert deleted.code == 0, deleted.err
    want = {k: v for k, v in want.items() if k[0] != "b"}
    settled(world, len(want))
    assert found(world) == want
    checked = world.iotctl("verify", "--depth", "hash")
    assert checked.code == 0, checked.err

    fresh = pa.table({"time": pa.array([now], pa.int64()), "device": ["a"], "v": [1.5], "w": [7]})
    world.cluster.write(GROUP, TABLE, fresh)
    named = ("data", "schema", "--storage-group", GROUP, "--table", TABLE)
    unasked = world.iotctl(*named, "--set-ttl", "1d")
    assert unasked.code == 5 and f"delete {len(want)} rows" in unasked.err, unasked.err
    assert world.iotctl(*named, "--set-ttl", "1d", "--confirm", world.fleet.source().name).code == 0
    (files_left,) = {tuple(f.rows for f in settled(world, 1))}
    assert files_left == (1,) and found(world) == {("a", now): (1.5, 7)}
    assert world.iotctl(*named, "-o", "json").json["tables"][0]["ttl_ms"] == DAY_MS
    checked = world.iotctl("verify", "--depth", "hash")
    assert checked.code == 0, checked.err

    check_drop(world, now)
