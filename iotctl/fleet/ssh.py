"""SSH connections; only this package imports fabric and paramiko.

Differences from fabric's defaults: a host key must be known (fabric accepts any key); the socket has
TCP_NODELAY, without which each short command waits 40 ms for a delayed acknowledgement; every wait has a
timeout; one connection per host and gateway is kept for the whole command; keys of the SSH agent come first.
"""

import base64
import logging
import random
import select
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

import fabric
import paramiko
from paramiko.auth_strategy import AuthFailure

from iotctl.errors import InputProblem, Unreachable
from iotctl.fleet.dial import CONNECT_TIMEOUT_S, Prefetch, dial
from iotctl.fleet.host import RUN_TIMEOUT_S, Ran, late
from iotctl.fleet.known_hosts import HostKey, Known, KnownHosts
from iotctl.fleet.ssh_config import Route, Target, jump_target, route_of
from iotctl.fleet.ssh_errors import changed_key, is_dropped, lost, refused_login, unknown_key, unreachable
from iotctl.fleet.ssh_keys import ChangedKey, Check, Keys, UnknownKey

KEEPALIVE_S = 20
ATTEMPTS = 6
BACKOFF_S = 0.2

HANDSHAKES_PER_GATEWAY = 4
"""Concurrent handshakes: sshd drops some if there are more than ten (`MaxStartups 10:30:100`)."""


CHUNK, SEND = 32_768, 1 << 18


LOOK_S = 1.0

T = TypeVar("T")


Jump = tuple[str, ...]


Dial = Callable[[], Any]
"""Returns a socket, or an object that paramiko accepts as one."""


# Paramiko raises its errors too; its log only adds tracebacks.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


logging.getLogger("paramiko").propagate = False


class SshHost:
    """An open connection; several threads may run commands on it, up to sshd's `MaxSessions` (10)."""

    def __init__(self, name: str, connection: fabric.Connection) -> None:
        self.name = name
        self._connection = connection

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = RUN_TIMEOUT_S) -> Ran:
        """As `Host.run`; the code of a command killed by a signal is -1."""
        transport = self._connection.transport
        end = time.monotonic() + timeout_s
        try:
            channel = transport.open_session(timeout=timeout_s)
            with closing(channel):
                with _closed_after(channel, end - time.monotonic()):
                    channel.exec_command(shlex.join(argv))
                if len(stdin) <= channel.out_window_size:
                    _send(channel, stdin)
                else:  # the command may answer before it has read all of its input
                    threading.Thread(target=_send, args=(channel, stdin), daemon=True).start()
                out, err = _received(channel, end)
                channel.status_event.wait(max(0.0, end - time.monotonic()))
        except (paramiko.SSHException, OSError, EOFError) as error:
            if time.monotonic() >= end:
                raise late(self.name, argv, timeout_s) from None
            raise lost(self.name, error) from None
        if channel.exit_status < 0 and time.monotonic() >= end:
            raise late(self.name, argv, timeout_s)
        if channel.exit_status < 0 and not transport.is_active():
            raise lost(self.name, EOFError("the connection ended before the command did"))
        return Ran(channel.exit_status, out, err)

    def close(self) -> None:
        with suppress(Exception):
            self._connection.close()


