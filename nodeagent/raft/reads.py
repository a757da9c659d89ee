"""Linearizable reads without a log entry (ReadIndex, thesis 6.4), batched.

The leader puts all reads received since the last turn into one *round*: an increasing number that heartbeats
and appends carry and their replies echo. If a majority echoed it, the leader was still the leader after it
received the reads, so the commit index noted at the start of the round answers them. No number is reused
within a term, so an old echo cannot confirm a new round (etcd #20418).

A follower forwards its reads to the leader, each batch with a number of its own.
"""

from collections import deque

from nodeagent.model.ids import NodeId
from nodeagent.model.limits import READS_PENDING_MAX
from nodeagent.model.raft_messages import ReadReply
from nodeagent.raft.state import State

Origin = tuple[NodeId, int]
"""Requester of a read and its number: the leader's own node with a context, or a follower with its number."""


class LeaderReads:
    """Reads that a leader has not answered yet; at most `READS_PENDING_MAX`."""

    __slots__ = ("_count", "_rounds", "round", "waiting")

    def __init__(self) -> None:
        self.round = 0
        """Newest round."""

        self.waiting: list[Origin] = []
        """Not in a round yet."""

        self._rounds: deque[tuple[int, int, list[Origin]]] = deque()
        self._count = 0

    @property
    def is_open(self) -> bool:
        """Whether a round is not confirmed yet."""
        return bool(self._rounds)

    def add(self, origin: Origin) -> bool:
        """Returns False if there is no room."""
        if self._count >= READS_PENDING_MAX:
            return False
        self._count += 1
        self.waiting.append(origin)
        return True

    def open_round(self, commit: int) -> None:
        """Put the waiting reads into a new round, to be answered with `commit`."""
        self.round += 1
        self._rounds.append((self.round, commit, self.waiting))
        self.waiting = []

    def confirmed(self, up_to: int) -> list[tuple[Origin, int]]:
        """Remove and return the reads of rounds up to `up_to`, each with its read index."""
        answers: list[tuple[Origin, int]] = []
        while self._rounds and self._rounds[0][0] <= up_to:
            _, index, origins = self._rounds.popleft()
            answers.extend((origin, index) for origin in origins)
        self._count -= len(answers)
        return answers

    def drain(self) -> list[Origin]:
        """Remove and return every unanswered read, in order."""
        origins = [o for _, _, batch in self._rounds for o in batch] + self.waiting
        self._rounds.clear()
        self.waiting = []
        self._count = 0
        return origins


def fail_reads(state: State, origins: list[Origin]) -> None:
    """Report that a leader does not answer these reads."""
    for node, number in origins:
        if node == state.node:
            state.reads_failed.append(number)
        else:
            state.now.append((node, ReadReply(state.term, number, 0, False)))


class ForwardedReads:
    """Reads that a follower forwards to its leader; at most `READS_PENDING_MAX`, each until its deadline.

    Numbers start at a random value, so that a reply to an earlier process of this node matches none.
    """

    __slots__ = ("_count", "_number", "_sent", "deadline", "waiting")

    def __init__(self, start: int) -> None:
        self._number = start
        self.waiting: list[int] = []
        """Not sent yet."""

        self._sent: dict[int, tuple[list[int], int]] = {}
        self._count = 0
        self.deadline: int | None = None
        """When the oldest batch fails."""

    def add(self, context: int) -> bool:
        """Returns False if there is no room."""
        if self._count >= READS_PENDING_MAX:
            return False
        self._count += 1
        self.waiting.append(context)
        return True

    def send(self, deadline: int) -> int:
        """Number of a request that covers all waiting reads."""
        self._number += 1
        self._sent[self._number] = (self.waiting, deadline)
        self.waiting = []
        self._next_deadline()
        return self._number

    def answered(self, number: int) -> list[int]:
        """Remove and return the contexts of a request; empty if it is unknown or already answered."""
        contexts, _ = self._sent.pop(number, ([], 0))
        self._count -= len(contexts)
        self._next_deadline()
        return contexts

    def expired(self, now: int) -> list[int]:
        """Remove and return the contexts whose deadline has passed."""
        due = [number for number, (_, deadline) in self._sent.items() if deadline <= now]
        return [context for number in due for context in self.answered(number)]

    def drain(self) -> list[int]:
        """Remove and return every unanswered context."""
        contexts = [c for batch, _ in self._sent.values() for c in batch] + self.waiting
        self._sent.clear()
        self.waiting = []
        self._count = 0
        self.deadline = None
        return contexts

    def _next_deadline(self) -> None:
        # Deadlines increase with the numbers, and a dict keeps the order of insertion.
        self.deadline = next((deadline for _, deadline in self._sent.values()), None)
