"""Option sets: a dataclass declares the options, and a command takes them as one value."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar, get_type_hints

Result = TypeVar("Result")


def with_option_sets(command: Callable[..., Result]) -> Callable[..., Result]:
    """Replace every parameter of `command` that is a dataclass by the fields of this dataclass.

    Typer sees each field as a parameter of the command, in the place of the dataclass and in the order of its
    fields. A field without a default is required. The command still gets the dataclass.
    """
    hints = get_type_hints(command, include_extras=True)
    sets: dict[str, type[Any]] = {}
    shown: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind) and isinstance(kind, type):
            sets[parameter.name] = kind
            types = get_type_hints(kind, include_extras=True)
            shown += [_parameter(f.name, types[f.name], _default_of(f)) for f in fields(kind)]
        else:
            shown.append(_parameter(parameter.name, kind, parameter.default))

    @wraps(command)
    def called(**given: Any) -> Result:
        for name, kind in sets.items():
            given[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
        return command(**given)

    # Typer must get the signature below; some readers of signatures follow `__wrapped__` to `command`.
    del called.__dict__["__wrapped__"]
    called.__dict__["__signature__"] = Signature(shown)
    called.__annotations__ = {p.name: p.annotation for p in shown} | {"return": hints.get("return")}
    return called


def _parameter(name: str, kind: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _default_of(field: Field[Any]) -> Any:
    return Parameter.empty if field.default is MISSING else field.default
