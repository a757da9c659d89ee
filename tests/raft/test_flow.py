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
    """Who is to have one, until there is nothing more to do."""
    found: list[str] = []
    while raft.has_ready:
        found += flush(raft).snapshots
    return found


def test_many_proposals_between_two_turns_leave_as_one_append_per_peer() -> None:
    """Batching is what makes one fsync serve many writers."""
    raft = leader()
    hold(raft, "bc", 1)
    flush(raft)
    for _ in range(50):
        raft.propose([b"x", b"y"], 100)
    ready = flush(raft)
    for peer in "bc":
        (append,) = sent(ready, AppendRequest, peer)
        assert isinstance(append, AppendRequest) and len(append.entries) == 100


def test_news_of_commit_leaves_at_once_and_once() -> None:
    """Followers apply without waiting for the next heartbeat; nobody is told twice."""
    raft = leader()
    hold(raft, "b", 1)
    assert sent(flush(raft), Heartbeat, "b") == [Heartbeat(1, 1)]
    hold(raft, "c", 1)
    ready = flush(raft)
    assert sent(ready, Heartbeat, "c") == [Heartbeat(1, 1)] and not sent(ready, Heartbeat, "b")


LATER = replace(SETTINGS, heartbeat_ms=50, commit_news_ms=20)


def test_news_of_commit_rides_on_the_next_append() -> None:
    """At many small writes a heartbeat for each commit is half of all messages."""
    raft = leader(settings=LATER)
    hold(raft, "bc", 1)
    assert raft.commit == 1 and not sent(flush(raft), Heartbeat)
    raft.propose([b"x"], 110)
    ready = flush(raft)
    assert not sent(ready, Heartbeat)
    assert [m.commit for m in sent(ready, AppendRequest) if isinstance(m, AppendRequest)] == [1, 1]
    assert raft.deadline() == 150, "all were told"


def test_news_of_commit_leaves_in_time_when_no_append_follows() -> None:
    raft = leader(1, 1, settings=LATER)
    hold(raft, "b", 3)
    assert raft.deadline() == 120
    raft.step("c", AppendReply(2, False, 2), 119)
    ready = flush(raft)
    assert sent(ready, AppendRequest, "c") and not sent(ready, Heartbeat), "what c is sent does not tell b"
    raft.tick(120)
    assert sent(flush(raft), Heartbeat) == [Heartbeat(2, 3)]
    hold(raft, "c", 3)
    assert raft.deadline() == 150, "the append told c"


def test_a_read_does_not_wait_for_the_news_of_commit() -> None:
    """Its round tells of the commit, so that the follower that asked can answer at once."""
    raft = leader(settings=LATER)
    raft.read(7, 100)
    flush(raft)  # nothing can be confirmed before the first commit of the term
    hold(raft, "b", 1)
    assert sent(flush(raft), Heartbeat, "b") == [Heartbeat(1, 1, read=1)]


def test_a_leader_that_leaves_tells_at_once() -> None:
    """Its followers would wait for an election timeout to learn that they may commit without it."""
    raft = leader(settings=LATER)
    hold(raft, "bc", 1)
    flush(raft)
    raft.change(Config(("b", "c")), 100)
    flush(raft)
    hold(raft, "bc", 2)
    assert raft.role is Role.FOLLOWER
    assert sent(flush(raft), Heartbeat) == [Heartbeat(1, 2), Heartbeat(1, 2)]


def test_heartbeat_commit_is_clipped_to_match() -> None:
    """A follower is never told to commit what it is not known to hold."""
    raft = leader(1, 1)
    hold(raft, "b", 3)
    flush(raft)
    raft.tick(110)
    assert sent(flush(raft), Heartbeat, "c") == [Heartbeat(2, 0)]


