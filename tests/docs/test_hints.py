"""Every command that a message names exists, with the options it is given."""

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
"""Stands for a value that is filled in."""

COMMAND = re.compile(rf"\b(?:{'|'.join(TREES)})(?: [\w{HOLE}=/.-]+)+")
CODE = re.compile(r"```.*?```|`[^`]+`", re.DOTALL)
WORD = re.compile(r"[a-z]+(-[a-z]+)*")


def texts(path: Path) -> Iterator[str]:
    """The file's string values, docstrings left out."""
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


def named() -> Iterator[tuple[str, str]]:
    """(file, command) of every message of both packages."""
    for package in TREES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name == "completion.py":
                continue  # its texts are programs for shells
            for text in texts(path):
                for found in COMMAND.finditer(text):
                    yield str(path.relative_to(ROOT)), found[0]


def problem_of(line: str) -> str:
    """What is wrong with a command line; "" when it can be typed as it is written."""
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


def test_every_command_a_message_names_can_be_typed() -> None:
    """A hint that leads nowhere costs more than none."""
    lines = list(named())
    assert len(lines) > 60
    assert [(path, line, why) for path, line in lines if (why := problem_of(line))] == []


def test_every_command_a_page_shows_can_be_typed() -> None:
    """In its blocks and between backticks."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "playbooks").glob("*.md")]
    shown = [(p, code) for p in pages if p.name != "cli.md" for code in CODE.findall(p.read_text())]
    lines = [(p.name, found[0]) for p, code in shown for found in COMMAND.finditer(code)]
    assert len(lines) > 150
    assert [(page, line, why) for page, line in lines if (why := problem_of(line))] == []


def test_the_check_sees_what_it_is_for() -> None:
    assert problem_of("iotctl spark up") == "iotctl has no command spark"
    assert problem_of("iotctl ops show --op x") == "iotctl ops show has no option --op"
    assert not problem_of(f"iotctl cluster wait --for op={HOLE}")
