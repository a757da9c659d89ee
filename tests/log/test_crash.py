"""Power cuts, failing syncs and full disks."""

import contextlib
import errno
import random

import pytest

from nodeagent.log import Log, LogSettings, NoSpace
from nodeagent.model.disk import File
from nodeagent.model.entries import HardState, SetHard
from nodeagent.testing.batches import Batches, append, copy_state
from nodeagent.testing.disk import SimDisk, SimFile
from nodeagent.testing.durable import State, follow
from nodeagent.testing.volume import Fault, PowerCut
from tests.log.small import SMALL, open_log

TINY = LogSettings(segment_bytes=700, zero_step_bytes=512, reserve_bytes=0, copy_bytes_max=300)


class Run:
    """Runs a workload on a disk that may fail during it, and records the states that recovery may return."""

    def __init__(self, disk: SimDisk, seed: int, pinned: bool) -> None:
        self.disk = disk
        self.pinned = pinned
        self.workload = Batches(random.Random(seed), ("meta", "n.1"))
        self.rng = random.Random(seed)
        self.possible: list[State] = [{}]
        """The last synced state, then one for each batch after it."""

        self.gaps = 0
        """How often segments were missing between the first and the last one."""

    def go(self, batches: int) -> None:
        log, found = open_log(self.disk, TINY)
        assert found.damaged == []
        for number in range(batches):
            batch = self.workload.batch()
            if self.pinned and not number:
                batch.append(append("slow", 1, 4, 1, "s" * 100))
                follow(self.workload.state, batch[-1:])
            self.possible.append(copy_state(self.workload.state))
            log.write(batch)
            if self.rng.random() < 0.5:
                self._sync(log)
            if self.rng.random() < 0.2:
                log.reclaim()
                self.gaps += log.segments[-1] - log.segments[0] >= len(log.segments)
        log.close()
        del self.possible[:-1]

    def _sync(self, log: Log) -> None:
        log.sync()
        del self.possible[:-1]


def operations_of(seed: int, batches: int, pinned: bool) -> int:
    disk = SimDisk()
    run = Run(disk, seed, pinned)
    run.go(batches)
    assert run.gaps or not pinned, "no segment was deleted before an older one"
    return disk.operations


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_crash_at_every_disk_operation(seed: int, pinned: bool) -> None:
    """Every synced batch survives a power cut at any operation; batches are whole, and nothing is damaged.

    A second recovery, which is itself interrupted at some operation, does not change the result. `pinned`:
    the entries of one group keep the first segment, while later segments are deleted.
    """
    batches = 28 if pinned else 25
    for cut in range(1, operations_of(seed, batches, pinned) + 1):
        disk = SimDisk()
        disk.cut_power_at = cut
        run = Run(disk, seed, pinned)
        with pytest.raises(PowerCut):
            run.go(batches)
        rng = random.Random(seed * 10_007 + cut)
        disk.crash(rng)
        disk.cut_power_at = disk.operations + rng.randint(1, 12)
        try:
            open_log(disk, TINY)
        except PowerCut:
            disk.crash(rng)
        disk.cut_power_at = None
        _, found = open_log(disk, TINY)
        assert found.damaged == [], (cut, found.damaged)
        assert found.groups in run.possible, (cut, disk.trace[-5:])
        disk.crash(rng)
        _, again = open_log(disk, TINY)
        assert again.groups == found.groups, f"cut {cut}: what recovery reported was not durable"


def test_failed_sync_is_final() -> None:
    """Every later call raises the first error, although a second fsync would succeed."""
    disk = SimDisk()
    log, _ = open_log(disk)
    log.write([append("g", 1)])
    log.sync()
    disk.faults.append(Fault("sync"))
    log.write([append("g", 2)])
    with pytest.raises(OSError) as first:
        log.sync()
    for call in (log.sync, log.reclaim, log.mark_synced, lambda: log.write([append("g", 3)])):
        with pytest.raises(OSError) as later:
            call()
        assert later.value is first.value
    log.close()
    disk.crash(random.Random(1))
    _, found = open_log(disk)
    assert len(found.groups["g"].entries) == 1 and found.damaged == []


