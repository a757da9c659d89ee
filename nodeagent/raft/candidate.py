"""Votes: which candidate a replica votes for, and the count of its own election (thesis 3.4, 3.6.1, 9.6)."""

from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import VoteReply, VoteRequest
from nodeagent.raft.quorum import Verdict, count_votes
from nodeagent.raft.state import State


class Ballot:
    """Answers in one election or pre-vote; only the first answer of each voter counts."""

    __slots__ = ("pre", "votes")

    def __init__(self, node: NodeId, pre: bool) -> None:
        self.pre = pre
        self.votes: dict[NodeId, bool] = {node: True}

    def record(self, voter: NodeId, granted: bool) -> None:
        self.votes.setdefault(voter, granted)

    def verdict(self, voters: tuple[NodeId, ...]) -> Verdict:
        return count_votes(voters, self.votes)


def is_up_to_date(state: State, request: VoteRequest) -> bool:
    """Whether the candidate's log is at least as up to date as this replica's log (thesis 3.6.1), and as any
    log that this replica may have held before (`HardState.held`). False for a replica without a config."""
    ours = max(state.held, (state.log.last_term, state.log.last_index))
    return bool(state.log.config.voters) and (request.last_term, request.last_index) >= ours


def answer_pre_vote(state: State, candidate: NodeId, request: VoteRequest) -> None:
    """Reply how this replica would vote. It promises nothing, so its state does not change.

    A grant carries the term that the candidate asks for, because a candidate in a newer term than this
    replica would drop an older term as stale. A refusal carries this replica's term, so that the candidate
    catches up.
    """
    granted = request.term > state.term and is_up_to_date(state, request)
    term = request.term if granted else state.term
    state.after.append((candidate, VoteReply(term, granted, True)))


def answer_vote(state: State, candidate: NodeId, request: VoteRequest) -> bool:
    """Grant or refuse a vote in the current term; repeat a grant if the same candidate asks again.

    Learners and nodes outside the config also vote when asked, as their config may be older than the
    candidate's. A replica without a config refuses.
    """
    assert request.term == state.term
    free = state.vote == candidate or (not state.vote and state.leader is None)
    granted = free and is_up_to_date(state, request)
    if granted and not state.vote:
        state.vote = candidate
        state.hard_changed = True
    state.after.append((candidate, VoteReply(state.term, granted, False)))
    return granted
