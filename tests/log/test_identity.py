"""`node.id` and `log/log.id` name one another: an identity is never invented, and no part is lost
silently."""

import contextlib
import random
import secrets
from collections.abc import Callable

import msgspec
import pytest
import xxhash

from nodeagent.log import Log, LogSettings
from nodeagent.log.check import dump
from nodeagent.log.identity import (
    ID_FILE,
    LOG_DIR,
    LOG_ID_FILE,
    NodeFile,
    count_start,
    known_identity,
    mark_damaged,
)
from nodeagent.log.replay import NEWEST, newest_content
from nodeagent.model.disk import Disk
from nodeagent.model.entries import HardState, SetHard
from nodeagent.model.errors import Damaged, Refused
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.volume import PowerCut

SETTINGS = LogSettings(segment_bytes=1 << 14, reserve_bytes=0)
SEGMENT = f"{LOG_DIR}/000000000001.log"


def start(disk: Disk, node: str = "node1", vote: int = 0) -> NodeFile:
    """Start as the agent does."""
    known = known_identity(disk, node, "data/groups")
    log, _ = Log.open(disk, LOG_DIR, SETTINGS)
    found = count_start(disk, node, known, lambda: secrets.token_hex(8))
    if vote:
        log.write([SetHard("meta", HardState(vote))])
        log.sync()
    log.close()
    return found


def content(disk: Disk, directory: str = "") -> dict[str, bytes]:
    """All files below a directory."""
    found: dict[str, bytes] = {}
    for name in disk.listdir(directory):
        path = f"{directory}/{name}".lstrip("/")
        found |= content(disk, path) if disk.stat(path).is_dir else {path: disk.read(path)}
    return found


