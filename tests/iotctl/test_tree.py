"""A command line loads only the command that it names; its output is the same (`test_contract`)."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from iotctl.cli import tree
from iotctl.cli.main import whole_tree


def test_every_branch_is_in_the_tree_in_this_order() -> None:
    names = [branch.name for branch in (*tree.COMMANDS, *tree.GROUPS)]
    assert list(typer.main.get_command(whole_tree()).commands) == names  # type: ignore[attr-defined]


COLUMNS = 78  # of a help text in a terminal of 80


def groups(group: Any) -> Iterator[Any]:
    yield group
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from groups(command)


def test_no_summary_in_a_list_of_commands_is_cut() -> None:
    """Click writes "..." instead of the end of a first sentence that does not fit beside the longest name."""
    for group in groups(typer.main.get_command(whole_tree())):
        width = COLUMNS - 6 - max(map(len, group.commands))
        for name, command in group.commands.items():
            assert not command.get_short_help_str(width).endswith("..."), name


@pytest.mark.parametrize(
    ("words", "loaded"),
    [
        ((), set()),
        (("--version",), set()),
        (("plan", "--help"), {"plan"}),
        (("cert", "--help"), {"cert"}),
    ],
)
def test_only_the_named_command_is_loaded(words: tuple[str, ...], loaded: set[str]) -> None:
    """Every module that a command does not need costs some milliseconds."""
    modules = {branch.module for branch in (*tree.COMMANDS, *tree.GROUPS)}
    program = (
        "import sys; from iotctl.cli.main import run; run(sys.argv[1:]); sys.stdout.flush();"
        "print(*sorted(m for m in sys.modules if m.startswith('iotctl.cli.')), sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=True
    )
    found = {line.removeprefix("iotctl.cli.") for line in done.stderr.splitlines()}
    assert found & modules == loaded, found
