"""`iotctl meta backup` and `iotctl meta restore`: what they write, refuse and continue."""

import json
import os
import re
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from iotctl.change.restore_meta import TableState, restore_tables
from iotctl.cli.session import Session
from iotctl.errors import Exit
from iotctl.observe.backup import read_backup
from nodeagent.meta.image import Image
from nodeagent.meta.sections import sections_of
from nodeagent.model.config import ClusterSettings
from nodeagent.model.entries import Base, Config
from nodeagent.model.errors import SchemaMismatch, Unavailable
from nodeagent.model.features import SPOKEN, Feature
from nodeagent.model.ids import META, Owner
from nodeagent.model.image_format import Header, ImageBytes
from nodeagent.model.operation import Stage
from nodeagent.model.requests import BeginChange, PutSchema, Reply, Request
from nodeagent.model.schema import Column, TableSchema
from nodeagent.partition.change import ChangeKind
from nodeagent.partition.planner import plan_placement
from nodeagent.partition.ranges import count
from nodeagent.partition.ring import initial_ring
from nodeagent.partition.table import PartitionTable, initial_table

from .fakes import SLOTS, SPEC, FakeCluster, Ran, iotctl, make_operation

SETTINGS = ClusterSettings("plant", slots=SLOTS)
NODES = [f"node{i}" for i in range(1, 6)]
DEVICE, TEMPERATURE = Column("device", "STRING", True), Column("temperature", "DOUBLE", False)
LEVEL = Column("level", "INT64", False)
WEATHER = TableSchema("root.plant", "weather", 3, (DEVICE, TEMPERATURE), ttl_ms=86_400_000)
TANKS = TableSchema("root.plant", "tanks", 1, (DEVICE, LEVEL))
DROPPED = TableSchema("root.plant", "old", 2, (DEVICE,), dropped=True)


def moved(names: Sequence[str] = NODES, slots: int = SLOTS) -> PartitionTable:
    """A table in which node1's first slots belong to node2."""
    table = initial_table(initial_ring(names), slots, 7)
    first = table.slots_of(names[0])[0]
    return table.moved({names[1]: ((first[0], first[0] + 3),)}, table.ring, 8)


def image(
    table: PartitionTable | None = None,
    schemas: Sequence[TableSchema] = (WEATHER, TANKS, DROPPED),
    level: int = Feature.IMAGES,
    settings: ClusterSettings = SETTINGS,
) -> bytes:
    state = Image(cluster_id="c-0", applied=40, level=level, schemas=list(schemas), settings=settings)
    state.table = (table or moved()).to_wire()
    header = Header(Base(40, 3, Config(("node1",), ())), META, Owner("node1"))
    return ImageBytes.of(header, sections_of(state)).content


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(level=Feature.IMAGES, image=image())


def restore(place: Path, cluster: FakeCluster, *words: str) -> Ran:
    if not (place / "meta.bak").exists():
        (place / "meta.bak").write_bytes(image())
    return iotctl(place, "meta", "restore", "meta.bak", *words, "-o", "json", cluster=cluster)


def owner_of(cluster: FakeCluster, slot: int) -> str:
    return next(n for a, b, n in cluster.view().owners if a <= slot < b)


# --- backup ------------------------------------------------------------------------------------------


def test_a_backup_is_the_image_and_says_what_it_holds(place: Path, cluster: FakeCluster) -> None:
    done = iotctl(place, "meta", "backup", "meta.bak", "-o", "json", cluster=cluster)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["cluster_id"], found["index"], found["term"], found["tables"]) == ("c-0", 40, 3, 2)
    assert found["bytes"] == len(cluster.image)
    assert (place / "meta.bak").read_bytes() == cluster.image
    assert sorted(p.name for p in place.iterdir()) == ["cluster.yaml", "meta.bak"], (
        "no temporary file is left"
    )


