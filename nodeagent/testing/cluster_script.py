"""A run of a whole cluster with changes to its seed's plan, as text.

# S9: node2 has no rows of slot 3    the failure that it reproduces
# done: ...                          what happened in it
seed 12                              draws everything that is not stated here
noise 2                              draws the random events again; the plan stays the same
plan {"steps":["add_one"]}           changes to the seed's plan
"""

import random
from typing import Annotated

import msgspec
from msgspec import Meta

from nodeagent.model.errors import InvalidInput
from nodeagent.testing.cluster_plan import BURST_MS_MIN, STEPS, Plan
from nodeagent.testing.injector import WHOLE_KINDS
from nodeagent.testing.script import PlanChanges, read
from nodeagent.testing.workload import WriteProfile

Count = Annotated[int, Meta(ge=1)]

_DRAWN = Plan.draw(random.Random(0))
_NAMES = {"steps": STEPS, "kinds": WHOLE_KINDS, "limits": _DRAWN.limits, "node": _DRAWN.node}
"""Names allowed in a plan's fields: every seed draws values for the same limits and settings."""


class ClusterChanges(PlanChanges, frozen=True):
    """Changes to a cluster's plan."""

    steps: tuple[str, ...] | None = None
    nodes: Count | None = None
    replicas: Count | None = None
    groups: Count | None = None
    kinds: dict[str, Count] | None = None
    burst_ms: Annotated[int, Meta(ge=BURST_MS_MIN)] | None = None
    node: dict[str, int] | None = None
    limits: dict[str, int] | None = None
    restores: bool | None = None
    habits: WriteProfile | None = None
    staleness_ms: Annotated[int, Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        """Raises `ValueError` for unknown names."""
        for field, names in _NAMES.items():
            unknown = [name for name in getattr(self, field) or () if name not in names]
            if unknown:
                raise ValueError(f"unknown names in {field}: {', '.join(unknown)}")


class ClusterScript(msgspec.Struct, frozen=True):
    seed: int
    noise: int = 0
    plan: ClusterChanges = ClusterChanges()
    why: str = ""
    remarks: tuple[str, ...] = ()
    """The operations done, and the last events."""

    def to_text(self) -> str:
        remarks = [f"# {remark}" for remark in (self.why, *self.remarks)]
        return "\n".join([*remarks, f"seed {self.seed}", f"noise {self.noise}", self.plan.to_line()]) + "\n"

    @classmethod
    def from_text(cls, text: str) -> "ClusterScript":
        """Raises `InvalidInput` that names the line."""
        heads, remarks = read(text, {"seed": int, "noise": int, "plan": ClusterChanges}, _refuse)
        return cls(why=" ".join(remarks[:1]), remarks=tuple(remarks[1:]), **heads)


def _refuse(line: str) -> None:
    raise InvalidInput(
        f"not a line of a script: {line.strip()!r}", next_step="write seed, noise, plan or # REMARK"
    )
