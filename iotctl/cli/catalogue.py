"""The verbs of playbooks: the commands, read from the definition of the command line."""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import typer

from iotctl.errors import IotctlError
from iotctl.playbook.model import READS, Inspection, RunnableVerb
from iotctl.playbook.traits import Traits, traits_of
from iotctl.spec.playbook import CONDITION, Parameter
from nodeagent.model.errors import NodeAgentError

LEFT_OUT = ("demo", "completion", "playbook")
"""Commands that are not verbs, with their subcommands."""

IMPLIED = ("yes", "dry_run", "watch", "help")
"""Options that a run sets for its steps."""

_TYPES = {
    "int": "int",
    "int range": "int",
    "float": "float",
    "boolean": "bool",
    "duration": "duration",
    "rate": "rate",
}
"""The type's name in playbooks, by its name in typer."""

BUILT_IN = (
    RunnableVerb(
        "assert",
        (),
        (Parameter("that", CONDITION, many=True, required=True), Parameter("message", "string")),
        reads=True,
    ),
    RunnableVerb(
        "approve",
        (),
        (Parameter("message", "string", required=True),),
        traits=Traits(inspect=lambda look, use: Inspection(READS)),
    ),
    RunnableVerb(
        "exec",
        (),
        (
            Parameter("command", "string", many=True, required=True),
            Parameter("creates", "string"),
            Parameter("unless", "string", many=True),
            Parameter("changed_when", "string"),
        ),
        traits=Traits(inspect=lambda look, use: look.program(use)),
    ),
)


@cache
def verbs() -> dict[str, RunnableVerb]:
    """Verbs by name: every command as `group.command`, and the verbs that only playbooks have."""
    from iotctl.cli.main import whole_tree

    found: dict[str, RunnableVerb] = {}

    def walk(command: Any, path: tuple[str, ...]) -> None:
        for name, child in getattr(command, "commands", {}).items():
            if (*path, name)[0] in LEFT_OUT:
                continue
            if hasattr(child, "commands"):
                walk(child, (*path, name))
            else:
                words = (*path, name)
                verb = ".".join(words)
                asks = any("--yes" in p.opts for p in child.params)
                traits = traits_of(child.callback)
                found[verb] = RunnableVerb(verb, words, _parameters(child), traits.reads, asks, traits)

    walk(typer.main.get_command(whole_tree()), ())
    waits = found["cluster.wait"]
    found["wait_for"] = msgspec.structs.replace(waits, name="wait_for")
    return found | {v.name: v for v in BUILT_IN}


def _parameters(command: Any) -> tuple[Parameter, ...]:
    made = []
    for one in command.params:
        is_option = one.param_type_name == "option"
        option = max(one.opts, key=len) if is_option else ""
        name = option.lstrip("-").replace("-", "_") if is_option else _argument_name(one)
        if name in IMPLIED:
            continue
        made.append(
            Parameter(
                name=name,
                type="bool" if getattr(one, "is_flag", False) else _TYPES.get(one.type.name, "string"),
                option=option,
                negative=max(one.secondary_opts, key=len) if one.secondary_opts else "",
                many=bool(getattr(one, "multiple", False)) or one.nargs == -1,
                required=bool(one.required),
                check=_check_of(one),
            )
        )
    return tuple(made)


def _check_of(parameter: Any) -> Callable[[str], object]:
    """The command line's own check of one value, so that playbooks need no rules of their own."""

    def check(text: str) -> object:
        try:
            return parameter.type.convert(text, parameter, None)
        except typer.TyperException as error:
            raise ValueError(getattr(error, "message", str(error))) from None
        except (IotctlError, NodeAgentError) as error:
            raise ValueError(error.what) from None

    return check


def _argument_name(argument: Any) -> str:
    """The name that the help shows: `NODE…` is `nodes`."""
    shown = (argument.metavar or argument.name).strip("[]")
    name = shown.rstrip("…").lower().partition("=")[0].replace("-", "_")
    return f"{name}s" if shown.endswith("…") and not name.endswith("s") else name
