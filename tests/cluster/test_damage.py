"""Damage on one replica is reported, never served, and repaired only on request."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from iotctl.demo.generate import TABLE, TAG
from iotctl.observe.cluster import CALL_TIMEOUT_S
from nodeagent.log.record import Block, RowKind
from nodeagent.log.scan import scan_segment
from nodeagent.model.errors import Damaged, NodeAgentError
from nodeagent.model.files import FileMeta, ScanSpec
from nodeagent.model.requests import ErrorReply, RowsScanned, ScanRows
from tests.cluster.conftest import MakeWorld
from tests.cluster.world import World, flip
from tests.waiting import BUSY_FACTOR, until

pytestmark = [pytest.mark.long, pytest.mark.real]

FIELD = "pressure"
WRITTEN = 20


@pytest.fixture(scope="module")
def world(make_world: MakeWorld) -> World:
    return make_world("damage")


def _rows_of(world: World, meta: FileMeta) -> list[object]:
    """The file's rows according to a strong read."""
    found = world.cluster.scan(
        meta.partition.storage_group, TABLE, time_from=meta.time_min, time_to=meta.time_max
    )
    return list(found.to_pylist())


def _scan_of(world: World, node: str, group: str, meta: FileMeta) -> RowsScanned | NodeAgentError:
    """The same rows, read from this replica only."""
    schema = next(s for s in world.cluster.schemas() if s.storage_group == meta.partition.storage_group)
    spec = ScanSpec(schema, None, meta.time_min, meta.time_max)
    slots = ((meta.slot, meta.slot + 1),)
    try:
        scan = ScanRows(group, meta.partition.storage_group, spec, "weak", slots=slots)
        reply = world.cluster.call(node, scan, timeout_s=CALL_TIMEOUT_S * BUSY_FACTOR)
    except NodeAgentError as error:
        return error
    assert not isinstance(reply, ErrorReply)
    assert isinstance(reply, RowsScanned)
    return reply


