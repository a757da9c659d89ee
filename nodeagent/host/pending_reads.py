"""Strong reads of one group: each waits for a read index, then until the state has applied it."""

from collections.abc import Callable

from nodeagent.host.group_context import GroupContext
from nodeagent.model import limits
from nodeagent.model.errors import InvariantBroken

Waiting = tuple[Callable[[], None], Callable[[str], None]]
"""What to do when the read may run, and when it may not."""


class PendingReads:
    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._unconfirmed: dict[int, Waiting] = {}
        """By number; they wait for a read index."""

        self._confirmed: list[tuple[int, Waiting]] = []
        """(read index, read); they wait until the state has applied that index."""

        self._number = 0

    def read(self, then: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Run `then` when the state is at least as new as everything acknowledged before this call."""
        context = self._context
        if context.condition.stopped:
            failed(f"the replica of {context.group} is {context.condition.stopped}")
            return
        if len(self._unconfirmed) + len(self._confirmed) >= limits.READS_PENDING_MAX:
            failed("too many reads are waiting")
            return
        self._number += 1
        self._unconfirmed[self._number] = (then, failed)
        try:
            context.raft.read(self._number, context.effects.now)
        except Exception as error:
            raise InvariantBroken(f"a read in {context.group} stopped half way") from error

    def confirm(self, number: int, index: int) -> None:
        """A leader confirmed the read index of this read."""
        if number in self._unconfirmed:  # else the replica stopped and the read has failed
            self._confirmed.append((index, self._unconfirmed.pop(number)))

    def fail(self, number: int) -> None:
        """No leader confirmed the read index of this read."""
        if number in self._unconfirmed:
            self._unconfirmed.pop(number)[1]("no leader confirmed the read")

    def run(self, applied: int) -> None:
        """Run the confirmed reads whose index is applied."""
        if self._confirmed:
            ready = [waiting for i, waiting in self._confirmed if i <= applied]
            self._confirmed = [(i, waiting) for i, waiting in self._confirmed if i > applied]
            for then, _ in ready:
                then()

    def fail_all(self, why: str) -> None:
        for _, failed in (*self._unconfirmed.values(), *(w for _, w in self._confirmed)):
            failed(why)
        self._unconfirmed.clear()
        self._confirmed.clear()