def test_restart_after_a_failed_sync_does_not_trust_the_page_cache() -> None:
    """The lost batch is still readable after a restart; if recovery returns it, it must be durable."""
    disk = SimDisk()
    log, _ = open_log(disk)
    log.write([append("g", 1)])
    log.sync()
    log.write([append("g", 2)])
    disk.faults.append(Fault("sync"))
    with pytest.raises(OSError):
        log.sync()
    disk.restart()
    _, found = open_log(disk)
    kept = len(found.groups["g"].entries)
    disk.crash(random.Random(1))
    _, found = open_log(disk)
    assert len(found.groups["g"].entries) == kept


@pytest.mark.parametrize("operation", ["write", "truncate", "create", "rename", "sync_dir", "sync"])
def test_any_failure_while_rotating_is_final(operation: str) -> None:
    """A log that could not begin its next segment refuses all later writes; recovery returns what was
    synced."""
    disk = SimDisk()
    log, _ = open_log(disk)
    index = 0
    while len(log.segments) == 1 and log._segment.end < SMALL.segment_bytes - 400:
        index += 1
        log.write([append("g", index, 1, 1, "z" * 100)])
        log.sync()
    synced = index
    disk.faults.append(Fault(operation))
    with pytest.raises(OSError):
        while len(log.segments) < 3:
            index += 1
            log.write([append("g", index, 1, 1, "z" * 100)])
    with pytest.raises(OSError):
        log.write([append("g", index + 1)])
    disk.crash(random.Random(3))
    _, found = open_log(disk)
    assert found.damaged == [] and synced <= len(found.groups["g"].entries) <= index


def test_full_disk_leaves_no_partial_batch() -> None:
    """A batch that does not fit is refused as a whole; everything that was synced before it is intact."""
    disk = SimDisk(capacity_bytes=6000)
    log, _ = open_log(disk)
    index = 0
    with pytest.raises(NoSpace) as error:
        while True:
            index += 1
            log.write([append("g", index, 1, 1, "z" * 50), SetHard("g", HardState(index))])
            log.sync()
    assert error.value.errno == errno.ENOSPC
    disk.restart()
    disk.capacity_bytes = 1 << 30
    _, found = open_log(disk)
    assert found.damaged == []
    assert len(found.groups["g"].entries) == found.groups["g"].hard.term
    assert found.groups["g"].hard.term in (index - 1, index)


NO_ROOM_IN = ("write", "create", "rename")


@pytest.mark.parametrize("reserve", [0, 1024])
@pytest.mark.parametrize("seed", range(3))
def test_full_disk_at_any_operation_is_survived(seed: int, reserve: int) -> None:
    """A full disk in any single call, including rotation, reclaim and start, loses nothing and is not final;
    the refused batch is accepted when it is retried. A power cut in between does not change this."""
    settings = LogSettings(700, 512, reserve, 300)
    for skip in range(50):
        for operation in NO_ROOM_IN:
            disk = SimDisk()
            workload, rng = Batches(random.Random(seed), ("meta", "n.1")), random.Random(seed)
            fault = Fault(operation, errno.ENOSPC, "log/", skip, times=3)
            disk.faults.append(fault)
            log = None
            while log is None:
                with contextlib.suppress(OSError):
                    log, _ = open_log(disk, settings)
            refused = 0
            for _ in range(20):
                batch = workload.batch()
                while True:
                    try:
                        log.write(batch)
                    except NoSpace:
                        refused += 1
                        if refused % 2:
                            log.reclaim()
                            log.mark_synced()
                        continue
                    break
                log.sync()
                if rng.random() < 0.3:
                    log.reclaim()
            if skip % 2:
                log.close()
            disk.crash(rng)
            _, found = open_log(disk, settings)
            assert found.damaged == [] and found.groups == workload.state, (operation, skip)


