"""How far the compactor got in a group, so that it continues in the next turn."""

from dataclasses import dataclass

from nodeagent.model.limits import COMPACT_BYTES_MAX, COMPACT_KEYS_MAX, COMPACTIONS_MAX


@dataclass(slots=True)
class CompactionPass:
    """One pass over the changed tables and partitions of a group, in several turns; a new pass begins every
    `compact_every_ms`."""

    left: int
    """Tables and partitions that the pass has not checked yet."""

    moving: set[int]
    """Slots of the operation that was open when the pass began."""

    checked: int = 0
    runs: int = 0
    weight: int = 0

    @property
    def is_over(self) -> bool:
        """Whether everything was checked, or enough runs were chosen, or at least one run in
        `COMPACT_KEYS_MAX` pairs of table and partition. The pass is bounded because a group with many
        partitions would otherwise merge all the time, at the expense of the writers."""
        is_enough = self.runs >= COMPACTIONS_MAX or self.weight >= COMPACT_BYTES_MAX
        return not self.left or is_enough or (self.runs > 0 and self.checked >= COMPACT_KEYS_MAX)
