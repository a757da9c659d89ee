"""Config changes: single steps, effective on append, rolled back, and the three schedules of 2015.

The 2015 schedules (Ongaro, raft-dev) start with a leader whose change reaches too few members; a second
leader makes another change, and the first leader comes back: two disjoint majorities. The rule that prevents
them: a leader must have committed an entry of its own term before it changes the config.

Numbers in docstrings are sections of the Raft thesis (Ongaro 2014).
"""

import pytest

from nodeagent.model.entries import Config
from nodeagent.model.errors import NotLeader, Refused
from nodeagent.model.raft_messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    VoteReply,
    VoteRequest,
)
from nodeagent.raft import ProgressState, Raft, Role, check_step

from .network import Cluster
from .single import flush, hold, leader, replica, sent


def config(voters: str, learners: str = "") -> Config:
    return Config(tuple(voters), tuple(learners))


@pytest.mark.parametrize(
    ("new", "allowed"),
    [
        (config("abc", "def"), True),
        (config("abc"), True),
        (config("abcd", "e"), True),
        (config("ab", "de"), True),
        (config("ab", "cde"), True),
        (config("abcde"), False),
        (config("abcf", "de"), False),
        (config("a", "de"), False),
        (config("abd", "e"), False),
        (config("abc", "de"), False),
        (config("abc", "cde"), False),
        (config("", "abcde"), False),
    ],
    ids=[
        "add a learner",
        "remove learners",
        "promote one",
        "remove one voter",
        "demote one voter",
        "promote two",
        "a voter that was no learner",
        "remove two voters",
        "swap",
        "nothing",
        "twice the same",
        "no voter left",
    ],
)
def test_one_step_changes_at_most_one_vote(new: Config, allowed: bool) -> None:
    """4.1: old and new majorities overlap if only one vote changes."""
    old = config("abc", "de")
    if allowed:
        check_step(old, new)
    else:
        with pytest.raises(Refused):
            check_step(old, new)


def learner_that_refused(index: int, term: int) -> Raft:
    """Learner d holds an entry of term 2 at index 2; a candidate whose log ends at (index, term) asks for its
    vote."""
    raft = replica(1, 2, voters="abc", learners="d", node="d")
    raft.step("a", VoteRequest(3, index, term, True), 10)
    (reply,) = sent(flush(raft), VoteReply, "a")
    assert isinstance(reply, VoteReply) and reply.granted == ((term, index) >= (2, 2))
    return raft


def test_a_learner_with_the_longest_log_leads_until_it_is_committed() -> None:
    """A leader sent an entry and lost its own copy. A candidate that holds the promotion of the learner needs
    the learner's vote, and denies its own vote to the other voters: no other node could ever win."""
    raft = learner_that_refused(5, 1)
    raft.tick(300)
    first = raft.role
    assert first is Role.PRE_CANDIDATE
    assert {peer for peer, m in flush(raft).now if isinstance(m, VoteRequest)} == set("abc")
    for pre in (True, False):
        raft.step("a", VoteReply(3, True, pre), 301)
        assert raft.role is (Role.PRE_CANDIDATE if pre else Role.CANDIDATE), "its own vote does not count"
        raft.step("b", VoteReply(3, True, pre), 302)
        flush(raft)
    elected = raft.role
    assert elected is Role.LEADER
    for peer in "ab":
        raft.step(peer, AppendReply(3, True, 3), 303)
    flush(raft)
    assert raft.commit == 3
    raft.tick(400)
    flush(raft)
    assert raft.role is Role.FOLLOWER


def test_a_learner_does_not_campaign_otherwise() -> None:
    """It does not campaign if no candidate asked, if its log is shorter, or if there is a leader."""
    quiet = replica(1, 2, voters="abc", learners="d", node="d")
    shorter, led = learner_that_refused(3, 2), learner_that_refused(5, 1)
    led.step("b", Heartbeat(3, 0), 20)
    heard_again, outrun = (replica(1, 2, voters="abc", learners="d", node="d") for _ in range(2))
    for raft in (heard_again, outrun):
        raft.step("b", Heartbeat(3, 0), 20)
    heard_again.step("a", VoteRequest(4, 5, 1, True), 300)
    heard_again.step("b", Heartbeat(3, 0), 310)
    outrun.step("a", VoteRequest(3, 5, 1, False), 30)
    for raft in (quiet, shorter, led, heard_again, outrun):
        raft.tick(600)
        raft.tick(900)
        assert raft.role is Role.FOLLOWER


