"""`${name}`: the syntax of variables and of conditions.

    ${node}                 a variable
    ${plan.summary.eta_s}   a value that an earlier step registered; ${status.nodes[0].id}
    $${                     a literal ${

A condition is an optional `not`, then a value, or two values compared by == != < <= > >=. A value is a
`${…}`, true, false, null, a number, a word, or a text in quotes.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

_REFERENCE = re.compile(r"\$(?P<escaped>\$)\{|\$\{(?P<path>[^}]*)\}?")
_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*|\[[0-9]+\])*")
_STEP = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_]*)|\[([0-9]+)\]")
_QUOTED = """"[^"]*"|'[^']*'"""
_OPERAND = rf"""\$\{{[^}}]*\}}|{_QUOTED}|[^\s"'=!<>&|(){{}}$]+"""
_CONDITION = re.compile(
    rf"\s*(?P<negated>not\s+)?(?P<left>{_OPERAND})(\s*(?P<op>==|!=|<=|>=|<|>)\s*(?P<right>{_OPERAND}))?\s*"
)
_WORDS = {"true": True, "false": False, "null": None}

Path = tuple[str | int, ...]
Lookup = Callable[[Path], Any]
"""The value at a path; raises `KeyError` if there is none."""


class BadExpression(ValueError):
    """An invalid expression; the message says why."""


class Condition(msgspec.Struct, frozen=True):
    """`op` is "" for a single value, which holds unless it is false, 0, null or empty."""

    left: str
    op: str
    right: str
    negated: bool


def references(value: Any) -> Iterator[Path]:
    """Every path that `value` refers to, at any depth.

    Raises:
        BadExpression: the text in the braces is not a path, or the closing brace is missing.
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
    """`value` with every reference replaced; if a reference is the whole text, its value keeps its type.

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
    """`value` as text: true and false as in YAML, null as "", the items of a list joined by commas."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    return ",".join(text_of(v) for v in value) if isinstance(value, list | tuple) else str(value)


def condition(text: str) -> Condition:
    """Parse a condition. Raises `BadExpression` for a text that is not a complete condition."""
    list(references(text))
    found = _CONDITION.fullmatch(text)
    if found is None:
        if re.search(r"\s(and|or)\s", re.sub(_QUOTED, "", text)):
            raise BadExpression("`and` and `or` are not supported; write two steps, or a list under `that`")
        raise BadExpression(
            f"{text.strip()!r} is not a condition; write `${{a}}`, `not ${{a}}` or `${{a}} == b`,"
            " with quotes around text of several words"
        )
    left, right = found["left"], found["right"] or ""
    if not found["op"] and not left.startswith("${") and left not in _WORDS:
        raise BadExpression(f"{left!r} alone is not a condition; write ${{name}}, or compare it")
    for word in (left, right):
        if word in ("True", "False", "None"):
            raise BadExpression(f"write {'null' if word == 'None' else word.lower()}, not {word}")
    return Condition(left, found["op"] or "", right, bool(found["negated"]))


def holds(what: Condition, lookup: Lookup) -> bool:
    """Whether the condition holds. A value equals a text if `text_of` of the value is that text.

    Raises:
        BadExpression: the values cannot be compared. KeyError: from `lookup`.
    """
    left: Any = _operand(what.left, lookup)
    if not what.op:
        return bool(left) != what.negated
    right: Any = _operand(what.right, lookup)
    if what.op in ("==", "!="):
        equal = text_of(left) == text_of(right) if str in (type(left), type(right)) else left == right
        return bool(equal == (what.op == "==")) != what.negated
    low, high = _number(left), _number(right)
    if low is None or high is None:
        raise BadExpression(f"{left!r} and {right!r} cannot be compared with {what.op}")
    result = {"<": low < high, "<=": low <= high, ">": low > high, ">=": low >= high}[what.op]
    return bool(result) != what.negated


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def at(value: Any, path: Path) -> Any:
    """The value at `path` inside `value`.

    Raises:
        KeyError: there is no such value; the message says what is there.
    """
    for i, step in enumerate(path):
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            sought = f"[{step}]" if isinstance(step, int) else repr(step)
            raise KeyError(
                f"no {sought} in {name_of(path[:i]) or 'the value'}, {_described(value)}"
            ) from None
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
            f"{found[0]} is not a name; write ${{name}} or ${{step.key}}, and $${{ for a literal ${{"
        )
    return tuple(m[1] if m[1] is not None else int(m[2]) for m in _STEP.finditer(inside))


def _operand(text: str, lookup: Lookup) -> Any:
    if text[0] in "'\"":
        return text_of(substitute(text[1:-1], lookup))
    if text.startswith("${"):
        return substitute(text, lookup)
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _described(value: Any) -> str:
    """What can be taken from the value."""
    if isinstance(value, dict):
        return f"which has {', '.join(map(str, value)) or 'no keys'}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"which is {text_of(value)!r}"
