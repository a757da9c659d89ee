"""How much one turn of the loop may still apply."""

from dataclasses import dataclass, field

from nodeagent.model.limits import APPLY_BYTES_PER_TURN, APPLY_ENTRIES_PER_TURN


@dataclass(slots=True)
class Budget:
    """Entries to apply, for all groups of a node together. The rest waits for the next turn; everything else
    that Raft has ready (appends, votes, heartbeats) is never held back."""

    entries: int = field(default=APPLY_ENTRIES_PER_TURN)
    nbytes: int = field(default=APPLY_BYTES_PER_TURN)

    is_spent: bool = False

    def spend(self, entries: int, nbytes: int) -> None:
        """`nbytes` as the log counts them."""
        self.entries -= entries
        self.nbytes -= nbytes
        self.is_spent = self.entries <= 0 or self.nbytes <= 0
