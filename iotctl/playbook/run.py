"""Run or check the steps of a playbook, one after the other.

Every step is inspected before it runs, so that a step whose work is done changes nothing. This also makes a
killed run resumable: a step that began but has no recorded outcome is inspected again. A step is
also inspected after it ran: if it ended without an error but its work is not done, it has failed.
"""

import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from iotctl.errors import Exit, InputProblem, IotctlError
from iotctl.playbook.command_line import command_line
from iotctl.playbook.history import History
from iotctl.playbook.model import (
    CHANGED,
    FAILED,
    NO_CHANGE,
    OK,
    PENDING,
    READS,
    SKIPPED,
    UNKNOWN,
    WOULD_CHANGE,
    Command,
    Entry,
    Inspect,
    Inspection,
    Journal,
    Ran,
    Report,
    RunnableVerb,
    StepResult,
)
from iotctl.playbook.outcome import failure_of, parts
from iotctl.playbook.uses import Use, after_earlier, can_look_again, undo_of
from iotctl.playbook.values import Values
from iotctl.spec.expression import BadExpression, condition, holds, substitute, text_of
from iotctl.spec.playbook import CONDITION, Playbook, StepEntry

OUTSIDE = "outside of --limit"
STILL_S = 15.0
"""How long the effect of a step may take to show: an agent that just started does not answer yet."""

POLL_S = 0.5
OnStep = Callable[[StepResult, int, int], None]
"""Called when a step begins (state `pending`) and when it ends, with its number and the number of steps; in a
check only with the result."""

BuiltIn = Callable[[dict[str, Any], Values, StepEntry, str], Ran]
"""Called with the arguments, all values, the step and its id."""


@dataclass(frozen=True)
class Tools:
    """What a run calls: commands, inspections, built-in verbs, progress and time."""

    command: Command
    inspect: Inspect
    built_in: Mapping[str, BuiltIn]
    on_step: OnStep = lambda result, number, total: None
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class RunOptions:
    """
    Attributes:
        by: the operator.
        again: the command that resumes the run.
        program: the start of a command line for this cluster, valid in every directory.
        limit: the only nodes that node steps work on; () for all.
    """

    by: str
    again: str
    program: Callable[[], Sequence[str]] = lambda: ("iotctl",)
    limit: Collection[str] = ()


