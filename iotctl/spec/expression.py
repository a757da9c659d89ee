"""`${name}`: the one syntax of variables, and the conditions made of it.

    ${node}                 a variable
    ${plan.summary.eta_s}   a value of what an earlier step registered; ${status.nodes[0].id}
    $${                     a plain ${

A condition is one value, or two with == != < <= > >= between them, after an optional `not`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

_REFERENCE = re.compile(r"\$(?P<escaped>\$)\{|\$\{(?P<path>[^}]*)\}?")
_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*|\[[0-9]+\])*")
_STEP = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_]*)|\[([0-9]+)\]")
_CONDITION = re.compile(
    r"\s*(?P<negated>not\s+)?(?P<left>.+?)(\s*(?P<op>==|!=|<=|>=|<|>)\s*(?P<right>.+?))?\s*"
)

Path = tuple[str | int, ...]
Lookup = Callable[[Path], Any]
"""The value at a path; raises `KeyError` with words about what there is instead."""


class BadExpression(ValueError):
    """Says what is wrong with it."""


class Condition(msgspec.Struct, frozen=True):
    """`op` is "" for a value by itself, which holds when it is neither false, 0, nothing nor empty."""

    left: str
    op: str
    right: str
    negated: bool


def references(value: Any) -> Iterator[Path]:
    """Every path named anywhere in `value`.

    Raises:
        BadExpression: what stands between the braces is no path, or they do not end.
    """
    if isinstance(value, str):
        for found in _REFERENCE.finditer(value):
            if not found["escaped"]:
                yield _path(found)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from references(item)


def substitute(value: Any, lookup: Lookup) -> Any:
    """`value` with every reference replaced; one that is the whole text keeps its type.

    Raises:
        BadExpression: as `references`. KeyError: from `lookup`.
    """
    if isinstance(value, str):
        whole = _REFERENCE.fullmatch(value)
        if whole and not whole["escaped"]:
            return lookup(_path(whole))
        return _REFERENCE.sub(lambda m: "${" if m["escaped"] else text_of(lookup(_path(m))), value)
    if isinstance(value, list | tuple):
        return [substitute(item, lookup) for item in value]
    if isinstance(value, dict):
        return {key: substitute(item, lookup) for key, item in value.items()}
    return value


def text_of(value: Any) -> str:
    """As it would be written in YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    return ",".join(text_of(v) for v in value) if isinstance(value, list | tuple) else str(value)


def condition(text: str) -> Condition:
    """Raises `BadExpression`."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise BadExpression("an empty condition")
    list(references(text))
    right = found["right"] or ""
    if re.search(r"\s(and|or)\s", text):
        raise BadExpression("`and` and `or` are not known; write two steps, or a list under `that`")
    return Condition(found["left"], found["op"] or "", right, bool(found["negated"]))


def holds(what: Condition, lookup: Lookup) -> bool:
    """Whether it does now.

    Raises:
        BadExpression: values that cannot be compared. KeyError: from `lookup`.
    """
    left: Any = _operand(what.left, lookup)
    if not what.op:
        return bool(left) != what.negated
    right: Any = _operand(what.right, lookup)
    if what.op in ("==", "!="):
        return bool((left == right) == (what.op == "==")) != what.negated
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (left, right))
    if not numbers:
        raise BadExpression(f"{left!r} and {right!r} cannot be compared with {what.op}")
    result = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[what.op]
    return bool(result) != what.negated


def at(value: Any, path: Path) -> Any:
    """The value inside `value`.

    Raises:
        KeyError: with what there is instead.
    """
    for i, step in enumerate(path):
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            there = ", ".join(map(str, value)) if isinstance(value, dict) else f"{type(value).__name__}"
            raise KeyError(f"no {step!r} in {name_of(path[:i]) or 'it'}; there is {there}") from None
    return value


def name_of(path: Path) -> str:
    """`a.b[0]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{step}"
    return text


def _path(found: re.Match[str]) -> Path:
    inside = found["path"]
    if not found[0].endswith("}"):
        raise BadExpression(f"{found[0]!r} has no closing brace")
    if not _PATH.fullmatch(inside):
        raise BadExpression(
            f"{found[0]} is no name; write ${{name}} or ${{step.key}}, and $${{ for a plain ${{"
        )
    return tuple(m[1] if m[1] is not None else int(m[2]) for m in _STEP.finditer(inside))


def _operand(text: str, lookup: Lookup) -> Any:
    found = substitute(text.strip(), lookup)
    if not isinstance(found, str) or found != text.strip():
        return found
    if len(found) > 1 and found[0] == found[-1] and found[0] in "'\"":
        return found[1:-1]
    for word, value in (("true", True), ("false", False), ("null", None)):
        if found == word:
            return value
    for kind in (int, float):
        try:
            return kind(found)
        except ValueError:
            continue
    return found
