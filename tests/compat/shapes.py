"""The shape of a stored or sent struct as plain data, and the changes that a release may not make to it.

Each release must read what earlier and later ones write. So a field keeps its name, type and default; a new
field has a default and, in a struct that is an array, comes last; unions and enums may grow.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from tests.compat import formats

Shape = Any
"""The name of a plain type, or a list of a container's kind and its parts."""

_PLAIN = {
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BoolType: "bool",
    inspect.NoneType: "none",
    inspect.AnyType: "any",
    inspect.RawType: "any",
    inspect.BytesType: "bytes",
    inspect.MemoryViewType: "bytes",
}


class Field(msgspec.Struct, frozen=True):
    name: str
    shape: Shape
    required: bool
    default: Any = None
    """As JSON; null if the field is required."""


class StructShape(msgspec.Struct, frozen=True):
    tag: str | int | None
    is_array: bool
    fields: tuple[Field, ...]


class Shapes(msgspec.Struct, frozen=True):
    """The shape of one format, and the shapes of its structs by name."""

    root: Shape
    structs: dict[str, StructShape]


def shapes_of(kind: Any) -> Shapes:
    structs: dict[str, StructShape] = {}
    return Shapes(_shape(inspect.type_info(kind), structs), structs)


def _shape(of: inspect.Type, structs: dict[str, StructShape]) -> Shape:
    match of:
        case inspect.StructType():
            return ["struct", _struct(of, structs)]
        case inspect.UnionType():
            return ["union", *sorted((_shape(t, structs) for t in of.types), key=str)]
        case inspect.TupleType():
            return ["tuple", *(_shape(t, structs) for t in of.item_types)]
        case inspect.DictType():
            return ["dict", _shape(of.key_type, structs), _shape(of.value_type, structs)]
        case inspect.EnumType():
            return ["enum", *sorted(member.value for member in of.cls)]
        case inspect.LiteralType():
            return ["enum", *sorted(of.values, key=str)]
        case inspect.Metadata():
            return _shape(of.type, structs)
        case inspect.ListType() | inspect.SetType() | inspect.FrozenSetType() | inspect.VarTupleType():
            return ["list", _shape(of.item_type, structs)]
        case _:
            return _PLAIN[type(of)]


def _struct(of: inspect.StructType, structs: dict[str, StructShape]) -> str:
    name = formats.label(of.cls)
    if name not in structs:
        structs[name] = StructShape(None, False, ())  # a struct may be recursive
        fields = tuple(
            Field(f.encode_name, _shape(f.type, structs), f.required, _default(f)) for f in of.fields
        )
        structs[name] = StructShape(of.tag, of.array_like, fields)
    return name


def _default(of: inspect.Field) -> Any:
    if of.default_factory is not msgspec.NODEFAULT:
        return plain(of.default_factory())
    return None if of.default is msgspec.NODEFAULT else plain(of.default)


def plain(value: Any) -> Any:
    """The value as plain JSON data, with structs as maps or lists."""
    bare = msgspec.msgpack.decode(msgspec.msgpack.encode(value))  # includes fields that stay encoded
    return msgspec.json.decode(msgspec.json.encode(bare))


def differences(old: Shapes, new: Shapes) -> Iterator[str]:
    """The incompatible changes from `old` to `new`, each with its location."""
    yield from _Comparison(old, new).of("", old.root, new.root)


class _Comparison:
    def __init__(self, old: Shapes, new: Shapes) -> None:
        self._old = old.structs
        self._new = new.structs
        self._done: set[tuple[str, str]] = set()

    def of(self, where: str, old: Shape, new: Shape) -> Iterator[str]:
        if isinstance(old, str) or isinstance(new, str) or old[0] != new[0]:
            if old != new:
                yield f"{where}: was {_said(old)}, is {_said(new)}"
            return
        match old[0]:
            case "struct":
                yield from self._struct(where, old[1], new[1])
            case "union":
                yield from self._union(where, old[1:], new[1:])
            case "enum":
                if lost := set(old[1:]) - set(new[1:]):
                    yield f"{where}: lost {sorted(lost)}"
            case _ if len(old) != len(new):
                yield f"{where}: was {_said(old)}, is {_said(new)}"
            case _:
                for of_old, of_new in zip(old[1:], new[1:], strict=True):
                    yield from self.of(where, of_old, of_new)

    def _union(self, where: str, old: list[Shape], new: list[Shape]) -> Iterator[str]:
        """Compare members: structs by their tags, other types by their kind."""
        known = {self._key(shape, self._new): shape for shape in new}
        for shape in old:
            key = self._key(shape, self._old)
            if key not in known:
                yield f"{where}: {_said(shape)} is not read any more"
            else:
                yield from self.of(f"{where} {key}".strip(), shape, known[key])

    @staticmethod
    def _key(shape: Shape, structs: dict[str, StructShape]) -> str:
        if isinstance(shape, str):
            return shape
        return str(structs[shape[1]].tag) if shape[0] == "struct" else str(shape[0])

    def _struct(self, where: str, of_old: str, of_new: str) -> Iterator[str]:
        if (of_old, of_new) in self._done:
            return
        self._done.add((of_old, of_new))
        old, new = self._old[of_old], self._new[of_new]
        if (old.tag, old.is_array) != (new.tag, new.is_array):
            yield f"{where}: was {old.tag!r}, an array: {old.is_array}; is {new.tag!r}, {new.is_array}"
        names = [field.name for field in old.fields]
        order = [field.name for field in new.fields]
        if old.is_array and order[: len(names)] != names:
            yield f"{where}: fields of an array were {names}, are {order}"
        known = {field.name: field for field in new.fields}
        for field in old.fields:
            place = f"{where}.{field.name}".lstrip(".")
            later = known.get(field.name)
            if later is None:
                yield f"{place}: it is gone"
                continue
            yield from self.of(place, field.shape, later.shape)
            if (field.required, field.default) != (later.required, later.default):
                yield f"{place}: the default was {_given(field)}, is {_given(later)}"
        for field in new.fields:
            if field.required and field.name not in names:
                yield f"{where}.{field.name}".lstrip(".") + ": a new field without a default"


def _given(field: Field) -> str:
    return "none" if field.required else repr(field.default)


def _said(shape: Shape) -> str:
    return shape if isinstance(shape, str) else msgspec.json.encode(shape).decode()
