"""Generated bugs: every place in the packages `ROOMS` where an operator, condition, number or call can be replaced or
removed, and a sample of them by a fixed seed.

Places without effect are left out: notes, docstrings, types, assertions, error messages and module constants.
"""

import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

import nodeagent
from nodeagent.testing.mutants.mutant import Mutant

ROOMS = ("raft", "log", "host", "data", "meta", "scaling", "storage", "runtime", "client")
SAMPLE_SEED = 1
CALLS_LEFT_ALONE = ("note", "_note")
"""Calls whose output decides nothing."""

_COMPARED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
}
_COUNTED = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
_JOINED = {ast.And: (" and ", " or "), ast.Or: (" or ", " and ")}
_OTHER_END = {"min": "max", "max": "min", "any": "all", "all": "any"}

Edit = tuple[int, int, str]
"""(first byte, end byte, replacement) in the source."""


def sample(count: int, seed: int = SAMPLE_SEED) -> list[Mutant]:
    """A sample of `count` bugs, taken evenly from the packages; always the same for the same source."""
    rng = random.Random(seed)
    by_room = {room: list(_of_room(room)) for room in ROOMS}
    for found in by_room.values():
        rng.shuffle(found)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(by_room.values()):
        chosen += [found.pop() for found in by_room.values() if found][: count - len(chosen)]
    return chosen


def _of_room(room: str) -> Iterator[Mutant]:
    root = Path(nodeagent.__file__).parent
    for path in sorted((root / room).rglob("*.py")):
        yield from mutants_of(str(path.relative_to(root)), path.read_text())


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """All generated bugs of one file, in the order of their places."""
    text = source.encode()
    starts = [0, *(m.end() for m in re.finditer(rb"\n", text))]
    for edit in sorted(set(_Places(text, starts).found(ast.parse(source)))):
        old, new = _with_context(text, edit, starts)
        line = text.count(b"\n", 0, edit[0]) + 1
        what = " ".join(text[edit[0] : edit[1]].decode().split())[:40].strip()
        yield Mutant(f"{file}:{line} {what} -> {edit[2].strip() or 'nothing'}", file, old, new)


def _with_context(text: bytes, edit: Edit, starts: list[int]) -> tuple[str, str]:
    """The lines of the edit, with as many lines before them as make the text unique."""
    first, last, instead = edit
    line = text.count(b"\n", 0, first)
    end = text.find(b"\n", last)
    end = len(text) if end < 0 else end + 1
    while text.count(text[starts[line] : end]) > 1:
        line -= 1
    begin = starts[line]
    new = text[begin:first] + instead.encode() + text[last:end]
    return text[begin:end].decode(), new.decode()


class _Places:
    """Visits executed code."""

    def __init__(self, text: bytes, starts: list[int]) -> None:
        self._text = text
        self._starts = starts

    def found(self, tree: ast.AST) -> Iterator[Edit]:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for statement in node.body:
                    yield from self._statement(statement)

    def _statement(self, node: ast.AST) -> Iterator[Edit]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return  # not removed on its own
        if isinstance(node, ast.Assert | ast.Raise | ast.AnnAssign) or _is_talk(node):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
            yield (*self._span(node), "pass")
        if isinstance(node, ast.AugAssign | ast.Delete):
            yield (*self._span(node), "pass")
        yield from self._expression(node)
        for child in ast.iter_child_nodes(node):
            yield from self._statement(child)

    def _expression(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if not isinstance(test, ast.Constant):
                    yield (*self._span(test), "False")
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from self._between(left, right, _COMPARED.get(type(op)))
            case ast.BinOp(left=left, op=op, right=right):
                yield from self._between(left, right, _COUNTED.get(type(op)))
            case ast.BoolOp(op=op, values=[first, second, *_]):
                yield from self._between(first, second, _JOINED.get(type(op)))
            case ast.UnaryOp(op=ast.Not()):
                start = self._span(node)[0]
                yield (start, start + len("not"), "")
            case ast.Call(func=ast.Name(id=name) as called) if name in _OTHER_END:
                yield (*self._span(called), _OTHER_END[name])
            case ast.Constant(value=bool() as value):
                yield (*self._span(node), str(not value))
            case ast.Constant(value=int() as value):
                yield (*self._span(node), str(value + 1))
            case _:
                pass

    def _between(self, left: ast.AST, right: ast.AST, change: tuple[str, str] | None) -> Iterator[Edit]:
        if change is None:
            return
        first, last = self._span(left)[1], self._span(right)[0]
        at = self._text.find(change[0].encode(), first, last)
        if at >= 0:
            yield (at, at + len(change[0].encode()), change[1])

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )


def _is_talk(node: ast.AST) -> bool:
    """Whether the node is a text, or a call that only writes a message."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.JoinedStr):
        return True
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in CALLS_LEFT_ALONE
    )
