"""YAML to typed structs, with the line and column of every value.

The reader is strict: unknown keys (the error names the nearest known key), duplicate keys, wrong types,
aliases, tags and the surprises of YAML 1.1 (`no` is false, `010` is 8, `22:22` is 1342) are errors. It
reports all errors of a file at once. `marks` stores the place of every value for later checks ("this node
is listed twice").
"""

import difflib
import re
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

import msgspec
import yaml

from iotctl.errors import InputProblem

T = TypeVar("T")
Path = tuple[str | int, ...]

BYTES_MAX = 4 << 20
DEPTH_MAX = 32

_SCALARS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
_INT = re.compile(r"-?(0|[1-9][0-9]*)")
_ESCAPE = re.compile(r"\\U([0-9A-Fa-f]{8})")
DIGITS_MAX = 30
"""The most digits of an integer; longer integers are slow to read and never valid here."""
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_BOOL = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; line and column count from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Loaded(Generic[T]):
    """A decoded file with the place of every value in it."""

    file: str
    value: T
    marks: dict[Path, Mark]
    keys: dict[Path, Mark] = field(default_factory=dict)

    def where_key(self, *path: str | int) -> str:
        """`file:line:col` of the key at `path`."""
        mark = self.keys.get(path)
        return f"{self.file}:{mark.line}:{mark.column}" if mark else self.where(*path)

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
    keys: dict[Path, Mark] = field(default_factory=dict)
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
        if kind is Any:
            return self._any(node, path)
        if kind in _SCALARS:
            return self._scalar(node, kind, path)
        if origin is tuple:
            return self._sequence(node, get_args(kind)[0], path)
        if origin is dict:
            return self._mapping(node, get_args(kind)[1], path)
        return self._struct(node, kind, path)

    def _scalar(self, node: yaml.Node, kind: type, path: Path) -> Any:
        found = _value(node) if isinstance(node, yaml.ScalarNode) else None
        if kind is float and type(found) is int:
            return float(found)
        if type(found) is kind:
            return found
        hint = ""
        if kind is str and isinstance(node, yaml.ScalarNode) and _tag(node) != "null":
            hint = "; put it in quotes"
        elif kind is bool and isinstance(node, yaml.ScalarNode) and _tag(node) == "bool":
            hint = "; write true or false"
        elif isinstance(node, yaml.ScalarNode) and _tag(node) in ("int", "float"):
            hint = "; write it in plain decimal digits"
        self.fail(node, f"{_name(path)}: expected {_SCALARS[kind]}, found {_describe(node)}{hint}")
        return kind()

    def _any(self, node: yaml.Node, path: Path) -> Any:
        """Read text, numbers, true, false and null, in lists and mappings."""
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, Any, (*path, i)) for i, child in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, Any, path)
        assert isinstance(node, yaml.ScalarNode)
        if _tag(node) == "null":
            return None
        found = _value(node)
        if found is None:
            tag = {"bool": "true or false", "timestamp": "a date"}.get(_tag(node), "another number")
            self.fail(node, f"{_name(path)}: YAML reads {node.value} as {tag}; put it in quotes")
        return found

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
            if not isinstance(key, yaml.ScalarNode) or _tag(key) != "str":
                hint = "; put it in quotes" if isinstance(key, yaml.ScalarNode) else ""
                self.fail(key, f"{_name(path)}: expected a name as the key, found {_describe(key)}{hint}")
                continue
            name = key.value
            if name in found:
                first = _mark(found[name][0]).line
                self.fail(key, f"{_name((*path, name))}: duplicate key (first on line {first})")
                continue
            found[name] = (key, value)
            self.keys[(*path, name)] = _mark(key)
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
                self.fail(key, f"{_name((*path, name))}: unknown key{suggest(name, list(fields))}")
        for name, spec in fields.items():
            if spec.required and spec.name not in values:
                if isinstance(node, yaml.MappingNode):
                    self.fail(node, f"{_name((*path, name))}: missing")
                values[spec.name] = None
        return kind(**values)


