"""Copies of state machines, and digests of their states.

A copy shares immutable objects (messages, entries, configs) and copies mutable ones (lists, dicts, and the
objects of the code under test).
"""

from collections import deque
from enum import Enum
from functools import cache
from typing import Any

import msgspec
import xxhash

_encode = msgspec.msgpack.Encoder().encode
_PLAIN = frozenset({int, str, bytes, bool, float, type(None)})

DROPPED = frozenset(
    {
        "_election_at",
        "_election_ms",
        "_random",
        "_reported",
        "clock",
        "commits",
        "deadline",
        "heartbeat_at",
        "news_at",
        "quorum_at",
        "settings",
        "stirred",
    }
)
"""Fields that decide nothing in these worlds: deadlines, because an event may let one pass at any time, and
values that are equal everywhere."""

AGES = frozenset({"_contact_at", "doubted_at", "moved_at"})
"""Times in the past. A digest contains only which bounds their age exceeds."""


@cache
def fields_of(cls: type) -> tuple[str, ...]:
    """Names of the attributes of a class with `__slots__`, base classes first."""
    if issubclass(cls, msgspec.Struct | Enum):
        return ()
    names: list[str] = []
    for base in reversed(cls.__mro__):
        slots = base.__dict__.get("__slots__", ())
        names.extend([slots] if isinstance(slots, str) else slots)
    return tuple(names)


@cache
def _named_fields_of(cls: type) -> tuple[tuple[str, bool], ...]:
    """Fields that are part of a digest, and whether each is an age."""
    return tuple((name, name in AGES) for name in fields_of(cls) if name not in DROPPED)


def _is_copied(value: object) -> bool:
    cls: Any = type(value)
    return bool(fields_of(cls))


def fork(value: Any) -> Any:
    """A copy that shares no mutable object. References between objects are kept within the copy."""
    return _fork(value, {})


def _fork(value: Any, known: dict[int, Any]) -> Any:
    cls: Any = type(value)
    if cls is list:
        return [_fork(v, known) for v in value] if value and _is_copied(value[0]) else value[:]
    if cls is dict:
        holds_objects = value and _is_copied(next(iter(value.values())))
        return {k: _fork(v, known) for k, v in value.items()} if holds_objects else value.copy()
    if cls is deque:
        return deque([_fork(v, known) for v in value] if value and _is_copied(value[0]) else value)
    if cls is set:
        return value.copy()
    fields = fields_of(cls)
    if not fields:
        return value
    copied = known.get(id(value))
    if copied is None:
        copied = known[id(value)] = cls.__new__(cls)
        for name in fields:
            field = getattr(value, name)
            setattr(copied, name, field if type(field) in _PLAIN else _fork(field, known))
    return copied


def digest(value: Any, clock: int, bounds: tuple[int, ...]) -> bytes:
    """A digest that is equal for two states with the same possible futures.

    Args:
        clock: current time, from which ages are computed.
        bounds: bounds of ages in ms, ascending.
    """
    seen: set[int] = set()

    def freeze(value: Any) -> Any:
        cls: Any = type(value)
        if cls is list or cls is tuple or cls is deque:
            if value and (cls is tuple or _is_copied(value[0])):
                return [v if type(v) in _PLAIN else freeze(v) for v in value]
            return value if cls is list else list(value)
        if cls is dict:
            if value and _is_copied(next(iter(value.values()))):
                return [(k, freeze(v)) for k, v in sorted(value.items())]
            return sorted(value.items())
        fields = _named_fields_of(cls)
        if not fields:
            return value
        if id(value) in seen:
            return None
        seen.add(id(value))
        return [
            v if type(v) in _PLAIN and not (is_age and v is not None) else age(v) if is_age else freeze(v)
            for name, is_age in fields
            for v in (getattr(value, name),)
        ]

    def age(at: int) -> int:
        return sum(clock - at >= bound for bound in bounds)

    return xxhash.xxh3_128_digest(_encode(freeze(value)))
