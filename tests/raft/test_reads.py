"""ReadIndex (thesis 6.4): a read is answered only after a quorum has answered a round that began after the
read arrived."""

from nodeagent.model.limits import READS_PENDING_MAX
from nodeagent.model.raft_messages import Heartbeat, HeartbeatReply, ReadReply, ReadRequest
from nodeagent.raft import Raft

from .network import Cluster
from .single import flush, hold, leader, replica, sent


def reading_leader() -> Raft:
    raft = leader()
    hold(raft, "bc", 1)
    flush(raft)
    return raft


def test_an_old_answer_does_not_confirm_a_new_read_with_the_same_context() -> None:
    """Round numbers are never reused; contexts are ignored (etcd #20418)."""
    raft = reading_leader()
    raft.read(7, 100)
    assert sent(flush(raft), Heartbeat, "b") == [Heartbeat(1, 1, 1)]
    raft.step("c", HeartbeatReply(1, 1), 101)
    assert flush(raft).reads == [(7, 1)]
    raft.read(7, 102)
    flush(raft)
    raft.step("b", HeartbeatReply(1, 1), 103)
    assert flush(raft).reads == []
    raft.step("b", HeartbeatReply(1, 2), 104)
    assert flush(raft).reads == [(7, 1)]


def test_reads_wait_for_the_first_commit_of_the_term() -> None:
    """Before it, the leader does not know which entries are committed."""
    raft = leader(1, 1)
    raft.read(1, 100)
    assert all(m.read == 0 for m in sent(flush(raft), Heartbeat) if isinstance(m, Heartbeat))
    hold(raft, "b", 3)
    flush(raft)
    raft.step("b", HeartbeatReply(2, 1), 101)
    assert flush(raft).reads == [(1, 3)]


def test_pending_reads_are_bounded() -> None:
    """One read more than `READS_PENDING_MAX` fails at once."""
    raft = leader()
    for context in range(READS_PENDING_MAX + 1):
        raft.read(context, 100)
    assert flush(raft).reads_failed == [READS_PENDING_MAX]


def test_answered_reads_no_longer_count_as_pending() -> None:
    """The limit applies to pending reads, not to all reads so far."""
    raft = leader(voters="a")
    for _ in range(3):
        for context in range(READS_PENDING_MAX):
            raft.read(context, 100)
        assert len(flush(raft).reads) == READS_PENDING_MAX


def test_a_lone_voter_confirms_itself() -> None:
    """No other node can have been elected."""
    raft = leader(voters="a")
    raft.read(3, 100)
    assert flush(raft).reads == [(3, 1)]


def test_the_reads_of_a_follower_are_sent_to_the_leader_in_one_request() -> None:
    """One request carries all reads of a turn; an answer with another number is ignored."""
    raft = replica()
    raft.step("b", Heartbeat(1, 0), 0)
    for context in (4, 5):
        raft.read(context, 0)
    (request,) = sent(flush(raft), ReadRequest, "b")
    assert isinstance(request, ReadRequest)
    raft.step("b", ReadReply(1, request.read + 1, 9, True), 1)
    assert not flush(raft).reads
    raft.step("b", ReadReply(1, request.read, 8, True), 1)
    assert flush(raft).reads == [(4, 8), (5, 8)]
    raft.step("b", ReadReply(1, request.read, 8, True), 1)
    assert not flush(raft).reads


def test_a_forwarded_read_fails_in_time_with_the_leader_and_without_one() -> None:
    """A timeout is an error and never returns old data."""
    raft = replica()
    raft.read(1, 0)
    assert flush(raft).reads_failed == [1]
    raft.step("b", Heartbeat(1, 0), 0)
    raft.read(2, 0)
    flush(raft)
    raft.step("b", Heartbeat(1, 0), 90)
    raft.tick(raft.deadline())
    assert raft.clock == 100 and flush(raft).reads_failed == [2]
    raft.read(3, 100)
    flush(raft)
    raft.step("c", Heartbeat(2, 0), 101)
    assert flush(raft).reads_failed == [3]


def test_a_deposed_leader_answers_no_read() -> None:
    """S6: it was isolated and the others commit; its read fails instead of returning the old state."""
    cluster = Cluster("abc")
    cluster.elect("a")
    cluster.isolate("a")
    context = cluster.read("a")
    cluster.tick(400)
    old = cluster.nodes["a"]
    assert old.answered == [] and old.reads_failed == [context]


def test_a_leader_informs_followers_when_their_read_fails() -> None:
    """They need not wait for the timeout."""
    raft = reading_leader()
    raft.step("b", ReadRequest(1, 77), 100)
    flush(raft)
    raft.tick(200)
    raft.tick(300)
    assert sent(flush(raft), ReadReply, "b") == [ReadReply(1, 77, 0, False)]
