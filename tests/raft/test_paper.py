"""One test for each sentence of the Raft thesis (Ongaro 2014), with its section, and for known bugs of other
implementations."""

import pytest

from nodeagent.model.entries import Base, Config, Entry, EntryKind, HardState
from nodeagent.model.errors import NotLeader
from nodeagent.model.limits import APPEND_BYTES_MAX
from nodeagent.model.raft_messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    RaftMessage,
    SnapshotOffer,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from nodeagent.raft import Raft, Role
from nodeagent.raft.membership import encode_config

from .network import Cluster
from .single import entries, flush, hold, leader, replica, sent

# Terms and elections (3.3, 3.4, 3.6.1)


@pytest.mark.parametrize("start", [Role.FOLLOWER, Role.CANDIDATE, Role.LEADER])
def test_a_higher_term_makes_every_role_a_follower(start: Role) -> None:
    """3.3: if the term of a server is smaller, the server adopts the larger term and becomes a follower."""
    raft = leader() if start is Role.LEADER else replica()
    if start is Role.CANDIDATE:
        raft.tick(100)
        raft.step("b", VoteReply(1, True, True), 100)
    assert raft.role is start
    raft.step("c", AppendReply(9, False, 0), 100)
    assert (raft.role, raft.term, raft.vote) == (Role.FOLLOWER, 9, "")
    ready = raft.take()
    assert ready.hard is not None and ready.hard.term == 9


def test_a_request_with_a_stale_term_is_rejected() -> None:
    """3.3: the sender learns our term, and the log does not change."""
    raft = replica(1, 1, term=5)
    raft.step("b", AppendRequest(2, 1, 1, 2, entries(2)), 0)
    (reply,) = sent(flush(raft), AppendReply)
    assert reply == AppendReply(5, False, 1)
    assert raft.log.last_term == 1 and raft.commit == 0


def test_a_node_votes_once_per_term_and_again_for_the_same_candidate() -> None:
    """3.4: a node votes for at most one candidate per term; a repeated request gets the same answer."""
    raft = replica()
    for candidate, granted in (("b", True), ("c", False), ("b", True)):
        raft.step(candidate, VoteRequest(1, 0, 0, False), 0)
        (reply,) = sent(flush(raft), VoteReply, candidate)
        assert reply == VoteReply(1, granted, False)


def test_a_vote_survives_a_restart() -> None:
    """3.8: vote and term are persistent."""
    raft = replica(term=3, vote="b")
    raft.step("c", VoteRequest(3, 9, 3, False), 0)
    assert sent(flush(raft), VoteReply) == [VoteReply(3, False, False)]


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(2, 2, True), (3, 2, True), (1, 3, True), (1, 2, False), (9, 1, False)],
)
def test_the_voter_denies_a_log_less_up_to_date_than_its_own(
    last_index: int, last_term: int, granted: bool
) -> None:
    """3.6.1: the later last term wins, then the longer log."""
    raft = replica(1, 2)
    raft.step("b", VoteRequest(5, last_index, last_term, False), 0)
    assert sent(flush(raft), VoteReply) == [VoteReply(5, granted, False)]


def test_repeated_and_foreign_votes_do_not_elect() -> None:
    """Voters are counted, not replies; a node outside the config is no voter."""
    raft = replica(voters="abcde")
    raft.tick(100)
    for voter in "bc":
        raft.step(voter, VoteReply(1, True, True), 100)
    for voter in ("b", "b", "b", "x", "y"):
        raft.step(voter, VoteReply(1, True, False), 100)
    assert raft.role is Role.CANDIDATE
    raft.step("c", VoteReply(1, True, False), 100)
    assert raft.status().role is Role.LEADER


def test_a_pre_vote_answer_is_no_vote() -> None:
    """Late answers of the pre-vote do not count in the election."""
    raft = replica(voters="abcde")
    raft.tick(100)
    for voter in "bcde":
        raft.step(voter, VoteReply(1, True, True), 100)
    assert raft.role is Role.CANDIDATE


def test_a_pre_vote_changes_nothing_at_the_voter() -> None:
    """9.6: term, vote and election timer do not change. A grant carries the candidate's term."""
    raft = replica()
    before = (raft.term, raft.vote, raft.deadline())
    raft.step("b", VoteRequest(4, 0, 0, True), 50)
    ready = flush(raft)
    assert sent(ready, VoteReply) == [VoteReply(4, True, True)]
    assert (raft.term, raft.vote, raft.deadline()) == before and ready.hard is None


def test_a_pre_vote_for_our_own_term_is_refused_with_our_term() -> None:
    """The candidate lags; it learns the term instead of winning an election in it."""
    raft = replica(term=4)
    raft.step("b", VoteRequest(4, 9, 3, True), 0)
    assert sent(flush(raft), VoteReply) == [VoteReply(4, False, True)]


