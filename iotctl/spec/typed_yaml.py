"""YAML to typed structs, with the line and column of every value.

Strict on purpose: unknown keys (with the nearest known one), duplicate keys and wrong types are errors,
and all errors of a file are reported at once. `marks` keeps the place of every value, so that later
checks ("this node is listed twice") can point at it too.
"""

import difflib
import types
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

import msgspec
import yaml

from iotctl.errors import InputProblem

T = TypeVar("T")
Path = tuple[str | int, ...]

_SCALARS: dict[type, tuple[str, tuple[str, ...]]] = {
    str: ("text", ("str", "timestamp")),
    int: ("a whole number", ("int",)),
    float: ("a number", ("float", "int")),
    bool: ("true or false", ("bool",)),
}


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; both count from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Loaded(Generic[T]):
    """A decoded file with the place of every value in it."""

    file: str
    value: T
    marks: dict[Path, Mark]

    def where(self, *path: str | int) -> str:
        """`file:line:col` of the value at `path`, or of its nearest parent."""
        while path and path not in self.marks:
            path = path[:-1]
        mark = self.marks.get(path, Mark(1, 1))
        return f"{self.file}:{mark.line}:{mark.column}"


@dataclass(slots=True)
class _Reader:
    file: str
    marks: dict[Path, Mark] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)

    def fail(self, node: yaml.Node, message: str) -> None:
        mark = _mark(node)
        self.problems.append((f"{self.file}:{mark.line}:{mark.column}", message))

    def read(self, node: yaml.Node, kind: Any, path: Path) -> Any:
        self.marks[path] = _mark(node)
        if get_origin(kind) in (Union, types.UnionType):
            options = [k for k in get_args(kind) if k is not type(None)]
            if isinstance(node, yaml.ScalarNode) and _tag(node) == "null":
                return None
            kind = options[0]
        origin = get_origin(kind)
        if kind in _SCALARS:
            return self._scalar(node, kind, path)
        if origin is tuple:
            return self._sequence(node, get_args(kind)[0], path)
        if origin is dict:
            return self._mapping(node, get_args(kind)[1], path)
        return self._struct(node, kind, path)

    def _scalar(self, node: yaml.Node, kind: type, path: Path) -> Any:
        wanted, tags = _SCALARS[kind]
        if not isinstance(node, yaml.ScalarNode) or _tag(node) not in tags:
            hint = "; put it in quotes" if kind is str and isinstance(node, yaml.ScalarNode) else ""
            self.fail(node, f"{_name(path)}: expected {wanted}, found {_describe(node)}{hint}")
            return kind()
        if kind is str:
            return node.value
        value = yaml.safe_load(node.value)
        return kind(value)

    def _sequence(self, node: yaml.Node, item: Any, path: Path) -> tuple[Any, ...]:
        if not isinstance(node, yaml.SequenceNode):
            self.fail(node, f"{_name(path)}: expected a list, found {_describe(node)}")
            return ()
        return tuple(self.read(child, item, (*path, i)) for i, child in enumerate(node.value))

    def _pairs(self, node: yaml.Node, path: Path) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            self.fail(node, f"{_name(path)}: expected a mapping, found {_describe(node)}")
            return {}
        found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in found:
                first = _mark(found[name][0]).line
                self.fail(key, f"{_name((*path, name))}: duplicate key (first on line {first})")
                continue
            found[name] = (key, value)
        return found

    def _mapping(self, node: yaml.Node, item: Any, path: Path) -> dict[str, Any]:
        return {k: self.read(v, item, (*path, k)) for k, (_, v) in self._pairs(node, path).items()}

    def _struct(self, node: yaml.Node, kind: Any, path: Path) -> Any:
        pairs = self._pairs(node, path)
        fields = {f.encode_name: f for f in msgspec.structs.fields(kind)}
        values: dict[str, Any] = {}
        for name, (key, value) in pairs.items():
            if name in fields:
                values[fields[name].name] = self.read(value, fields[name].type, (*path, name))
            else:
                self.fail(key, f"{_name((*path, name))}: unknown key{_suggest(name, list(fields))}")
        for name, spec in fields.items():
            if spec.required and spec.name not in values:
                if isinstance(node, yaml.MappingNode):
                    self.fail(node, f"{_name((*path, name))}: missing")
                values[spec.name] = None
        return kind(**values)


def load(text: str, file: str, kind: type[T]) -> Loaded[T]:
    """Decode `text` as `kind`, a msgspec struct.

    Raises:
        InputProblem: with the place of the first error; the others are listed after it.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else f"{file}:1:1"
        raise InputProblem(f"not valid YAML: {error.problem or error.context}", where=place) from None
    except yaml.YAMLError as error:
        raise InputProblem(f"not valid YAML: {error}", where=f"{file}:1:1") from None
    if root is None:
        raise InputProblem("the file is empty", where=f"{file}:1:1")
    reader = _Reader(file)
    value = reader.read(root, kind, ())
    raise_problems(reader.problems)
    return Loaded(file, value, reader.marks)


def raise_problems(problems: list[tuple[str, str]]) -> None:
    """Raise one `InputProblem` for all (place, message) pairs; nothing when there are none."""
    if not problems:
        return
    (where, what), *rest = problems
    raise InputProblem(what, where=where, why="; ".join(f"{w}: {m}" for w, m in rest))


def suggest(name: str, known: list[str]) -> str:
    """`; did you mean …?` when a known name is near, else the known ones."""
    return _suggest(name, known)


def _suggest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _mark(node: yaml.Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def _tag(node: yaml.Node) -> str:
    return str(node.tag).rpartition(":")[2]


def _describe(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "nothing" if _tag(node) == "null" else f"{_tag(node)} {node.value!r}"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _name(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text or "the file"