class Runner:
    """One run of one playbook."""

    def __init__(
        self,
        playbook: Playbook,
        verbs: Mapping[str, RunnableVerb],
        values: Values,
        journal: Journal,
        tools: Tools,
        options: RunOptions,
    ) -> None:
        self._playbook = playbook
        self._verbs = verbs
        self._values = values
        self._journal = journal
        self._tools = tools
        self._options = options
        self._history = History(playbook, verbs, values, journal)

    def check(self) -> Report:
        """Report what a run would do; change nothing. A step is unknown if it needs the result of an earlier
        step, and a check does not run that step."""
        results: list[StepResult] = []
        earlier: list[Use] = []
        for i, step in enumerate(self._playbook.file.steps):
            result, use = self._checked(i, step, earlier)
            results.append(result)
            if result.state in (WOULD_CHANGE, UNKNOWN):
                earlier.append(use._replace(is_certain=result.state == WOULD_CHANGE))
            self._tools.on_step(result, i + 1, len(self._playbook.file.steps))
        would = sum(r.state == WOULD_CHANGE for r in results)
        return Report(
            self._playbook.file.name, "", results, would, sum(r.state == FAILED for r in results), ""
        )

    def run(self) -> Report:
        """Run the steps that are not done. Stop at the first failure, unless the step says `continue`.

        Raises:
            InputProblem: a step that ran has other arguments now, or the run began with another `--limit`.
            BusyProblem, RefusedProblem: another process has taken over the run or the lock.
        """
        done = self._history.outcomes()
        steps = self._playbook.file.steps
        limit = tuple(sorted(self._options.limit))
        if not self._journal.entries():
            name = self._playbook.file.name
            self._journal.append(Entry("begun", self._now(), playbook=name, by=self._options.by, limit=limit))
        elif self._journal.entries()[0].limit != limit:
            before = self._journal.entries()[0].limit
            raise InputProblem(
                f"the run was started for {', '.join(before) or 'all nodes'}; nothing was run",
                next="continue with --resume and "
                + (" ".join(f"--limit {n}" for n in before) or "no --limit"),
            )
        results: list[StepResult] = []
        stopped = False
        for i, step in enumerate(steps):
            own = self._playbook.ids[i]
            earlier = done.get(own)
            if stopped:
                results.append(self._result(i, step, PENDING))
                continue
            self._tools.on_step(self._result(i, step, PENDING), i + 1, len(steps))
            if (
                earlier is not None
                and earlier.result is not None
                and self._history.is_same(i, step, earlier, *self._digest_now(step))
            ):
                result = earlier.result
                if step.register and result.state != FAILED:
                    self._values.register(step.register, {"changed": result.state == CHANGED})
            else:
                result = self._run_step(i, step)
            results.append(result)
            self._tools.on_step(result, i + 1, len(steps))
            stopped = result.state == FAILED and step.on_failure != "continue"
        failed = sum(r.state == FAILED for r in results)
        if not stopped:
            self._journal.append(Entry("ended", self._now()))
        changed = sum(r.state == CHANGED for r in results)
        resume = self._options.again if stopped else ""
        return Report(self._playbook.file.name, self._journal.run_id, results, changed, failed, resume)

    # --- one step --------------------------------------------------------------------------------

    def _checked(self, i: int, step: StepEntry, earlier: Sequence[Use]) -> tuple[StepResult, Use]:
        """Check step `i`, which follows the `earlier` uses that would or might change something."""
        use = Use(self._verbs[step.uses], {})
        try:
            arguments = self._arguments_unless_skipped(i, step)
        except KeyError as error:  # an earlier step has not run
            return self._result(i, step, UNKNOWN, message=str(error.args[0])), use
        except BadExpression as error:
            return self._result(i, step, FAILED, message=str(error)), use
        if isinstance(arguments, StepResult):
            return arguments, use
        use = use._replace(arguments=arguments)
        try:
            found = self._tools.inspect(step.uses, arguments)
            # A step that writes a file or asks the operator is not run; steps that need it are unknown.
            if step.register and self._verbs[step.uses].traits.looks and "out" not in arguments:
                ran = self._apply(i, step, arguments, found)
                if ran.code == 0:
                    self._values.register(step.register, ran.document)
        except IotctlError as error:
            return self._result(i, step, UNKNOWN, message=error.what, next=error.next), use
        found = after_earlier(found, use, earlier)
        state = NO_CHANGE if found.state == READS else found.state
        return self._result(i, step, state, message=found.message), use

    def _run_step(self, i: int, step: StepEntry) -> StepResult:
        began = self._tools.clock()
        try:
            arguments = self._arguments_unless_skipped(i, step)
        except (KeyError, BadExpression) as error:
            message = str(error.args[0])
            return self._result(i, step, FAILED, message=message, code=5)
        if isinstance(arguments, StepResult):
            return arguments
        digest = self._history.digest(step.uses, arguments)
        try:
            found = self._settled(step, arguments)
        except IotctlError as error:
            return self._result(i, step, FAILED, message=error.what, next=error.next, code=int(error.exit))
        verb = self._verbs[step.uses]
        own = self._playbook.ids[i]
        if found.state == NO_CHANGE:
            # If the step began before the run was killed, the step itself did the work.
            state = CHANGED if own in self._history.begun() else OK
            result = self._result(i, step, state, began=began, message=found.message, digest=digest)
            return self._over(step, own, digest, result, None)
        if not verb.reads:
            self._journal.append(Entry("intent", self._now(), own, digest))
        ran = self._apply(i, step, arguments, found)
        result = self._outcome(i, step, found, ran, began, digest)
        if result.state == CHANGED and (undone := self._undone(step, arguments)):
            message = f"it ended without an error, but this is not done: {undone}"
            following = " ".join([*self._options.program(), "cluster", "status"])
            code = int(Exit.VERIFICATION)
            result = self._result(
                i, step, FAILED, began=began, message=message, next=following, code=code, digest=digest
            )
        if result.state in (CHANGED, FAILED):
            seconds = round(self._tools.clock() - began, 3)  # includes the second inspection
            redo, undo = self._undo(step, arguments, found)
            result = msgspec.structs.replace(result, redo=redo, undo=undo, seconds=seconds)
        if result.state == FAILED:
            if step.on_failure == "continue":
                self._journal.append(Entry("outcome", self._now(), own, digest, result))
            return result  # without an outcome in the journal: resume inspects it again
        return self._over(step, own, digest, result, ran.document)

    def _undo(self, step: StepEntry, arguments: dict[str, Any], before: Inspection) -> tuple[str, str]:
        """(the command that repeats the step, the command that undoes it); "" if no command undoes it.

        Args:
            before: the inspection before the step ran.
        """
        back = undo_of(Use(self._verbs[step.uses], arguments), before)
        if back is None:
            return "", ""

        def typed(verb: str, arguments: dict[str, Any]) -> str:
            words = command_line(msgspec.structs.replace(self._verbs[verb], asks=False), arguments)
            return self._values.redact(shlex.join([*self._options.program(), *words]))

        verb, about = back
        return typed(step.uses, about), typed(verb, about)

    def _undone(self, step: StepEntry, arguments: dict[str, Any]) -> str:
        """What a step without an error left undone; "" if nothing, or if an inspection cannot tell."""
        if not can_look_again(Use(self._verbs[step.uses], arguments)):
            return ""
        deadline = self._tools.clock() + STILL_S
        while True:
            try:
                found = self._tools.inspect(step.uses, arguments)
            except IotctlError:  # a cluster that was just stopped does not answer
                return ""
            if found.state != WOULD_CHANGE or found.operation:
                return ""
            if self._tools.clock() >= deadline:
                return found.message or "its work"
            self._tools.sleep(POLL_S)

    def _over(self, step: StepEntry, own: str, digest: str, result: StepResult, document: Any) -> StepResult:
        shown = document if self._verbs[step.uses].reads else {"changed": result.state == CHANGED}
        if step.register:
            self._values.register(step.register, shown)
        self._journal.append(Entry("outcome", self._now(), own, digest, result))
        return result

    def _arguments_unless_skipped(self, i: int, step: StepEntry) -> dict[str, Any] | StepResult:
        """The step's arguments, or its result if it is skipped."""
        if step.when and not holds(condition(step.when), self._values):
            return self._result(i, step, SKIPPED, message=f"when {step.when}")
        arguments = self._arguments(step)
        return self._result(i, step, SKIPPED, message=OUTSIDE) if arguments is None else arguments

    def _arguments(self, step: StepEntry) -> dict[str, Any] | None:
        """The step's arguments with all values inserted; conditions stay unevaluated.

        With a limit, `nodes` keeps only the nodes within the limit. None if none is left, if `node`, `old` or
        `new` is outside of the limit, or if the step works on the whole cluster.
        """
        parameters = {p.name: p for p in self._verbs[step.uses].parameters}
        conditions = {p.name for p in parameters.values() if p.type == CONDITION}
        found = {k: v if k in conditions else substitute(v, self._values) for k, v in step.arguments.items()}
        if not self._options.limit:
            return found
        named = {str(found[k]) for k in ("node", "old", "new") if k in found}
        if self._verbs[step.uses].traits.is_whole or not named <= set(self._options.limit):
            return None
        if "nodes" in parameters and parameters["nodes"].many:
            given = found.get("nodes") or sorted(self._options.limit)
            nodes = [
                n for n in (given if isinstance(given, list | tuple) else [given]) if n in self._options.limit
            ]
            return {**found, "nodes": nodes} if nodes else None
        return found

    def _settled(self, step: StepEntry, arguments: dict[str, Any]) -> Inspection:
        """Inspect the step; wait for each operation that an inspection names, and inspect again."""
        found, waited = self._tools.inspect(step.uses, arguments), set[str]()
        while found.operation and found.operation not in waited:
            waited.add(found.operation)
            self._tools.command(["ops", "wait", found.operation], step.timeout)
            found = self._tools.inspect(step.uses, arguments)
        return found

    def _apply(self, i: int, step: StepEntry, arguments: dict[str, Any], found: Inspection) -> Ran:
        """Run the command, once per batch with `serial`; leave out nodes whose work is done."""
        verb = self._verbs[step.uses]
        if not verb.words:
            return self._tools.built_in[verb.name](arguments, self._values, step, self._playbook.ids[i])
        if found.left is not None:
            arguments = {**arguments, "nodes": list(found.left)}
        nodes = arguments.get("nodes")
        batches = parts(nodes, step.serial) if step.serial and isinstance(nodes, list) else [nodes]
        last, changed = Ran(0, None, ""), 0
        for batch in batches:
            last = self._tools.command(self._words(step, {**arguments, "nodes": batch}), step.timeout)
            if last.code:
                return last
            if isinstance(last.document, dict):
                changed += int(last.document.get("changed", 0))
        if isinstance(last.document, dict) and "changed" in last.document:
            return msgspec.structs.replace(last, document={**last.document, "changed": changed})
        return last

    def _words(self, step: StepEntry, arguments: Mapping[str, Any]) -> list[str]:
        given = dict(arguments)
        if step.max_unavailable:
            given["max_unavailable"] = step.max_unavailable
        return command_line(self._verbs[step.uses], given)

    def _outcome(
        self, i: int, step: StepEntry, found: Inspection, ran: Ran, began: float, digest: str
    ) -> StepResult:
        if ran.code:
            message, following = failure_of(ran)
            return self._result(
                i, step, FAILED, began=began, message=message, next=following, code=ran.code, digest=digest
            )
        if found.state == READS:
            state = OK
        elif isinstance(ran.document, dict) and "changed" in ran.document:
            state = CHANGED if ran.document["changed"] else OK
        else:
            state = CHANGED
        return self._result(i, step, state, began=began, message=found.message, digest=digest)

    def _result(
        self,
        i: int,
        step: StepEntry,
        state: str,
        *,
        began: float | None = None,
        message: str = "",
        next: str = "",
        code: int = 0,
        digest: str = "",
    ) -> StepResult:
        try:
            name = text_of(substitute(step.name, self._values))
        except (KeyError, BadExpression):
            name = step.name
        mark = self._playbook.marks.marks.get(("steps", i))
        return StepResult(
            id=self._playbook.ids[i],
            name=self._values.redact(name) or self._playbook.ids[i],
            uses=step.uses,
            state=state,
            seconds=round(self._tools.clock() - began, 3) if began is not None else 0.0,
            message=self._values.redact(message),
            next=self._values.redact(next),
            code=code,
            line=mark.line if mark else 0,
            digest=digest,
        )

    def _digest_now(self, step: StepEntry) -> tuple[str, str]:
        """The digest of the step's arguments, and why they are unknown now; one of the two is ""."""
        try:
            return self._history.digest(step.uses, self._arguments(step)), ""
        except (KeyError, BadExpression) as error:
            return "", self._values.redact(str(error.args[0]))

    def _now(self) -> int:
        return int(self._tools.clock() * 1000)
