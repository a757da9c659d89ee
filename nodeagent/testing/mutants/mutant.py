"""A planted bug."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replaces `old` with `new` in `file` of the package; `old` occurs exactly once."""

    name: str
    file: str
    old: str
    new: str
    breaks: str = ""
    """The safety invariant that it should break (`docs/internals/invariants.md`); "" if there is none."""

    unseen: str = ""
    """Why it never causes a failure in the simulator, if that is known; "" otherwise."""

    rule_of: str = ""
    """The package whose rule it breaks, if `file` is in another package."""

    @property
    def room(self) -> str:
        return self.rule_of or self.file.partition("/")[0]