@pytest.mark.parametrize("at", range(0, 2_000, 97))
def test_a_damaged_image_is_not_written(place: Path, cluster: FakeCluster, at: int) -> None:
    """A flip anywhere, also a cut, is an error; the backup of yesterday remains."""
    (place / "meta.bak").write_bytes(b"of yesterday")
    whole = cluster.image
    for content in (
        whole[: at % len(whole)],
        whole[: at % len(whole)] + bytes([whole[at % len(whole)] ^ 1]) + whole[at % len(whole) + 1 :],
    ):
        cluster.image = content
        done = iotctl(place, "meta", "backup", "meta.bak", "--yes", cluster=cluster)
        assert done.code not in (0, 1) and "nothing was written" in done.err, done
        assert (place / "meta.bak").read_bytes() == b"of yesterday"


def test_another_node_makes_the_image_if_one_cannot(place: Path, cluster: FakeCluster) -> None:
    cluster.image_fails = {"node1", "node2"}
    done = iotctl(place, "meta", "backup", "meta.bak", "-o", "json", cluster=cluster)
    assert done.code == 0 and json.loads(done.out)["node"] == "node3", done.err
    cluster.image_fails |= {"node3"}
    done = iotctl(place, "meta", "backup", "meta.bak", "--yes", cluster=cluster)
    assert done.code == Exit.UNREACHABLE and "node3 has no room" in done.err
    assert (place / "meta.bak").read_bytes() == cluster.image


