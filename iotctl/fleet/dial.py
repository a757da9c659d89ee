"""TCP connections for SSH, including connections that are prefetched before the SSH library is loaded.

This module imports little: `ssh -G` and the start of an sshd session take time, which overlaps with loading
the rest of our code.
"""

import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from iotctl.errors import IotctlError
from iotctl.fleet.many import THREADS
from iotctl.fleet.ssh_config import Route, Target, route_of

CONNECT_TIMEOUT_S = 10.0
QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)
"""Available on Linux only."""

Begun = tuple[Route, socket.socket | None]
"""The route to a machine, and a connection to it if it is reached directly and accepts one."""


class Prefetch:
    """Prefetched routes and connections; each can be taken once."""

    def __init__(self, targets: Sequence[Target], env: Mapping[str, str], timeout_s: float) -> None:
        self._pool = ThreadPoolExecutor(min(THREADS, max(1, len(targets))))
        self._begun = {t: self._pool.submit(_begin, t, env, timeout_s) for t in targets}

    def take(self, target: Target) -> Begun | None:
        """None if nothing was prefetched or no route was found; the caller's own attempt then reports why."""
        begun = self._begun.pop(target, None)
        with suppress(IotctlError):
            return begun.result() if begun is not None else None
        return None

    def close(self) -> None:
        """Close the connections that were not taken."""
        while self._begun:
            _, begun = self._begun.popitem()
            if not begun.cancel():
                begun.add_done_callback(_close)
        self._pool.shutdown(wait=False)


def wait_s(timeout_s: float | None) -> float:
    """The timeout of a connection; the timeout of the whole command may shorten it, never extend it."""
    return min(timeout_s or CONNECT_TIMEOUT_S, CONNECT_TIMEOUT_S)


def dial(host: str, port: int, timeout_s: float) -> socket.socket:
    """Raises `OSError`."""
    plain = socket.create_connection((host, port), timeout_s)
    made = _Socket(fileno=plain.detach())
    made.settimeout(timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return made


class _Socket(socket.socket):
    """Acknowledges received data immediately. sshd holds back each small packet until the previous packet is
    acknowledged, by default 40 ms later, which would delay the first command of every connection."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        if QUICK_ACK is not None:
            self.setsockopt(socket.IPPROTO_TCP, QUICK_ACK, 1)  # the kernel resets it after a while
        return data


def _begin(target: Target, env: Mapping[str, str], timeout_s: float) -> Begun:
    route = route_of(target, env)
    if not (route.jump or route.proxy_command):
        with suppress(OSError):
            return route, dial(route.host, route.port, timeout_s)
    return route, None


def _close(begun: Future[Begun]) -> None:
    if not begun.cancelled() and begun.exception() is None and (made := begun.result()[1]) is not None:
        made.close()