def test_a_segment_whose_creation_failed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is open occupies disk space although it has no name any more."""
    disk = SimDisk()
    log, _ = open_log(disk, TINY)
    made: list[SimFile] = []
    create = disk.create

    def created(path: str) -> File:
        file = create(path)
        assert isinstance(file, SimFile)
        made.append(file)
        return file

    monkeypatch.setattr(disk, "create", created)
    disk.faults.append(Fault("write", errno.ENOSPC, "000000000002.new", times=20))
    refused, index = 0, 1
    while index < 60:
        try:
            log.write([append("g", index, 1, 1, "z" * 50)])
        except NoSpace:
            refused += 1
        else:
            index += 1
    segments = [f for f in made if f.path.endswith(".new")]
    assert refused > 3 and len(segments) == len({f.path for f in segments}) + 20, "the fault was not injected"
    assert [f.is_open for f in segments] == [False] * (len(segments) - 1) + [True]


def test_full_disk_in_a_sync_is_final() -> None:
    """Pages that a sync could not write are lost, whatever the cause was."""
    disk = SimDisk()
    log, _ = open_log(disk)
    log.write([append("g", 1)])
    disk.faults.append(Fault("sync", errno.ENOSPC))
    for _ in range(2):
        with pytest.raises(OSError) as error:
            log.sync()
        assert not isinstance(error.value, NoSpace)


def test_a_node_starts_on_a_full_disk() -> None:
    """A node that stopped between two segments, or with a torn write, starts without a free byte on the
    disk."""
    ends = [start_on_a_full_disk(20_000 + spare) for spare in range(0, 200, 40)]
    assert set(ends) == {True, False}, (
        "one case did not occur: a log that ends within a segment, or one that ends with it"
    )


def start_on_a_full_disk(capacity: int) -> bool:
    """Whether the log ended with a complete segment."""
    disk = SimDisk(capacity_bytes=capacity)
    log, _ = open_log(disk)
    index = 0
    with pytest.raises(NoSpace):
        while True:
            index += 1
            log.write([append("g", index, 1, 1, "z" * 50)])
            log.sync()
    with pytest.raises(NoSpace):
        log._rotate()
    was_whole = log._segment.closed
    disk.restart()
    disk.capacity_bytes = capacity - disk.free_bytes()
    for _ in range(2):
        log, found = open_log(disk)
        assert found.damaged == [] and len(found.groups["g"].entries) == index - 1
        with pytest.raises(NoSpace):
            log.write([append("g", index)])
        log.close()
    disk.capacity_bytes = 1 << 30
    log, found = open_log(disk)
    log.write([append("g", index)])
    log.close()
    _, found = open_log(disk)
    assert found.damaged == [] and len(found.groups["g"].entries) == index
    return was_whole


def fill(log: Log) -> int:
    """Write until the log reports that space is low; return the index of the last entry."""
    index = 0
    while not log.space_low:
        index += 1
        log.write([append("g", index, 1, 1, "z" * 50)])
        log.sync()
    return index


def test_reserve_keeps_term_and_vote_writable_on_a_full_disk() -> None:
    """The log releases its reserve, reports it, continues, and allocates the reserve again when there is
    space."""
    settings = LogSettings(segment_bytes=4096, zero_step_bytes=1024, reserve_bytes=8192)
    disk = SimDisk(capacity_bytes=40_000)
    log, _ = open_log(disk, settings)
    reserved = not log.space_low and disk.exists("log/reserve")
    assert reserved
    with disk.create("other") as file:
        file.pwrite(0, bytes(disk.free_bytes()))
    index = fill(log)
    for term in range(10):
        log.write([SetHard("g", HardState(term + 2, "a"))])
        log.sync()
    disk.unlink("other")
    log.reclaim()
    again = not log.space_low and disk.exists("log/reserve")
    assert again
    disk.unlink("log/reserve")
    log._space.is_low = True
    disk.faults.append(Fault("write", errno.ENOSPC, "log/reserve"))  # the space was used meanwhile
    log.reclaim()
    assert log.space_low and not disk.exists("log/reserve")
    log.close()
    _, found = open_log(disk, settings)
    assert len(found.groups["g"].entries) == index and found.groups["g"].hard.term == 11


def test_a_mark_does_not_use_the_reserve() -> None:
    """The reserve is for terms, votes and purges: an idle log on a full disk does not use it."""
    settings = LogSettings(segment_bytes=1 << 20, zero_step_bytes=1024, reserve_bytes=8192)
    disk = SimDisk(capacity_bytes=40_000)
    log, _ = open_log(disk, settings)
    index = 0
    while log._segment.filled - log._segment.end > 100:
        index += 1
        log.write([append("g", index)])
        log.sync()
    with disk.create("other") as file:
        file.pwrite(0, bytes(disk.free_bytes()))
    log.mark_synced()
    assert disk.exists("log/reserve")
    log.write([SetHard("g", HardState(2, "a"))])
    assert not disk.exists("log/reserve")
