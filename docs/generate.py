"""Write `docs/reference/cli.md` from the commands themselves: `python docs/generate.py`."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import typer

from iotctl.cli.main import run, whole_tree

PAGE = Path(__file__).parent / "reference" / "cli.md"
HEAD = """# Commands

What `--help` prints; made by `python docs/generate.py`, not by hand. The first section has the options that
every command takes and the exit codes.
"""


def commands() -> list[tuple[str, ...]]:
    """Every command and group, in the order of the help: (), ("demo",), ("local",), ("local", "up")..."""

    def walk(command: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, (*path, name))

    return list(walk(typer.main.get_command(whole_tree()), ()))


def help_text(path: tuple[str, ...]) -> str:
    """What `iotctl PATH --help` prints on a terminal 80 wide."""
    os.environ.update(COLUMNS="80", NO_COLOR="1")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run([*path, "--help"])
    assert code == 0, (path, code)
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()).strip()


def page() -> str:
    parts = [HEAD]
    for path in commands():
        parts.append(f"{'###' if len(path) > 1 else '##'} {' '.join(('iotctl', *path))}\n")
        parts.append(f"```\n{help_text(path)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    sys.exit(0)
