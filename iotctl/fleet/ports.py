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
from typing import TextIO

from iotctl.errors import RefusedProblem
from iotctl.spec.find import state_dir

LOOPBACK = "127.0.0.1"

PORTS = range(15_000, 32_000)
"""Below the range from which the kernel draws ports for outgoing connections (32768 on), so that nobody
takes an agent's port while it is down."""


def take_ports(count: int, owner: Path, env: Mapping[str, str] = os.environ) -> list[int]:
    """Ports that are free now and that no other directory has, all different; `owner` has them from now on.

    Raises:
        RefusedProblem: fewer are free.
    """
    with _kept(env) as kept:
        owners = dict(filter(None, map(_parsed, kept or ())))
        owners = {port: home for port, home in owners.items() if os.path.exists(home)}
        # Should all be given, one that nobody listens on at the moment is better than none.
        order = sorted(random.sample(PORTS, len(PORTS)), key=owners.__contains__)
        found = _free(order, count)
        if kept is not None:
            owners |= dict.fromkeys(found, str(owner.absolute()))
            kept.seek(0)
            kept.truncate()
            kept.writelines(f"{port} {home}\n" for port, home in owners.items())
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
def _kept(env: Mapping[str, str]) -> Iterator[TextIO | None]:
    """What was given, for one process at a time; None where it cannot be kept."""
    path = state_dir(env) / "ports"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", errors="surrogateescape")
    except OSError:
        yield None
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file


def _parsed(line: str) -> tuple[int, str] | None:
    port, _, home = line.rstrip("\n").partition(" ")
    return (int(port), home) if port.isdecimal() else None
