"""Requests and commands with extreme values for fuzzing, derived from the types of the structs.

A message consists of plain values, as a foreign peer could send them, so it may contain values that the types
do not allow.
"""

import random
from typing import Any

import msgspec
from msgspec import inspect

INTS = (
    *(0, 1, -1, 2, 7, 255, 65_536, 70_000, (1 << 31) - 1, -(1 << 31), 1 << 48, (1 << 53) + 1),
    *((1 << 63) - 1, -(1 << 63), 1 << 63, (1 << 64) - 1),
)
FLOATS = (0.0, -1.0, 1.0, 1e308, float("inf"), float("nan"))
TEXTS = (
    "",
    "a",
    "\0",
    "a\0b",
    "../../etc",
    "x" * 300,
    "x" * 5_000,
    "é" * 200,
    "\x1b[2J",
    "now",
    "-1",
    "meta",
)
BYTES = (b"", b"\0", b"\xc1garbage", b"\x93\x01\x02\x03", bytes(3_000))


class Extremes:
    """`words` are names that exist at the receiver; without them, it would refuse every message early."""

    def __init__(self, rng: random.Random, words: tuple[str, ...]) -> None:
        self.rng = rng
        self.words = words

    def make(self, kind: type) -> Any:
        """Return plain values of a message of type `kind`."""
        return self._of(inspect.type_info(kind), 0)

    def mutated(self, message: object, times: int) -> Any:
        """Return the plain values of `message` with some of them replaced by extreme ones."""
        plain = msgspec.to_builtins(message, builtin_types=(bytes,))
        for _ in range(times):
            plain = self._mutate(plain)
        return plain

    def _mutate(self, plain: Any) -> Any:
        rng = self.rng
        if isinstance(plain, dict) and plain:
            key = rng.choice([k for k in plain if k != "type"] or list(plain))
            return {**plain, key: self._mutate(plain[key])}
        if isinstance(plain, list | tuple) and plain and rng.random() < 0.8:
            at = rng.randrange(len(plain))
            return [*plain[:at], self._mutate(plain[at]), *plain[at + 1 :]]
        return self._scalar(plain)

    def _scalar(self, plain: Any) -> Any:
        rng = self.rng
        match plain:
            case bool():
                return not plain
            case int():
                return rng.choice(INTS)
            case float():
                return rng.choice(FLOATS)
            case str():
                return rng.choice((*TEXTS, *self.words))
            case bytes():
                return rng.choice(BYTES)
            case list() | tuple():
                return [*plain, *plain][: rng.choice((0, 1, 2))]
            case _:
                return rng.choice((None, 1, "x", [], {}))

    def _of(self, info: inspect.Type, depth: int) -> Any:
        rng = self.rng
        match info:
            case inspect.StructType():
                return self._struct(info, depth)
            case inspect.UnionType():
                return self._of(rng.choice(info.types), depth)
            case inspect.VarTupleType() | inspect.ListType():
                return [self._of(info.item_type, depth + 1) for _ in range(rng.choice((0, 1, 2)))]
            case inspect.TupleType():
                return [self._of(item, depth + 1) for item in info.item_types]
            case inspect.DictType():
                return {self._of(info.key_type, depth): self._of(info.value_type, depth)}
            case inspect.IntType():
                return rng.choice(INTS)
            case inspect.FloatType():
                return rng.choice(FLOATS)
            case inspect.StrType():
                return rng.choice((*self.words, *TEXTS))
            case inspect.BytesType():
                return rng.choice(BYTES)
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.NoneType():
                return None
            case inspect.EnumType():
                return rng.choice([m.value for m in info.cls])
            case _:
                raise AssertionError(f"no values for {info}")

    def _struct(self, info: inspect.StructType, depth: int) -> Any:
        values = {
            f.encode_name: self._of(f.type, depth + 1)
            for f in info.fields
            if f.required or self.rng.random() < 0.5 or info.array_like
        }
        if info.array_like:
            return [*([info.tag] if info.tag is not None else []), *values.values()]
        return values if info.tag_field is None else {info.tag_field: info.tag, **values}