class Connector:
    """Opens connections to hosts and keeps the gateways that hosts share. Safe for use by several threads."""

    def __init__(
        self,
        known: KnownHosts,
        env: Mapping[str, str],
        *,
        timeout_s: float = CONNECT_TIMEOUT_S,
        ahead: Prefetch | None = None,
    ) -> None:
        """`ahead`: prefetched connections, closed together with this connector."""
        self._ahead = ahead
        self._known = known
        self._env = env
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._handshakes: dict[Jump, threading.Semaphore] = {}
        self._opening: dict[Jump, threading.Lock] = {}
        self._gateways: dict[Jump, fabric.Connection | Unreachable] = {}

    def open(self, target: Target) -> SshHost:
        """Raises `InputProblem` as `route_of`, or `Unreachable`: the text distinguishes unknown or changed
        host keys from refused logins."""
        return SshHost(target.name, self._connect(target, ()))

    def host_key(self, target: Target) -> tuple[HostKey, Known]:
        """The key that the host presents now, before any login, and its known keys. Its gateways must already
        be trusted."""
        route = route_of(target, self._env)
        known = self._known.of(route.known_as, route.known_hosts)
        reach = self._dial(target, route, ())

        def ask() -> HostKey:
            transport = paramiko.Transport(reach())
            try:
                options = transport.get_security_options()
                wanted = [k.type for k in known.keys if k.type in options.key_types]
                options.key_types = [*wanted, *(t for t in options.key_types if t not in wanted)]
                transport.start_client(timeout=self._timeout_s)
                key = transport.get_remote_server_key()
                return HostKey(route.known_as, key.get_name(), key.get_base64())
            finally:
                transport.close()

        return self._again(ask, route, target.name), known

    def gateways(self, target: Target, via: tuple[Target, ...] = ()) -> list[Target]:
        """The jump hosts on the route to a host, outermost first, including those on the routes to them.

        Raises:
            InputProblem: the jump hosts form a cycle.
        """
        found: dict[Target, None] = {}
        jump = route_of(target, self._env).jump
        for i, word in enumerate(jump):
            gate = jump_target(word, jump[:i])
            _check_circle(gate, via)
            found |= dict.fromkeys([*self.gateways(gate, (*via, gate)), gate])
        return list(found)

    def close(self) -> None:
        for connection in self._gateways.values():
            if not isinstance(connection, Unreachable):
                with suppress(Exception):
                    connection.close()
        self._gateways.clear()
        if self._ahead is not None:
            self._ahead.close()

    def _connect(self, target: Target, via: tuple[Target, ...]) -> fabric.Connection:
        begun = self._ahead.take(target) if self._ahead is not None else None
        route, early = begun or (route_of(target, self._env), None)
        known = self._known.of(route.known_as, route.known_hosts)
        reach = self._dial(target, route, via)

        def connect() -> fabric.Connection:
            nonlocal early
            sock, early = early or reach(), None  # the next attempt needs a new socket
            connection = _connection(route, known, sock, self._timeout_s)
            connection.open()
            connection.transport.set_keepalive(KEEPALIVE_S)
            return connection

        return self._again(connect, route, target.name)

    def _again(self, work: Callable[[], T], route: Route, name: str) -> T:
        """Run `work`; retry with growing pauses if sshd dropped the handshake because of too many others."""
        with self._handshakes_of(route.jump):
            for attempt in range(ATTEMPTS):
                began = time.monotonic()
                try:
                    return work()
                except ChangedKey as error:
                    raise changed_key(name, route, error) from None
                except UnknownKey:
                    raise unknown_key(name, route) from None
                except AuthFailure as error:
                    raise refused_login(name, route, error) from None
                except (paramiko.SSHException, OSError, EOFError) as error:
                    silent = time.monotonic() - began >= self._timeout_s
                    if attempt == ATTEMPTS - 1 or silent or not is_dropped(error):
                        raise unreachable(name, route, error) from None
                time.sleep(random.uniform(0.5, 1.5) * BACKOFF_S * 2**attempt)
        raise AssertionError("the last attempt raises")

    @contextmanager
    def _handshakes_of(self, jump: Jump) -> Iterator[None]:
        """Limits concurrent handshakes through one gateway; a direct handshake has an sshd of its own."""
        if not jump:
            yield
            return
        with self._lock:
            free = self._handshakes.setdefault(jump, threading.Semaphore(HANDSHAKES_PER_GATEWAY))
        with free:
            yield

    def _dial(self, target: Target, route: Route, via: tuple[Target, ...]) -> Dial:
        if route.jump:
            gateway = self._gateway(route.jump, via)
            place = (route.host, route.port)
            return lambda: gateway.transport.open_channel(
                "direct-tcpip", place, ("", 0), timeout=self._timeout_s
            )
        if route.proxy_command:
            return lambda: paramiko.ProxyCommand(shlex.join(["sh", "-c", f"exec {route.proxy_command}"]))
        return lambda: dial(route.host, route.port, self._timeout_s)

    def _gateway(self, jump: Jump, via: tuple[Target, ...]) -> fabric.Connection:
        """The gateway, opened once for all hosts behind it. Its failure is raised for all of them; other
        threads wait while it is being opened."""
        target = jump_target(jump[-1], jump[:-1])
        _check_circle(target, via)
        with self._lock:
            opening = self._opening.setdefault(jump, threading.Lock())
        with opening:
            found = self._gateways.get(jump)
            if found is None or (isinstance(found, fabric.Connection) and not found.is_connected):
                try:
                    found = self._connect(target, (*via, target))
                except Unreachable as error:
                    found = error
                self._gateways[jump] = found
        if isinstance(found, Unreachable):
            raise found
        return found