def test_a_leader_changes_one_vote_at_a_time() -> None:
    cluster = Cluster("abc", "de")
    cluster.elect("a")
    cluster.tick(50)
    with pytest.raises(Refused):
        cluster["a"].change(config("abcde"), cluster.clock)
    assert cluster["a"].log.config == config("abc", "de")


def test_the_last_voter_cannot_be_removed() -> None:
    with pytest.raises(Refused, match="needs at least one voter"):
        check_step(config("a", "b"), config("", "ab"))


def second_leader_before_its_first_commit(first: Config) -> Cluster:
    """`a` appends `first` to its own log and to that of `e` only; `b` leads, and only `c` has its first
    entry."""
    cluster = Cluster("abcd", "ef")
    cluster.elect("a")
    cluster.isolate("a", "e")
    cluster["a"].change(first, cluster.clock)
    cluster.settle()
    cluster.clock += 200
    cluster["b"].tick(cluster.clock)
    while cluster["b"].role is not Role.LEADER:
        for name in "bcdf":
            cluster.nodes[name].work()
        cluster.deliver()
    cluster.cut |= {("b", "d")}
    cluster.settle()
    assert cluster["b"].commit < cluster["b"].log.last_index
    return cluster


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (config("abcde", "f"), config("bcd", "ef")),
        (config("abcde", "f"), config("abcdf", "e")),
        (config("acd", "ef"), config("bcd", "ef")),
    ],
    ids=["one add, one remove", "two adds", "two removes"],
)
def test_the_schedules_of_2015_are_stopped_at_the_second_leader(first: Config, second: Config) -> None:
    """The change is refused until an entry of the leader's own term is committed; then the first leader
    cannot return."""
    cluster = second_leader_before_its_first_commit(first)
    b = cluster["b"]
    assert not b.can_change()
    with pytest.raises(Refused):
        b.change(second, cluster.clock)
    cluster.cut.discard(("b", "d"))
    cluster.tick(50)
    assert b.can_change()
    b.change(second, cluster.clock)
    cluster.cut |= {("b", "d")}
    cluster.tick(20)
    assert b.log.config == second and b.commit == b.log.last_index
    cluster.heal()
    cluster.isolate("a", "e", "d")
    cluster.clock += 300
    cluster["a"].tick(cluster.clock)
    cluster.settle()
    assert cluster["a"].role is not Role.LEADER
    cluster.heal()
    cluster.tick(1000)
    name = cluster.leader()
    assert name is not None and cluster[name].log.config == second


def test_a_second_change_waits_for_the_first() -> None:
    """The second change is refused until the first one is committed."""
    raft = leader(learners="d")
    hold(raft, "b", 1)
    raft.change(config("abc"), 100)
    with pytest.raises(Refused):
        raft.change(config("abc", "d"), 100)
    flush(raft)
    hold(raft, "b", 2)
    raft.change(config("abc", "d"), 100)


def test_a_config_is_effective_from_its_append_on() -> None:
    """4.1: a promoted voter is needed at once: two of four no longer commit."""
    raft = leader(learners="d")
    hold(raft, "bc", 1)
    raft.change(config("abcd"), 100)
    flush(raft)
    hold(raft, "b", 2)
    assert raft.commit == 1
    hold(raft, "d", 2)
    assert raft.commit == 2


def test_a_learner_is_never_counted() -> None:
    """It counts neither for commit, nor for the quorum check, nor for reads."""
    raft = leader(voters="abc", learners="de")
    hold(raft, "de", 1)
    assert raft.commit == 0
    hold(raft, "b", 1)
    flush(raft)
    raft.tick(200)
    assert raft.role is Role.LEADER
    flush(raft)
    raft.read(1, 200)
    flush(raft)
    for peer in "de":
        raft.step(peer, HeartbeatReply(1, 1), 210)
    assert not flush(raft).reads
    raft.tick(300)
    assert raft.status().role is Role.FOLLOWER, "learners answered, voters did not"


def test_a_removed_leader_does_not_count_itself_and_stops_after_the_commit() -> None:
    """4.2.2: it leads until the others alone have committed its removal."""
    raft = leader()
    hold(raft, "bc", 1)
    raft.change(config("bc"), 100)
    with pytest.raises(NotLeader):
        raft.propose([b"x"], 100)
    flush(raft)
    hold(raft, "b", 2)
    assert raft.commit == 1 and raft.role is Role.LEADER
    hold(raft, "c", 2)
    assert raft.commit == 2 and raft.status().role is Role.FOLLOWER
    raft.tick(1000)
    assert raft.status().role is Role.FOLLOWER, "it never campaigns again"