def test_a_pipe_gets_the_bytes_and_stays_a_pipe(place: Path, cluster: FakeCluster) -> None:
    """As every special file: renaming a file over /dev/null would break the machine."""
    os.mkfifo(place / "pipe")
    reader = os.open(place / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert iotctl(place, "meta", "backup", "pipe", cluster=cluster).code == 0
        assert os.read(reader, 1 << 20) == cluster.image
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((place / "pipe").stat().st_mode)


def test_a_replaced_file_retains_its_mode_and_a_link_its_place(place: Path, cluster: FakeCluster) -> None:
    (place / "there").write_bytes(b"of yesterday")
    (place / "there").chmod(0o640)
    (place / "meta.bak").symlink_to("there")
    assert iotctl(place, "meta", "backup", "meta.bak", "--yes", cluster=cluster).code == 0
    assert (place / "meta.bak").is_symlink() and (place / "there").read_bytes() == cluster.image
    assert stat.S_IMODE((place / "there").stat().st_mode) == 0o640


def test_a_file_is_replaced_only_after_a_question(place: Path, cluster: FakeCluster) -> None:
    (place / "meta.bak").write_bytes(b"of yesterday")
    done = iotctl(place, "meta", "backup", "meta.bak", cluster=cluster)
    assert done.code not in (0, 1) and (place / "meta.bak").read_bytes() == b"of yesterday"
    assert iotctl(place, "meta", "backup", "meta.bak", "--yes", cluster=cluster).code == 0
    assert (place / "meta.bak").read_bytes() == cluster.image


@pytest.mark.parametrize("name", ["missing/meta.bak", ".", "cluster.yaml/x"])
def test_a_file_that_cannot_be_written_is_an_input_error(
    place: Path, cluster: FakeCluster, name: str
) -> None:
    done = iotctl(place, "meta", "backup", name, cluster=cluster)
    assert done.code == Exit.INPUT and "cannot be written" in done.err, done.err
    assert [p.name for p in place.iterdir()] == ["cluster.yaml"]


def test_a_cluster_without_images_has_no_backup(place: Path, cluster: FakeCluster) -> None:
    cluster.level = 1
    done = iotctl(place, "meta", "backup", "meta.bak", cluster=cluster)
    assert done.code == Exit.REFUSED and "feature level" in done.err
    assert not (place / "meta.bak").exists()


# --- restore -----------------------------------------------------------------------------------------


def test_a_restore_creates_tables_and_places_slots(place: Path, cluster: FakeCluster) -> None:
    done = restore(place, cluster, "--yes")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [(t["table"], t["state"]) for t in found["tables"]] == [
        ("weather", "missing"),
        ("tanks", "missing"),
    ]
    assert (found["slots"], found["operation"]) == (3, "op-51")
    assert [(t.table, t.columns, t.ttl_ms) for t in cluster.tables] == [
        ("weather", WEATHER.columns, 86_400_000),
        ("tanks", TANKS.columns, 0),
    ]
    assert [owner_of(cluster, s) for s in range(SLOTS)] == [moved().route(s) for s in range(SLOTS)]


def test_a_repeated_restore_changes_nothing(place: Path, cluster: FakeCluster) -> None:
    assert restore(place, cluster, "--yes").code == 0
    tables, begun = list(cluster.tables), list(cluster.begun)
    done = restore(place, cluster)  # nothing to ask
    assert done.code == 0 and json.loads(done.out)["slots"] == 0
    assert (cluster.tables, cluster.begun) == (tables, begun)
    assert json.loads(restore(place, cluster, "--dry-run").out)["would"] == []


def test_a_dry_run_names_each_change(place: Path, cluster: FakeCluster) -> None:
    done = restore(place, cluster, "--dry-run")
    assert json.loads(done.out)["would"] == [
        "create table root.plant.weather (2 columns, TTL 1 d)",
        "create table root.plant.tanks (2 columns, no TTL)",
        "move 3 slots to the groups that have them in the backup",
    ]
    assert not cluster.tables and not cluster.begun


@pytest.mark.parametrize("after", range(3))
def test_a_restore_that_stopped_is_completed_by_a_repeat(
    place: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The connection is lost before each step: before a table, before the change."""
    steps = [0]

    def counted(real: object) -> object:
        def call(*arguments: object) -> object:
            steps[0] += 1
            if steps[0] > after:
                raise Unavailable("no majority answers")
            return real(*arguments)  # type: ignore[operator]

        return call

    with monkeypatch.context() as patch:
        patch.setattr("iotctl.change.restore_meta.IN_FLIGHT", 1)
        patch.setattr(FakeCluster, "put_schema", counted(FakeCluster.put_schema))
        patch.setattr(FakeCluster, "begin_change", counted(FakeCluster.begin_change))
        done = restore(place, cluster, "--yes")
        assert done.code not in (0, 1), done
        assert len(cluster.begun) == min(after, 1) and len(cluster.tables) == max(0, after - 1)
        if after == 2:
            assert "1 of 2 tables were restored" in done.err and "repeat the command" in done.err
    assert restore(place, cluster, "--yes").code == 0
    assert [t.table for t in cluster.tables] == ["weather", "tanks"]
    assert len(cluster.begun) == 1 and owner_of(cluster, 0) == moved().route(0)


def test_an_existing_table_gets_columns_and_retains_its_ttl(place: Path, cluster: FakeCluster) -> None:
    """A shorter TTL would delete rows, and nobody asked for that."""
    cluster.tables = [msgspec.structs.replace(WEATHER, columns=(DEVICE, LEVEL), ttl_ms=0)]
    (place / "meta.bak").write_bytes(image(schemas=[WEATHER]))
    done = restore(place, cluster, "--yes", "--tables-only")
    assert done.code == 0 and "retains its TTL: no TTL; in the backup: TTL 1 d" in done.err
    assert [(t.columns, t.ttl_ms) for t in cluster.tables] == [((DEVICE, LEVEL, TEMPERATURE), 0)]


@pytest.mark.parametrize(
    ("here", "why"),
    [
        ((DEVICE, Column("temperature", "INT64", False)), "column temperature is of another kind"),
        ((TEMPERATURE,), "it has no tag device"),
        ((Column("device", "STRING", False), TEMPERATURE), "column device is of another kind"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_any_change(
    place: Path, cluster: FakeCluster, here: tuple[Column, ...], why: str
) -> None:
    cluster.tables = [msgspec.structs.replace(WEATHER, columns=here)]
    (place / "meta.bak").write_bytes(image(schemas=[TANKS, WEATHER]))
    done = restore(place, cluster, "--yes")
    assert done.code == Exit.REFUSED and why in done.err and "nothing was changed" in done.err
    assert len(cluster.tables) == 1 and not cluster.begun


def test_a_table_that_appears_during_the_question_retains_its_ttl(
    place: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows may be older than the TTL in the backup. The request decides, not what was seen before."""
    import_it = [msgspec.structs.replace(WEATHER, ttl_ms=0)]

    def call_meta(self: FakeCluster, request: Request) -> Reply:
        if isinstance(request, PutSchema) and import_it:
            self.tables.append(import_it.pop())
        return meta(self, request)

    meta = FakeCluster.call_meta
    monkeypatch.setattr(FakeCluster, "call_meta", call_meta)
    (place / "meta.bak").write_bytes(image(schemas=[WEATHER]))
    assert restore(place, cluster, "--yes", "--tables-only").code == 0
    assert [t.ttl_ms for t in cluster.tables] == [0]


def test_a_cluster_that_changed_since_the_question_is_left_alone(
    place: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "confirm", lambda *_, **__: cluster.tables.append(TANKS))
    done = restore(place, cluster)
    assert done.code == Exit.REFUSED and "nothing was changed" in done.err and "repeat" in done.err
    assert cluster.tables == [TANKS] and not cluster.begun


def test_an_open_change_is_reported_before_anything_is_done(place: Path, cluster: FakeCluster) -> None:
    cluster.operations = [make_operation("op-9", BeginChange("rebalance", "", "ann"), stage=Stage.COPYING)]
    for words in (("--dry-run",), ("--yes",)):
        done = restore(place, cluster, *words)
        assert done.code == Exit.BUSY and "op-9" in done.err
    assert not cluster.tables and restore(place, cluster, "--yes", "--tables-only").code == 0


def test_a_ring_that_changes_between_two_views_is_refused(
    place: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grown(asked: FakeCluster) -> None:
        asked.names.append("node6")

    monkeypatch.setattr("iotctl.change.restore_meta.check_idle", grown)
    done = restore(place, cluster, "--yes")
    assert done.code == Exit.REFUSED and "their order differ" in done.err, done.err
    assert not cluster.tables and not cluster.begun


def test_too_many_tables_are_refused(
    place: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iotctl.change.restore_meta.TABLES_MAX", 1)
    done = restore(place, cluster, "--yes")
    assert done.code == Exit.REFUSED and "2 others; nothing was changed" in done.err
    assert not cluster.tables and not cluster.begun


def test_an_interrupt_leaves_the_other_tables_out(
    place: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    def slow(self: FakeCluster, request: Request) -> Reply:
        time.sleep(0.005)
        return real(self, request)

    real = FakeCluster.call_meta
    monkeypatch.setattr(FakeCluster, "call_meta", slow)
    many = image(schemas=[msgspec.structs.replace(TANKS, table=f"t{i}") for i in range(200)])
    (place / "meta.bak").write_bytes(many)
    backup = read_backup(place / "meta.bak")
    states = [TableState("root.plant", s.table, 2, "missing", 0, None) for s in backup.schemas]
    with pytest.raises(KeyboardInterrupt):
        restore_tables(cluster, backup, states, interrupt)
    assert 0 < len(cluster.tables) < 100


def test_a_level_without_ttls_for_new_tables_is_refused_first(place: Path, cluster: FakeCluster) -> None:
    cluster.level = 1
    done = restore(place, cluster, "--yes")
    assert done.code == Exit.REFUSED and "finalize-upgrade" in done.err and not cluster.begun
    (place / "meta.bak").write_bytes(image(schemas=[TANKS]))
    assert restore(place, cluster, "--yes").code == 0


def test_an_error_that_a_repeat_does_not_solve_names_its_own_next_step(
    place: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(self: FakeCluster, schema: TableSchema, ttl_ms: int | None = None) -> TableSchema:
        if schema.table == "tanks":
            raise SchemaMismatch("column v is INT64, not DOUBLE", next_step="use the column's type")
        return real(self, schema, ttl_ms)

    real = FakeCluster.put_schema
    monkeypatch.setattr(FakeCluster, "put_schema", put)
    done = restore(place, cluster, "--yes")
    assert done.code == Exit.PARTLY and "1 of 2 tables" in done.err and "use the column's type" in done.err
    assert "repeat" not in done.err


def test_tables_alone_need_no_data_group(
    place: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group without a majority does not matter to them."""
    monkeypatch.delattr(FakeCluster, "manifest")
    assert restore(place, cluster, "--yes", "--tables-only").code == 0


def test_the_playbook_steps_of_the_page_are_valid(place: Path, cluster: FakeCluster) -> None:
    page = (Path(__file__).parents[2] / "docs/operating/backup-meta.md").read_text()
    (steps,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    text = "apiVersion: iotctl/v1\nname: backup\nsteps:\n" + steps
    (place / "backup.yaml").write_text(text)
    done = iotctl(place, "playbook", "check", "backup.yaml", cluster=cluster)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("table", "settings"),
    [
        (moved(NODES[:4]), {}),
        (moved([*NODES[1:], NODES[0]]), {}),
        (moved([*NODES, "node6"]), {}),
        (moved(slots=2 * SLOTS), {"slots": 2 * SLOTS}),
        (moved(), {"shards": 3}),
        (moved(), {"time_partition_interval_ms": 1}),
        (moved(), {"hash_mode": "legacy"}),
    ],
)
def test_slots_need_the_same_ring_and_settings(
    place: Path, cluster: FakeCluster, table: PartitionTable, settings: dict[str, Any]
) -> None:
    """Otherwise rows would have other slots, or slots no group; tables alone can be restored."""
    (place / "meta.bak").write_bytes(
        image(table, settings=ClusterSettings("p", **{"slots": SLOTS} | settings))
    )
    done = restore(place, cluster, "--yes")
    assert done.code == Exit.REFUSED and "--tables-only" in done.err, done.err
    assert not cluster.tables and not cluster.begun
    assert restore(place, cluster, "--yes", "--tables-only").code == 0
    assert len(cluster.tables) == 2 and not cluster.begun


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no header"),
        (b"time,device\n1,d1\n", "ends within the head"),
        (b"time,device\n1,d1\n" * 100, "no frame begins here"),
        (image()[:-1], "ends within"),
        (b"NAIM" * 4_000, "byte 0"),
    ],
)
def test_a_file_that_is_no_backup_is_an_input_error(
    place: Path, cluster: FakeCluster, content: bytes, why: str
) -> None:
    (place / "meta.bak").write_bytes(content)
    done = restore(place, cluster, "--yes")
    assert done.code == Exit.INPUT and why in done.err and "meta.bak" in done.err, done.err
    assert not cluster.tables


def test_a_backup_of_a_later_release_is_refused(place: Path, cluster: FakeCluster) -> None:
    (place / "meta.bak").write_bytes(image(level=SPOKEN.newest + 1))
    done = restore(place, cluster, "--yes")
    assert done.code == Exit.REFUSED and f"feature level {SPOKEN.newest + 1}" in done.err, done.err


def test_a_missing_file_is_an_input_error(place: Path, cluster: FakeCluster) -> None:
    done = iotctl(place, "meta", "restore", "none.bak", cluster=cluster)
    assert done.code == Exit.INPUT and "none.bak" in done.err


def test_the_planner_moves_only_what_differs() -> None:
    table = initial_table(initial_ring(NODES), SLOTS, 7)
    change = plan_placement(table, moved(), 3)
    assert change is not None and change.kind is ChangeKind.MOVE
    assert [(m.source, m.target, count(m.slots)) for m in change.moves] == [("node1", "node2", 3)]
    assert plan_placement(table, table, 3) is None
    with pytest.raises(ValueError, match="rings"):
        plan_placement(table, moved(NODES[:4]), 3)
