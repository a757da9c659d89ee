"""Run or check the steps of a playbook, one after the other.

Every step is looked at before it is run, so a step whose work is done already changes nothing; this is also
what makes a run that was killed resumable: an intent without outcome is looked at again, never assumed. And
it is looked at afterwards: a step that ended well and left its work undone has failed.
"""

import hashlib
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from iotctl.errors import Exit, InputProblem, IotctlError
from iotctl.playbook.command_line import command_line
from iotctl.playbook.inspect import Use, after_earlier, can_look_again, undo_of
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
from iotctl.spec.expression import BadExpression, at, condition, holds, substitute, text_of
from iotctl.spec.playbook import CONDITION, Playbook, StepEntry

REDACTED = "***"
OUTSIDE = "outside of --limit"
STILL_S = 15.0
"""How long what a step has done may take to be seen: an agent that was just started has yet to answer."""

POLL_S = 0.5
OnStep = Callable[[StepResult, int, int], None]
"""Hears a step's state, when it begins (`pending`) and when it is over, its number and how many there are."""

BuiltIn = Callable[[dict[str, Any], "Values", "StepEntry", str], Ran]
"""Gets the arguments, all values, the step and its id."""


class Values:
    """Variables and what steps registered, by path."""

    def __init__(self, variables: Mapping[str, Any], secrets: frozenset[str]) -> None:
        self._values: dict[str, Any] = dict(variables)
        self._secrets = secrets

    def register(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __call__(self, path: tuple[str | int, ...]) -> Any:
        if path[0] not in self._values:
            raise KeyError(f"{path[0]} is not known: the step that registers it did not run")
        return at(self._values[str(path[0])], path[1:])

    def redact(self, text: str) -> str:
        for secret in sorted(self._secrets, key=len, reverse=True):
            for shown in (repr(secret)[1:-1], msgspec.json.encode(secret).decode()[1:-1], secret):
                text = text.replace(shown, REDACTED)
        return text


class Runner:
    """One run of one playbook."""

    def __init__(
        self,
        playbook: Playbook,
        verbs: Mapping[str, RunnableVerb],
        values: Values,
        *,
        command: Command,
        inspect: Inspect,
        built_in: Mapping[str, BuiltIn],
        journal: Journal,
        by: str,
        again: str,
        program: Callable[[], Sequence[str]] = lambda: ("iotctl",),
        limit: Collection[str] = (),
        on_step: OnStep = lambda result, number, total: None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`limit`: only these nodes, of steps that are about nodes; () for all. `program`: how a command line
        about this cluster begins, wherever it is typed."""
        self._playbook = playbook
        self._verbs = verbs
        self._values = values
        self._command = command
        self._inspect = inspect
        self._built_in = built_in
        self._journal = journal
        self._by = by
        self._again = again
        self._program = program
        self._limit = limit
        self._on_step = on_step
        self._clock = clock
        self._sleep = sleep

    def check(self) -> Report:
        """What a run would do now; changes nothing. What depends on an earlier step's change is unknown."""
        results: list[StepResult] = []
        would_change: list[Use] = []
        for i, step in enumerate(self._playbook.file.steps):
            result = self._checked(i, step, would_change)
            results.append(result)
            self._on_step(result, i + 1, len(self._playbook.file.steps))
        would = sum(r.state == WOULD_CHANGE for r in results)
        return Report(
            self._playbook.file.name, "", results, would, sum(r.state == FAILED for r in results), ""
        )

    def run(self) -> Report:
        """Run what is not done yet. Stops at the first failure, unless the step says `continue`.

        Raises:
            InputProblem: a step that was run has other arguments now, or the run was about other nodes.
        """
        done = self._done()
        steps = self._playbook.file.steps
        limit = tuple(sorted(self._limit))
        if not self._journal.entries():
            name = self._playbook.file.name
            self._journal.append(Entry("begun", self._now(), playbook=name, by=self._by, limit=limit))
        elif self._journal.entries()[0].limit != limit:
            before = self._journal.entries()[0].limit
            raise InputProblem(
                f"the run was begun for {', '.join(before) or 'all nodes'}; nothing was run",
                next="go on with --resume and " + (" ".join(f"--limit {n}" for n in before) or "no --limit"),
            )
        results: list[StepResult] = []
        stopped = False
        for i, step in enumerate(steps):
            own = self._playbook.ids[i]
            earlier = done.get(own)
            if stopped:
                results.append(self._result(i, step, PENDING))
                continue
            self._on_step(self._result(i, step, PENDING), i + 1, len(steps))
            if earlier is not None and earlier.result is not None and self._is_same(i, step, earlier):
                result = earlier.result
                if step.register and result.state != FAILED:
                    self._values.register(step.register, {"changed": result.state == CHANGED})
            else:
                result = self._run_step(i, step)
            results.append(result)
            self._on_step(result, i + 1, len(steps))
            stopped = result.state == FAILED and step.on_failure != "continue"
        failed = sum(r.state == FAILED for r in results)
        if not stopped:
            self._journal.append(Entry("ended", self._now()))
        changed = sum(r.state == CHANGED for r in results)
        resume = self._again if stopped else ""
        return Report(self._playbook.file.name, self._journal.run_id, results, changed, failed, resume)

    # --- one step --------------------------------------------------------------------------------

    def _checked(self, i: int, step: StepEntry, earlier: list[Use]) -> StepResult:
        """`earlier`: what the steps before it would change; this one's is added."""
        try:
            if step.when and not holds(condition(step.when), self._values):
                return self._result(i, step, SKIPPED, message=f"when {step.when}")
            arguments = self._arguments(step)
            if arguments is None:
                return self._result(i, step, SKIPPED, message=OUTSIDE)
        except KeyError as error:  # a step before it has not run
            return self._result(i, step, UNKNOWN, message=str(error.args[0]))
        except BadExpression as error:
            return self._result(i, step, FAILED, message=str(error))
        try:
            found = self._inspect(step.uses, arguments)
            # What writes a file or asks a person is left for the run; what depends on it is unknown then.
            if step.register and self._verbs[step.uses].traits.looks and "out" not in arguments:
                ran = self._apply(i, step, arguments, found)
                if ran.code == 0:
                    self._values.register(step.register, ran.document)
        except IotctlError as error:
            return self._result(i, step, UNKNOWN, message=error.what, next=error.next)
        use = Use(self._verbs[step.uses], arguments)
        found = after_earlier(found, use, earlier)
        if found.state == WOULD_CHANGE:
            earlier.append(use)
        state = NO_CHANGE if found.state == READS else found.state
        return self._result(i, step, state, message=found.message)

    def _run_step(self, i: int, step: StepEntry) -> StepResult:
        began = self._clock()
        try:
            if step.when and not holds(condition(step.when), self._values):
                return self._result(i, step, SKIPPED, message=f"when {step.when}")
            arguments = self._arguments(step)
            if arguments is None:
                return self._result(i, step, SKIPPED, message=OUTSIDE)
        except (KeyError, BadExpression) as error:
            message = str(error.args[0])
            return self._result(i, step, FAILED, message=message, code=5)
        digest = self._digest(step.uses, arguments)
        try:
            found = self._settled(step, arguments)
        except IotctlError as error:
            return self._result(i, step, FAILED, message=error.what, next=error.next, code=int(error.exit))
        verb = self._verbs[step.uses]
        own = self._playbook.ids[i]
        if found.state == NO_CHANGE:
            # Begun by this run before it was killed, and done since: it did change something.
            state = CHANGED if own in self._begun() else OK
            result = self._result(i, step, state, began=began, message=found.message, digest=digest)
            return self._over(step, own, digest, result, None)
        if not verb.reads:
            self._journal.append(Entry("intent", self._now(), own, digest))
        ran = self._apply(i, step, arguments, found)
        result = self._outcome(i, step, found, ran, began, digest)
        if result.state == CHANGED and (undone := self._undone(step, arguments)):
            message = f"it ended without an error, and left undone: {undone}"
            following = " ".join([*self._program(), "cluster", "status"])
            code = int(Exit.VERIFICATION)
            result = self._result(
                i, step, FAILED, began=began, message=message, next=following, code=code, digest=digest
            )
        if result.state in (CHANGED, FAILED):
            seconds = round(self._clock() - began, 3)  # with the second look
            redo, undo = self._undo(step, arguments, found)
            result = msgspec.structs.replace(result, redo=redo, undo=undo, seconds=seconds)
        if result.state == FAILED:
            if step.on_failure == "continue":
                self._journal.append(Entry("outcome", self._now(), own, digest, result))
            return result  # without an outcome: resume looks again
        return self._over(step, own, digest, result, ran.document)

    def _undo(self, step: StepEntry, arguments: dict[str, Any], before: Inspection) -> tuple[str, str]:
        """The commands that do again and take back what the step did, `before` being the look at it; "" if
        none takes it back."""
        back = undo_of(Use(self._verbs[step.uses], arguments), before)
        if back is None:
            return "", ""

        def typed(verb: str, arguments: dict[str, Any]) -> str:
            words = command_line(msgspec.structs.replace(self._verbs[verb], asks=False), arguments)
            return self._values.redact(shlex.join([*self._program(), *words]))

        verb, about = back
        return typed(step.uses, about), typed(verb, about)

    def _undone(self, step: StepEntry, arguments: dict[str, Any]) -> str:
        """What a step that ended well left undone, "" for nothing and where a look cannot tell."""
        if not can_look_again(Use(self._verbs[step.uses], arguments)):
            return ""
        deadline = self._clock() + STILL_S
        while True:
            try:
                found = self._inspect(step.uses, arguments)
            except IotctlError:  # a cluster that was just stopped answers nobody
                return ""
            if found.state != WOULD_CHANGE or found.operation:
                return ""
            if self._clock() >= deadline:
                return found.message or "its work"
            self._sleep(POLL_S)

    def _over(self, step: StepEntry, own: str, digest: str, result: StepResult, document: Any) -> StepResult:
        told = document if self._verbs[step.uses].reads else {"changed": result.state == CHANGED}
        if step.register:
            self._values.register(step.register, told)
        self._journal.append(Entry("outcome", self._now(), own, digest, result))
        return result

    def _arguments(self, step: StepEntry) -> dict[str, Any] | None:
        """With every value in its place; a condition stays as it is written, for who evaluates it. None: the
        step is about nodes, and about none of those the run is limited to."""
        parameters = {p.name: p for p in self._verbs[step.uses].parameters}
        conditions = {p.name for p in parameters.values() if p.type == CONDITION}
        found = {k: v if k in conditions else substitute(v, self._values) for k, v in step.arguments.items()}
        if not self._limit:
            return found
        named = {str(found[k]) for k in ("node", "old", "new") if k in found}
        if self._verbs[step.uses].traits.is_whole or not named <= set(self._limit):
            return None
        if "nodes" in parameters and parameters["nodes"].many:
            given = found.get("nodes") or sorted(self._limit)
            nodes = [n for n in (given if isinstance(given, list | tuple) else [given]) if n in self._limit]
            return {**found, "nodes": nodes} if nodes else None
        return found

    def _settled(self, step: StepEntry, arguments: dict[str, Any]) -> Inspection:
        """The look, after operations that are doing this step's work already have ended."""
        found, waited = self._inspect(step.uses, arguments), set[str]()
        while found.operation and found.operation not in waited:
            waited.add(found.operation)
            self._command(["ops", "wait", found.operation], step.timeout)
            found = self._inspect(step.uses, arguments)
        return found

    def _apply(self, i: int, step: StepEntry, arguments: dict[str, Any], found: Inspection) -> Ran:
        """One command, or one for each part of its nodes with `serial`; nodes that are done are left out."""
        verb = self._verbs[step.uses]
        if not verb.words:
            return self._built_in[verb.name](arguments, self._values, step, self._playbook.ids[i])
        if found.left is not None:
            arguments = {**arguments, "nodes": list(found.left)}
        nodes = arguments.get("nodes")
        batches = parts(nodes, step.serial) if step.serial and isinstance(nodes, list) else [nodes]
        last, changed = Ran(0, None, ""), 0
        for batch in batches:
            last = self._command(self._words(step, {**arguments, "nodes": batch}), step.timeout)
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
            message, following = _failure(ran)
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
            seconds=round(self._clock() - began, 3) if began is not None else 0.0,
            message=self._values.redact(message),
            next=self._values.redact(next),
            code=code,
            line=mark.line if mark else 0,
            digest=digest,
        )

    # --- the journal -----------------------------------------------------------------------------

    def _done(self) -> dict[str, Entry]:
        """Outcomes that stand, failures that the run went on after among them.

        What was only read is read again, except by a step that let a later one begin and told it nothing: a
        cluster that was healthy before a node was stopped is not while it is down. What it wrote (`out`) may
        be on another machine, and may not be true any more.
        """
        uses = dict(zip(self._playbook.ids, self._playbook.file.steps, strict=True))
        begun = self._begun()
        passed = max((i for i, own in enumerate(self._playbook.ids) if own in begun), default=0)

        def stands(own: str, step: StepEntry, result: StepResult | None) -> bool:
            if not self._verbs[step.uses].reads:
                return True
            failed = result is not None and result.state == FAILED
            told = not failed and (step.register or "out" in step.arguments)
            return not told and self._playbook.ids.index(own) < passed

        return {
            e.step: e
            for e in self._journal.entries()
            if e.event == "outcome" and e.step in uses and stands(e.step, uses[e.step], e.result)
        }

    def _begun(self) -> set[str]:
        return {e.step for e in self._journal.entries() if e.event == "intent"}

    def _is_same(self, i: int, step: StepEntry, earlier: Entry) -> bool:
        """What was run must be what the file says; a later step may have been mended. Who approved of
        something else is asked again: False."""
        try:
            now = self._digest(step.uses, self._arguments(step))
        except (KeyError, BadExpression):
            now = ""
        if now != earlier.digest and step.uses == "approve":
            return False
        if now != earlier.digest:
            raise InputProblem(
                f"step {self._playbook.ids[i]} was run with other arguments; it and what follows was not run",
                why="the file or a variable has changed since",
                next="undo that change, or begin a new run without --resume",
                where=self._playbook.marks.where("steps", i),
            )
        return True

    def _digest(self, uses: str, arguments: Any) -> str:
        """Without the secrets: a new one makes no other step, and none can be guessed from it."""
        text = self._values.redact(msgspec.json.encode([uses, arguments], order="sorted").decode())
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _now(self) -> int:
        return int(self._clock() * 1000)


def parts(nodes: Sequence[Any], serial: Sequence[Any]) -> list[list[Any]]:
    """`nodes` cut as `serial` says; its last part holds for the rest.

    >>> parts(["a", "b", "c", "d", "e"], [1, "50%"])
    [['a'], ['b', 'c'], ['d', 'e']]
    """
    made: list[list[Any]] = []
    left = list(nodes)
    sizes = [_size(s, len(nodes)) for s in serial]
    while left:
        size = sizes[min(len(made), len(sizes) - 1)]
        made.append(left[:size])
        left = left[size:]
    return made


def _size(part: Any, total: int) -> int:
    text = str(part)
    return max(1, total * int(text[:-1]) // 100) if text.endswith("%") else int(text)


def _failure(ran: Ran) -> tuple[str, str]:
    """(what and why, the next command)."""
    error = ran.document.get("error") if isinstance(ran.document, dict) else None
    if not isinstance(error, dict):
        return _first_problem(ran.document) or (f"it ended with exit code {ran.code}", "")
    why = f": {error['why']}" if error.get("why") else ""
    return f"{error.get('what', '')}{why}", str(error.get("next", ""))


def _first_problem(document: Any) -> tuple[str, str] | None:
    """Of a document that tells of problems itself, such as those of `check`, `status` and `verify`."""
    if not isinstance(document, dict):
        return None
    for key in ("findings", "problems", "mismatches", "unread"):
        for one in document.get(key) or ():
            if isinstance(one, dict) and one.get("severity", "error") == "error":
                where = one.get("node") or one.get("file") or ""
                what = one.get("message") or one.get("why") or key
                return f"{where}: {what}" if where else str(what), str(one.get("next", ""))
    return None
