"""Points at which a test stops an operation, so that a kill falls where it says it does.

`after:STAGE` — the stage was entered and none of its work is begun. `before:STAGE` — all work of the stage
before is done and the evidence that would leave it is kept back. An agent knows them only when it was
started for tests.
"""

from collections.abc import Collection

from nodeagent.meta import commands as meta
from nodeagent.model.operation import NEXT, Operation, Stage

_STAGES = (Stage.PLANNED, Stage.SEALED, Stage.OPEN, Stage.FORMAL, Stage.MOVING, Stage.RELEASED)

POINTS = tuple(
    point for stage in _STAGES for point in (f"after:{stage.value}", f"before:{NEXT[stage][0].value}")
)
"""In the order an operation passes them. Before PLANNED and after DONE there is no operation to hold."""

_LEAVING: dict[Stage, type | tuple[type, ...]] = {
    Stage.PLANNED: (meta.MetaReady, meta.GroupReady),
    Stage.SEALED: meta.SealedBy,
    Stage.OPEN: meta.OpenedBy,
    Stage.FORMAL: meta.FormedBy,
    Stage.MOVING: meta.AdoptedBy,
    Stage.RELEASED: meta.ReleasedBy,
}


def is_stopped(op: Operation, points: Collection[str]) -> bool:
    """Whether nothing of the stage's work is to begin."""
    return f"after:{op.stage.value}" in points


def is_kept_back(op: Operation, evidence: meta.Command, points: Collection[str]) -> bool:
    """Whether `evidence` would take the operation past a point."""
    leaving = _LEAVING.get(op.stage)
    return (
        leaving is not None
        and isinstance(evidence, leaving)
        and f"before:{NEXT[op.stage][0].value}" in points
    )