class _PlainLoader(yaml.SafeLoader):
    """Refuses unsupported features, and those that let a small file expand, before building anything."""

    _depth = _documents = 0

    def get_event(self) -> Any:
        event: Any = super().get_event()  # type: ignore[no-untyped-call]  # its stubs are untyped
        what = ""
        if isinstance(event, yaml.AliasEvent):
            what = f"aliases (*{event.anchor}) are not supported; write the value out"
        elif isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            what = f"anchors (&{event.anchor}) are not supported; write the value out where it is used"
        elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
            what = f"tags ({event.tag}) are not supported"
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            what = "a second document begins; a file may hold only one" if self._documents > 1 else ""
        self._depth += isinstance(event, yaml.CollectionStartEvent)
        self._depth -= isinstance(event, yaml.CollectionEndEvent)
        if self._depth > DEPTH_MAX:
            what = f"nested more than {DEPTH_MAX} levels deep"
        if what:
            raise _Refused(None, None, what, event.start_mark)
        return event


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that is not supported."""


def load_file(path: File, kind: type[T]) -> tuple[str, Loaded[T]]:
    """(the text of `path`, the result of `load`).

    Raises:
        InputProblem: the file is unreadable or not UTF-8, or `load` raises it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputProblem(
            f"cannot read {path}",
            why=error.strerror or str(error),
            next=f"ls -l {path if path.exists() else path.parent}",
            where=str(path),
        ) from None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        place = _place(content[: error.start].decode("utf-8"))
        raise InputProblem(
            f"not UTF-8 text: byte 0x{content[error.start]:02x}",
            where=f"{path}:{place}",
            next="save the file as UTF-8",
        ) from None
    return text, load(text, str(path), kind)


def load(text: str, file: str, kind: type[T]) -> Loaded[T]:
    """Decode `text` as `kind`, a msgspec struct.

    Raises:
        InputProblem: with the place of the first error; `why` lists the others.
    """
    if len(text.encode()) > BYTES_MAX:
        raise InputProblem(f"the file is larger than {BYTES_MAX >> 20} MiB", where=f"{file}:1:1")
    reader = _Reader(file)
    value = reader.read(_compose(text, file), kind, ())
    raise_problems(reader.problems)
    return Loaded(file, value, reader.marks, reader.keys)


def load_texts(text: str, file: str) -> Any:
    """The document in `text` as lists and mappings; each scalar is its text, or None for null.

    For a file that iotctl wrote and whose types the caller knows; unlike in `load`, its size has no limit.

    Raises:
        InputProblem: with the place of the first error.
    """
    return _texts(_compose(text, file))


def _texts(node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_texts(child) for child in node.value]
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _texts(value) for key, value in node.value}
    return None if _tag(node) == "null" else node.value


def _compose(text: str, file: str) -> yaml.Node:
    """The nodes of `text`, whose scalars are not converted yet: PyYAML's own conversions can fail."""
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=_PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else f"{file}:1:1"
        said = "" if isinstance(error, _Refused) else "not valid YAML: "
        problem = error.problem or error.context
        hint = "indent with spaces" if "'\\t'" in str(problem) else ""
        raise InputProblem(f"{said}{problem}", where=place, next=hint) from None
    except yaml.reader.ReaderError as error:
        raise InputProblem(
            f"the character U+{error.character:04X} is not allowed in YAML",
            where=f"{file}:{_place(text[: error.position])}",
            next="delete it, or write it as an escape in double quotes",
        ) from None
    except (ValueError, OverflowError):  # from PyYAML's own chr()
        found = next(m for m in _ESCAPE.finditer(text) if int(m[1], 16) > sys.maxunicode)
        raise InputProblem(
            f"{found[0]} is not a character", where=f"{file}:{_place(text[: found.start()])}"
        ) from None
    if root is None:
        raise InputProblem("the file is empty", where=f"{file}:1:1")
    return root


def _place(before: str) -> str:
    """`line:col` of the end of `before`."""
    line = before.rpartition("\n")[2]
    return f"{before.count(chr(10)) + 1}:{len(line) + 1}"


def _value(node: yaml.ScalarNode) -> str | int | float | bool | None:
    """The value of a scalar; None for null, and if YAML's value is not what the text looks like."""
    text = str(node.value)
    tag = _tag(node)
    if node.style in ("'", '"', "|", ">") or tag in ("str", "timestamp", "merge", "value"):
        if tag == "str" and node.style is None and _FLOAT.fullmatch(text):
            return float(text)  # 1e3, which YAML 1.1 takes for text
        return text
    if tag == "bool":
        return _BOOL.get(text)
    if tag == "int" and _INT.fullmatch(text) and len(text) <= DIGITS_MAX:
        return int(text)
    if tag == "float" and _FLOAT.fullmatch(text):
        return float(text)
    return None


def raise_problems(problems: list[tuple[str, str]]) -> None:
    """Raise one `InputProblem` for all (place, message) pairs, if there are any."""
    if not problems:
        return
    (where, what), *rest = problems
    raise InputProblem(what, where=where, why="; ".join(f"{w}: {m}" for w, m in rest))


def suggest(name: str, known: list[str]) -> str:
    """`; did you mean …?` if a known name is near, else the known names."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known) or 'none'}"


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
