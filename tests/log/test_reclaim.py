"""A segment is deleted if no group needs it (L5), and not before."""

import errno
import random

import pytest

from nodeagent.log import Log, LogSettings
from nodeagent.log import index as log_index
from nodeagent.log.check import check, dump
from nodeagent.log.index import Extent, GroupIndex, Mark
from nodeagent.model.disk import Disk
from nodeagent.model.entries import Forget, HardState, Rebase, SetHard
from nodeagent.testing.batches import Batches, append, base
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.volume import Fault
from tests.log.small import GROUPS, SMALL, open_log


def reclaim_all(log: Log) -> int:
    total = 0
    while freed := log.reclaim():
        total += freed
    return total


def busy(log: Log, first: int, last: int) -> None:
    for index in range(first, last + 1):
        log.write([append("busy", index, 1, 1, "z" * 100)])
    log.sync()


def test_no_segment_is_deleted_while_it_is_needed(disk: Disk) -> None:
    """Without a purge, every segment is full of live entries."""
    log, _ = open_log(disk)
    busy(log, 1, 60)
    before = log.segments
    assert log.reclaim() == 0 and log.segments == before and log.holders() == ["busy"]


def test_purged_segments_are_deleted_and_the_suffix_stays(disk: Disk) -> None:
    """After a purge, exactly the segments before the oldest live entry are deleted."""
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
    """A few live entries do not prevent reclaiming; base, hard state and entries are all kept."""
    log, _ = open_log(disk)
    log.write(
        [Rebase("idle", base(7, 2), False), SetHard("idle", HardState(3, "b")), append("idle", 8, 4, 2)]
    )
    log.write(
        [SetHard("bare", HardState(6, "c")), append("left", 1), Forget("left", HardState(4, "d", (3, 1)))]
    )
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
    assert found.left == {"left": HardState(4, "d", (3, 1))}
    log.write([append("idle", 11, 2, 3, "new")])
    log.close()
    _, found = open_log(disk)
    assert len(found.groups["idle"].entries) == 5


def test_large_live_group_holds_its_own_segment_only(disk: Disk) -> None:
    """The group has more live bytes than may be copied: its segment stays, `holders` names the group to
    purge, and later segments are deleted as usual."""
    settings = LogSettings(segment_bytes=2048, zero_step_bytes=1024, reserve_bytes=0, copy_bytes_max=50)
    log, _ = open_log(disk, settings)
    log.write([append("slow", 1, 3, 1, "s" * 100)])
    busy(log, 1, 60)
    log.write([Rebase("busy", base(60), True)])
    assert reclaim_all(log) > 0 and log.holders() == ["slow"]
    assert len(log.segments) == 2 and log.segments[0] == 1
    log.close()
    log, found = open_log(disk, settings)
    assert found.damaged == [] and found.groups["slow"].entries == append("slow", 1, 3, 1, "s" * 100).entries
    assert found.groups["busy"].base == base(60) and found.groups["busy"].entries == []
    log.write([Forget("slow")])
    assert log.reclaim() > 0 and 1 not in log.segments


def test_overwritten_entries_do_not_return_with_an_older_segment(disk: Disk) -> None:
    """A deleted segment replaced entries that an older segment still contains. If the copies of the new
    entries are damaged later, these entries are lost; the replaced entries must not be used instead."""
    settings = LogSettings(segment_bytes=2048, zero_step_bytes=1024, reserve_bytes=0, copy_bytes_max=300)
    log, _ = open_log(disk, settings)
    log.write([append("slow", 1, 5, 1, "s" * 100), append("g", 1, 6, 1, "old")])
    busy(log, 1, 20)
    log.write([append("g", 3, 2, 2, "new")])
    busy(log, 21, 60)
    log.write([Rebase("busy", base(60), True)])
    reclaim_all(log)
    log.close()
    left = [n for n in disk.listdir("log") if n.endswith(".log")]
    assert log.segments == [int(n[:12]) for n in left] and log.segments[0] == 1 and len(left) == 2
    _, found = open_log(disk, settings)
    wanted = [*append("g", 1, 2, 1, "old").entries, *append("g", 3, 2, 2, "new").entries]
    assert found.damaged == [] and found.groups["g"].entries == wanted
    path = f"log/{left[1]}"
    with disk.open(path) as file:
        at = disk.read(path).index(b"new3")
        file.pwrite(at, b"N")
    _, found = open_log(disk, settings)
    assert {(d.group, d.first, d.last) for d in found.damaged} == {("g", 3, 4)}
    assert found.groups["g"].entries == append("g", 1, 2, 1, "old").entries


