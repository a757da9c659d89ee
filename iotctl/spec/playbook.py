"""Playbooks: variables and steps. Each step is a command; files are read and checked without a cluster.

A step's `uses` names a command with a dot (`cluster.add-node`); its `with` holds the arguments and options of
this command. A playbook thus accepts what the command line accepts, and is checked before a step runs.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from iotctl.errors import UsageProblem
from iotctl.spec.expression import references, substitute, text_of
from iotctl.spec.typed_yaml import Loaded, suggest
from iotctl.spec.units import parse_duration_ms, parse_rate

TYPES = ("string", "int", "float", "bool", "duration", "rate", "list")
CONDITION = "condition"
ON_FAILURE = ("stop", "continue")


class VariableEntry(msgspec.Struct, frozen=True):
    """The value is `--var`, else the environment's `env`, else the first line of `file`, else `default`."""

    type: str = "string"
    default: Any = None
    secret: bool = False
    env: str = ""
    file: str = ""
    description: str = ""


class StepEntry(msgspec.Struct, frozen=True):
    """`serial`: sizes of the batches of nodes, as numbers or as shares such as `50%`; the last size applies
    to the rest."""

    uses: str
    id: str = ""
    name: str = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict, name="with")
    when: str = ""
    register: str = ""
    serial: tuple[Any, ...] = ()
    max_unavailable: int = 0
    timeout: str = ""
    on_failure: str = "stop"


class PlaybookFile(msgspec.Struct, frozen=True):
    apiVersion: str
    name: str
    steps: tuple[StepEntry, ...]
    description: str = ""
    vars: dict[str, VariableEntry] = {}


class Parameter(msgspec.Struct, frozen=True):
    """One argument or option of a verb.

    `type` is one of `TYPES`, or `CONDITION`, whose text is evaluated instead of substituted; `many`: a list.
    `option` is "" for a positional argument; `negative` is the option that unsets a flag. `check` is the
    command's own check of a value as text: it raises `ValueError` for a value that a run would refuse.
    """

    name: str
    type: str
    option: str = ""
    negative: str = ""
    many: bool = False
    required: bool = False
    check: Callable[[str], object] | None = None


class Verb(msgspec.Struct, frozen=True):
    """`words` begin the command line; () for a verb that is not a command. `reads`: the verb changes nothing,
    so its whole result can be registered; the result of any other verb is only whether it changed something.
    `asks`: the command asks for consent, which `--yes` gives."""

    name: str
    words: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    reads: bool = False
    asks: bool = False


class Playbook(msgspec.Struct, frozen=True):
    """A valid file. `ids` are the ids of the steps; `marks` hold the place of every value."""

    path: str
    file: PlaybookFile
    ids: tuple[str, ...]
    marks: Loaded[PlaybookFile]


def step_ids(steps: Sequence[StepEntry]) -> list[str]:
    """The id of each step: its own, else its verb with a number."""
    seen: dict[str, int] = {}
    found = []
    for step in steps:
        seen[step.uses] = seen.get(step.uses, 0) + 1
        found.append(step.id or f"{step.uses}-{seen[step.uses]}")
    return found


def convert(value: Any, type_name: str) -> Any:
    """`value`, from YAML or from `--var`, as a variable's type.

    Raises:
        ValueError: says what is expected.
    """
    if type_name == "list":
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, list):
            return value
        raise ValueError("a list is expected")
    if isinstance(value, list | dict) or value is None:
        raise ValueError(f"{type_phrase(type_name)} is expected")
    if type_name == "string":
        return value if isinstance(value, str) else str(value)
    if type_name == "bool":
        found = {"true": True, "false": False}.get(str(value).lower())
        if found is None:
            raise ValueError("true or false is expected")
        return found
    if type_name in ("int", "float"):
        if isinstance(value, bool):
            raise ValueError(f"{type_phrase(type_name)} is expected")
        try:
            return int(str(value)) if type_name == "int" else float(str(value))
        except ValueError:
            kind = "a whole number" if type_name == "int" else "a number"
            raise ValueError(f"{kind} is expected, not {value!r}") from None
    try:
        parse = parse_duration_ms if type_name == "duration" else parse_rate
        parse(str(value))
    except UsageProblem as error:
        raise ValueError(error.what) from None
    return str(value)


def check_value(value: Any, parameter: Parameter) -> None:
    """Check a single value of a step's argument as the command does.

    Raises:
        ValueError: says what is expected.
    """
    converted = convert(value, parameter.type)
    if parameter.check is not None and parameter.type != "bool":
        parameter.check(text_of(converted))


def type_phrase(type_name: str) -> str:
    return {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "text"}.get(
        type_name, f"a {type_name}"
    )


def value_of(
    name: str, variable: VariableEntry, given: Mapping[str, str], env: Mapping[str, str], directory: Path
) -> tuple[Any, bool]:
    """(the value of a variable, whether it was given): `--var`, then `env`, then `file`, then the default.

    The references of a default are not resolved yet.

    Raises:
        UsageProblem: the variable has no value, or a value of another type.
    """
    value, source = variable.default, "its default"
    if name in given:
        value, source = given[name], "--var"
    elif variable.env and variable.env in env:
        value, source = env[variable.env], f"environment variable {variable.env}"
    elif variable.file:
        try:
            value, source = (
                (directory / variable.file).read_text(encoding="utf-8").splitlines()[0],
                variable.file,
            )
        except (OSError, UnicodeDecodeError, IndexError) as error:
            if value is None:
                raise UsageProblem(
                    f"variable {name}: {variable.file} cannot be read",
                    why="the file is empty" if isinstance(error, IndexError) else str(error),
                    next=f"write the value into the file, or add --var {name}=…",
                ) from None
    if value is None:
        also = f", or set {variable.env}" if variable.env else ""
        raise UsageProblem(f"variable {name} has no value", next=f"add --var {name}=…{also}")
    try:
        given_now = source != "its default"
        follows = not given_now and any(references(value))
        return value if follows else convert(value, variable.type), given_now
    except ValueError:
        shown = "" if variable.secret else f": {value!r}"
        raise UsageProblem(
            f"variable {name}: the value of {source} is not {type_phrase(variable.type)}{shown}"
        ) from None


def values_of(
    playbook: Playbook, given: Mapping[str, str], env: Mapping[str, str]
) -> tuple[dict[str, Any], frozenset[str]]:
    """(the value of every variable, the secret texts that must never be printed).

    Raises:
        UsageProblem: a `--var` is not declared, or `value_of` raises it.
    """
    declared = playbook.file.vars
    for name in given:
        if name not in declared:
            raise UsageProblem(f"--var {name}: no such variable{suggest(name, list(declared))}")
    directory = Path(playbook.path).parent
    raw = {n: value_of(n, v, given, env, directory) for n, v in declared.items()}
    # Only the file's defaults may refer to other variables: given values are plain text.
    done = {n: value for n, (value, given_now) in raw.items() if given_now}

    def resolve(name: str) -> Any:
        if name not in done:
            done[name] = substitute(raw[name][0], lambda path: resolve(str(path[0])))
            try:
                done[name] = convert(done[name], declared[name].type)
            except ValueError as error:
                raise UsageProblem(f"variable {name}: {error}") from None
        return done[name]

    for name in declared:
        resolve(name)
    hidden = [done[n] for n, v in declared.items() if v.secret]
    parts = [text_of(item) for value in hidden if isinstance(value, list) for item in value]
    return done, frozenset(text for text in (*map(text_of, hidden), *parts) if text)
