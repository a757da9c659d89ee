"""Linearizable reads without a log entry (ReadIndex, thesis 6.4), batched.

The leader gives all reads that came since the last turn one *round*: a number that only grows, sent with
every heartbeat and echoed. When a majority echoed it, the leader was still leader after the reads came, so
the commit index noted at the start of the round answers them. A number that is never used again cannot be
confirmed by an old echo (etcd #20418).

A follower forwards its reads to the leader under a number of its own.
"""

from collections import deque

from nodeagent.model.ids import NodeId
from nodeagent.model.limits import READS_PENDING_MAX

Origin = tuple[NodeId, int]
"""Who asked, and under which number: the leader's own node with a context, or a follower with its number."""


class LeaderReads:
    """Reads a leader has not answered yet; at most `READS_PENDING_MAX`."""

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
        """Whether some round is not confirmed."""
        return bool(self._rounds)

    def add(self, origin: Origin) -> bool:
        """False when there is no room."""
        if self._count >= READS_PENDING_MAX:
            return False
        self._count += 1
        self.waiting.append(origin)
        return True

    def open_round(self, commit: int) -> None:
        """Put what waits into a new round, to be answered with `commit`."""
        self.round += 1
        self._rounds.append((self.round, commit, self.waiting))
        self.waiting = []

    def confirmed(self, up_to: int) -> list[tuple[Origin, int]]:
        """A majority echoed round `up_to`: what can be answered, each with its read index."""
        answers: list[tuple[Origin, int]] = []
        while self._rounds and self._rounds[0][0] <= up_to:
            _, index, origins = self._rounds.popleft()
            answers.extend((origin, index) for origin in origins)
        self._count -= len(answers)
        return answers

    def drain(self) -> list[Origin]:
        """Everything unanswered, in order; nothing is left."""
        origins = [o for _, _, batch in self._rounds for o in batch] + self.waiting
        self._rounds.clear()
        self.waiting = []
        self._count = 0
        return origins


class ForwardedReads:
    """Reads a follower sent to its leader; at most `READS_PENDING_MAX`, each until its deadline.

    Numbers start at a random point, so that an answer to a former life of this node fits none.
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
        """False when there is no room."""
        if self._count >= READS_PENDING_MAX:
            return False
        self._count += 1
        self.waiting.append(context)
        return True

    def send(self, deadline: int) -> int:
        """Number for a request that stands for all waiting reads."""
        self._number += 1
        self._sent[self._number] = (self.waiting, deadline)
        self.waiting = []
        self._next_deadline()
        return self._number

    def answered(self, number: int) -> list[int]:
        """Contexts of that request; none when it is not ours or was answered before."""
        contexts, _ = self._sent.pop(number, ([], 0))
        self._count -= len(contexts)
        self._next_deadline()
        return contexts

    def expired(self, now: int) -> list[int]:
        """Contexts whose deadline has passed."""
        due = [number for number, (_, deadline) in self._sent.items() if deadline <= now]
        return [context for number in due for context in self.answered(number)]

    def drain(self) -> list[int]:
        """Every context without answer; nothing is left."""
        contexts = [c for batch, _ in self._sent.values() for c in batch] + self.waiting
        self._sent.clear()
        self.waiting = []
        self._count = 0
        self.deadline = None
        return contexts

    def _next_deadline(self) -> None:
        # Deadlines grow with the numbers, and a dict keeps the order of insertion.
        self.deadline = next((deadline for _, deadline in self._sent.values()), None)