def test_lost_segment_after_a_deleted_one_is_reported() -> None:
    """A gap that the log created itself is not reported; a gap that removed live entries is reported with
    them."""
    disk = SimDisk()
    settings = LogSettings(segment_bytes=2048, zero_step_bytes=1024, reserve_bytes=0, copy_bytes_max=50)
    log, _ = open_log(disk, settings)
    log.write([append("slow", 1, 3, 1, "s" * 100)])
    busy(log, 1, 40)
    log.write([append("slow", 4, 3, 1, "t" * 100)])
    busy(log, 41, 80)
    log.write([Rebase("busy", base(80), True)])
    reclaim_all(log)
    log.close()
    assert len(log.segments) == 3 and log.segments[1] > 3
    log, found = open_log(disk, settings)
    assert found.damaged == [] and len(found.groups["slow"].entries) == 6
    log.close()
    disk.unlink(f"log/{log.segments[1]:012d}.log")
    _, found = open_log(disk, settings)
    assert [(d.group, d.segment, d.first, d.last) for d in found.damaged] == [("slow", log.segments[1], 4, 6)]
    assert len(found.groups["slow"].entries) == 3


@pytest.mark.parametrize("op", [SetHard("g", HardState(3, "b")), Rebase("g", base(1), True)])
@pytest.mark.parametrize("zeros", [False, True])
def test_operations_lost_at_the_end_of_a_segment_are_reported(op: SetHard | Rebase, zeros: bool) -> None:
    """The next segment exists, so no segment was deleted between the two: although its start contains the
    result of the operations, their loss is not a gap that the log created itself."""
    disk = SimDisk()
    log, _ = open_log(disk)
    log.write([append("g", 1, 2)])
    busy(log, 1, 3)
    ends: list[int] = []
    while len(log.segments) == 1:
        ends.append(log._segment.end)
        log.write([op])
        log.sync()
    log.close()
    assert check(disk, "log").damaged == []
    lost = ends[-2]  # the last operation before the segment was full
    with disk.open("log/000000000001.log") as file:
        if zeros:
            file.zero_fill(lost, file.size() - lost)
        else:
            file.truncate(lost)
    report = check(disk, "log")
    assert [(d.group, d.what) for d in report.damaged] == [("g", "log")]
    assert "lost between the segments" in report.damaged[0].message
    assert report.groups["busy"] == (1, 3)


def test_damaged_entry_holds_its_own_segment_only() -> None:
    """A segment with damage that a start found is kept for analysis, and no other segment is; the damage is
    reported again."""
    disk = SimDisk()
    log, _ = open_log(disk)
    log.write([append("idle", 1, 2)])
    busy(log, 1, 60)
    disk.flip("log/000000000001.log", disk.read("log/000000000001.log").index(b"x1"))
    log.close()
    for lap in range(1, 4):
        log, found = open_log(disk)
        assert [(d.group, d.segment, d.first, d.last) for d in found.damaged] == [("idle", 1, 1, 2)]
        busy(log, 60 * lap + 1, 60 * lap + 60)
        log.write([Rebase("busy", base(60 * lap + 60), True)])
        reclaim_all(log)
        assert log.segments[0] == 1 and len(log.segments) <= 3 and log.damaged_segments() == {1}
        log.close()
    log, _ = open_log(disk)
    log.write([Rebase("idle", base(2), False)])
    reclaim_all(log)
    assert 1 not in log.segments


@pytest.mark.parametrize(("first", "count"), [(5, 4), (6, 3), (5, 2), (6, 1), (7, 2)])
def test_a_copy_leaves_no_extent_without_entries(first: int, count: int) -> None:
    """Such an extent would keep its segment indefinitely."""
    group = GroupIndex("g", last=10, extents=[Extent(5, 8, 2, 40), Extent(9, 10, 3, 20)])
    group.copy(first, count, 4, 10, None)
    assert all(e.first <= e.last for e in group.extents)
    assert [n for e in group.extents for n in range(e.first, e.last + 1)] == list(range(5, 11))


def test_entries_missing_from_their_place_in_the_start_of_a_segment_are_reported() -> None:
    """This includes entries of which only the middle is present."""
    group = GroupIndex("g", last=10, extents=[Extent(5, 8, 2, 40), Extent(9, 10, 3, 20)])
    assert group.keep_places([(3, 10, 2)]) == [(3, 4, 2), (9, 10, 2)]
    assert [(e.first, e.last, e.segment) for e in group.extents] == [(5, 8, 2)]


def test_a_segment_that_became_short_is_not_copied_in_part_and_holds_no_other() -> None:
    """The segment loses its end while the log is open: what remains of it stays where it is."""
    disk = SimDisk()
    log, _ = open_log(disk)
    log.write([append("idle", 1, 1)])
    log.sync()
    end = log._segment.end
    log.write([append("idle", 2, 1)])
    busy(log, 1, 60)
    with disk.open("log/000000000001.log") as file:
        file.truncate(end)
    log.write([Rebase("busy", base(60), True)])
    batches = log.statistics().batches
    reclaim_all(log)
    assert 1 in log.segments and log.statistics().batches == batches
    log.write([append("other", 1, 1)])
    later = log.segments[-1]
    busy(log, 61, 120)
    log.write([Rebase("busy", base(120), True)])
    for _ in range(3):
        reclaim_all(log)
    assert 1 in log.segments and later not in log.segments


