"""How a follower handles its leader's messages (thesis 3.5), and replies to messages of an older term."""

from nodeagent.model.entries import Entry
from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    RaftMessage,
    ReadReply,
    ReadRequest,
    RelayedAppend,
    SnapshotOffer,
    VoteReply,
    VoteRequest,
)
from nodeagent.raft.state import State


def on_append(state: State, sender: NodeId, request: AppendRequest | RelayedAppend) -> None:
    """Accept the entries if the logs match at `prev_index`, otherwise reply where they might match."""
    read = request.read if isinstance(request, AppendRequest) else 0
    log = state.log
    prev, entries = request.prev_index, request.entries
    end = prev + len(entries)
    if prev < state.commit:
        # Committed entries are the same in both logs, purged or not (openraft #511).
        entries = entries[state.commit - prev :]
        prev = state.commit
        end = max(end, prev)
    elif log.term(prev) != request.prev_term:
        _reject(state, sender, request, read)
        return
    if entries:
        _store(state, prev, entries)
    # Commit and accept no further than `end`: our later entries may be an old leader's (copycat #265).
    state.commit_to(min(request.commit, end))
    state.accept(sender, end, read, request.addition)


def _reject(state: State, sender: NodeId, request: AppendRequest | RelayedAppend, read: int) -> None:
    log = state.log
    hint = log.last_not_after(request.prev_index, request.prev_term)
    hint_term = log.term(hint)
    assert hint_term is not None, f"{state.node}: {sender} disagrees below our base {log.base.index}"
    reply = AppendReply(state.term, False, request.prev_index, hint, hint_term, read, request.addition)
    state.after.append((sender, reply))


def _store(state: State, prev: int, entries: list[Entry]) -> None:
    """Append the new entries. Truncate only on a real conflict: an old request must not cut newer entries."""
    log = state.log
    overlap = min(len(entries), log.last_index - prev)
    if overlap > 0:
        # Equal terms at one index mean equal entries up to there (log matching, thesis 3.5).
        same = overlap
        if log.term(prev + overlap) != entries[overlap - 1].term:
            same = next(i for i in range(overlap) if log.term(prev + 1 + i) != entries[i].term)
            state.truncate(prev + 1 + same)
        prev += same
        entries = entries[same:]
        if not entries:
            return
    state.append(prev + 1, entries)


def on_heartbeat(state: State, leader: NodeId, beat: Heartbeat) -> None:
    """Learn the commit index. The reply promises no entry, so it does not wait for the disk."""
    # A member that lost its disk holds less than the leader believes (matrixone #25029).
    state.commit_to(min(beat.commit, state.log.last_index))
    state.now.append((leader, HeartbeatReply(state.term, beat.read, room=state.room)))


def on_offer(state: State, leader: NodeId, offer: SnapshotOffer) -> None:
    """Pass the offer to the caller, or acknowledge it if this replica already holds the state."""
    if offer.base.index <= state.commit:
        state.accept(leader, state.commit, 0, offer.addition)
    else:
        state.offer = (leader, offer)


def join(state: State, message: AppendRequest | Heartbeat | SnapshotOffer) -> None:
    """Handle the first message of a leader to an empty replica. The node may have been a member before
    and have lost its disk: until its log reaches the leader's current commit index, it votes as if it
    held every committed entry. The group does not need that vote before: the node is a learner until then."""
    index = message.base.index if isinstance(message, SnapshotOffer) else message.commit
    held = max(state.held, (message.term, index))
    if held != state.held:
        state.held = held
        state.hard_changed = True


def answer_stale(state: State, sender: NodeId, message: RaftMessage) -> None:
    """Reply with our term to a sender with an older term; an old reply gets no reply.

    Without this, a node that was partitioned off and has a higher term could never rejoin its group.
    """
    if isinstance(message, AppendRequest | RelayedAppend):
        state.after.append((sender, AppendReply(state.term, False, message.prev_index)))
    elif isinstance(message, Heartbeat | SnapshotOffer):
        state.after.append((sender, HeartbeatReply(state.term)))
    elif isinstance(message, VoteRequest):
        state.after.append((sender, VoteReply(state.term, False, message.pre)))
    elif isinstance(message, ReadRequest):
        state.after.append((sender, ReadReply(state.term, message.read, 0, False)))
