"""Loopback ports for the nodes of local fleets.

A fleet that is down has no port open, but no other fleet may get its ports. Assigned ports are therefore
recorded in $XDG_STATE_HOME/iotctl/ports, as lines `PORT DIRECTORY`, until the directory is deleted.
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
"""Below the kernel's range of ports for outgoing connections (from 32768), so that no connection takes an
agent's port while the agent is down."""


def take_ports(
    count: int, owner: Path, env: Mapping[str, str] = os.environ, *, release_old: bool = False
) -> list[int]:
    """Assign `count` distinct ports to `owner` that are free now and, if possible, not assigned yet.

    `release_old`: first release the ports of an earlier fleet in `owner`.

    Raises:
        RefusedProblem: fewer ports are free.
    """
    with _locked(state_dir(env) / "ports") as file:
        own = str(owner.absolute())
        owners = {port: home for port, home in _read(file).items() if not (release_old and home == own)}
        # If all ports are assigned, an assigned port without a listener is better than none.
        order = sorted(random.sample(PORTS, len(PORTS)), key=owners.__contains__)
        found = _free(order, count)
        _write(file, owners | dict.fromkeys(found, own))
    return found


def _free(order: list[int], count: int) -> list[int]:
    found: list[int] = []
    for port in order:
        if len(found) == count:
            break
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind((LOOPBACK, port))
            found.append(port)
    if len(found) < count:
        raise RefusedProblem(
            f"fewer than {count} ports are free on {LOOPBACK}; nothing was changed", next="stop other fleets"
        )
    return found


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO | None]:
    """The file, locked for one process at a time; None if it cannot be opened."""
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
    """The directory that each port is assigned to, without invalid lines and deleted directories."""
    if file is None:
        return {}
    file.seek(0)
    lines = [line.partition(" ") for line in os.fsdecode(file.read()).split("\n")]
    return {int(port): home for port, _, home in lines if port.isdecimal() and os.path.exists(home)}


def _write(file: BinaryIO | None, owners: Mapping[int, str]) -> None:
    if file is None:
        return
    text = os.fsencode("".join(f"{port} {home}\n" for port, home in owners.items()))
    with contextlib.suppress(OSError):  # a full disk: the lines after a partial write stay
        os.pwrite(file.fileno(), text, 0)
        file.truncate(len(text))