def test_log_of_the_previous_version_makes_no_gap_that_looks_like_a_loss() -> None:
    """Its starts do not list where entries are, so before such a start a deleted segment looks like a lost
    one. These segments are deleted in reverse order, beginning at the first start that has the list."""
    disk = SimDisk()
    settings = LogSettings(segment_bytes=2048, zero_step_bytes=1024, reserve_bytes=0, copy_bytes_max=50)
    log, _ = open_log(disk, settings)
    log.write([append("slow", 1, 3, 1, "s" * 100)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_index, "Mark", lambda *fields: Mark(*fields[:6]))
        busy(log, 1, 60)
    old = log.segments[-1]
    log.close()
    log, _ = open_log(disk, settings)
    busy(log, 61, 120)
    log.write([Rebase("busy", base(120), True)])
    before = log.segments
    while log.reclaim():
        gone = set(before) - set(log.segments)
        assert gone >= {n for n in before if min(gone) <= n <= old}, log.segments
        report = check(disk, "log")
        assert report.damaged == [] and report.groups == {"slow": (1, 3), "busy": (121, 120)}
    assert len(log.segments) == 2
    log.write([Forget("slow")])
    reclaim_all(log)
    assert len(log.segments) == 1


def test_segment_before_an_unreadable_start_stays() -> None:
    """The content of an unreadable start is known from the segment before it, as long as that segment
    exists."""
    disk = SimDisk()
    log, _ = open_log(disk)
    busy(log, 1, 60)
    log.close()
    first = min(int(x["offset"]) for x in dump(disk, "log") if x["segment"] == 3 and x["kind"] == "append")
    with disk.open("log/000000000003.log") as file:
        file.zero_fill(0, first)
    log, found = open_log(disk)
    assert found.damaged == []
    log.write([append("busy", 61), Rebase("busy", base(50), True)])
    while log.reclaim():
        report = check(disk, "log")
        assert report.damaged == [] and report.groups == {"busy": (51, 61)}
    assert len(log.segments) <= 5


def test_copy_between_older_and_newer_entries(disk: Disk) -> None:
    """A group with a few entries in the oldest segment and more in later ones keeps all of them in order."""
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


def test_rebase_is_durable_before_the_old_segment_is_deleted() -> None:
    """A crash right after the deletion recovers the base that allowed the deletion."""
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
    """A segment that turns out to be damaged during copying is kept for analysis; the others are deleted."""
    disk = SimDisk()
    log, _ = open_log(disk)
    log.write([append("idle", 1, 2)])
    busy(log, 1, 60)
    log.write([Rebase("busy", base(60), True)])
    place = disk.read("log/000000000001.log").index(b"x1")
    disk.flip("log/000000000001.log", place)
    assert reclaim_all(log) > 0 and log.segments[0] == 1 and len(log.segments) == 2
    log.close()
    _, found = open_log(disk)
    assert [(d.group, d.first, d.last) for d in found.damaged] == [("idle", 1, 2)]


def test_failed_unlink_is_final() -> None:
    """A reclaim that fails makes the log refuse all later calls; the old segment does no harm."""
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
        raise AssertionError("reclaim continued after a failure")
    disk.restart()
    _, found = open_log(disk)
    assert found.damaged == [] and found.groups["busy"].entries == []


def test_log_stays_small_over_many_random_batches(disk: Disk) -> None:
    """Under random batches with regular purges, the size of the log is bounded and its content correct."""
    workload = Batches(random.Random(11), GROUPS)
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


def test_an_unreadable_sector_does_not_stop_the_log() -> None:
    """What the segment contains is in memory; the segment only stays where it is and occupies disk space."""
    disk = SimDisk()
    log, _ = open_log(disk)
    log.write([Rebase("idle", base(7, 2), False), append("idle", 8, 4, 2)])
    busy(log, 1, 60)
    log.write([Rebase("busy", base(58), True)])
    disk.faults.append(Fault("read", errno.EIO, "log/", times=100))
    before = log.segments[0]
    reclaim_all(log)
    assert log.segments[0] == before
    busy(log, 61, 70)
    disk.faults.clear()
    log.close()
    _, found = open_log(disk)
    assert found.damaged == [] and len(found.groups["idle"].entries) == 4
    assert found.groups["busy"].base.index + len(found.groups["busy"].entries) == 70


def test_an_unreadable_segment_does_not_hold_later_segments() -> None:
    """The few entries of a later segment are copied forward as usual, and no entry of the unreadable segment
    is lost."""
    disk = SimDisk()
    log, _ = open_log(disk)
    first = log.segments[0]
    for group, start in (("idle", 1), ("later", 61)):
        log.write([Rebase(group, base(7, 2), False), append(group, 8, 4, 2)])
        busy(log, start, start + 59)
    log.write([Rebase("busy", base(118), True)])
    disk.faults.append(Fault("read", errno.EIO, f"{first:012d}", times=100))
    reclaim_all(log)
    assert log.segments[0] == first and len(log.segments) <= 3
    disk.faults.clear()
    log.close()
    _, found = open_log(disk)
    assert found.damaged == [] and [len(found.groups[g].entries) for g in ("idle", "later")] == [4, 4]
