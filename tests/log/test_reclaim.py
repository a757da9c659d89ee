"""Old segments go when no group needs them, and not before (R-S18)."""

import random

from nodeagent.log import Log, LogSettings
from nodeagent.model.disk import Disk
from nodeagent.model.entries import Forget, HardState, Rebase, SetHard
from nodeagent.testing.disk import Fault, SimDisk
from tests.log.twin import SMALL, Workload, append, base, open_log


def reclaim_all(log: Log) -> int:
    total = 0
    while freed := log.reclaim():
        total += freed
    return total


def busy(log: Log, first: int, last: int) -> None:
    for index in range(first, last + 1):
        log.write([append("busy", index, 1, 1, "z" * 100)])
    log.sync()


def test_nothing_goes_while_it_is_needed(disk: Disk) -> None:
    """Without a purge every segment is full of live entries."""
    log, _ = open_log(disk)
    busy(log, 1, 60)
    before = log.segments
    assert log.reclaim() == 0 and log.segments == before and log.holders() == ["busy"]


def test_purged_segments_go_and_the_suffix_stays(disk: Disk) -> None:
    """After a purge exactly the segments before the oldest live entry are deleted."""
    log, _ = open_log(disk)
    log.write([SetHard("busy", HardState(5, "a"))])
    busy(log, 1, 60)
    total = log.bytes_total
    log.write([Rebase("busy", base(50), True)])
    freed = reclaim_all(log)
    assert freed > 0 and log.bytes_total <= total - freed + 2 * SMALL.zero_step_bytes
    assert len(log.segments) <= 3
    log.close()
    _, found = open_log(disk)
    assert found.damaged == []
    assert found.groups["busy"].hard == HardState(5, "a") and found.groups["busy"].base == base(50)
    assert [e.data[100:] for e in found.groups["busy"].entries] == [b"%d" % n for n in range(51, 61)]


def test_idle_group_is_copied_forward(disk: Disk) -> None:
    """A few live entries do not hold back the log; base, hard state and entries all survive."""
    log, _ = open_log(disk)
    log.write(
        [Rebase("idle", base(7, 2), False), SetHard("idle", HardState(3, "b")), append("idle", 8, 4, 2)]
    )
    log.write([SetHard("bare", HardState(6, "c"))])
    for lap in range(5):
        busy(log, lap * 60 + 1, lap * 60 + 60)
        log.write([Rebase("busy", base(lap * 60 + 58), True)])
        reclaim_all(log)
        assert len(log.segments) <= 4
    log.close()
    log, found = open_log(disk)
    assert found.damaged == []
    assert found.groups["idle"].base == base(7, 2)
    assert found.groups["idle"].hard == HardState(3, "b")
    assert found.groups["idle"].entries == append("idle", 8, 4, 2).entries
    assert found.groups["bare"].hard == HardState(6, "c")
    log.write([append("idle", 11, 2, 3, "new")])
    log.close()
    _, found = open_log(disk)
    assert len(found.groups["idle"].entries) == 5


def test_large_live_group_holds_its_segment(disk: Disk) -> None:
    """More live bytes than may be copied: the segment stays and `holders` names the group to purge."""
    settings = LogSettings(segment_bytes=2048, zero_step_bytes=1024, reserve_bytes=0, copy_bytes_max=50)
    log, _ = open_log(disk, settings)
    log.write([append("slow", 1, 3, 1, "s" * 100)])
    busy(log, 1, 60)
    log.write([Rebase("busy", base(60), True)])
    assert log.reclaim() == 0 and log.segments[0] == 1 and log.holders() == ["slow"]
    log.write([Forget("slow")])
    assert log.reclaim() > 0


def test_copy_between_older_and_newer_entries(disk: Disk) -> None:
    """A group with a few entries in the oldest segment and more later keeps them all in order."""
    log, _ = open_log(disk)
    log.write([append("g", 1, 6)])
    busy(log, 1, 20)
    log.write([append("g", 7, 3)])
    busy(log, 21, 40)
    log.write([append("g", 5, 4, 2, "n"), Rebase("busy", base(38), True), Rebase("g", base(2), True)])
    reclaim_all(log)
    assert log.segments[0] > 1
    log.close()
    _, found = open_log(disk)
    assert found.damaged == []
    assert found.groups["g"].entries == [*append("g", 3, 2).entries, *append("g", 5, 4, 2, "n").entries]


def test_rebase_is_durable_before_the_old_segment_goes() -> None:
    """A crash right after the deletion finds the base that made it allowed."""
    for seed in range(20):
        disk = SimDisk()
        log, _ = open_log(disk)
        busy(log, 1, 60)
        log.write([Rebase("busy", base(55), True)])
        reclaim_all(log)
        disk.crash(random.Random(seed))
        _, found = open_log(disk)
        assert found.damaged == [] and len(found.groups["busy"].entries) == 5


def test_unreadable_segment_is_not_copied_from() -> None:
    """Rot that is found while copying stops the reclaim; the evidence stays."""
    disk = SimDisk()
    log, _ = open_log(disk)
    log.write([append("idle", 1, 2)])
    busy(log, 1, 60)
    log.write([Rebase("busy", base(60), True)])
    place = disk.read("log/000000000001.log").index(b"x1")
    disk.flip("log/000000000001.log", place)
    assert log.reclaim() == 0 and log.segments[0] == 1
    log.close()
    _, found = open_log(disk)
    assert [(d.group, d.first, d.last) for d in found.damaged] == [("idle", 1, 2)]


def test_failed_unlink_is_final() -> None:
    """A reclaim that fails leaves a poisoned log, and the old segment does no harm."""
    disk = SimDisk()
    log, _ = open_log(disk)
    busy(log, 1, 60)
    log.write([Rebase("busy", base(60), True)])
    disk.faults.append(Fault("unlink"))
    for _ in range(2):
        try:
            log.reclaim()
        except OSError:
            continue
        raise AssertionError("reclaim went on after a failure")
    disk.restart()
    _, found = open_log(disk)
    assert found.damaged == [] and found.groups["busy"].entries == []


def test_long_random_life_stays_small(disk: Disk) -> None:
    """Random batches with regular purges: the log's size is bounded and its content right."""
    workload = Workload(11)
    log, _ = open_log(disk)
    for turn in range(400):
        log.write(workload.batch())
        if turn % 20 == 19:
            for name, group in list(workload.state.items()):
                last = group.base.index + len(group.entries)
                log.write([Rebase(name, base(last), True)])
                group.base, group.entries = base(last), []
            log.sync()
            reclaim_all(log)
            assert len(log.segments) <= 4
    log.close()
    _, found = open_log(disk)
    assert found.damaged == [] and found.groups == workload.state
