"""Many kinds of invalid YAML: each is reported with its exact place and a hint, never as a traceback."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from iotctl.errors import InputProblem
from iotctl.spec.typed_yaml import BYTES_MAX, DEPTH_MAX, load, load_file


class Inner(msgspec.Struct, frozen=True):
    text: str = ""
    deep: dict[str, dict[str, str]] = {}


class Thing(msgspec.Struct, frozen=True):
    name: str
    count: int = 0
    weight: float = 0.0
    on: bool = False
    inner: Inner = Inner()
    items: tuple[str, ...] = ()
    free: Any = None


def failure(text: str) -> tuple[str, str]:
    with pytest.raises(InputProblem) as caught:
        load(text, "f", Thing)
    return caught.value.where, caught.value.what


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("name: no", "1:7", "expected text, found bool 'no'; put it in quotes"),
        ("name: 22:22", "1:7", "put it in quotes"),
        ("name: 1.10", "1:7", "put it in quotes"),
        ("name: ~", "1:7", "expected text, found nothing"),
        ("name:", "1:6", "expected text, found nothing"),
        ("name: [a]", "1:7", "expected text, found a list"),
        ("name: a\ncount: 010", "2:8", "plain decimal digits"),
        ("name: a\ncount: " + 5000 * "9", "2:8", "count: "),
        ('name: a\nfree: "\\U00110000"', "2:8", "\\U00110000 is not a character"),
        ('name: a\nfree: "\\UFFFFFFFF"', "2:8", "\\UFFFFFFFF is not a character"),
        ("name: a\ncount: 0x1f", "2:8", "plain decimal digits"),
        ("name: a\ncount: 1_000", "2:8", "plain decimal digits"),
        ("name: a\ncount: 10:30", "2:8", "plain decimal digits"),
        ("name: a\ncount: 1.5", "2:8", "expected a whole number"),
        ("name: a\ncount: true", "2:8", "expected a whole number"),
        ("name: a\nweight: .nan", "2:9", "expected a number"),
        ("name: a\nweight: .inf", "2:9", "expected a number"),
        ("name: a\n'on': yes", "2:7", "write true or false"),
        ("name: a\non: true", "2:1", "expected a name as the key, found bool 'on'; put it in quotes"),
        ("name: a\n'on': 1", "2:7", "expected true or false"),
        ("name: a\n? [b]\n: c", "2:3", "expected a name as the key, found a list"),
        ("name: a\n1: c", "2:1", "expected a name as the key"),
        ("name: a\nname: b", "2:1", "duplicate key (first on line 1)"),
        ("name: a\ninner:\n  deep:\n    x:\n      k: v\n      k: w", "6:7", "inner.deep.x.k: duplicate key"),
        ("name: a\nfree: {x: {y: {z: 1, z: 2}}}", "2:22", "duplicate key"),
        ("name: a\nfree: {x: no}", "2:11", "YAML reads no as true or false; put it in quotes"),
        ("name: a\nfree: [22:22]", "2:8", "another number"),
        ("name: a\nfree: [010]", "2:8", "another number"),
        ("name: a\nitems: b", "2:8", "expected a list"),
        ("name: a\nitems: [b, 3]", "2:12", "items[1]: expected text"),
        ("name: a\ninner: {txet: b}", "2:9", "did you mean 'text'"),
        ("count: 1", "1:1", "name: missing"),
        ("name: a\n\tcount: 1", "2:1", "not valid YAML"),
        ("name: a\ninner: {text: b", "2:16", "not valid YAML"),
        ("name: 'a", "1:9", "not valid YAML"),
        ("name: a\n count: 1", "2:7", "not valid YAML"),
        ("name: &x a\nfree: *x", "1:7", "anchors (&x) are not supported"),
        ("name: a\nfree: *x", "2:7", "aliases (*x) are not supported"),
        ("name: a\nfree: !!python/object:os.system {}", "2:7", "tags"),
        ("name: !!int a", "1:7", "tags"),
        ("name: a\n---\nname: b", "2:1", "second document"),
        ("name: a\x07b", "1:8", "U+0007"),
        ("", "1:1", "empty"),
        ("- a", "1:1", "expected a mapping"),
        ("text", "1:1", "expected a mapping"),
    ],
)
def test_each_mistake_has_its_place_and_hint(text: str, where: str, said: str) -> None:
    place, what = failure(text)
    assert place == f"f:{where}" and said in what, (place, what)


def test_an_alias_bomb_is_refused_before_it_expands() -> None:
    lines = ["name: a", "free:", "  - &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"  - &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    place, what = failure("\n".join(lines))
    assert place == "f:3:5" and "anchors" in what


def test_nesting_and_size_are_limited() -> None:
    place, what = failure("name: a\nfree: " + "[" * 100_000)
    assert place == f"f:2:{7 + DEPTH_MAX - 1}" and "nested" in what
    assert "larger" in failure("#" * (BYTES_MAX + 1))[1]
    assert "larger" in failure("#" + "ü" * (BYTES_MAX // 2))[1]


def test_bytes_that_are_not_utf8_are_refused_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes("name: ü\nfree: \xe4b".encode("latin-1").replace(b"\xfc", "ü".encode()))
    with pytest.raises(InputProblem) as caught:
        load_file(path, Thing)
    assert caught.value.where == f"{path}:2:7" and "0xe4" in caught.value.what and caught.value.next


def test_valid_values_are_read_as_written() -> None:
    lines = ('name: "no"', "count: -7", "weight: 1e3", '"on": false', "items: [b]")
    found = load("\n".join((*lines, 'free: {a: [1, 2.5, x, true, "010", null]}')), "f", Thing).value
    assert (found.name, found.count, found.weight, found.on, found.items) == ("no", -7, 1000.0, False, ("b",))
    assert found.free == {"a": [1, 2.5, "x", True, "010", None]}