def test_the_window_is_bounded_and_heals_when_all_of_it_is_lost() -> None:
    """With `INFLIGHT_APPENDS_MAX` under way, an empty append finds out that all of them are lost."""
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
    """A window by bytes never closes for a follower that keeps up."""
    progress = Progress(1, 0)
    progress.accepted(0, 0)
    progress.become_replicate(0)
    for index in range(1, 100):
        progress.sent(index, INFLIGHT_BYTES_MAX // 2, 0)
        assert not progress.is_full
        progress.accepted(index, 0)
    progress.sent(100, INFLIGHT_BYTES_MAX, 0)
    assert progress.is_full


def test_what_a_follower_turns_out_to_hold_is_not_sent_and_nothing_behind_it_is_left_out() -> None:
    progress = Progress(1, 0)
    assert progress.accepted(5, 0) and (progress.match, progress.next) == (5, 6)
    progress.become_snapshot()
    assert not progress.rejected(9, 9, 0) and progress.next == 6


def test_acknowledgements_of_one_turn_are_one_message_with_the_highest_match() -> None:
    """A repeated old append after a new one takes nothing back."""
    raft = replica()
    raft.step("b", AppendRequest(1, 0, 0, 0, entries(1, 1)), 0)
    raft.step("b", AppendRequest(1, 0, 0, 0, entries(1)), 0)
    assert sent(flush(raft), AppendReply) == [AppendReply(1, True, 2)]


def test_entries_not_yet_written_when_a_snapshot_covers_them_are_not_written_again() -> None:
    """What is handed out to be written begins behind the new base."""
    raft = replica()
    raft.step("b", AppendRequest(1, 0, 0, 0, entries(1, 1, 1)), 0)
    raft.installed(Base(2, 1, raft.log.config), 2, 0)
    ready = flush(raft)
    assert ready.append is not None and ready.append[0] == 3 and len(ready.append[1]) == 1
    assert raft.commit == 2 and sent(ready, AppendReply)[-1] == AppendReply(1, True, 3)


def test_stale_and_repeated_answers_move_nothing_back() -> None:
    """Match never falls, and a refusal older than a success is ignored."""
    raft = leader(1, 1, 1)
    hold(raft, "b", 4)
    before = raft.status().progress["b"]
    hold(raft, "b", 2)
    raft.step("b", AppendReply(2, False, 3, 0, 0), 100)
    assert raft.status().progress["b"] == before
    assert before.match == 4 and before.state is ProgressState.REPLICATE


def test_a_heartbeat_answer_says_nothing_of_entries() -> None:
    """A follower that answers need not have written anything."""
    raft = leader()
    for peer in "bc":
        raft.step(peer, HeartbeatReply(1), 150)
    assert raft.commit == 0 and raft.status().progress["b"].match == 0


def test_a_long_log_travels_in_bounded_appends() -> None:
    """No message grows past `APPEND_BYTES_MAX` plus one entry; all of it is sent."""
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
    """Past the limit the leader answers `Overloaded`, and takes proposals again after a commit."""
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
    """`has_ready` stays true until all are out, each once and in order."""
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
    """The leader sends no append over a hole, and a snapshot only to a peer that answers."""
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


def test_a_failed_snapshot_is_asked_for_again_but_not_in_a_loop() -> None:
    """Only after the peer's next heartbeat answer."""
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


def test_an_offer_that_is_lost_is_repeated() -> None:
    """Each election timeout, while the peer waits for it."""
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


def test_an_offer_of_what_is_here_is_answered_at_once() -> None:
    """Nothing is pulled twice."""
    raft = replica(1, 1, 1)
    raft.step("b", AppendRequest(1, 3, 1, 3, []), 0)
    flush(raft)
    base = raft.log.base
    raft.step("b", SnapshotOffer(1, base, "s1"), 0)
    ready = flush(raft)
    assert ready.offer is None and sent(ready, AppendReply) == [AppendReply(1, True, 3)]


def test_two_snapshots_in_a_row() -> None:
    """The second finds the first's base in place."""
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
    """Thesis 3.10: `TimeoutNow` only at full match; who proposes meanwhile is sent to the target."""
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


def test_nobody_but_a_voter_can_be_handed_leadership() -> None:
    """A learner, a stranger and the leader itself are refused."""
    raft = leader(learners="d")
    for target in "adx":
        with pytest.raises(Refused):
            raft.transfer(target, 100)


def test_a_lone_voter_waits_for_its_disk_before_anybody_hears_of_its_term() -> None:
    """A learner must not hold entries of a term its leader can forget."""
    raft = replica(voters="a", learners="b")
    raft.tick(0)
    ready = raft.take()
    assert not ready.now and ready.hard is not None
    assert [type(m) for _, m in ready.after] == [AppendRequest] and raft.commit == 0
    raft.persisted(1, 1)
    assert raft.commit == 1


def test_a_follower_without_room_gets_small_entries_only() -> None:
    """Large ones it would not take, and they would be sent again and again; small ones keep it in the group.
    With room again it gets all, and nothing spins meanwhile. Before its first word nobody knows."""
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


def test_a_small_entry_behind_a_large_one_reaches_a_follower_without_room() -> None:
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
    """It could not take it; it is asked again with its next answer."""
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
