"""A machine that runs commands: over SSH (`ssh`), or the local machine (`ThisHost`)."""

import subprocess
from collections.abc import Sequence
from typing import Protocol

import msgspec

from iotctl.errors import Unreachable

RUN_TIMEOUT_S = 60.0


class Ran(msgspec.Struct, frozen=True):
    """A command that exited; `code` is its exit status."""

    code: int
    out: bytes
    err: bytes


class Host(Protocol):
    """One machine, open until `close`."""

    name: str

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = RUN_TIMEOUT_S) -> Ran:
        """Run one command to its end; no shell interprets `argv`.

        Raises:
            Unreachable: the connection was lost or the timeout expired; the command may have run.
        """

    def close(self) -> None: ...


class ThisHost:
    """The local machine."""

    name = "this machine"

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = RUN_TIMEOUT_S) -> Ran:
        try:
            done = subprocess.run(list(argv), input=stdin, capture_output=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise late(self.name, argv, timeout_s) from None
        except OSError as error:
            return Ran(127, b"", str(error).encode())
        return Ran(done.returncode, done.stdout, done.stderr)

    def close(self) -> None:
        pass


def late(name: str, argv: Sequence[str], timeout_s: float) -> Unreachable:
    return Unreachable(
        f"{name}: {argv[0]} did not end within {timeout_s:g} s",
        why="the command may have run",
        next="check the machine's load, then repeat the command",
        where=name,
    )
