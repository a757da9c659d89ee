"""What a run is made of: the words its parts share."""

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
    """One command that ended: its exit code, its document (None without one), and what it told people."""

    code: int
    document: Any
    told: str


class Inspection(msgspec.Struct, frozen=True):
    """What a step would do now. `state` is `would_change`, `no_change` (its work is done already), `unknown`,
    or `reads`: it never changes anything and is run for what it tells. `left`: of its nodes those with
    something left to do, None for all. `operation`: an open one that is doing it; it is waited for first.
    `nodes`: those it is about, where its arguments name none or more than these."""

    state: str
    message: str = ""
    left: tuple[str, ...] | None = None
    operation: str = ""
    nodes: tuple[str, ...] = ()


class Command(Protocol):
    def __call__(self, words: Sequence[str], timeout: str = "") -> Ran:
        """Run one iotctl command line to its end; never asks, never raises."""


Inspect = Callable[[str, dict[str, Any]], Inspection]
"""What a verb with these arguments would do now; looks, changes nothing."""


class StepResult(msgspec.Struct, frozen=True):
    """`state`: ok, changed, skipped, failed or pending; of a check also would_change, no_change, unknown.
    `digest` is that of its arguments as they were run; `undo` the command that takes it back, "" if there is
    none, and `redo` the one that takes `undo` back."""

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
    """`resume` is the command that goes on, "" when nothing is left."""

    playbook: str
    run_id: str
    steps: list[StepResult]
    changed: int
    failed: int
    resume: str


class Entry(msgspec.Struct, frozen=True):
    """One line of a journal. `event`: `begun` (the whole run), `intent` and `outcome` (of a step), `ended`.

    An intent without an outcome means: it may have happened, look.
    """

    event: str
    time_ms: int
    step: str = ""
    digest: str = ""
    result: StepResult | None = None
    playbook: str = ""
    by: str = ""
    limit: tuple[str, ...] = ()
    """Of `begun`: the only nodes it is about; () for all."""


class Journal(Protocol):
    """Kept so that `append` has returned only when the entry is durable."""

    @property
    def run_id(self) -> str: ...

    def append(self, entry: Entry) -> None: ...

    def entries(self) -> Sequence[Entry]: ...
