"""The command line of a step."""

from collections.abc import Mapping
from typing import Any

from iotctl.errors import UsageProblem
from iotctl.spec.expression import text_of
from iotctl.spec.playbook import Verb
from iotctl.spec.playbook_check import check_named


def command_line(verb: Verb, arguments: Mapping[str, Any]) -> list[str]:
    """The words of `iotctl` for a verb: options first, then positional arguments. `--yes` is given to
    every command that asks: running a playbook is the consent.

    Raises:
        UsageProblem: a list is empty, and leaving it out would mean everything.
    """
    words, placed = [*verb.words, *(["--yes"] if verb.asks else [])], list[str]()
    for parameter in verb.parameters:
        value = arguments.get(parameter.name)
        if value is None:
            continue
        if parameter.type == "bool":
            option = parameter.option if is_true(value) else parameter.negative
            words += [option] if option else []
            continue
        values = value if isinstance(value, list | tuple) else [value]
        try:
            check_named(value, parameter)
        except ValueError as error:
            raise UsageProblem(f"{verb.name}: {parameter.name}: {error}") from None
        if not parameter.option:
            placed += [text_of(v) for v in values]
        elif parameter.many:
            words += [w for v in values for w in (parameter.option, text_of(v))]
        else:
            words += [parameter.option, text_of(value)]
    return [*words, *(["--", *placed] if any(p.startswith("-") for p in placed) else placed)]


def is_true(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() == "true"
