"""The types that the parts of a run share."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from iotctl.playbook.traits import Traits
from iotctl.spec.playbook import Verb

OK, CHANGED, SKIPPED, FAILED, PENDING = "ok", "changed", "skipped", "failed", "pending"
WOULD_CHANGE, NO_CHANGE, UNKNOWN, READS = "would_change", "no_change", "unknown", "reads"


class RunnableVerb(Verb, frozen=True):
    traits: Traits = Traits()


class Ran(msgspec.Struct, frozen=True):
    """A command that ended: its exit code, its document (None if there is none), and its text on stderr."""

    code: int
    document: Any
    stderr: str


class Inspection(msgspec.Struct, frozen=True):
    """What a step would do now.

    Attributes:
        state: `would_change`, `no_change` (its work is done already), `unknown`, or `reads` (the verb never
            changes anything and runs for its result).
        left: the nodes that still have something to do; None for all.
        operation: the run first runs `ops wait` for it: an open operation that does the work already or would
            make a plan stale, or an ended removal of which `ops wait` completes what is left to do.
        nodes: the nodes that the step works on, if its arguments name none or more than these.
    """

    state: str
    message: str = ""
    left: tuple[str, ...] | None = None
    operation: str = ""
    nodes: tuple[str, ...] = ()


def would(message: str, left: Sequence[str] | None = None, nodes: Sequence[str] = ()) -> Inspection:
    """The step would change something."""
    return Inspection(WOULD_CHANGE, message, None if left is None else tuple(left), nodes=tuple(nodes))


def done(message: str) -> Inspection:
    """The step's work is done."""
    return Inspection(NO_CHANGE, message)


def unknown(message: str) -> Inspection:
    """Only a run shows what the step does."""
    return Inspection(UNKNOWN, message.strip())


class Command(Protocol):
    def __call__(self, words: Sequence[str], timeout: str = "") -> Ran:
        """Run one iotctl command line to its end; never asks. Raises only if a signal ends the whole run."""


Inspect = Callable[[str, dict[str, Any]], Inspection]
"""Finds what a verb with these arguments would do now; changes nothing."""


class StepResult(msgspec.Struct, frozen=True):
    """`state`: ok, changed, skipped, failed or pending; in a check also would_change, no_change, unknown.
    `digest` identifies the arguments that ran. `undo` is the command that undoes the step, "" if there is
    none; `redo` is the command that undoes `undo`."""

    id: str
    name: str
    uses: str
    state: str
    seconds: float = 0.0
    message: str = ""
    next: str = ""
    code: int = 0
    line: int = 0
    digest: str = ""
    undo: str = ""
    redo: str = ""


class Report(msgspec.Struct, frozen=True):
    """`resume` is the command that continues the run, "" if nothing is left."""

    playbook: str
    run_id: str
    steps: list[StepResult]
    changed: int
    failed: int
    resume: str


class Entry(msgspec.Struct, frozen=True):
    """One line of a journal. `event`: `begun` (the whole run), `intent` and `outcome` (of a step), `ended`.

    An intent without an outcome means that the step may have run: inspect it. `by` is the operator who began
    the run, or, of `ended`, the one who abandoned it.
    """

    event: str
    time_ms: int
    step: str = ""
    digest: str = ""
    result: StepResult | None = None
    playbook: str = ""
    by: str = ""
    limit: tuple[str, ...] = ()
    """Of `begun`: the only nodes that the run works on; () for all."""


class Journal(Protocol):
    """The record of a run. `append` returns when the entry is durable."""

    @property
    def run_id(self) -> str: ...

    def append(self, entry: Entry) -> None: ...

    def entries(self) -> Sequence[Entry]: ...
