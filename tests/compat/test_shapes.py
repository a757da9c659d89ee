"""The comparison of shapes: which changes are compatible between two builds."""

from enum import IntEnum, StrEnum
from itertools import count
from typing import Any

import msgspec
import pytest

from tests.compat import shapes

NAMES = count()


def made(fields: list[Any], **options: Any) -> Any:
    """Create a struct; its name must be unique, because shapes are identified by name."""
    return msgspec.defstruct(f"S{next(NAMES)}", fields, **{"frozen": True, **options})


class Inner(msgspec.Struct, frozen=True):
    a: int


class InnerMore(msgspec.Struct, frozen=True):
    a: int
    b: int


class InnerFree(msgspec.Struct, frozen=True):
    a: int
    b: int = 0


Left, Right = made([("a", int)], tag="left"), made([("a", int)], tag="right")
RightText = made([("a", str)], tag="right")
Few, Many = StrEnum("Few", ["A"]), StrEnum("Many", ["A", "B"])
One, Two = IntEnum("One", ["A"]), IntEnum("Two", ["A", "B"])
ARRAY = {"array_like": True}


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        (made([("a", int)]), made([]), "a: it is gone"),
        (made([("a", int)]), made([("b", int, 0)]), "a: it is gone"),
        (made([("a", int)]), made([("a", str)]), "a: was int, is str"),
        (made([("a", int)]), made([("a", int), ("b", int)]), "b: a new field without a default"),
        (made([("a", int)]), made([("a", int, 0)]), "a: the default was none, is 0"),
        (made([("a", int, 0)]), made([("a", int, 1)]), "a: the default was 0, is 1"),
        (made([("a", int, 0)]), made([("a", int)]), "a: the default was 0, is none"),
        (made([("a", list[int])]), made([("a", dict[int, int])]), "a: was"),
        (made([("a", tuple[int, int])]), made([("a", tuple[int, int, int])]), "a: was"),
        (made([("a", tuple[int, str])]), made([("a", tuple[int, int])]), "a: was str, is int"),
        (made([("a", dict[str, int])]), made([("a", dict[str, str])]), "a: was int, is str"),
        (made([("a", Many)]), made([("a", Few)]), "a: lost ['b']"),
        (made([("a", Two)]), made([("a", One)]), "a: lost [2]"),
        (made([("a", int | None)]), made([("a", int)]), "a: was"),
        (made([("a", int | None)]), made([("a", str | None)]), "a: int is not read any more"),
        (made([("a", list[Inner])]), made([("a", list[InnerMore])]), "a.b: a new field without a default"),
        (Left | Right, Left | made([], tag="other"), "is not read any more"),
        (Left | Right, Left | RightText, "right.a: was int, is str"),
        (made([], tag="a"), made([], tag="b"), "was 'a', an array: False; is 'b', False"),
        (made([]), made([], **ARRAY), "was None, an array: False; is None, True"),
        (
            made([("a", int), ("b", int)], **ARRAY),
            made([("b", int), ("a", int)], **ARRAY),
            "fields of an array were ['a', 'b'], are ['b', 'a']",
        ),
        (
            made([("b", int, 0)], **ARRAY),
            made([("a", int, 0), ("b", int, 0)], **ARRAY),
            "fields of an array were ['b'], are ['a', 'b']",
        ),
    ],
)
def test_an_incompatible_change_is_reported(old: Any, new: Any, place: str) -> None:
    found = list(shapes.differences(shapes.shapes_of(old), shapes.shapes_of(new)))
    assert any(place in difference for difference in found), found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (made([("a", int)]), made([("a", int), ("b", int, 0)])),
        (made([("a", int)]), made([("b", int, 0), ("a", int)], kw_only=True)),
        (made([("a", int)], **ARRAY), made([("a", int), ("b", int, 0)], **ARRAY)),
        (made([("a", Few)]), made([("a", Many)])),
        (Left | Right, Left | Right | made([], tag="other")),
        (made([("a", int)]), made([("renamed", int)], rename={"renamed": "a"})),
        (made([("a", list[int])]), made([("a", tuple[int, ...])])),
        (made([("a", list[Inner])]), made([("a", list[InnerFree])])),
    ],
)
def test_a_compatible_change_is_accepted(old: Any, new: Any) -> None:
    assert list(shapes.differences(shapes.shapes_of(old), shapes.shapes_of(new))) == []


def test_a_recursive_struct_has_a_shape() -> None:
    found = shapes.shapes_of(Tree)
    assert list(shapes.differences(found, found)) == []


class Tree(msgspec.Struct):
    below: "list[Tree]"
