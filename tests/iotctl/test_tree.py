"""A command line loads only the command that it names; its output is the same (`test_contract`)."""

import subprocess
import sys

import pytest
import typer

from iotctl.cli import tree
from iotctl.cli.main import whole_tree


def test_every_branch_is_in_the_tree_in_this_order() -> None:
    names = [branch.name for branch in (*tree.COMMANDS, *tree.GROUPS)]
    assert list(typer.main.get_command(whole_tree()).commands) == names  # type: ignore[attr-defined]


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
