"""Sample values of a struct: no field has its default and none is empty.

Only the types determine the values, so they are the same in every run.
"""

from typing import Any

import msgspec
from msgspec import inspect

Collection = inspect.ListType | inspect.SetType | inspect.FrozenSetType | inspect.VarTupleType

DEPTH_MAX = 12
"""Maximum depth of a recursive struct."""


def sample(kind: type[msgspec.Struct]) -> Any:
    return _Maker().value(inspect.type_info(kind), kind.__name__, 0)


class _Maker:
    def __init__(self) -> None:
        self._count = 0

    def _next(self) -> int:
        self._count += 1
        return self._count

    def value(self, of: inspect.Type, name: str, depth: int) -> Any:
        assert depth < DEPTH_MAX, name
        match of:
            case inspect.IntType():
                return self._int(of)
            case inspect.FloatType():
                return self._next() + 0.5
            case inspect.StrType():
                return f"{name} {self._next()}"[: of.max_length]
            case inspect.BoolType():
                return True
            case inspect.BytesType() | inspect.MemoryViewType():
                content = bytes([self._next() % 256, 0x00, 0xFF])
                return memoryview(content) if isinstance(of, inspect.MemoryViewType) else content
            case inspect.RawType():
                return msgspec.Raw(msgspec.msgpack.encode(self._next()))
            case inspect.AnyType():
                return f"{name} {self._next()}"
            case inspect.NoneType():
                return None
            case inspect.Metadata():
                return self.value(of.type, name, depth)
            case inspect.UnionType():
                some = next(t for t in of.types if not isinstance(t, inspect.NoneType))
                return self.value(some, name, depth)
            case inspect.EnumType():
                return list(of.cls)[-1]
            case inspect.LiteralType():
                return of.values[-1]
            case inspect.StructType():
                return of.cls(**{f.name: self._field(f, depth) for f in of.fields})
            case inspect.TupleType():
                return tuple(self.value(t, name, depth + 1) for t in of.item_types)
            case inspect.DictType():
                key = self.value(of.key_type, name, depth + 1)
                return {key: self.value(of.value_type, name, depth + 1)}
            case inspect.ListType():
                return self._inside(of, name, depth)
            case inspect.SetType() | inspect.FrozenSetType():
                return set(self._inside(of, name, depth))
            case inspect.VarTupleType():
                return tuple(self._inside(of, name, depth))
            case _:
                raise TypeError(f"{name}: no value of {of}")

    def _inside(self, of: Collection, name: str, depth: int) -> list[Any]:
        return [self.value(of.item_type, name, depth + 1) for _ in range(of.min_length or 1)]

    def _int(self, of: inspect.IntType) -> int:
        least = of.ge if of.ge is not None else -(1 << 63)
        most = of.le if of.le is not None else of.lt - 1 if of.lt is not None else (1 << 63) - 1
        value = self._next()
        assert least <= value <= most, (value, of)
        return value

    def _field(self, of: inspect.Field, depth: int) -> Any:
        value = self.value(of.type, of.name, depth + 1)
        if isinstance(value, bool) and of.default is True:
            return False
        return value
