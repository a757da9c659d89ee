"""The recorded steps of a run, compared with the playbook as it is now."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from iotctl.errors import InputProblem
from iotctl.playbook.model import FAILED, Entry, Journal, RunnableVerb, StepResult
from iotctl.playbook.values import Values
from iotctl.spec.playbook import Playbook, StepEntry

_CHANGED = "the file, a variable or a registered result has changed since"


class History:
    """What the earlier attempts of a run recorded in its journal."""

    def __init__(
        self, playbook: Playbook, verbs: Mapping[str, RunnableVerb], values: Values, journal: Journal
    ) -> None:
        self._playbook = playbook
        self._verbs = verbs
        self._values = values
        self._journal = journal

    def outcomes(self) -> dict[str, Entry]:
        """Outcomes that still count, by step, including failures after which the run continued.

        The outcome of a step that only reads counts only if a later step has an intent (`begun`), and if
        the step failed or its result was neither registered nor written to a file (`out`). A check is not
        repeated then: a cluster that was healthy before a node was stopped is not healthy while this node is
        down. A registered result is not in the journal; a file may be stale or on another machine.
        """
        uses = dict(zip(self._playbook.ids, self._playbook.file.steps, strict=True))
        begun = self.begun()
        passed = max((i for i, own in enumerate(self._playbook.ids) if own in begun), default=0)

        def stands(own: str, step: StepEntry, result: StepResult | None) -> bool:
            if not self._verbs[step.uses].reads:
                return True
            failed = result is not None and result.state == FAILED
            is_used = not failed and (step.register or "out" in step.arguments)
            return not is_used and self._playbook.ids.index(own) < passed

        return {
            e.step: e
            for e in self._journal.entries()
            if e.event == "outcome" and e.step in uses and stands(e.step, uses[e.step], e.result)
        }

    def begun(self) -> set[str]:
        """Ids of the steps with an intent: not of those that only read, or found their work done."""
        return {e.step for e in self._journal.entries() if e.event == "intent"}

    def is_same(self, i: int, step: StepEntry, earlier: Entry, digest: str, unknown: str) -> bool:
        """Whether step `i` still has the arguments it ran with. If an approval has others, it is asked again.

        Args:
            digest: of the arguments now; "" if they are unknown.
            unknown: why they are unknown, or "".

        Raises:
            InputProblem: the arguments of any other step differ, or are unknown now.
        """
        if digest == earlier.digest:
            return True
        if step.uses == "approve":
            return False
        following = "start a new run without --resume"
        if unknown:
            ran, why = "before, and its arguments are unknown now", unknown
        else:
            ran, why = "with different arguments before", _CHANGED
            following = f"undo that change, or {following}"
        raise InputProblem(
            f"step {self._playbook.ids[i]} was run {ran}; this time, it and later steps were not run",
            why=why,
            next=following,
            where=self._playbook.marks.where("steps", i),
        )

    def digest(self, uses: str, arguments: Any) -> str:
        """Identifies a step's arguments without its secrets: a changed secret leaves the step the same, and
        the digest does not help to guess a secret."""
        text = self._values.redact(msgspec.json.encode([uses, arguments], order="sorted").decode())
        return hashlib.sha256(text.encode()).hexdigest()[:16]