def test_a_flipped_byte_in_a_stored_file_is_reported_and_never_served(world: World) -> None:
    """`verify --depth hash` ends with 7 and names node, slot and file; reads get the rows from other
    replicas."""
    group = world.group_of("node2")
    node = world.leader(group)
    meta = world.manifest(node, group)[0]
    path = world.path_of(node, group, meta)
    whole, rows = path.read_bytes(), _rows_of(world, meta)
    assert rows
    flip(path, meta.size // 2)
    try:
        found = world.iotctl("verify", "--depth", "hash", "-o", "json")
        assert found.code == 7, found.out[-2000:] + found.err
        named = [(m["node"], m["slot"], m["file"]) for m in found.json["mismatches"]]
        assert named == [(node, meta.slot, meta.name)]
        alone = _scan_of(world, node, group, meta)
        assert isinstance(alone, Damaged) and meta.name in alone.what, alone
        assert _rows_of(world, meta) == rows
    finally:
        path.write_bytes(whole)
    assert world.iotctl("verify", "--depth", "hash").code == 0


def test_a_flipped_byte_is_repaired_from_the_other_replicas(world: World) -> None:
    """Exit 7, then 0 with `repaired`, then 0; the damaged bytes are in quarantine; the replica serves
    again."""
    group = world.group_of("node3")
    node = world.leader(group)
    meta = world.manifest(node, group)[0]
    path = world.path_of(node, group, meta)
    whole = path.read_bytes()
    flip(path, meta.size // 2)
    bad = path.read_bytes()
    assert world.iotctl("verify", "--depth", "hash").code == 7
    refused = world.iotctl("verify", "--depth", "hash", "--repair")
    assert refused.code == 5 and "--yes" in refused.err and path.read_bytes() == bad
    repaired = world.iotctl("verify", "--depth", "hash", "--repair", "--yes", "-o", "json")
    assert repaired.code == 0, repaired.out[-2000:] + repaired.err
    (found,) = repaired.json["mismatches"]
    assert (found["node"], found["file"], found["repaired"]) == (node, meta.name, True)
    (done,) = repaired.json["repairs"]
    assert path.read_bytes() == whole
    assert (world.fleet.directory / node / "data" / done["quarantined"]).read_bytes() == bad
    assert isinstance(_scan_of(world, node, group, meta), RowsScanned)
    assert world.iotctl("verify", "--depth", "hash").code == 0


def test_a_missing_file_is_restored_but_not_if_two_of_three_are_missing(world: World) -> None:
    """With one intact copy of three, nothing changes: exit 7, and each mismatch has a reason."""
    group = world.group_of("node1")
    members = world.members()["node1"]
    meta = world.manifest(members[0], group)[0]
    paths = [world.path_of(n, group, meta) for n in members]
    whole = paths[0].read_bytes()
    for path in paths[:2]:
        path.unlink()
    slot = ("--slot", str(meta.slot), "-o", "json")
    left = world.iotctl("verify", "--depth", "hash", "--repair", "--yes", *slot)
    assert left.code == 7, left.out + left.err
    assert not left.json["repairs"] and {m["found"] for m in left.json["mismatches"]} == {"missing"}
    assert all("no majority" in m["reason"] for m in left.json["mismatches"])
    assert not paths[0].exists() and not paths[1].exists()
    paths[0].write_bytes(whole)
    back = world.iotctl("verify", "--depth", "hash", "--repair", "--yes", *slot)
    assert back.code == 0, back.out + back.err
    assert paths[1].read_bytes() == whole and back.json["repairs"][0]["quarantined"] == ""


@pytest.mark.spark
def test_a_consistently_forged_value_is_detected_only_at_depth_content(world: World) -> None:
    """`hash` reports no mismatch; `content` names node, slot, series, time and both values."""
    group = world.group_of("node4")
    node = next(n for n in world.members()["node4"] if n != world.leader(group))
    meta = world.manifest(node, group)[0]
    data = world.fleet.directory / node / "data"
    assert world.fleet.stop([node])
    forged = subprocess.run(
        [sys.executable, "-m", "tests.cluster.forge", str(data), group, meta.name, FIELD],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert forged.returncode == 0, forged.stderr
    cell = json.loads(forged.stdout)
    world.up()
    alone = _scan_of(world, node, group, meta)
    assert isinstance(alone, RowsScanned), alone

    process = world.process("verify", "--depth", "content", "--slot", str(meta.slot), "-o", "json")
    assert process.wait(180) == 7, world.said_by(process)
    said = world.said_by(process)
    report = json.loads(said[said.index("{\n") : said.rindex("}") + 1])
    cells = [m for m in report["mismatches"] if m["time_ms"] is not None]
    assert len(cells) == 1, report["mismatches"]
    (found,) = cells
    assert (found["node"], found["slot"], found["time_ms"]) == (node, meta.slot, cell["time_ms"])
    assert FIELD in found["series"] and cell["tags"][0] in found["series"]
    assert (found["expected"], found["found"]) == (cell["before"], cell["after"])


@pytest.mark.spark
def test_consistent_tampering_is_repaired_at_content_depth(world: World) -> None:
    """Bytes and manifest row equal the majority's, also after a restart; the forged file is in quarantine."""
    group = world.group_of("node4")
    node = next(n for n in world.members()["node4"] if n != world.leader(group))
    forged = world.manifest(node, group)[0]
    good = world.manifest(world.leader(group), group)[0]
    assert forged.name == good.name and forged != good, "the previous test forged the file"
    bad = world.path_of(node, group, forged).read_bytes()
    words = ("verify", "--depth", "content", "--slot", str(good.slot), "--repair", "--yes", "-o", "json")
    process = world.process(*words)
    assert process.wait(180) == 0, world.said_by(process)
    said = world.said_by(process)
    report = json.loads(said[said.index("{\n") : said.rindex("}") + 1])
    assert report["mismatches"] and all(m["repaired"] for m in report["mismatches"]), report
    (done,) = report["repairs"]
    kept = world.fleet.directory / node / "data" / done["quarantined"]
    assert kept.read_bytes() == bad
    assert world.path_of(node, group, good).read_bytes() != bad
    assert world.manifest(node, group)[0] == good
    world.restart(node)
    world.wait_healthy()
    assert world.manifest(node, group)[0] == good
    assert isinstance(_scan_of(world, node, group, good), RowsScanned)
    assert world.iotctl("verify", "--depth", "hash").code == 0
    assert kept.read_bytes() == bad


def test_a_flipped_byte_in_the_middle_of_the_log_stops_only_that_group(world: World) -> None:
    """The message names segment, offset, group and indexes; the log is not changed; other groups serve."""
    group = world.group_of("node5")
    node = next(n for n in world.members()["node5"] if n != world.leader(group))
    _write_into(world, group)
    world.fleet.kill(node)
    log = world.fleet.directory / node / "log"
    segment, block, first, last = _middle(log, group)
    size = segment.stat().st_size
    content = segment.read_bytes()
    flip(segment, block.head.body_at + block.head.body_length // 2)
    damaged = segment.read_bytes()
    assert len(damaged) == len(content)

    checked = subprocess.run(
        [sys.executable, "-m", "nodeagent", "log", "check", str(log.parent)], capture_output=True, text=True
    )
    assert checked.returncode == 7 and group in checked.stdout, checked.stdout + checked.stderr
    world.fleet.start([node])
    until(lambda: node in world.statuses(), 60.0, lambda: world.fleet.log_tail(node))
    groups = {g.group: g for g in world.statuses()[node].groups}
    stopped = groups.pop(group)
    assert stopped.state == "damaged"
    number = int(segment.stem)
    for part in (f"segment {number}", f"offset {block.head.offset}", group, f"{first}..{last}"):
        assert part in stopped.error, stopped.error
    assert groups and all(g.state == "running" for g in groups.values()), groups
    at = block.head.offset
    assert segment.stat().st_size >= size
    assert segment.read_bytes()[at : block.head.end] == damaged[at : block.head.end], "the log was changed"
    status = world.iotctl("cluster", "status", "-o", "json")
    problems = [p for p in status.json["problems"] if p["node"] == node and p["group"] == group]
    assert problems and problems[0]["severity"] == "error" and str(first) in problems[0]["message"]
    assert not status.json["healthy"]
    assert world.rows() > 0, "the other members do not serve the group"


def _write_into(world: World, group: str) -> None:
    """Write `WRITTEN` entries into slots of one group, one after the other."""
    written = 0
    for meta in world.manifest(group.partition(".")[0], group)[:WRITTEN]:
        device = "d" + meta.partition.storage_group.removeprefix("root.site") + "-0000"
        row = {TAG: [device], "time": [meta.time_min + 7], FIELD: [float(written)]}
        world.cluster.write(meta.partition.storage_group, TABLE, pa.table(row), tags=[TAG])
        written += 1
    assert written == WRITTEN


def _middle(log: Path, group: str) -> tuple[Path, Block, int, int]:
    """Return a block from the middle of the latest ones that contains only entries of `group`."""
    found = []
    for path in sorted(log.glob("*.log")):
        with memoryview(path.read_bytes()) as buffer:
            for block in scan_segment(buffer, int(path.stem), 0):
                if isinstance(block, Block) and [r.group for r in block.head.rows] == [group]:
                    (row,) = block.head.rows
                    if row.kind == RowKind.APPEND:
                        body = memoryview(bytes(block.body))
                        found.append((path, Block(block.head, body, block.healed), row.first, row.last))
    assert len(found) >= WRITTEN, f"{len(found)} blocks of {group} alone; {os.listdir(log)}"
    return found[-WRITTEN // 2]
