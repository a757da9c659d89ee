"""`Raft.force`: a replica leads without votes in a group that lost its majority."""

import pytest

from nodeagent.model.entries import Base, Config, EntryKind, HardState
from nodeagent.model.errors import Refused
from nodeagent.model.raft_messages import AppendReply, AppendRequest, Heartbeat, HeartbeatReply, VoteRequest
from nodeagent.raft import Raft, RaftLog, Role

from .network import SETTINGS
from .single import flush, hold, leader, replica, sent

ALONE = Config(("a",), (), "op-9")
TWO = Config(("a", "b"), (), "op-9")


def test_a_single_survivor_commits_its_log_under_a_new_term_and_config() -> None:
    """Term and config are in one Ready; all entries of its log are kept, including uncommitted ones."""
    raft = replica(1, 1, 2)
    raft.force(ALONE, 40, 500)
    assert (raft.role, raft.term, raft.vote) == (Role.LEADER, 40, "a")
    ready = raft.take()
    assert ready.hard == HardState(40, "a") and ready.append is not None
    first, added = ready.append
    assert first == 4 and [e.term for e in added] == [40, 40], "a no-op and the config"
    assert ready.committed is None, "nothing is committed before it is durable"
    raft.persisted(5, 40)
    committed = raft.take().committed
    assert committed is not None and committed[0] == 1
    assert [e.data for e in committed[1][:3]] == [b"1", b"2", b"3"] and len(committed[1]) == 5
    assert raft.log.config == ALONE and raft.can_change()


def test_a_log_with_the_config_has_the_commands_that_came_with_it() -> None:
    raft = replica(1, 1, 2)
    assert raft.force(ALONE, 40, 500, [b"seal"]) == 5
    ready = raft.take()
    assert ready.append is not None
    assert [e.kind for e in ready.append[1]] == [EntryKind.NOOP, EntryKind.COMMAND, EntryKind.CONFIG]


def test_the_term_is_above_its_own_whatever_term_is_requested() -> None:
    raft = replica(7)
    raft.force(ALONE, 3, 500)
    assert raft.term == 8


def test_nothing_is_sent_before_term_and_config_are_durable() -> None:
    """Otherwise, after a crash, the replica could use the same term again with another log."""
    raft = replica(1, 1, voters="abcde")
    raft.force(TWO, 9, 500)
    ready = flush(raft, durable=False)
    assert not ready.now and sent(ready, AppendRequest, "b"), ready
    again = replica(1, 1, voters="abcde")  # after a crash it does the same again
    again.force(TWO, 9, 500)
    assert again.term == 9


def test_only_the_members_of_the_new_config_are_asked_and_counted() -> None:
    """Two of five survive: b is needed; c, d and e are neither asked nor counted."""
    raft = replica(1, 1, voters="abcde")
    raft.force(TWO, 9, 500)
    ready = flush(raft)
    assert {peer for peer, _ in ready.now + ready.after} == {"b"}
    assert raft.commit == 0
    hold(raft, "cde", 4)
    assert raft.commit == 0, "they are not in the config"
    hold(raft, "b", 4)
    assert raft.commit == 4


def test_a_follower_discards_entries_that_only_it_had_and_adopts_the_config() -> None:
    raft = replica(1, 1, 1, voters="abcde", node="b")
    head = replica(1, 2, voters="abcde")
    head.force(TWO, 9, 500)
    (append,) = (m for m in sent(flush(head), AppendRequest, "b") if isinstance(m, AppendRequest))
    for _ in range(4):
        raft.step("a", append, 600)
        reply = next(m for _, m in flush(raft).after if isinstance(m, AppendReply))
        head.step("b", reply, 600)
        append = next((m for m in sent(flush(head), AppendRequest, "b") if m.entries), append)
    assert raft.log.config == TWO and raft.term == 9
    assert [raft.log.term(i) for i in range(1, 5)] == [1, 2, 9, 9]


def test_force_is_refused_while_the_replica_leads_or_hears_a_leader() -> None:
    """A group that has a leader is not lost, whoever claims it; a leader that fell silent prevents
    nothing."""
    with pytest.raises(Refused):
        leader(1).force(ALONE, 40, 150)
    follower = replica(1)
    follower.step("b", Heartbeat(1, 0, 0, 0), 200)
    with pytest.raises(Refused):
        follower.force(ALONE, 40, 250)
    assert (follower.term, follower.role, follower.log.last_index) == (1, Role.FOLLOWER, 1)
    follower.force(ALONE, 40, 200 + SETTINGS.election_timeout_ms)
    assert follower.role is Role.LEADER


def test_force_is_refused_if_the_replica_is_no_voter_in_its_own_log() -> None:
    """A replica that has just joined holds no entry of the group."""
    joined = Raft("a", RaftLog(Base(0, 0, Config()), []), HardState(), SETTINGS, lambda: 0.0, 0, 0)
    for raft in (joined, replica(1, voters="bc", learners="a")):
        with pytest.raises(Refused):
            raft.force(ALONE, 40, 500)
        assert raft.role is Role.FOLLOWER and raft.term < 40


def test_a_candidate_can_be_forced_and_an_earlier_vote_request_changes_nothing() -> None:
    raft = replica(1)
    raft.tick(100)
    before = raft.role
    assert before is Role.PRE_CANDIDATE
    raft.force(ALONE, 40, 150)
    flush(raft)
    raft.step("b", VoteRequest(2, 9, 1, False, False), 160)
    raft.step("b", HeartbeatReply(1), 160)
    assert raft.role is Role.LEADER and raft.term == 40


def test_a_forced_config_is_known_from_the_log_after_a_restart() -> None:
    raft = replica(1, 1)
    raft.force(ALONE, 40, 500)
    flush(raft)
    base = raft.log.base
    entries = raft.log.slice(1, raft.log.last_index, 1 << 20)
    again = Raft("a", RaftLog(base, entries), HardState(40, "a"), SETTINGS, lambda: 0.0, 0, 0)
    assert again.log.config == ALONE
    again.tick(1)
    assert again.role is Role.LEADER, "the only voter waits for no other node"