def test_a_grant_for_another_term_is_not_counted() -> None:
    """Delayed answers arrive several terms later."""
    raft = replica(term=4)
    raft.tick(100)
    for term in (3, 4, 6):
        raft.step("b", VoteReply(term, True, True), 100)
    assert raft.role is Role.PRE_CANDIDATE and raft.term == 4


def test_a_pre_candidate_that_votes_for_another_ends_its_own_campaign() -> None:
    """Otherwise it would raise the term against the candidate that it has just voted for."""
    raft = replica(term=4)
    raft.tick(100)
    raft.step("b", VoteRequest(4, 9, 3, False), 100)
    raft.step("c", VoteReply(5, True, True), 100)
    assert (raft.role, raft.term, raft.vote) == (Role.FOLLOWER, 4, "b")


def test_a_node_that_hears_a_leader_ignores_elections_that_the_leader_did_not_request() -> None:
    """4.2.3: a removed server must not disrupt the group; 3.10: a leadership transfer may."""
    raft = replica()
    raft.step("b", Heartbeat(1, 0), 10)
    flush(raft)
    for pre in (True, False):
        raft.step("c", VoteRequest(2, 9, 1, pre), 50)
        assert raft.term == 1 and not sent(flush(raft), VoteReply)
    raft.step("c", VoteRequest(2, 9, 1, False, True), 50)
    assert sent(flush(raft), VoteReply) == [VoteReply(2, True, False)]


def test_a_node_votes_again_after_an_election_timeout_without_its_leader() -> None:
    """4.2.3: a node refuses for the minimum election timeout after it heard from a current leader."""
    raft = replica()
    raft.step("b", Heartbeat(1, 0), 10)
    raft.step("c", VoteRequest(2, 9, 1, False), 110)
    assert sent(flush(raft), VoteReply) == [VoteReply(2, True, False)]


def test_learners_and_nodes_outside_the_config_vote_when_asked_but_never_campaign() -> None:
    """4.2.2: their config may lag behind the candidate's."""
    for raft in (replica(learners="d", node="d"), replica(node="d")):
        raft.tick(1000)
        assert raft.role is Role.FOLLOWER
        raft.step("a", TimeoutNow(0), 1000)
        assert raft.role is Role.FOLLOWER
        raft.step("a", VoteRequest(1, 0, 0, False), 1000)
        assert sent(flush(raft), VoteReply) == [VoteReply(1, True, False)]


def grants(raft: Raft, request: VoteRequest) -> bool:
    raft.step("b", request, 100)
    (reply,) = sent(flush(raft), VoteReply)
    assert isinstance(reply, VoteReply)
    return reply.granted


@pytest.mark.parametrize("pre", [True, False])
def test_a_member_that_returned_votes_for_no_log_shorter_than_its_former_log(pre: bool) -> None:
    """It acknowledged those entries: a majority must not elect a log that lacks them."""
    for last, is_enough in (((2, 7), False), ((1, 9), False), ((2, 8), True), ((3, 1), True)):
        raft = replica(1, 1, held=(2, 8), term=2)
        assert grants(raft, VoteRequest(4, last[1], last[0], pre)) is is_enough, last
    raft = replica(1, 3, held=(2, 8))
    assert not grants(raft, VoteRequest(4, 9, 2, pre)), "its own log, which is newer, decides"


@pytest.mark.parametrize("pre", [True, False])
def test_a_replica_without_a_config_votes_for_no_candidate(pre: bool) -> None:
    """It joins with an empty log, perhaps on a new disk; there is no voter before it has caught up."""
    assert not grants(replica(voters="", node="d"), VoteRequest(1, 0, 0, pre))


@pytest.mark.parametrize(
    "heard",
    [
        AppendRequest(3, 4, 2, 6, [], 0, 5),
        Heartbeat(3, 6, 0, 5),
        SnapshotOffer(3, Base(6, 2, Config(tuple("abc"), ("d",))), "s", 5),
    ],
)
def test_a_node_with_an_empty_log_votes_as_if_it_held_the_committed_entries(heard: RaftMessage) -> None:
    """It may have been a member before, with a disk that was lost."""
    raft = replica(voters="", node="d")
    raft.step("a", heard, 0)
    assert flush(raft).hard == HardState(3, "", (3, 6)), "also after a restart"
    config = Entry(2, int(EntryKind.CONFIG), encode_config(Config(tuple("abc"), ("d",))))
    raft.step("a", AppendRequest(3, 0, 0, 6, [config], 0, 5), 0)
    flush(raft)
    assert raft.log.config.voters and raft.held == (3, 6)
    raft.step("a", AppendRequest(3, 1, 2, 7, [], 0, 5), 0)
    assert raft.held == (3, 6), "from here on its own log decides"
    for last, is_enough in (((2, 9), False), ((3, 5), False), ((3, 6), True), ((4, 1), True)):
        assert grants(raft, VoteRequest(raft.term + 1, last[1], last[0], True)) is is_enough


