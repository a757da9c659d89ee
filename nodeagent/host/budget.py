"""What one turn of the loop may still do."""

from dataclasses import dataclass, field

from nodeagent.model.entries import Entry
from nodeagent.model.limits import APPLY_BYTES_PER_TURN, APPLY_ENTRIES_PER_TURN
from nodeagent.raft.log import ENTRY_OVERHEAD_BYTES


@dataclass(slots=True)
class Budget:
    """Entries to apply, of all groups of a node together. What is left over waits for the next turn; all else
    that Raft has ready (appends, votes, heartbeats) is never held back."""

    entries: int = field(default=APPLY_ENTRIES_PER_TURN)
    nbytes: int = field(default=APPLY_BYTES_PER_TURN)

    @property
    def is_spent(self) -> bool:
        return self.entries <= 0 or self.nbytes <= 0

    def spend(self, entries: list[Entry]) -> None:
        self.entries -= len(entries)
        self.nbytes -= sum(len(e.data) for e in entries) + ENTRY_OVERHEAD_BYTES * len(entries)
