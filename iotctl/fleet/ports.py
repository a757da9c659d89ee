"""Ports of the loopback for the nodes of local fleets.

A fleet that is down has no port open, and another one must not be given it meanwhile. So what was given is
kept in $XDG_STATE_HOME/iotctl/ports, a line `PORT DIRECTORY` each, until the directory is gone.
"""

import contextlib
import fcntl
import os
import random
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from iotctl.errors import RefusedProblem
from iotctl.spec.find import state_dir

LOOPBACK = "127.0.0.1"

PORTS = range(15_000, 32_000)
"""Below the range from which the kernel draws ports for outgoing connections (32768 on), so that nobody
takes an agent's port while it is down."""


def take_ports(
    count: int, owner: Path, env: Mapping[str, str] = os.environ, *, anew: bool = False
) -> list[int]:
    """Ports that are free now and that no directory has, all different; `owner` has them from now on.

    `anew`: what it was given before, in an earlier life, it has no longer.

    Raises:
        RefusedProblem: fewer are free.
    """
    with _locked(state_dir(env) / "ports") as file:
        own = str(owner.absolute())
        owners = {port: home for port, home in _read(file).items() if not (anew and home == own)}
        # Should all be given, one that nobody listens on at the moment is better than none.
        order = sorted(random.sample(PORTS, len(PORTS)), key=owners.__contains__)
        found = _free(order, count)
        _write(file, owners | dict.fromkeys(found, own))
    return found


def _free(order: list[int], count: int) -> list[int]:
    found: list[int] = []
    for port in order:
        if len(found) == count:
            return found
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind((LOOPBACK, port))
            found.append(port)
    raise RefusedProblem(f"no {count} ports are free on {LOOPBACK}", next="stop other fleets")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO | None]:
    """The file, for one process at a time; None where it cannot be kept."""
    with contextlib.ExitStack() as stack:
        file: BinaryIO | None = None
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            opened = stack.enter_context(os.fdopen(descriptor, "r+b", buffering=0))
            fcntl.flock(opened, fcntl.LOCK_EX)
            file = opened
        yield file


def _read(file: BinaryIO | None) -> dict[int, str]:
    """The directory that has a port; what is no line of ours, and directories that are gone, are left out."""
    if file is None:
        return {}
    file.seek(0)
    lines = [line.partition(" ") for line in os.fsdecode(file.read()).split("\n")]
    return {int(port): home for port, _, home in lines if port.isdecimal() and os.path.exists(home)}


def _write(file: BinaryIO | None, owners: Mapping[int, str]) -> None:
    if file is None:
        return
    text = os.fsencode("".join(f"{port} {home}\n" for port, home in owners.items()))
    with contextlib.suppress(OSError):  # a full disk: what stands behind a part that was written is kept
        os.pwrite(file.fileno(), text, 0)
        file.truncate(len(text))