def put(disk: Disk, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        disk.mkdirs(path.rpartition("/")[0])
        disk.write_atomic(path, data)


def test_incarnation_is_created_once_and_every_start_is_counted() -> None:
    """The incarnation stays the same after a restart, which has its own start number; another directory has
    another one."""
    disk = SimDisk()
    first, second = start(disk), start(disk)
    assert (first.incarnation, first.log) == (second.incarnation, second.log)
    assert (first.start, second.start) == (1, 2) and second.nonces[:-1] == first.nonces
    assert start(SimDisk()).incarnation != first.incarnation


def test_directory_of_another_node_is_refused() -> None:
    """A changed name in node.yaml does not take over a directory."""
    disk = SimDisk()
    start(disk)
    with pytest.raises(Refused, match="belongs to node node1"):
        start(disk, "node2")


def test_identity_is_never_created_beside_data() -> None:
    """A lost identity beside data is damage, not a first start."""
    for path in ("log/000000000001.log", "data/groups/a.1/checkpoint"):
        disk = SimDisk()
        put(disk, {path: b"x"})
        with pytest.raises(Damaged, match=rf"missing, but {path[:3]}.*nothing was deleted"):
            start(disk)


def test_a_damaged_directory_stays_damaged() -> None:
    """It stays damaged over any number of starts; its peers need not be reachable to report it again."""
    disk = SimDisk()
    mark_damaged(disk, start(disk), "an older copy")
    assert [start(disk).damaged for _ in range(3)] == ["an older copy"] * 3


def test_every_flipped_bit_is_damage() -> None:
    """This includes bytes that are no longer UTF-8 or JSON, and a changed field name."""
    for path in (ID_FILE, LOG_ID_FILE):
        disk = SimDisk()
        found = start(disk)
        for byte in range(disk.stat(path).size):
            for bit in range(8):
                disk.flip(path, byte, bit)
                with contextlib.suppress(Damaged, Refused):
                    assert known_identity(disk, "node1", "data/groups") == found, (
                        "an empty field lost its name"
                    )
                disk.flip(path, byte, bit)
        assert known_identity(disk, "node1", "data/groups") == found


def test_changed_identity_file_is_damage() -> None:
    """Any other byte is detected, in each of the two files."""
    for path in (ID_FILE, LOG_ID_FILE):
        disk = SimDisk()
        found = start(disk)
        whole = disk.read(path)
        swapped = (
            whole.replace(found.incarnation.encode(), b"0" * 16),
            whole.replace(b'"start":1', b'"start":2'),
            whole[:10],
            b"",
        )
        for changed in swapped:
            disk.write_atomic(path, changed)
            with pytest.raises(Damaged):
                start(disk)


def lose_log(disk: SimDisk, other: dict[str, bytes]) -> None:
    disk.rmtree(LOG_DIR)


def empty_log(disk: SimDisk, other: dict[str, bytes]) -> None:
    for name in disk.listdir(LOG_DIR):
        disk.unlink(f"{LOG_DIR}/{name}")


def lose_segments(disk: SimDisk, other: dict[str, bytes]) -> None:
    disk.unlink(SEGMENT)


def lose_name(disk: SimDisk, other: dict[str, bytes]) -> None:
    disk.unlink(LOG_ID_FILE)


def swap_log(disk: SimDisk, other: dict[str, bytes]) -> None:
    disk.rmtree(LOG_DIR)
    put(disk, {path: data for path, data in other.items() if path.startswith("log/")})


def swap_id(disk: SimDisk, other: dict[str, bytes]) -> None:
    put(disk, {ID_FILE: other[ID_FILE]})


@pytest.mark.parametrize("damage", [lose_log, empty_log, lose_segments, lose_name])
def test_a_lost_log_stops_the_start(damage: Callable[[SimDisk, dict[str, bytes]], None]) -> None:
    """The error contains the place and the next command; nothing is created, changed or deleted."""
    disk = SimDisk()
    start(disk, vote=5)
    damage(disk, {})
    before = content(disk)
    with pytest.raises(Damaged, match="could vote twice") as error:
        start(disk)
    assert "log" in error.value.what and "iotctl cluster replace-node node1" in error.value.next_step
    assert content(disk) == before


@pytest.mark.parametrize("damage", [swap_log, swap_id])
def test_the_log_or_identity_of_another_directory_or_time_stops_the_start(
    damage: Callable[[SimDisk, dict[str, bytes]], None],
) -> None:
    """This covers the log of another node, of another incarnation, and an older copy of the node's own
    log."""
    for name in ("node2", "node1"):
        foreign = SimDisk()
        start(foreign, name)
        disk = SimDisk()
        start(disk, vote=5)
        damage(disk, content(foreign))
        with pytest.raises((Damaged, Refused)):
            start(disk)
    disk = SimDisk()
    start(disk, vote=5)
    older = content(disk)
    start(disk)
    start(disk)
    damage(disk, older)
    with pytest.raises(Damaged, match="is an older copy"):
        start(disk)


def test_the_log_of_the_previous_start_stops_the_start() -> None:
    """It is older by one start only, and may lack what the node promised in its last start."""
    disk = SimDisk()
    start(disk)
    older = content(disk)
    start(disk, vote=5)
    swap_log(disk, older)
    with pytest.raises(Damaged, match="log/ is an older copy: it counts 1 starts, node.id 2"):
        start(disk)


def test_the_log_of_a_copy_of_the_directory_stops_the_start() -> None:
    """Two copies of a directory of the first release have one incarnation, but each has its own log."""
    check = xxhash.xxh3_64_hexdigest(b"node1\0abc")
    copies = []
    for _ in range(2):
        disk = SimDisk()
        Log.open(disk, LOG_DIR, SETTINGS)[0].close()
        old = {"node": "node1", "incarnation": "abc", "check": check}
        disk.write_atomic(ID_FILE, msgspec.json.encode(old))
        start(disk)
        copies.append(disk)
    swap_log(copies[0], content(copies[1]))
    with pytest.raises(Damaged, match="log/ is log .*, but node.id names log"):
        start(copies[0])


def test_a_directory_starts_after_a_power_cut_at_any_call_of_a_start() -> None:
    """This covers the first start and a later one: a partial creation is completed, and an incarnation that
    was recorded does not change."""
    for earlier in (0, 1):
        for call in range(1, 200):
            disk = SimDisk()
            incarnation = start(disk, vote=3).incarnation if earlier else ""
            disk.cut_power_at = disk.operations + call
            try:
                start(disk)
            except PowerCut:
                disk.crash(random.Random(call))
            else:
                break
            found = start(disk)
            assert not earlier or found.incarnation == incarnation, call
        assert call > 5, "no call was cut"


def test_a_directory_of_the_first_release_is_adopted_only_with_its_log() -> None:
    """`node.id` names no log: an existing log becomes its log; without a log the start is refused."""
    disk = SimDisk()
    log, _ = Log.open(disk, LOG_DIR, SETTINGS)
    log.close()
    check = xxhash.xxh3_64_hexdigest(b"node1\0abc")
    old = msgspec.json.encode({"node": "node1", "incarnation": "abc", "check": check})
    disk.write_atomic(ID_FILE, old)
    disk_without = SimDisk()
    disk_without.write_atomic(ID_FILE, old)
    with pytest.raises(Damaged, match="log/ is missing or empty"):
        start(disk_without)
    adopted = start(disk)
    assert (adopted.incarnation, adopted.start) == ("abc", 1) and adopted.log
    assert msgspec.json.decode(disk.read(ID_FILE))["check"] == check, "the first release still reads it"
    assert start(disk).log == adopted.log


def test_a_dump_considers_no_segment_the_newest_if_a_later_one_is_named() -> None:
    """The last existing segment was durable up to its end, so a bad end is unreadable and not torn."""
    disk = SimDisk()
    log, _ = Log.open(disk, LOG_DIR, SETTINGS)
    log.write([SetHard("meta", HardState(1))])
    log.write([SetHard("meta", HardState(2))])
    log.sync()
    end = log.bytes_total
    log.close()
    disk.write_atomic(f"{LOG_DIR}/{NEWEST}", newest_content(1, 0))
    for offset in range(end - 8, end - 120, -8):
        disk.flip(SEGMENT, offset)  # both headers of the last block
    kinds = [line["kind"] for line in dump(disk, LOG_DIR) if not line["valid"]]
    assert kinds == ["torn"]
    disk.write_atomic(f"{LOG_DIR}/{NEWEST}", newest_content(2, 0))
    kinds = [line["kind"] for line in dump(disk, LOG_DIR) if not line["valid"]]
    assert kinds == ["unreadable"]
