"""Builds a leader's appends. Many learners get the same one."""

from nodeagent.model.limits import APPEND_BYTES_MAX, APPEND_ENTRIES_MAX, SMALL_APPEND_BYTES
from nodeagent.model.raft_messages import AppendRequest
from nodeagent.model.space import Room
from nodeagent.raft.progress import Progress, ProgressState
from nodeagent.raft.reads import LeaderReads
from nodeagent.raft.state import State

_REPLICATE = ProgressState.REPLICATE


class Appends:
    """What was made is valid during one flush of the leader, which then calls `clear`."""

    __slots__ = ("_made", "_reads", "_state")

    def __init__(self, state: State, reads: LeaderReads) -> None:
        self._state = state
        self._reads = reads
        self._made: dict[tuple[int, int, bool, int], AppendRequest] = {}

    def clear(self) -> None:
        self._made = {}

    def may_carry(self, progress: Progress, last: int) -> bool:
        """Whether an append may carry entries now. A follower with a full disk gets small appends only: it
        would refuse large ones, and they would be resent in a loop."""
        if progress.next > last or (progress.state is _REPLICATE and progress.is_full):
            return False
        log = self._state.log
        if progress.room != Room.FULL or progress.next <= log.base.index:
            return True
        return log.bytes_between(progress.next - 1, progress.next) <= SMALL_APPEND_BYTES

    def make(self, progress: Progress, last: int) -> AppendRequest | None:
        """The append with the entries from `progress.next` to `last`, or as many as fit; None if the entry
        before them is purged."""
        is_full = progress.room == Room.FULL
        key = (progress.next, last, is_full, progress.addition)
        made = self._made.get(key)
        if made is not None:
            return made
        state, prev = self._state, progress.next - 1
        prev_term = state.log.term(prev)
        if prev_term is None:
            return None
        most = SMALL_APPEND_BYTES if is_full else APPEND_BYTES_MAX
        entries = state.log.slice(prev + 1, min(last, prev + APPEND_ENTRIES_MAX), most) if last > prev else []
        read = self._reads.round if self._reads.is_open else 0
        made = AppendRequest(state.term, prev, prev_term, state.commit, entries, read, progress.addition)
        self._made[key] = made
        return made
