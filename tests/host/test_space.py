"""Which work a node accepts, by the free space of its disk and of its group's disks."""

import random

import msgspec
import pytest

from nodeagent.host.host import Host
from nodeagent.host.space import Space
from nodeagent.host.state_jobs import StateJobs
from nodeagent.model import limits
from nodeagent.model.entries import Base, Config, Entry, EntryKind
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import InstallSnapshot
from nodeagent.model.limits import DISK_RESUME_PERCENT, MIB, SMALL_APPEND_BYTES
from nodeagent.model.raft_messages import AppendRequest, Routed, SnapshotOffer
from nodeagent.model.requests import ErrorReply, Write
from nodeagent.model.space import Room, floor_of, refuse_below
from nodeagent.partition.hash import slot_of
from tests.host.test_host import leads_alone, open_host, run_out

TOTAL = 12_000 * MIB
LOW, FLOOR = refuse_below(TOTAL), floor_of(TOTAL)


def room_at(space: Space, free: int) -> Room:
    space.measured(free, TOTAL, 0)
    return space.room


@pytest.mark.parametrize("mark,room", [(LOW, Room.LOW), (FLOOR, Room.FULL)])
def test_work_that_stopped_resumes_at_a_higher_watermark(mark: int, room: Room) -> None:
    """Otherwise the node would flip between two states while a disk fills."""
    space = Space("a")
    assert room_at(space, mark) < room
    assert room_at(space, mark - 1) is room
    assert room_at(space, mark * DISK_RESUME_PERCENT // 100 - 1) is room
    assert room_at(space, mark * DISK_RESUME_PERCENT // 100) < room


def test_rows_accepted_since_the_last_measurement_count() -> None:
    """They count twice, in the log and as a file; rows from before the last measurement may count too."""
    space = Space("a")
    space.measured(LOW + 10, TOTAL, 0)
    space.spend(4)
    before = space.room
    assert before is Room.ENOUGH
    space.spend(2)
    assert space.room is Room.LOW
    space = Space("a")
    space.measured(LOW + 10, TOTAL, 11)
    assert space.room is Room.LOW, "rows in memory become files"


@pytest.mark.parametrize("voters,most", [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
def test_a_group_accepts_rows_while_a_minority_is_short_of_space(voters: int, most: int) -> None:
    """A minority may be short of space; with one more voter no majority accepts rows."""
    space = Space("a")
    short = ["b", "c", "d", "e"]
    assert space.refusal(short[:most], voters) is None
    refusal = space.refusal(short[: most + 1], voters)
    assert refusal is not None and refusal.code == "overloaded" and "b" in refusal.what


def refused_write(host: Host, answered: int = 3_000) -> ErrorReply:
    """The refusal, which must be sent at that time and no earlier."""
    open_ = host.replicas.data["a.1"].state.slots.open
    settings = host.cluster.meta.image.settings
    assert settings is not None
    slot, key = next(
        (slot, key)
        for key in (PartitionKey("g", i, 0) for i in range(100))
        if (slot := slot_of("g", key.time_partition, 0, settings)) in open_
    )
    host.on_request(1, Write("a.1", slot, key, "t", 1, "s", 1, 0, 1, b""), 3_000, 3_000)
    if answered > 3_000:
        host.tick(answered - 1, answered - 1)
        assert not run_out(host, answered - 1)
        host.tick(answered, answered)
    reply = run_out(host, answered)[1]
    assert isinstance(reply, ErrorReply) and reply.code == "overloaded"
    return reply


def test_a_leader_short_of_room_takes_no_rows_and_says_why() -> None:
    host = leads_alone()
    host.on_disk(LOW - 1, TOTAL, 3_000)
    reply = refused_write(host)
    assert "the disk of a has" in reply.what and not reply.details.get("at_work")


@pytest.mark.parametrize("at_work", [True, False])
def test_a_leader_says_whether_it_makes_files_of_the_rows_that_wait(
    monkeypatch: pytest.MonkeyPatch, at_work: bool
) -> None:
    """A client may wait for files that are being made, but not for files that fail. The answer is delayed so
    that clients that retry at once leave time for the closes."""
    host = leads_alone()
    monkeypatch.setattr(limits, "MEMTABLES_MAX", -1)
    monkeypatch.setattr(StateJobs, "is_closing", at_work)
    reply = refused_write(host, 3_000 + limits.OVERLOAD_REPLY_DELAY_MS)
    assert "wait for their files" in reply.what and reply.details["at_work"] is at_work


def test_a_follower_without_room_takes_small_entries_and_no_snapshot() -> None:
    """The follower could not discard a large append, and the files of a snapshot would fill its disk."""
    base = Base(1, 0, Config(("a", "b", "c")))
    for free, size, is_taken in (
        (LOW - 1, SMALL_APPEND_BYTES + 1, True),
        (FLOOR - 1, SMALL_APPEND_BYTES, True),
        (FLOOR - 1, SMALL_APPEND_BYTES + 1, False),
    ):
        host = open_host(1)
        host.on_disk(free, TOTAL, 0)
        entry = Entry(1, int(EntryKind.COMMAND), random.Random(1).randbytes(size))
        host.on_raft("b", [Routed("a.1", AppendRequest(1, 1, 0, 1, [entry]))], 0)
        assert (host.replicas.data["a.1"].raft.log.last_index == 2) is is_taken
    offer = SnapshotOffer(1, msgspec.structs.replace(base, index=9), "5" * 32)
    for free, is_taken in ((LOW - 1, False), (TOTAL, True)):
        host = open_host(1)
        host.on_disk(free, TOTAL, 0)
        host.on_raft("b", [Routed("a.1", offer)], 0)
        jobs = [job for _, job in host.take().jobs]
        assert any(isinstance(job, InstallSnapshot) for job in jobs) is is_taken
