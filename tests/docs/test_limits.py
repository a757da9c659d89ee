"""Sizes that keep a class, a module and a function readable, and duplicated code.

Code over a limit gives the reason in its docstring, or in a comment above it: "Over the limit of 25 methods
because ...". A block that occurs in two places is listed in `TWICE` with the reason.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(p for room in ("nodeagent", "iotctl") for p in (ROOT / room).rglob("*.py"))

METHODS_MAX = 25
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 8

BLOCK_LINES = 6
BLOCK_CHARS_MIN = 100
"""A shorter block of six lines is only brackets and keywords."""

CLIENT = {"nodeagent/client/cluster.py", "nodeagent/client/blocking.py", "nodeagent/client/changes.py"}

TWICE: dict[frozenset[str], str] = {
    frozenset({"iotctl/change/lock.py", "iotctl/pipeline/lease.py"}): "the signature of `__exit__`",
    frozenset({"iotctl/cli/changes.py", "iotctl/cli/plan.py"}): "parameters of add-node and of its plan",
    frozenset({"iotctl/cli/plan.py"}): "the ends of three declarations of commands",
    frozenset({"iotctl/observe/cluster.py", "nodeagent/client/blocking.py", "nodeagent/client/cluster.py"}): (
        "the parameters of a request: asynchronous, blocking, and as iotctl and its fakes see it"
    ),
    frozenset({"nodeagent/client/blocking.py", "nodeagent/client/cluster.py"}): "parameters, as above",
    frozenset(CLIENT): "parameters, as above",
    frozenset({"nodeagent/client/changes.py", "nodeagent/client/cluster.py"}): "parameters, as above",
    frozenset({"nodeagent/client/cluster.py"}): "the parameters of a scan: as one table, and as batches",
    frozenset({"nodeagent/data/commands.py"}): "fields of two log entries, whose order is stored",
    frozenset({"nodeagent/host/handlers/scans.py"}): "a scan of own rows and one of sealed rows begin alike",
    frozenset({"nodeagent/host/host.py", "nodeagent/testing/groups.py"}): "the simulator's host without data",
    frozenset(
        {"nodeagent/host/meta_replica.py", "nodeagent/testing/groups.py"}
    ): "the same, its state machine",
    frozenset({"nodeagent/raft/core.py", "nodeagent/raft/roles.py"}): "the parameters of a constructor",
    frozenset({"nodeagent/runtime/http.py", "nodeagent/transport/endpoints.py"}): (
        "the port of a server: asyncio has no name for it"
    ),
    frozenset(
        {
            "nodeagent/testing/cluster_swarm.py",
            "nodeagent/testing/single_node.py",
            "nodeagent/testing/swarm.py",
        }
    ): "the last lines of a program that runs seeds",
}
"""Files that share a block -> why it is duplicated."""


def excused(node: ast.AST, limit: int, of: str, lines: list[str]) -> bool:
    assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    said = ast.get_docstring(node) or ""
    if not isinstance(node, ast.Module):
        above = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 2
        said += lines[above].removeprefix("#")
    return f"over the limit of {limit} {of} because" in " ".join(said.lower().split())


def over_limits(path: Path) -> Iterator[str]:
    text = path.read_text()
    tree = ast.parse(text)
    source = text.split("\n")
    count = len(source) - 1
    if count > MODULE_LINES_MAX and not excused(tree, MODULE_LINES_MAX, "lines", source):
        yield f"{count} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in node.body)
            if methods > METHODS_MAX and not excused(node, METHODS_MAX, "methods", source):
                yield f"class {node.name}: {methods} methods"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            count = node.end_lineno - node.lineno + 1
            if count > FUNCTION_LINES_MAX and not excused(node, FUNCTION_LINES_MAX, "lines", source):
                yield f"{node.name}(): {count} lines"
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            count = len(names) - (names[:1] in (["self"], ["cls"]))
            if count > PARAMETERS_MAX and not excused(node, PARAMETERS_MAX, "parameters", source):
                yield f"{node.name}(): {count} parameters"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_classes_modules_and_functions_stay_within_their_limits(path: Path) -> None:
    assert not list(over_limits(path))


def code_lines(path: Path) -> list[tuple[int, str]]:
    """(number, text) of the lines that are neither blank, comment, docstring nor import."""
    text = path.read_text()
    left_out = set[int]()
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.Expr | ast.Import | ast.ImportFrom) and node.end_lineno is not None
            left_out |= set(range(node.lineno, node.end_lineno + 1))
    stripped = ((n, line.split("  # ")[0].strip()) for n, line in enumerate(text.split("\n"), 1))
    return [(n, s) for n, s in stripped if s and not s.startswith("#") and n not in left_out]


def blocks_that_stand_twice() -> dict[frozenset[str], str]:
    """Files that share a block of `BLOCK_LINES` lines of code -> where the first one is."""
    places: defaultdict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path in FILES:
        lines = code_lines(path)
        for i in range(len(lines) - BLOCK_LINES + 1):
            block = tuple(text for _, text in lines[i : i + BLOCK_LINES])
            if sum(map(len, block)) >= BLOCK_CHARS_MIN:
                places[block].append((str(path.relative_to(ROOT)), lines[i][0]))
    found: dict[frozenset[str], str] = {}
    for where in places.values():
        if len(where) > 1:
            found.setdefault(frozenset(f for f, _ in where), ", ".join(f"{f}:{n}" for f, n in where))
    return found


def test_no_block_of_code_stands_twice_without_a_reason() -> None:
    found = blocks_that_stand_twice()
    assert {files: where for files, where in found.items() if files not in TWICE} == {}
    assert set(TWICE) - set(found) == set(), "these occur only once now: remove them from the list"
