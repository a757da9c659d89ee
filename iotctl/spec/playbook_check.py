"""Checks of a playbook that need only its file; each mistake has its place."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iotctl.spec.cluster import API_VERSION
from iotctl.spec.expression import (
    BadExpression,
    Lookup,
    condition,
    holds,
    name_of,
    references,
    substitute,
)
from iotctl.spec.playbook import (
    CONDITION,
    ON_FAILURE,
    TYPES,
    Parameter,
    Playbook,
    PlaybookFile,
    StepEntry,
    VariableEntry,
    Verb,
    check_value,
    convert,
    step_ids,
)
from iotctl.spec.typed_yaml import Loaded, load_file, raise_problems, suggest


def load_playbook(path: Path, verbs: Mapping[str, Verb]) -> Playbook:
    """Read and check a playbook. Raises `InputProblem` with the place of every mistake."""
    _, loaded = load_file(path, PlaybookFile)
    checker = Checker(loaded, verbs)
    checker.check()
    raise_problems(checker.problems)
    return Playbook(str(path), loaded.value, tuple(step_ids(loaded.value.steps)), loaded)


def check_values(playbook: Playbook, verbs: Mapping[str, Verb], values: Lookup) -> None:
    """As the commands would, check the arguments that contain variables, except those that need a result of
    an earlier step. `values` looks up a path.

    Raises:
        InputProblem: with the place of every mistake.
    """
    problems = []
    for i, step in enumerate(playbook.file.steps):
        if _is_left_out(step, values):
            continue
        parameters = {p.name: p for p in verbs[step.uses].parameters}
        for key, value in step.arguments.items():
            given = _known_value(value, values)
            if parameters[key].type == CONDITION or given is None:
                continue
            place = playbook.marks.where("steps", i, "with", key)
            several = given if isinstance(given, list) and parameters[key].many else [given]
            for check, one in [(check_named, given), *((check_value, one) for one in several)]:
                try:
                    check(one, parameters[key])
                except ValueError as error:
                    problems.append((place, f"steps[{i}].with.{key}: {error}"))
    raise_problems(problems)


ADDING = ("tag", "type", "replace")
"""Lists that may be empty. Any other list, such as `nodes` and `where`, means everything when left out."""


def check_named(value: Any, parameter: Parameter) -> None:
    """Raises `ValueError` for an empty list, if leaving the list out would mean everything."""
    is_empty = isinstance(value, list | tuple) and not value
    if is_empty and parameter.many and parameter.name not in ADDING:
        raise ValueError("the list is empty; leave it out to mean all")


def _is_left_out(step: StepEntry, values: Lookup) -> bool:
    """Whether the step is skipped by a condition whose values are known now."""
    try:
        return bool(step.when) and not holds(condition(step.when), values)
    except (KeyError, BadExpression):
        return False


def _known_value(value: Any, values: Lookup) -> Any:
    """`value` with its variables inserted; None if one is unknown, or if it contains none."""
    try:
        return substitute(value, values) if any(references(value)) else None
    except (KeyError, BadExpression):
        return None


class Checker:
    """Collects the mistakes of one file in `problems`."""

    def __init__(self, loaded: Loaded[PlaybookFile], verbs: Mapping[str, Verb]) -> None:
        self._loaded = loaded
        self._file = loaded.value
        self._verbs = verbs
        self.problems: list[tuple[str, str]] = []

    def fail(self, message: str, *path: str | int) -> None:
        self.problems.append((self._loaded.where(*path), message))

    def check(self) -> None:
        file = self._file
        if file.apiVersion != API_VERSION:
            self.fail(f"apiVersion: {file.apiVersion!r} is not known; use {API_VERSION}", "apiVersion")
        for name, variable in file.vars.items():
            self._variable(name, variable)
        self._cycles()
        if not file.steps:
            self.fail("steps: the list is empty", "steps")
        seen: dict[str, int] = {}
        registered: dict[str, bool] = {}
        for i, (step, own) in enumerate(zip(file.steps, step_ids(file.steps), strict=True)):
            if own in seen:
                where = "id" if step.id else "uses"
                self.fail(f"steps[{i}].id: {own!r} is also the id of step {seen[own] + 1}", "steps", i, where)
            seen.setdefault(own, i)
            self._step(i, step, registered)
            if step.register:
                verb = self._verbs.get(step.uses)
                registered[step.register] = verb is None or verb.reads

    def _variable(self, name: str, variable: VariableEntry) -> None:
        at = ("vars", name)
        if not name.isidentifier():
            what = f"vars.{name}: a name may have only letters, digits and '_', and no digit at the start"
            self.problems.append((self._loaded.where_key(*at), what))
        if variable.type not in TYPES:
            near = suggest(variable.type, list(TYPES))
            self.fail(f"vars.{name}.type: unknown {variable.type!r}{near}", *at, "type")
            return
        if variable.secret and variable.default is not None:
            self.fail(
                f"vars.{name}.default: do not write a secret in a playbook; use env or file", *at, "default"
            )
        if variable.default is None:
            return
        try:
            named = list(references(variable.default))
            if not named:
                convert(variable.default, variable.type)
        except ValueError as error:
            self.fail(f"vars.{name}.default: {error}", *at, "default")
            return
        self._known(named, {}, f"vars.{name}.default", *at, "default")

    def _cycles(self) -> None:
        """Report defaults that refer to each other."""
        needs = {
            name: [str(p[0]) for p in _quietly(variable.default) if p[0] in self._file.vars]
            for name, variable in self._file.vars.items()
        }
        for name in needs:
            way = _circle(name, needs)
            if way and way[0] == min(way):  # report each circle once
                self.fail(
                    f"vars.{name}.default: variables refer to each other: {' -> '.join([*way, name])}",
                    "vars",
                    name,
                    "default",
                )

    def _step(self, i: int, step: StepEntry, registered: Mapping[str, bool]) -> None:
        at = ("steps", i)
        verb = self._verbs.get(step.uses)
        if verb is None:
            self.fail(
                f"steps[{i}].uses: unknown verb {step.uses!r}{suggest(step.uses, list(self._verbs))}",
                *at,
                "uses",
            )
        else:
            self._arguments(i, step, verb, registered)
        if step.on_failure not in ON_FAILURE:
            near = suggest(step.on_failure, list(ON_FAILURE))
            self.fail(f"steps[{i}].on_failure: unknown {step.on_failure!r}{near}", *at, "on_failure")
        if step.timeout:
            self._typed(step.timeout, "duration", f"steps[{i}].timeout", *at, "timeout")
        if step.register and (not step.register.isidentifier() or step.register in self._file.vars):
            what = "is already a variable" if step.register in self._file.vars else "is not a valid name"
            self.fail(f"steps[{i}].register: {step.register!r} {what}", *at, "register")
        for j, part in enumerate(step.serial):
            digits = str(part).removesuffix("%")
            if (
                not (digits.isascii() and digits.isdigit())
                or int(digits) == 0
                or (str(part) != digits and int(digits) > 100)
            ):
                self.fail(
                    f"steps[{i}].serial[{j}]: {part!r} is neither a number of nodes nor a share such as 50%",
                    *at,
                    "serial",
                    j,
                )
        if step.when:
            self._condition(step.when, registered, f"steps[{i}].when", *at, "when")
        for key, text in (("name", step.name), ("id", step.id), ("when", step.when)):
            for path in _quietly(text):
                if path[0] in self._file.vars and self._file.vars[str(path[0])].secret:
                    self.fail(f"steps[{i}].{key}: ${{{path[0]}}} is secret, but {key} is printed", *at, key)
                elif key == "id":
                    self.fail(f"steps[{i}].id: an id cannot have variables", *at, key)
        self._names(step.name, registered, f"steps[{i}].name", *at, "name")

    def _arguments(self, i: int, step: StepEntry, verb: Verb, registered: Mapping[str, bool]) -> None:
        known = {p.name: p for p in verb.parameters}
        at: tuple[str | int, ...] = ("steps", i, "with")
        for key, value in step.arguments.items():
            name = f"steps[{i}].with.{key}"
            parameter = known.get(key)
            if parameter is None:
                what = f"{name}: {verb.name} has no such argument{suggest(key, list(known))}"
                self.problems.append((self._loaded.where_key(*at, key), what))
                continue
            if parameter.type == CONDITION:
                for j, text in enumerate(value if isinstance(value, list) else [value]):
                    self._condition(str(text), registered, name, *at, key, j)
                continue
            if not self._names(value, registered, name, *at, key) or any(_quietly(value)):
                continue  # its type is checked once the variables are known
            if parameter.many and isinstance(value, list):
                try:
                    check_named(value, parameter)
                except ValueError as error:
                    self.fail(f"{name}: {error}", *at, key)
                for j, one in enumerate(value):
                    self._taken(one, parameter, name, *at, key, j)
            else:
                self._taken(value, parameter, name, *at, key)
        for parameter in verb.parameters:
            if parameter.required and parameter.name not in step.arguments:
                self.fail(f"steps[{i}].with.{parameter.name}: {verb.name} requires it", "steps", i, "with")
        if verb.name == "exec" and not {"creates", "unless", "changed_when"} & set(step.arguments):
            self.fail(
                f"steps[{i}].with: exec needs `creates`, `unless` or `changed_when`, so that a second run"
                " changes nothing",
                "steps",
                i,
                "with",
            )
        nodes = next((p for p in verb.parameters if p.name in ("nodes", "names")), None)
        if step.serial and nodes is None:
            self.fail(f"steps[{i}].serial: {verb.name} takes no nodes", "steps", i, "serial")
        if step.max_unavailable < 1 and ("steps", i, "max_unavailable") in self._loaded.keys:
            self.fail(f"steps[{i}].max_unavailable: must be at least 1", "steps", i, "max_unavailable")
        if step.max_unavailable and "max_unavailable" not in known:
            self.fail(
                f"steps[{i}].max_unavailable: {verb.name} restarts nothing", "steps", i, "max_unavailable"
            )

    def _taken(self, value: Any, parameter: Parameter, name: str, *path: str | int) -> None:
        try:
            check_value(value, parameter)
        except ValueError as error:
            self.fail(f"{name}: {error}", *path)

    def _typed(self, value: Any, type_name: str, name: str, *path: str | int) -> None:
        try:
            if any(references(value)):
                return
            convert(value, type_name)
        except ValueError as error:
            self.fail(f"{name}: {error}", *path)

    def _condition(self, text: str, registered: Mapping[str, bool], name: str, *path: str | int) -> None:
        try:
            condition(text)
        except BadExpression as error:
            self.fail(f"{name}: {error}", *path)
            return
        self._names(text, registered, name, *path)

    def _names(self, value: Any, registered: Mapping[str, bool], name: str, *path: str | int) -> bool:
        try:
            named = list(references(value))
        except BadExpression as error:
            self.fail(f"{name}: {error}", *path)
            return False
        return self._known(named, registered, name, *path)

    def _known(
        self,
        named: Sequence[tuple[str | int, ...]],
        registered: Mapping[str, bool],
        name: str,
        *path: str | int,
    ) -> bool:
        known = [*self._file.vars, *registered]
        unknown = [p for p in named if p[0] not in known]
        for one in unknown:
            near = suggest(str(one[0]), known) if known else "; no names are defined"
            self.fail(f"{name}: ${{{name_of(one)}}} is not defined before this{near}", *path)
        deep = [p for p in named if len(p) > 1 and p[0] in self._file.vars]
        for one in deep:
            self.fail(f"{name}: ${{{name_of(one)}}}: a variable has no parts", *path)
        lost = [p for p in named if not registered.get(str(p[0]), True) and p[1:] != ("changed",)]
        for one in lost:
            self.fail(
                f"{name}: ${{{name_of(one)}}}: a step that changes something registers only"
                f" ${{{one[0]}.changed}}; read the rest with a step that only reads",
                *path,
            )
        return not (unknown or deep or lost)


def _quietly(value: Any) -> list[tuple[str | int, ...]]:
    """The references in `value`; [] if they are invalid."""
    try:
        return list(references(value))
    except BadExpression:
        return []


def _circle(name: str, needs: Mapping[str, Sequence[str]]) -> list[str]:
    """The path of references from `name` back to itself; [] if there is none."""
    pending = [[name]]
    seen: set[str] = set()
    while pending:
        way = pending.pop()
        for following in needs[way[-1]]:
            if following == name:
                return way
            if following not in seen:
                seen.add(following)
                pending.append([*way, following])
    return []
