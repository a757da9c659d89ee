"""A run of the swarm with given faults, as text.

# S4: g1/3 differs                   what it was made for
seed 12                              all that is not said otherwise is as this seed draws it
noise 2                              which messages are lost and late
length_ms 3121                       then it is healed
plan {"clients":1,"limits":{}}       other than the seed's
    1204 down node=m1 power=true back_ms=220
"""

import msgspec

from nodeagent.model.errors import InvalidInput
from nodeagent.testing.injections import Timed, from_line, to_line


class Changes(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Of a swarm's plan; None: as it is drawn."""

    groups: int | None = None
    clients: int | None = None
    window: int | None = None
    limits: dict[str, int] | None = None


class Script(msgspec.Struct, frozen=True):
    seed: int
    faults: tuple[Timed, ...]
    noise: int = 0
    length_ms: int = 0
    """0: as long as the seed's."""

    plan: Changes = Changes()
    why: str = ""

    def to_text(self) -> str:
        heads = [
            f"# {self.why}",
            f"seed {self.seed}",
            f"noise {self.noise}",
            f"length_ms {self.length_ms}",
            f"plan {msgspec.json.encode(self.plan).decode()}",
        ]
        return "\n".join([*heads, *map(to_line, self.faults)]) + "\n"

    @classmethod
    def from_text(cls, text: str) -> "Script":
        """Raises `InvalidInput` with the line."""
        heads: dict[str, object] = {}
        faults: list[Timed] = []
        for number, line in enumerate(text.splitlines(), 1):
            word, _, rest = line.strip().partition(" ")
            try:
                if word == "#":
                    heads["why"] = rest
                elif word in ("seed", "noise", "length_ms", "plan"):
                    heads[word] = msgspec.json.decode(rest)
                elif word:
                    faults.append(from_line(line))
            except (msgspec.DecodeError, InvalidInput) as error:
                raise InvalidInput(f"line {number}: {error}") from error
        try:
            return msgspec.structs.replace(msgspec.convert(heads | {"faults": ()}, cls), faults=tuple(faults))
        except msgspec.ValidationError as error:
            raise InvalidInput(f"no script: {error}") from error
