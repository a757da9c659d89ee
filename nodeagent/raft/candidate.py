"""Votes: who may have ours, and how an election of our own stands (thesis 3.4, 3.6.1, 9.6)."""

from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import VoteReply, VoteRequest
from nodeagent.raft.quorum import Verdict, count_votes
from nodeagent.raft.state import State


class Ballot:
    """Answers of one election or pre-vote; the first answer of each voter counts, and only once."""

    __slots__ = ("pre", "votes")

    def __init__(self, node: NodeId, pre: bool) -> None:
        self.pre = pre
        self.votes: dict[NodeId, bool] = {node: True}

    def record(self, voter: NodeId, granted: bool) -> None:
        self.votes.setdefault(voter, granted)

    def verdict(self, voters: tuple[NodeId, ...]) -> Verdict:
        return count_votes(voters, self.votes)


def is_up_to_date(state: State, request: VoteRequest) -> bool:
    """Whether the candidate's log is at least as good as ours (thesis 3.6.1), and as what we held once, or
    may have held (`HardState.held`). A replica that knows no config cannot tell."""
    ours = max(state.held, (state.log.last_term, state.log.last_index))
    return bool(state.log.config.voters) and (request.last_term, request.last_index) >= ours


def answer_pre_vote(state: State, candidate: NodeId, request: VoteRequest) -> None:
    """Say how we would vote; nothing is promised, so nothing changes here.

    A grant carries the candidate's coming term, else one that lags behind could never be helped; a
    refusal carries ours, so that the candidate catches up.
    """
    granted = request.term > state.term and is_up_to_date(state, request)
    term = request.term if granted else state.term
    state.after.append((candidate, VoteReply(term, granted, True)))


def answer_vote(state: State, candidate: NodeId, request: VoteRequest) -> bool:
    """Vote in our current term, or not; the same candidate is granted its vote again.

    Learners and nodes outside the config vote too when asked: theirs may lag behind the candidate's. One that
    knows no config does not.
    """
    assert request.term == state.term
    free = state.vote == candidate or (not state.vote and state.leader is None)
    granted = free and is_up_to_date(state, request)
    if granted and not state.vote:
        state.vote = candidate
        state.hard_changed = True
    state.after.append((candidate, VoteReply(state.term, granted, False)))
    return granted
