"""Replication: windows, batches, lost and reordered messages, snapshots."""

import pytest
from msgspec.structs import replace

from nodeagent.model.entries import Base, Config
from nodeagent.model.errors import NotLeader, Overloaded, Refused
from nodeagent.model.limits import (
    APPEND_BYTES_MAX,
    APPLY_BYTES_PER_TURN,
    INFLIGHT_APPENDS_MAX,
    INFLIGHT_BYTES_MAX,
    SMALL_APPEND_BYTES,
    UNCOMMITTED_BYTES_MAX,
)
from nodeagent.model.raft_messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    SnapshotOffer,
    TimeoutNow,
)
from nodeagent.model.space import Room
from nodeagent.raft import ProgressState, Raft, Role
from nodeagent.raft.progress import Progress

from .network import SETTINGS, Cluster
from .single import entries, flush, hold, leader, replica, sent


def snapshots(raft: Raft) -> list[str]:
    """The peers that are to receive a snapshot, until nothing more is ready."""
    found: list[str] = []
    while raft.has_ready:
        found += flush(raft).snapshots
    return found


def test_proposals_between_two_turns_are_sent_as_one_append_per_peer() -> None:
    """Batching allows one fsync to serve many writers."""
    raft = leader()
    hold(raft, "bc", 1)
    flush(raft)
    for _ in range(50):
        raft.propose([b"x", b"y"], 100)
    ready = flush(raft)
    for peer in "bc":
        (append,) = sent(ready, AppendRequest, peer)
        assert isinstance(append, AppendRequest) and len(append.entries) == 100


def test_a_new_commit_index_is_sent_at_once_and_only_once() -> None:
    """Followers apply without waiting for the next heartbeat; each follower is told once."""
    raft = leader()
    hold(raft, "b", 1)
    assert sent(flush(raft), Heartbeat, "b") == [Heartbeat(1, 1)]
    hold(raft, "c", 1)
    ready = flush(raft)
    assert sent(ready, Heartbeat, "c") == [Heartbeat(1, 1)] and not sent(ready, Heartbeat, "b")


LATER = replace(SETTINGS, heartbeat_ms=50, commit_news_ms=20)


def test_a_new_commit_index_is_sent_with_the_next_append() -> None:
    """With many small writes, a heartbeat for each commit would be half of all messages."""
    raft = leader(settings=LATER)
    hold(raft, "bc", 1)
    assert raft.commit == 1 and not sent(flush(raft), Heartbeat)
    raft.propose([b"x"], 110)
    ready = flush(raft)
    assert not sent(ready, Heartbeat)
    assert [m.commit for m in sent(ready, AppendRequest) if isinstance(m, AppendRequest)] == [1, 1]
    assert raft.deadline() == 150, "all followers know the commit index"


def test_a_new_commit_index_is_sent_in_time_if_no_append_follows() -> None:
    raft = leader(1, 1, settings=LATER)
    hold(raft, "b", 3)
    assert raft.deadline() == 120
    raft.step("c", AppendReply(2, False, 2), 119)
    ready = flush(raft)
    assert sent(ready, AppendRequest, "c") and not sent(ready, Heartbeat), "an append to c does not inform b"
    raft.tick(120)
    assert sent(flush(raft), Heartbeat) == [Heartbeat(2, 3)]
    hold(raft, "c", 3)
    assert raft.deadline() == 150, "the append informed c"


def test_a_read_does_not_wait_for_the_message_about_the_commit() -> None:
    """The round of the read carries the commit index, so that the follower that asked can answer at once."""
    raft = leader(settings=LATER)
    raft.read(7, 100)
    flush(raft)  # nothing can be confirmed before the first commit of the term
    hold(raft, "b", 1)
    assert sent(flush(raft), Heartbeat, "b") == [Heartbeat(1, 1, read=1)]


def test_a_leader_that_leaves_informs_its_followers_at_once() -> None:
    """Otherwise its followers would learn only after an election timeout that they may commit without it."""
    raft = leader(settings=LATER)
    hold(raft, "bc", 1)
    flush(raft)
    raft.change(Config(("b", "c")), 100)
    flush(raft)
    hold(raft, "bc", 2)
    assert raft.role is Role.FOLLOWER
    assert sent(flush(raft), Heartbeat) == [Heartbeat(1, 2), Heartbeat(1, 2)]


