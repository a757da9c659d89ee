"""One planted bug."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """In `file` of the package, `old` becomes `new`; `old` is there exactly once."""

    name: str
    file: str
    old: str
    new: str
    breaks: str = ""
    """The invariant that it is meant to break (`docs/internals/invariants.md`), where it is one of safety."""

    unseen: str = ""
    """Why nothing ever goes wrong by it in a run of the simulator, if that is known: what else holds it off."""

    rule_of: str = ""
    """Room whose rule it breaks, when the line stands in another."""

    @property
    def room(self) -> str:
        return self.rule_of or self.file.partition("/")[0]