def test_a_member_that_leaves_remembers_term_vote_and_last_entry() -> None:
    raft = replica(1, 1, 3, term=5, vote="c")
    assert raft.memory() == HardState(5, "c", (3, 3))
    assert replica(1, held=(3, 3)).memory().held == (3, 3), "the longer log of two memberships is kept"
    back = replica(node="d", held=(3, 3), term=5)
    back.step("a", VoteRequest(6, 4, 3, False), 0)
    assert flush(back).hard == HardState(6, "a", (3, 3)), "it stays on disk"


def test_a_leader_without_answers_from_a_quorum_steps_down() -> None:
    """6.2: its messages may still arrive, but only answers count."""
    raft = leader(voters="abcde")
    raft.step("b", HeartbeatReply(1), 150)
    raft.tick(200)
    assert raft.role is Role.FOLLOWER and raft.term == 1
    with pytest.raises(NotLeader):
        raft.propose([b"x"], 200)


def test_votes_and_their_requests_wait_for_the_disk_and_pre_votes_do_not() -> None:
    """3.8: persistent state is updated on stable storage before responding."""
    raft = replica()
    raft.tick(100)
    ready = raft.take()
    assert [m.pre for _, m in ready.now if isinstance(m, VoteRequest)] == [True, True] and not ready.after
    raft.step("b", VoteReply(1, True, True), 100)
    ready = raft.take()
    assert not ready.now and [type(m) for _, m in ready.after] == [VoteRequest, VoteRequest]
    assert ready.hard is not None and (ready.hard.term, ready.hard.vote) == (1, "a")


# Log replication (3.5)


def test_a_mismatch_is_refused_with_the_index_to_try_next() -> None:
    """3.5: a rejection carries the term of the conflict, so that one round skips a term."""
    raft = replica(1, 1, 2, 2, 2)
    raft.step("b", AppendRequest(5, 7, 4, 0, []), 0)
    assert sent(flush(raft), AppendReply) == [AppendReply(5, False, 7, 5, 2)]
    raft.step("b", AppendRequest(5, 4, 1, 0, []), 0)
    assert sent(flush(raft), AppendReply) == [AppendReply(5, False, 4, 2, 1)]


def test_a_conflict_deletes_the_entry_and_all_that_follow() -> None:
    """3.5 (figure 3.1, AppendEntries, step 3)."""
    raft = replica(1, 1, 1, 1)
    raft.step("b", AppendRequest(2, 1, 1, 0, entries(2)), 0)
    ready = flush(raft)
    assert ready.append == (2, entries(2))
    assert (raft.log.last_index, raft.log.last_term) == (2, 2)


def test_entries_already_there_do_not_shorten_the_log() -> None:
    """A delayed request must not cut newer matching entries."""
    raft = replica(1, 1, 1, 1)
    raft.step("b", AppendRequest(1, 0, 0, 0, entries(1, 1)), 0)
    ready = flush(raft)
    assert ready.append is None and raft.log.last_index == 4
    assert sent(ready, AppendReply) == [AppendReply(1, True, 2)]


def test_commit_advances_at_most_to_the_last_entry_of_the_request() -> None:
    """Later entries may be from an old leader."""
    raft = replica(1, 1, 1, 1)
    raft.step("b", AppendRequest(2, 1, 1, 4, []), 0)
    assert raft.commit == 1


def test_commit_never_decreases() -> None:
    """An old request carries an old commit index."""
    raft = replica(1, 1, 1)
    raft.step("b", AppendRequest(1, 3, 1, 3, []), 0)
    raft.step("b", AppendRequest(1, 1, 1, 1, []), 0)
    raft.step("b", Heartbeat(1, 2), 0)
    assert raft.commit == 3


def test_a_heartbeat_may_commit_more_than_an_emptied_member_holds() -> None:
    """The member does not commit more entries than it holds."""
    raft = replica(1)
    raft.step("b", Heartbeat(1, 7), 0)
    assert raft.commit == 1


def test_a_conflict_at_or_below_the_commit_index_is_a_broken_invariant() -> None:
    """Committed entries are never truncated."""
    raft = replica(1, 1, 1)
    raft.step("b", AppendRequest(1, 3, 1, 2, []), 0)
    raft.step("b", Heartbeat(1, 3), 0)
    raft.step("c", AppendRequest(2, 2, 1, 3, entries(2)), 0)
    assert raft.log.last_term == 1, "entries below commit are taken as equal"
    raft.commit = 2
    raft.log.truncate(3)
    raft.log.append(entries(1))
    with pytest.raises(AssertionError, match="conflict at 2"):
        raft.truncate(2)