def test_heartbeat_commit_is_clipped_to_match() -> None:
    """A follower is never told to commit an entry that it is not known to hold."""
    raft = leader(1, 1)
    hold(raft, "b", 3)
    flush(raft)
    raft.tick(110)
    assert sent(flush(raft), Heartbeat, "c") == [Heartbeat(2, 0)]


def test_the_window_is_bounded_and_recovers_if_all_of_it_is_lost() -> None:
    """If `INFLIGHT_APPENDS_MAX` appends are all lost, an empty append discovers the loss."""
    raft = leader()
    hold(raft, "bc", 1)
    flush(raft)
    for _ in range(INFLIGHT_APPENDS_MAX + 9):
        raft.propose([b"x"], 100)
        flush(raft)
    assert raft.log.last_index == INFLIGHT_APPENDS_MAX + 10
    raft.propose([b"x"], 100)
    assert not sent(flush(raft), AppendRequest)
    raft.step("b", HeartbeatReply(1), 111)
    (probe,) = sent(flush(raft), AppendRequest, "b")
    assert isinstance(probe, AppendRequest) and not probe.entries
    raft.step("b", AppendReply(1, False, probe.prev_index, 1, 1), 112)
    (again,) = sent(flush(raft), AppendRequest, "b")
    assert isinstance(again, AppendRequest)
    assert again.prev_index == 1 and len(again.entries) == raft.log.last_index - 1