def test_a_removed_leader_stays_for_entries_before_its_removal() -> None:
    """4.2.2: it stops only when the removal itself is committed."""
    raft = leader()
    hold(raft, "bc", 1)
    raft.propose([b"x"], 100)
    raft.change(config("bc"), 100)
    flush(raft)
    hold(raft, "bc", 2)
    assert raft.commit == 2 and raft.role is Role.LEADER


def test_a_learner_has_caught_up_when_it_holds_every_committed_entry() -> None:
    """A learner is promoted only if it holds every committed entry."""
    raft = leader(learners="d")
    hold(raft, "bc", 1)
    assert not raft.caught_up("d")
    hold(raft, "d", 1)
    assert raft.caught_up("d")
    raft.propose([b"x"], 100)
    flush(raft)
    hold(raft, "b", 2)
    assert not raft.caught_up("d") and not raft.caught_up("x")


def test_a_removed_member_that_returns_does_not_disturb_the_group() -> None:
    """It was disconnected when it was removed; its elections have no effect."""
    cluster = Cluster("abcd")
    cluster.elect("a")
    cluster.isolate("d")
    cluster["a"].change(config("abc"), cluster.clock)
    cluster.tick(400)
    term = cluster["a"].term
    cluster.heal()
    cluster.tick(1000)
    assert cluster.leader() == "a" and cluster["a"].term == term


def test_a_leaving_member_with_the_longest_log_campaigns_until_its_removal_is_committed() -> None:
    """4.2.2: of four voters, one is dead and one alone holds the entry that makes it a learner. The other two
    cannot win against its log, so it must lead; after the commit it steps down."""
    cluster = Cluster("abcd")
    cluster.elect("d")
    cluster.settle()
    cluster.crash("b")
    cluster.isolate("d")
    cluster["d"].change(config("abc", "d"), cluster.clock)
    cluster.settle()
    cluster.crash("d")
    cluster.heal()
    cluster.restart("d")
    assert cluster["d"].log.config == config("abc", "d"), "its disk contains the change"
    cluster.tick(10_000)
    assert cluster.leader() in ("a", "c")
    assert all(cluster[n].log.config == config("abc", "d") for n in "acd")
    assert all(cluster[n].commit == cluster["a"].log.last_index for n in "acd")


def test_a_member_that_is_removed_while_its_snapshot_is_made_does_not_block_the_change() -> None:
    """The late offer is dropped."""
    raft = leader(1, learners="d")
    hold(raft, "bc", 2)
    flush(raft)
    raft.compact(2)
    raft.step("d", HeartbeatReply(2), 120)
    flush(raft)
    raft.change(config("abc"), 120)
    raft.offer_snapshot("d", "s1")
    raft.snapshot_failed("d", 120)
    flush(raft)
    hold(raft, "b", 3)
    assert raft.can_change() and "d" not in raft.status().progress


def test_a_snapshot_carries_the_config_and_the_new_member() -> None:
    """An empty node learns the config of its group from the snapshot alone."""
    cluster = Cluster("abc", spare="d")
    cluster.elect("a")
    cluster["a"].change(config("abc", "d"), cluster.clock)
    cluster.isolate("d")
    cluster.settle()
    cluster.compact("a", cluster["a"].commit)
    cluster.heal()
    cluster.tick(100)
    assert cluster["d"].log.base.config == config("abc", "d")
    assert cluster["a"].status().progress["d"].state is ProgressState.REPLICATE


def test_a_late_answer_of_an_earlier_membership_does_not_count_for_the_next() -> None:
    """`d` was a member, left, lost its data and is added again; then a delayed acknowledgement arrives."""
    raft = leader(voters="abc", learners="d")
    hold(raft, "bcd", 1)
    raft.change(config("abc"), raft.clock)
    hold(raft, "bc", 2)
    raft.change(config("abc", "d"), raft.clock)
    hold(raft, "bc", 3)
    late = AppendReply(raft.term, True, 2)
    raft.step("d", late, raft.clock)
    assert raft.status().progress["d"].match == 0
    probe = sent(flush(raft), AppendRequest, "d")[-1]
    raft.step("d", AppendReply(raft.term, True, 3, addition=probe.addition), raft.clock)
    assert probe.addition == 3 and raft.status().progress["d"].match == 3
