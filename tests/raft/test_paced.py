"""A leader with many learners: what it sends them, and when (`Peers.paced`)."""

from collections import Counter

import pytest

from nodeagent.model.entries import Config
from nodeagent.model.limits import PACED_HEARTBEATS
from nodeagent.model.raft_messages import AppendReply, AppendRequest, Heartbeat, HeartbeatReply
from nodeagent.raft import Raft

from .network import SETTINGS
from .single import flush, hold, leader_of, sent

LEARNERS = "defghijk"


@pytest.fixture
def raft(monkeypatch: pytest.MonkeyPatch) -> Raft:
    """It leads b and c, and more learners than are direct; all hold its no-op."""
    monkeypatch.setattr("nodeagent.model.limits.DIRECT_LEARNERS_MAX", len(LEARNERS) - 1)
    return leader_of(LEARNERS)


def test_learners_get_entries_once_they_are_committed(raft: Raft) -> None:
    """A commit costs one append per learner, which has the commit index: no heartbeat follows."""
    raft.propose([b"x"], 101)
    ready = flush(raft)
    assert {peer for peer, _ in ready.now} == {"b", "c"}
    raft.propose([b"y"], 102)
    flush(raft)
    hold(raft, "b", 2)
    ready = flush(raft)
    for peer in LEARNERS:
        (append,) = sent(ready, AppendRequest, peer)
        assert (append.commit, [e.data for e in append.entries]) == (2, [b"x"])
    hold(raft, LEARNERS, 2)
    ready = flush(raft)
    assert not {peer for peer, _ in ready.now} & set(LEARNERS)


def test_an_answer_of_one_learner_makes_no_work_for_the_others(raft: Raft) -> None:
    """A flush after each of a thousand replies would otherwise look at a thousand peers."""
    raft.propose([b"x"], 101)
    flush(raft)
    hold(raft, "b", 2)
    flush(raft)
    assert raft._lead is not None
    for peer in LEARNERS:
        hold(raft, peer, 2)
        assert not raft._lead.touched and not raft._lead.dirty


def test_learners_get_heartbeats_in_turn(raft: Raft) -> None:
    """Voters get every heartbeat. Each learner gets enough of them not to miss its leader, but a thousand
    learners do not get them in the same turn."""
    beats = Counter[str]()
    rounds = SETTINGS.election_timeout_ms // SETTINGS.heartbeat_ms
    most = -(-len(LEARNERS) * PACED_HEARTBEATS // rounds)
    for _ in range(rounds):
        raft.tick(raft.deadline())
        got = [peer for peer, m in flush(raft).now if isinstance(m, Heartbeat)]
        assert {"b", "c"} <= set(got) and len(got) == len(set(got)) and len(got) - 2 <= most
        beats.update(got)
        for peer in "bc":
            raft.step(peer, HeartbeatReply(1), raft.clock)
    assert min(beats[peer] for peer in LEARNERS) >= PACED_HEARTBEATS - 1
    assert max(beats[peer] for peer in LEARNERS) <= PACED_HEARTBEATS + 1


def test_a_read_asks_no_learner(raft: Raft) -> None:
    """Their answers do not count, and a thousand nodes ask for the age of their state."""
    raft.read(1, 101)
    assert {peer for peer, m in flush(raft).now if isinstance(m, Heartbeat)} == {"b", "c"}


def test_a_lost_append_is_found_by_a_heartbeat(raft: Raft) -> None:
    raft.propose([b"x"], 101)
    flush(raft)
    hold(raft, "b", 2)
    flush(raft)  # d does not receive its append
    raft.step("d", HeartbeatReply(1), 101 + SETTINGS.heartbeat_ms)
    (nudge,) = sent(flush(raft), AppendRequest, "d")
    assert nudge.prev_index == 2 and not nudge.entries
    raft.step("d", AppendReply(1, False, 2, 1, 1), 120)
    (again,) = sent(flush(raft), AppendRequest, "d")
    assert (again.prev_index, [e.data for e in again.entries]) == (1, [b"x"])
    hold(raft, "d", 2)
    raft.step("e", HeartbeatReply(1), 140)
    assert sent(flush(raft), AppendRequest, "e"), "only d has answered"


def test_a_learner_that_becomes_a_voter_gets_uncommitted_entries(raft: Raft) -> None:
    raft.change(Config(tuple("abcd"), tuple(LEARNERS[1:])), 101)
    appended = {peer for peer, m in flush(raft).now if isinstance(m, AppendRequest)}
    assert appended == {"b", "c", "d"} | set(LEARNERS[1:]), "few learners are direct"
    raft.propose([b"y"], 102)
    hold(raft, "bcd", 2)
    assert sent(flush(raft), AppendRequest, "d")


def test_a_learner_is_caught_up_although_entries_are_committed_all_the_time(raft: Raft) -> None:
    """It lags by a round trip: otherwise no node could join a busy group with many learners."""
    for index in range(2, 40):
        raft.tick(raft.clock + SETTINGS.heartbeat_ms // 2)
        raft.propose([b"x"], raft.clock)
        flush(raft)
        hold(raft, "bc", index)
        flush(raft)
        hold(raft, "d", index - 1)
        assert raft.commit == index and (index < 4 or raft.caught_up("d"))
    assert not raft.caught_up("e"), "it has not answered for many heartbeats"
