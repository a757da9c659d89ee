"""Every command in messages and pages exists and has the options that are shown."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import typer

from iotctl.cli.main import whole_tree
from nodeagent.cli import app as nodeagent

ROOT = Path(__file__).parents[2]
TREES = {"iotctl": typer.main.get_command(whole_tree()), "nodeagent": typer.main.get_command(nodeagent)}
HOLE = "\N{REPLACEMENT CHARACTER}"
"""Replaces a formatted value."""

COMMAND = re.compile(rf"\b(?:{'|'.join(TREES)})(?: [\w{HOLE}=/.-]+)+")
CODE = re.compile(r"```.*?```|`[^`]+`", re.DOTALL)
WORD = re.compile(r"[a-z]+(-[a-z]+)*")


def literals(path: Path) -> Iterator[str]:
    """The string literals of a file, without docstrings."""
    tree = ast.parse(path.read_text())
    bare = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    parts = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
    for node in ast.walk(tree):
        if id(node) in bare | parts:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else HOLE for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def commands() -> Iterator[tuple[str, str]]:
    """(file, command) of every message in both packages."""
    for package in TREES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name == "completion.py":
                continue  # contains shell scripts
            for text in literals(path):
                for found in COMMAND.finditer(text):
                    yield str(path.relative_to(ROOT)), found[0]


def problem_of(line: str) -> str:
    """The error in a command line; "" if the command exists with these options."""
    program, *words = line.split()
    command, path, spare = TREES[program], [program], list[str]()
    options = {o for p in command.params for o in p.opts}
    for word in (w.rstrip(HOLE) or HOLE for w in words):
        children = getattr(command, "commands", {})
        if word.startswith("-"):
            options |= {o for p in command.params for o in p.opts}
            if word.partition("=")[0] not in options:
                return f"{' '.join(path)} has no option {word}"
        elif word in children:
            command = children[word]
            path.append(word)
        elif children and WORD.fullmatch(word):
            return f"{' '.join(path)} has no command {word}"
        else:
            spare.append(word)
    return ""


def test_every_command_in_a_message_exists() -> None:
    """Commands in string literals of both packages."""
    lines = list(commands())
    assert len(lines) > 60
    assert [(path, line, why) for path, line in lines if (why := problem_of(line))] == []


def test_every_command_on_a_page_exists() -> None:
    """Commands in code blocks and code spans."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "playbooks").glob("*.md")]
    shown = [(p, code) for p in pages if p.name != "cli.md" for code in CODE.findall(p.read_text())]
    lines = [(p.name, found[0]) for p, code in shown for found in COMMAND.finditer(code)]
    assert len(lines) > 150
    assert [(page, line, why) for page, line in lines if (why := problem_of(line))] == []


def test_unknown_commands_and_options_are_detected() -> None:
    assert problem_of("iotctl spark up") == "iotctl has no command spark"
    assert problem_of("iotctl ops show --op x") == "iotctl ops show has no option --op"
    assert not problem_of(f"iotctl cluster wait --for op={HOLE}")