def test_acknowledged_bytes_leave_the_window() -> None:
    """A window that is limited in bytes never closes for a follower that keeps up."""
    progress = Progress(1, 0)
    progress.accepted(0, 0)
    progress.become_replicate(0)
    for index in range(1, 100):
        progress.sent(index, INFLIGHT_BYTES_MAX // 2, 0)
        assert not progress.is_full
        progress.accepted(index, 0)
    progress.sent(100, INFLIGHT_BYTES_MAX, 0)
    assert progress.is_full


def test_entries_that_a_follower_already_holds_are_skipped_and_no_later_entry_is() -> None:
    progress = Progress(1, 0)
    assert progress.accepted(5, 0) and (progress.match, progress.next) == (5, 6)
    progress.become_snapshot()
    assert not progress.rejected(9, 9, 0) and progress.next == 6


def test_acknowledgements_of_one_turn_are_sent_as_one_message_with_the_highest_match() -> None:
    """A repeated old append after a new one does not lower the match."""
    raft = replica()
    raft.step("b", AppendRequest(1, 0, 0, 0, entries(1, 1)), 0)
    raft.step("b", AppendRequest(1, 0, 0, 0, entries(1)), 0)
    assert sent(flush(raft), AppendReply) == [AppendReply(1, True, 2)]


def test_unwritten_entries_that_a_snapshot_covers_are_not_written() -> None:
    """Entries to be written begin after the new base."""
    raft = replica()
    raft.step("b", AppendRequest(1, 0, 0, 0, entries(1, 1, 1)), 0)
    raft.installed(Base(2, 1, raft.log.config), 2, 0)
    ready = flush(raft)
    assert ready.append is not None and ready.append[0] == 3 and len(ready.append[1]) == 1
    assert raft.commit == 2 and sent(ready, AppendReply)[-1] == AppendReply(1, True, 3)


def test_stale_and_repeated_answers_do_not_lower_the_match() -> None:
    """Match never decreases, and a refusal that is older than a success is ignored."""
    raft = leader(1, 1, 1)
    hold(raft, "b", 4)
    before = raft.status().progress["b"]
    hold(raft, "b", 2)
    raft.step("b", AppendReply(2, False, 3, 0, 0), 100)
    assert raft.status().progress["b"] == before
    assert before.match == 4 and before.state is ProgressState.REPLICATE


def test_a_heartbeat_answer_acknowledges_no_entries() -> None:
    """A follower that answers a heartbeat may have written nothing."""
    raft = leader()
    for peer in "bc":
        raft.step(peer, HeartbeatReply(1), 150)
    assert raft.commit == 0 and raft.status().progress["b"].match == 0


def test_a_long_log_is_sent_in_bounded_appends() -> None:
    """No message exceeds `APPEND_BYTES_MAX` by more than one entry, and the whole log is sent."""
    raft = leader()
    hold(raft, "bc", 1)
    flush(raft)
    raft.propose([b"x" * (APPEND_BYTES_MAX // 3)] * 10, 100)
    appends = []
    while raft.has_ready:
        appends += sent(flush(raft), AppendRequest, "b")
    sizes = [sum(len(e.data) for e in a.entries) for a in appends if isinstance(a, AppendRequest)]
    assert max(sizes) <= APPEND_BYTES_MAX and sum(sizes) == 10 * (APPEND_BYTES_MAX // 3)


def test_uncommitted_bytes_are_bounded() -> None:
    """Above the limit the leader answers `Overloaded`; after a commit it accepts proposals again."""
    raft = leader()
    piece = b"x" * (UNCOMMITTED_BYTES_MAX // 4)
    hold(raft, "bc", 1)
    raft.propose([piece] * 3, 100)
    with pytest.raises(Overloaded):
        raft.propose([piece], 100)
    assert raft.log.last_index == 4
    flush(raft)
    hold(raft, "b", 4)
    assert raft.propose([piece], 100) == 5


def test_committed_entries_are_handed_out_in_bounded_turns() -> None:
    """`has_ready` stays true until all entries are handed out, each of them once and in order."""
    raft = leader()
    raft.propose([b"x" * (APPLY_BYTES_PER_TURN // 2)] * 5, 100)
    flush(raft)
    hold(raft, "b", 6)
    handed, turns = [], 0
    while raft.has_ready:
        committed = flush(raft).committed
        if committed is not None:
            handed += list(range(committed[0], committed[0] + len(committed[1])))
            turns += 1
    assert handed == [1, 2, 3, 4, 5, 6] and turns >= 3


def test_purged_entries_become_a_snapshot_and_any_reconnecting_append_ends_it() -> None:
    """The leader sends no append over a gap, and sends a snapshot only to a peer that answers."""
    raft = leader(1, 1, 1)
    hold(raft, "b", 4)
    flush(raft)
    raft.compact(4)
    raft.propose([b"x"], 100)
    flush(raft)
    raft.step("c", AppendReply(2, False, 3, 0, 0), 120)
    ready = flush(raft)
    assert ready.snapshots == ["c"] and not sent(ready, AppendRequest, "c")
    raft.offer_snapshot("c", "s1")
    (offer,) = sent(flush(raft), SnapshotOffer, "c")
    assert isinstance(offer, SnapshotOffer) and (offer.base, offer.snapshot) == (raft.log.base, "s1")
    hold(raft, "c", 4)
    assert raft.status().progress["c"].state is ProgressState.REPLICATE
    (append,) = sent(flush(raft), AppendRequest, "c")
    assert isinstance(append, AppendRequest) and append.prev_index == 4


def test_a_failed_snapshot_is_requested_again_but_not_in_a_loop() -> None:
    """It is requested again only after the next heartbeat answer of the peer."""
    raft = leader(1)
    hold(raft, "b", 2)
    flush(raft)
    raft.compact(2)
    raft.step("c", AppendReply(2, False, 1, 0, 0), 100)
    assert flush(raft).snapshots == ["c"]
    raft.snapshot_failed("c", 101)
    assert flush(raft).snapshots == []
    raft.step("c", HeartbeatReply(2), 120)
    assert flush(raft).snapshots == ["c"]


def test_a_lost_snapshot_offer_is_repeated() -> None:
    """The offer is repeated after each election timeout while the peer waits for the snapshot."""
    raft = leader(1)
    hold(raft, "b", 2)
    flush(raft)
    raft.compact(2)
    raft.step("c", AppendReply(2, False, 1, 0, 0), 100)
    flush(raft)
    raft.offer_snapshot("c", "s1")
    flush(raft)
    raft.tick(200)
    assert len(sent(flush(raft), SnapshotOffer, "c")) == 1


def test_an_offer_of_a_snapshot_that_the_follower_has_is_answered_at_once() -> None:
    """No file is pulled twice."""
    raft = replica(1, 1, 1)
    raft.step("b", AppendRequest(1, 3, 1, 3, []), 0)
    flush(raft)
    base = raft.log.base
    raft.step("b", SnapshotOffer(1, base, "s1"), 0)
    ready = flush(raft)
    assert ready.offer is None and sent(ready, AppendReply) == [AppendReply(1, True, 3)]


def test_two_snapshots_in_a_row() -> None:
    """The second snapshot finds the base of the first one installed."""
    cluster = Cluster("abc")
    cluster.elect("a")
    for _ in range(2):
        cluster.isolate("c")
        cluster["a"].propose([b"x", b"y"], cluster.clock)
        cluster.settle()
        cluster.compact("a", cluster["a"].commit)
        cluster.heal()
        cluster.tick(60)
        assert cluster["c"].log.base == cluster["a"].log.base
        assert cluster["c"].commit == cluster["a"].commit


def test_the_target_of_a_transfer_gets_the_missing_entries_first() -> None:
    """Thesis 3.10: `TimeoutNow` is sent only at full match; meanwhile, a proposer is redirected to the
    target."""
    raft = leader()
    raft.propose([b"x"], 100)
    flush(raft)
    raft.transfer("b", 100)
    with pytest.raises(NotLeader) as caught:
        raft.propose([b"y"], 100)
    assert caught.value.details["leader"] == "b"
    hold(raft, "b", 1)
    assert not sent(flush(raft), TimeoutNow)
    hold(raft, "b", 2)
    assert len(sent(flush(raft), TimeoutNow, "b")) == 1


def test_leadership_is_transferred_to_voters_only() -> None:
    """A learner, a node outside the group and the leader itself are refused."""
    raft = leader(learners="d")
    for target in "adx":
        with pytest.raises(Refused):
            raft.transfer(target, 100)


def test_a_lone_voter_waits_for_its_disk_before_it_sends_its_term() -> None:
    """A learner must not hold entries of a term that its leader can lose."""
    raft = replica(voters="a", learners="b")
    raft.tick(0)
    ready = raft.take()
    assert not ready.now and ready.hard is not None
    assert [type(m) for _, m in ready.after] == [AppendRequest] and raft.commit == 0
    raft.persisted(1, 1)
    assert raft.commit == 1


def test_a_follower_without_room_gets_small_entries_only() -> None:
    """The follower would refuse large entries, and the leader would resend them all the time; small entries
    keep it in the group. When it has room again it gets all entries, and the leader does not busy-loop
    meanwhile. Before its first answer its room is unknown."""
    raft = leader()
    hold(raft, "bc", 1)
    flush(raft)
    assert not raft.has_room("b") and raft.voters_low_on_space() == []
    raft.step("b", HeartbeatReply(1, room=int(Room.FULL)), 111)
    assert not raft.has_room("b") and raft.voters_low_on_space() == ["b"]
    flush(raft)
    raft.propose([b"s" * 100], 112)
    (small,) = sent(flush(raft), AppendRequest, "b")
    assert isinstance(small, AppendRequest) and len(small.entries) == 1
    hold(raft, "bc", 2)
    flush(raft)
    raft.propose([b"x" * (SMALL_APPEND_BYTES + 1)], 113)
    ready = flush(raft)
    assert sent(ready, AppendRequest, "c") and not sent(ready, AppendRequest, "b")
    more = raft.has_ready
    assert not more
    raft.step("b", HeartbeatReply(1), 130)
    appends = sent(flush(raft), AppendRequest, "b")
    while raft.has_ready:
        appends += sent(flush(raft), AppendRequest, "b")
    assert sum(len(a.entries) for a in appends if isinstance(a, AppendRequest)) == 1
    assert raft.has_room("b") and raft.voters_low_on_space() == []


def test_a_small_entry_after_a_large_one_reaches_a_follower_without_room() -> None:
    raft = leader()
    hold(raft, "bc", 1)
    flush(raft)
    raft.propose([b"x" * (SMALL_APPEND_BYTES + 1)], 110)
    flush(raft)
    hold(raft, "bc", 2)
    raft.step("b", HeartbeatReply(1, room=int(Room.FULL)), 111)
    flush(raft)
    raft.propose([b"s"], 112)
    (append,) = sent(flush(raft), AppendRequest, "b")
    assert isinstance(append, AppendRequest) and len(append.entries) == 1


def test_no_snapshot_is_made_for_a_follower_without_room() -> None:
    """The follower could not store the snapshot; the leader decides again at its next answer."""
    raft = leader()
    hold(raft, "bc", 1)
    flush(raft)
    raft.propose([b"x"] * 5, 100)
    flush(raft)
    hold(raft, "c", 6)
    flush(raft)
    raft.compact(6)
    for now, room, wanted in ((120, Room.LOW, []), (160, Room.ENOUGH, ["b"])):
        raft.step("b", HeartbeatReply(1, room=int(room)), now)
        raft.step("b", AppendReply(1, False, 6, 1, 1), now)
        found = snapshots(raft)
        raft.step("b", HeartbeatReply(1, room=int(room)), now + 20)
        assert found + snapshots(raft) == wanted