class _Connection(fabric.Connection):  # type: ignore[misc] # fabric has no types
    """A connection that reports a key that differs from the known keys as `ChangedKey`."""

    known: Known

    def open(self) -> Any:
        try:
            return super().open()
        except paramiko.BadHostKeyException as error:
            shown = HostKey(error.hostname, error.key.get_name(), error.key.get_base64())
            raise ChangedKey(shown, self.known.keys) from None


def _connection(route: Route, known: Known, sock: Any, timeout_s: float) -> fabric.Connection:
    config = fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True)  # `route` has all settings
    connection = _Connection(
        route.alias or route.host,  # host and port only serve to look up the key: the socket is given
        user=route.user,
        port=22 if route.alias else route.port,
        config=config,
        connect_kwargs={
            "sock": sock,
            "auth_strategy": Keys(route),
            "timeout": timeout_s,
            "banner_timeout": timeout_s,
            "auth_timeout": timeout_s,
            "channel_timeout": timeout_s,
        },
    )
    connection.known = known
    connection.client.set_missing_host_key_policy(Check(known))
    for key in known.keys:
        if key.blob not in known.revoked:
            with suppress(paramiko.SSHException, ValueError):
                data = paramiko.PKey.from_type_string(key.type, base64.b64decode(key.blob))
                connection.client.get_host_keys().add(route.known_as, key.type, data)
    return connection


@contextmanager
def _closed_after(channel: paramiko.Channel, timeout_s: float) -> Iterator[None]:
    """Closes the channel after `timeout_s`, which ends a wait of paramiko that has no timeout itself."""
    timer = threading.Timer(max(0.0, timeout_s), channel.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _received(channel: paramiko.Channel, end: float) -> tuple[bytes, bytes]:
    """Receive both streams until both have ended, without a thread per stream, which would delay every short
    command.

    Raises:
        TimeoutError: a stream has not ended at `end`.
    """
    streams = (
        (channel.recv_ready, channel.recv, bytearray()),
        (channel.recv_stderr_ready, channel.recv_stderr, bytearray()),
    )
    news = select.poll()
    news.register(channel.fileno(), select.POLLIN)
    while True:
        over = channel.eof_received or channel.closed  # read first: all data before the end has then arrived
        some = False
        for ready, receive, into in streams:
            if ready():
                into += receive(CHUNK)
                some = True
        if over and not some:
            break
        if not some:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            # Several short waits, since paramiko's event can lose one of two simultaneous signals.
            news.poll(min(left, LOOK_S) * 1e3)
    (_, _, out), (_, _, err) = streams
    return bytes(out), bytes(err)


def _send(channel: paramiko.Channel, data: bytes) -> None:
    with suppress(OSError):  # the command does not read its input
        # `sendall` copies the rest after every packet: for 100 MB in one call that is over 100 GB.
        for at in range(0, len(data), SEND):
            channel.sendall(data[at : at + SEND])
        channel.shutdown_write()


def _check_circle(gate: Target, via: Sequence[Target]) -> None:
    if gate in via:
        names = " -> ".join(t.name for t in (*via, gate))
        raise InputProblem(
            f"the jump hosts form a cycle: {names}",
            next=f"check `ssh -G {gate.host}`, and set `ProxyJump none` for one of them",
        )
