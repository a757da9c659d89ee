"""What a playbook may use: the commands themselves, read from the command line's own definition."""

from collections.abc import Callable
from functools import cache
from typing import Any

import typer

from iotctl.errors import IotctlError
from iotctl.spec.playbook import CONDITION, Parameter, Verb
from nodeagent.model.errors import NodeAgentError

LEFT_OUT = ("demo", "completion", "playbook")
"""Commands that are no steps, with everything below them."""

IMPLIED = ("yes", "dry_run", "watch", "help")
"""Options a run decides for its steps."""

SAYS = {"rate": "rate", "hold_release": "duration", "since": "duration", "older_than": "duration"}
"""What a text means, by the name of its option."""

_TYPES = {"int": "int", "int range": "int", "float": "float", "boolean": "bool"}

READING = frozenset(
    {
        "cert.show",
        "cluster.check",
        "cluster.events",
        "cluster.groups",
        "cluster.logs",
        "cluster.nodes",
        "cluster.ok-to-stop",
        "cluster.ring",
        "cluster.schema",
        "cluster.slots",
        "cluster.status",
        "cluster.wait",
        "data.count",
        "data.export",
        "data.query",
        "local.status",
        "ops.list",
        "ops.show",
        "ops.wait",
        "plan.add-node",
        "plan.rebalance",
        "plan.remove-node",
        "plan.replace-node",
        "plan.show",
        "plan.spec",
        "support.bundle",
    }
)
"""Commands that change nothing: run for what they tell, again after every resume."""

WORKING = frozenset({"cluster.wait", "data.export", "ops.wait", "support.bundle"})
"""Of those the ones that write a file or take their time."""

BUILT_IN = (
    Verb(
        "assert",
        (),
        (Parameter("that", CONDITION, many=True, required=True), Parameter("message", "string")),
        True,
    ),
    Verb("approve", (), (Parameter("message", "string", required=True),)),
    Verb(
        "exec",
        (),
        (
            Parameter("command", "string", many=True, required=True),
            Parameter("creates", "string"),
            Parameter("unless", "string", many=True),
            Parameter("changed_when", "string"),
        ),
    ),
)


@cache
def verbs() -> dict[str, Verb]:
    """By name: every command as `group.command`, and what only playbooks have."""
    from iotctl.cli.main import whole_tree

    found: dict[str, Verb] = {}

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
                looks = verb in READING - WORKING
                found[verb] = Verb(verb, words, _parameters(child), verb in READING, looks, asks)

    walk(typer.main.get_command(whole_tree()), ())
    waits = found["cluster.wait"]
    found["wait_for"] = Verb("wait_for", waits.words, waits.parameters, True)
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
                type="bool" if getattr(one, "is_flag", False) else SAYS.get(name) or _type(one),
                option=option,
                negative=max(one.secondary_opts, key=len) if one.secondary_opts else "",
                many=bool(getattr(one, "multiple", False)) or one.nargs == -1,
                required=bool(one.required),
                check=_check_of(one),
            )
        )
    return tuple(made)


def _check_of(parameter: Any) -> Callable[[str], object]:
    """What the command line does with one word for it, so that no rule is written twice."""

    def check(text: str) -> object:
        try:
            return parameter.type.convert(text, parameter, None)
        except typer.TyperException as error:
            raise ValueError(getattr(error, "message", str(error))) from None
        except (IotctlError, NodeAgentError) as error:
            raise ValueError(error.what) from None

    return check


def _type(parameter: Any) -> str:
    """As typer names it; what is optional or a list, by what is inside."""
    return _TYPES.get(parameter.type.name, "string")


def _argument_name(argument: Any) -> str:
    """`NODE…` is `nodes`: as the help shows it, not as the code calls it."""
    shown = (argument.metavar or argument.name).strip("[]")
    name = shown.rstrip("…").lower().partition("=")[0].replace("-", "_")
    return f"{name}s" if shown.endswith("…") and not name.endswith("s") else name
