"""Failpoints at which a test stops an operation, so that a kill hits exactly the intended moment.

`after:STAGE` — the stage was entered and none of its work has begun, except that replicas may be created and
the meta group's members may change. `before:STAGE` — all work of the previous stage is done and the progress
report that would end it is held back. An agent accepts failpoints only if it was started for tests.
"""

from collections.abc import Collection

from nodeagent.meta import commands as meta
from nodeagent.model.operation import NEXT, Operation, Stage

_STAGES = (Stage.PLANNED, Stage.SEALED, Stage.OPEN, Stage.RECONFIGURING, Stage.COPYING, Stage.CLEANUP)

POINTS = tuple(
    point for stage in _STAGES for point in (f"after:{stage.name}", f"before:{NEXT[stage][0].name}")
)
"""In the order in which an operation passes them. Before PLANNED and after DONE there is nothing to hold."""

_LEAVING: dict[Stage, type | tuple[type, ...]] = {
    Stage.PLANNED: (meta.MetaReady, meta.GroupReady),
    Stage.SEALED: meta.SealedBy,
    Stage.OPEN: meta.OpenedBy,
    Stage.RECONFIGURING: meta.FormedBy,
    Stage.COPYING: meta.AdoptedBy,
    Stage.CLEANUP: meta.ReleasedBy,
}


def is_stopped(op: Operation, points: Collection[str]) -> bool:
    """Whether the work of the current stage must not begin."""
    return f"after:{op.stage.name}" in points


def is_kept_back(op: Operation, report: meta.Command, points: Collection[str]) -> bool:
    """Whether this progress report would take the operation past a failpoint."""
    leaving = _LEAVING.get(op.stage)
    return (
        leaving is not None and isinstance(report, leaving) and f"before:{NEXT[op.stage][0].name}" in points
    )
