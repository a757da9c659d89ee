"""A run of the swarm with given faults, as text.

# S4: g1/3 differs                   the failure that it reproduces
seed 12                              draws everything that is not stated here
noise 2                              draws which messages are lost or late
length_ms 3121                       when the faults end
plan {"clients":1,"limits":{}}       changes to the seed's plan
    1204 down node=m1 power=true back_ms=220
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from nodeagent.model.errors import InvalidInput
from nodeagent.testing.injections import Timed, from_line, to_line


class PlanChanges(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Changes to the fields of a plan; None leaves a field as drawn."""

    def changed(self) -> dict[str, Any]:
        """The fields that are changed."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}

    def to_line(self) -> str:
        return f"plan {msgspec.json.encode(self).decode()}"


class Changes(PlanChanges, frozen=True):
    """Changes to a swarm's plan."""

    groups: int | None = None
    clients: int | None = None
    window: int | None = None
    limits: dict[str, int] | None = None


class Script(msgspec.Struct, frozen=True):
    seed: int
    faults: tuple[Timed, ...]
    noise: int = 0
    length_ms: int = 0
    """When the faults end; 0 for the time that the seed's plan gives."""

    plan: Changes = Changes()
    why: str = ""

    def to_text(self) -> str:
        heads = [
            f"# {self.why}",
            f"seed {self.seed}",
            f"noise {self.noise}",
            f"length_ms {self.length_ms}",
            self.plan.to_line(),
        ]
        return "\n".join([*heads, *map(to_line, self.faults)]) + "\n"

    @classmethod
    def from_text(cls, text: str) -> "Script":
        """Raises `InvalidInput` that names the line."""
        faults: list[Timed] = []
        types = {"seed": int, "noise": int, "length_ms": int, "plan": Changes}
        heads, remarks = read(text, types, lambda line: faults.append(from_line(line)))
        return cls(faults=tuple(faults), why=" ".join(remarks[:1]), **heads)


def read(
    text: str, types: Mapping[str, type], other: Callable[[str], None]
) -> tuple[dict[str, Any], list[str]]:
    """(values of the words in `types`, remarks).

    Args:
        other: handles any other line, or raises `InvalidInput`.

    Raises:
        InvalidInput: a line is invalid, or the script has no seed.
    """
    heads: dict[str, Any] = {}
    remarks: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        word, _, rest = line.strip().partition(" ")
        try:
            if word == "#":
                remarks.append(rest)
            elif word in types:
                heads[word] = msgspec.json.decode(rest, type=types[word])
            elif word:
                other(line)
        except (msgspec.DecodeError, InvalidInput) as error:
            raise InvalidInput(f"line {number}: {error}") from error
    if "seed" not in heads:
        raise InvalidInput("the script has no seed; add a line `seed NUMBER`")
    return heads, remarks