def test_a_request_that_begins_before_the_base_is_no_conflict() -> None:
    """Purged entries are committed, so they match (openraft #511)."""
    raft = replica(1, 1, 1)
    raft.step("b", AppendRequest(1, 3, 1, 3, []), 0)
    flush(raft)
    raft.compact(3)
    raft.step("b", AppendRequest(1, 1, 1, 3, entries(1, 1, 1)), 0)
    ready = flush(raft)
    assert sent(ready, AppendReply) == [AppendReply(1, True, 4)]
    assert ready.append is not None and ready.append[0] == 4 and len(ready.append[1]) == 1


def test_an_acknowledgement_waits_for_the_disk() -> None:
    """3.8, S7: it is sent with `after`, in the Ready that carries the entries or in a later one."""
    raft = replica()
    raft.step("b", AppendRequest(1, 0, 0, 0, entries(1)), 0)
    ready = raft.take()
    assert ready.append is not None and not ready.now
    assert ready.after == [("b", AppendReply(1, True, 1))]


# Commitment (3.6.2)


def test_figure_8_an_old_entry_on_a_majority_is_not_committed_by_counting() -> None:
    """3.6.2, figure 3.7: only an entry of the leader's own term commits, and with it all entries before
    it."""
    raft = leader(1, 2, 2, voters="abcde")
    assert raft.log.last_index == 4
    hold(raft, "bcd", 3)
    assert raft.commit == 0
    hold(raft, "bc", 4)
    assert raft.commit == 4


def win(cluster: Cluster, name: str) -> None:
    """Elect `name` and stop before it sends its first append."""
    cluster.clock += 200
    while cluster[name].role is not Role.LEADER:
        if not cluster.wire:  # the first attempt may only teach it the others' term
            cluster.clock = max(cluster.clock, cluster[name].deadline())
            cluster[name].tick(cluster.clock)
        for node in cluster.nodes.values():
            if node.name not in cluster.down:
                node.work()
        cluster.deliver()
    cluster.wire.clear()


def test_figure_8_the_whole_schedule() -> None:
    """3.6.2: `x` of an old term is on three of five nodes, is not applied, and is replaced by `y`."""
    cluster = Cluster("abcde")
    cluster.elect("a")
    cluster.isolate("a")
    x = "x" * APPEND_BYTES_MAX  # fills an append, so that it is sent without the entry of the next term
    cluster["a"].propose([x.encode()], cluster.clock)
    cluster.settle()
    cluster.crash("a")
    win(cluster, "e")
    cluster.isolate("e")
    cluster["e"].propose([b"y"], cluster.clock)
    cluster.settle()
    cluster.crash("e")
    cluster.heal()
    cluster.restart("a")
    win(cluster, "a")
    cluster.isolate("b")
    a = cluster["a"]
    while {p: a.status().progress[p].match for p in "cd"} != {"c": 2, "d": 2}:
        for name in "acd":
            cluster.nodes[name].work()
        _, to, message = cluster.wire[0]
        if isinstance(message, AppendRequest) and message.prev_index == 2 == cluster[to].log.last_index:
            cluster.wire.pop(0)  # the entry of a's new term is lost
        else:
            cluster.deliver()
    assert a.commit < 2
    cluster.crash("a")
    cluster.heal()
    cluster.wire.clear()
    cluster.restart("e")
    win(cluster, "e")
    cluster.restart("a")
    cluster.tick(300)
    assert [cluster.applied_commands(n) for n in "abcde"] == [["y"]] * 5


def test_the_leaders_own_entry_counts_only_when_it_is_durable() -> None:
    """10.2.1: the leader writes while it sends; the completion of its disk write is its own
    acknowledgement."""
    raft = leader(durable=False)
    hold(raft, "b", 1)
    assert raft.commit == 0
    raft.persisted(1, 1)
    assert raft.commit == 1


def test_a_quorum_of_followers_commits_without_the_leaders_disk() -> None:
    """10.2.1: the leader may even commit before its own write is complete; it applies only afterwards."""
    raft = leader(durable=False)
    hold(raft, "bc", 1)
    assert raft.commit == 1 and flush(raft).committed is None
    raft.persisted(1, 1)
    assert flush(raft).committed is not None


def test_an_outdated_completion_is_ignored() -> None:
    """A write of another term proves nothing about the entry that is now at this index."""
    raft = leader(durable=False)
    raft.persisted(1, 7)
    assert raft.status().durable == 0
