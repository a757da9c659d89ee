"""Watch an operation until it ends or waits for the operator, or a cluster until it is healthy; repeat
`--watch` commands."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from iotctl.cli.provisioning import provisioning
from iotctl.cli.session import Session, now_ms
from iotctl.errors import RefusedProblem, Unreachable
from nodeagent.model.errors import NodeAgentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iotctl.fleet.local import LocalFleet
    from iotctl.observe.model import ClusterStatus
    from iotctl.output.progress import Progress
    from nodeagent.model.operation import Operation


WATCH_S = 2.0


def repeated(session: Session, show: Callable[[], int], watch: bool) -> int:
    """Call `show` and return its exit code; with `watch`, call it until Ctrl-C despite unreachable nodes."""
    code = show()
    while watch:
        time.sleep(WATCH_S)
        try:
            show()
        except (NodeAgentError, Unreachable) as error:
            session.output.warn(error.what)
    return code


def after(shown: Sequence[str], lines: Sequence[str]) -> Sequence[str]:
    """The lines that were added to a log after the lines in `shown`.

    >>> after(["a", "b", "c"], ["b", "c", "d"])
    ['d']
    >>> after(["a", "b"], ["x", "y"])
    ['x', 'y']
    """
    for size in range(min(len(shown), len(lines)), 0, -1):
        if list(shown[-size:]) == list(lines[:size]):
            return lines[size:]
    return lines


def operation_progress(progress: Progress) -> Callable[[Operation], None]:
    """A callback that shows an operation's stage, its copied slots and what it waits for."""
    from iotctl.observe.operations import WAITS, blocked_on, describe_operation

    def update(operation: Operation) -> None:
        row = describe_operation(operation, now_ms=now_ms())
        moving = row.stage in ("COPYING", "CLEANUP", "DONE")
        phase = f"{row.id} {operation.title} {row.stage}"
        note = operation.last_error or ("" if row.stage == "COPYING" else blocked_on(operation))
        if row.state in WAITS:
            note = f"paused: {row.next}" if row.state == "paused" else f"waits for {row.blocked_on}"
        progress.update(phase, row.slots_done if moving else 0, row.slots_total if moving else 0, note=note)

    return update


def watch_operation(session: Session, operation: str) -> None:
    """Wait for `operation`, complete a removal (stop the agent, edit cluster.yaml), and print the operation.

    Raises:
        RefusedProblem: it was cancelled, or there is no such operation.
        Partly: the timeout expired first.
    """
    from iotctl.change.execute import finish_removal
    from iotctl.cli import views
    from iotctl.observe.operations import Operations, describe_operation, wait_operation

    with session.progress() as progress:
        found = wait_operation(
            session.cluster,
            operation,
            on_update=operation_progress(progress),
            timeout_s=session.options.timeout_s,
        )
    with session.progress() as progress, provisioning(session, progress) as provisioner:
        finish_removal(session.cluster, session.source, provisioner, found, session.output.note)
    row = describe_operation(found, now_ms=now_ms())
    session.output.emit("operations", Operations([row]), lambda: views.operation_tables([row]))
    if row.state == "cancelled":
        raise RefusedProblem(f"operation {row.id} was cancelled", why=row.last_error, next="iotctl ops list")
    if row.next:
        session.output.note(f"next: {row.next}")


def watch_healthy(
    session: Session, *, timeout_s: float | None = None, fleet: LocalFleet | None = None
) -> ClusterStatus:
    """Wait until no problem is an error, at most for `--timeout`, or for `timeout_s` without it.

    Args:
        fleet: its agents must keep running.

    Raises:
        Partly: the timeout passed first.
        Unreachable: a local agent exited.
    """
    from iotctl.lifecycle.startup import wait_healthy

    with session.progress() as progress:
        return wait_healthy(
            session.cluster,
            session.source,
            on_status=lambda s: progress.update(
                "nodes answering",
                sum(n.reachable for n in s.nodes),
                len(s.nodes),
                note=s.problems[0].message if s.problems else "",
            ),
            timeout_s=session.options.timeout_s or timeout_s,
            fleet=fleet,
        )
