"""SSH; the only importer of fabric and paramiko.

What differs from fabric's defaults, and why: a host key must be known (fabric takes every one); the socket
has TCP_NODELAY, without which each short command waits 40 ms for a delayed acknowledgement; every wait has
an end; one connection per host and gateway is kept for the whole run.
"""

import random
import shlex
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import fabric
import paramiko

from iotctl.errors import Unreachable
from iotctl.fleet.host import RUN_TIMEOUT_S, Ran, late
from iotctl.fleet.known_hosts import HostKey, KnownHosts
from iotctl.fleet.ssh_config import Route, Target, route_of

CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 20
ATTEMPTS = 6
BACKOFF_S = 0.2
HANDSHAKES_PER_GATEWAY = 4
"""At a time: sshd drops some of more than ten (`MaxStartups 10:30:100`)."""

THREADS_MAX = 1_000
CHUNK = 32_768

T = TypeVar("T")
Dial = Callable[[], Any]
"""Gives a socket, or what paramiko takes for one."""


class SshHost:
    """An open connection; commands may run on it from several threads, up to sshd's `MaxSessions` (10)."""

    def __init__(self, name: str, connection: fabric.Connection) -> None:
        self.name = name
        self._connection = connection

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = RUN_TIMEOUT_S) -> Ran:
        end = time.monotonic() + timeout_s
        try:
            channel = self._connection.transport.open_session(timeout=timeout_s)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise lost(self.name, error) from None
        try:
            channel.settimeout(timeout_s)
            channel.exec_command(shlex.join(argv))
            err = bytearray()
            reader = threading.Thread(target=_drain, args=(channel.recv_stderr, err), daemon=True)
            reader.start()
            sender = None
            if len(stdin) > CHUNK:  # its answer may come before all of it was taken
                sender = threading.Thread(target=_send, args=(channel, stdin), daemon=True)
                sender.start()
            else:
                _send(channel, stdin)
            out = bytearray()
            while part := channel.recv(CHUNK):
                out += part
                channel.settimeout(max(0.001, end - time.monotonic()))
            if not channel.status_event.wait(max(0.0, end - time.monotonic())):
                raise TimeoutError
            reader.join(1.0)
            code = channel.exit_status
            if code < 0:
                raise lost(self.name, EOFError("the connection ended before the command did"))
            return Ran(code, bytes(out), bytes(err))
        except TimeoutError:
            raise late(self.name, argv, timeout_s) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise lost(self.name, error) from None
        finally:
            channel.close()

    def close(self) -> None:
        with suppress(Exception):
            self._connection.close()


class Connector:
    """Opens hosts; keeps the gateways that several of them share. Threads may use it together."""

    def __init__(
        self, known: KnownHosts, env: Mapping[str, str], *, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> None:
        self._known = known
        self._env = env
        self._timeout_s = timeout_s
        self._gateways: dict[tuple[str, ...], fabric.Connection] = {}
        self._lock = threading.Lock()
        self._handshakes: dict[tuple[str, ...], threading.Semaphore] = {}
        self._opening: dict[tuple[str, ...], threading.Lock] = {}

    def route(self, target: Target) -> Route:
        return route_of(target, self._env)

    def open(self, target: Target) -> SshHost:
        """Raises `Unreachable`, which tells an unknown or changed host key from a refused login."""
        return SshHost(target.name, self._connect(self.route(target), target.name))

    def host_key(self, target: Target) -> HostKey:
        """The key a host shows now, before anybody logs in; its gateways must be trusted already."""
        route = self.route(target)

        def ask() -> HostKey:
            transport = paramiko.Transport(self._dial(route, target.name)())
            try:
                transport.start_client(timeout=self._timeout_s)
                key = transport.get_remote_server_key()
                return HostKey(route.known_as, key.get_name(), key.get_base64())
            finally:
                transport.close()

        return self._again(ask, route, target.name)

    def close(self) -> None:
        for connection in self._gateways.values():
            with suppress(Exception):
                connection.close()
        self._gateways.clear()

    def _connect(self, route: Route, name: str) -> fabric.Connection:
        def connect() -> fabric.Connection:
            connection = _connection(route, self._known, self._dial(route, name), self._timeout_s)
            connection.open()
            connection.transport.set_keepalive(KEEPALIVE_S)
            return connection

        return self._again(connect, route, name)

    def _again(self, work: Callable[[], T], route: Route, name: str) -> T:
        """A handshake that sshd dropped as too many at once is tried again, later and later."""
        with self._handshakes_of(route.jump):
            for attempt in range(ATTEMPTS):
                try:
                    return work()
                except paramiko.BadHostKeyException as error:
                    raise changed_key(name, route, error) from None
                except paramiko.AuthenticationException as error:
                    raise refused_login(name, route, error) from None
                except _UnknownKey:
                    raise unknown_key(name, route) from None
                except (paramiko.SSHException, OSError, EOFError) as error:
                    if attempt == ATTEMPTS - 1 or not _is_dropped(error):
                        raise unreachable(name, route, error) from None
                time.sleep(random.uniform(0.5, 1.5) * BACKOFF_S * 2**attempt)
        raise AssertionError("the last attempt raises")

    def _handshakes_of(self, jump: tuple[str, ...]) -> threading.Semaphore:
        with self._lock:
            free = HANDSHAKES_PER_GATEWAY if jump else THREADS_MAX
            return self._handshakes.setdefault(jump, threading.Semaphore(free))

    def _dial(self, route: Route, name: str) -> Dial:
        if route.jump:
            gateway = self._gateway(route.jump, name)
            return lambda: gateway.transport.open_channel(
                "direct-tcpip", (route.host, route.port), ("", 0), timeout=self._timeout_s
            )
        if route.proxy_command:
            return lambda: paramiko.ProxyCommand(route.proxy_command)
        return lambda: _socket(route.host, route.port, self._timeout_s)

    def _gateway(self, jump: tuple[str, ...], name: str) -> fabric.Connection:
        """Opened once for all hosts behind it; who comes meanwhile waits."""
        with self._lock:
            opening = self._opening.setdefault(jump, threading.Lock())
        with opening:
            found = self._gateways.get(jump)
            if found is None or not found.is_connected:
                target = jump_target(jump[-1], jump[:-1])
                found = self._connect(self.route(target), f"{name} (through {target.host})")
                self._gateways[jump] = found
            return found


def jump_target(word: str, before: Sequence[str] = ()) -> Target:
    """`[user@]host[:port]` as `ssh -J` takes it."""
    user, _, place = word.rpartition("@")
    host, _, port = place.partition(":") if not place.startswith("[") else place[1:].partition("]:")
    return Target(word, host.rstrip("]"), user, int(port or 0), jump=",".join(before))


def read_config(path: Path, host: str) -> dict[str, list[str]]:
    """Without an OpenSSH client: what `path` says of a host."""
    config = paramiko.SSHConfig()
    if path.is_file():
        with path.open() as file:
            config.parse(file)
    return {k: v if isinstance(v, list) else [str(v)] for k, v in config.lookup(host).items()}


def _connection(route: Route, known: KnownHosts, dial: Dial, timeout_s: float) -> fabric.Connection:
    config = fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True)  # `route` has all of it
    keys = [k for k in route.keys if Path(k).is_file()]
    connection = fabric.Connection(
        route.alias or route.host,  # and the port: only to look the key up, since the socket is given
        user=route.user,
        port=22 if route.alias else route.port,
        config=config,
        connect_kwargs={
            "sock": dial(),
            "key_filename": keys,
            "allow_agent": not route.only_keys,
            "look_for_keys": False,
            "timeout": timeout_s,
            "banner_timeout": timeout_s,
            "auth_timeout": timeout_s,
            "channel_timeout": timeout_s,
        },
    )
    client = connection.client
    client.set_missing_host_key_policy(_Refuse())
    for file in (*known.files, *route.known_hosts):  # the first one that knows a host is believed
        if Path(file).is_file():
            client.load_system_host_keys(file)
    return connection


class _UnknownKey(Exception):
    """Nobody has accepted a key of this host."""


class _Refuse(paramiko.MissingHostKeyPolicy):
    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        raise _UnknownKey(hostname)


def _socket(host: str, port: int, timeout_s: float) -> socket.socket:
    made = socket.create_connection((host, port), timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return made


def _drain(receive: Callable[[int], bytes], into: bytearray) -> None:
    with suppress(Exception):
        while part := receive(CHUNK):
            into += part


def _send(channel: paramiko.Channel, data: bytes) -> None:
    with suppress(OSError):  # a command that does not read its input
        channel.sendall(data)
        channel.shutdown_write()


def _is_dropped(error: Exception) -> bool:
    said = str(error)
    return isinstance(error, ConnectionResetError | EOFError) or "banner" in said or "reset by peer" in said


def lost(name: str, error: Exception) -> Unreachable:
    return Unreachable(
        f"{name}: the SSH connection was lost",
        why=f"{error or type(error).__name__}; the command may have run",
        next="run the command again: it changes nothing twice",
        where=name,
    )


def unreachable(name: str, route: Route, error: Exception) -> Unreachable:
    return Unreachable(
        f"{name}: no SSH connection to {route}",
        why=str(error) or type(error).__name__,
        next=f"ssh -p {route.port} {route.user}@{route.host}",
        where=name,
    )


def unknown_key(name: str, route: Route) -> Unreachable:
    return Unreachable(
        f"{name}: the host key of {route.known_as} is not known",
        next="iotctl cluster trust",
        where=name,
    )


def changed_key(name: str, route: Route, error: paramiko.BadHostKeyException) -> Unreachable:
    return Unreachable(
        f"{name}: the host key of {route.known_as} has CHANGED",
        why=f"it shows {error.key.fingerprint}, known is {error.expected_key.fingerprint}: another machine"
        " may answer under this address",
        next=f"if it was installed anew: iotctl cluster trust --replace {name}",
        where=name,
    )


def refused_login(name: str, route: Route, error: Exception) -> Unreachable:
    return Unreachable(
        f"{name}: {route} refuses the login",
        why=str(error),
        next="add your key to the agent (ssh-add), or name it: `ssh: {key: …}` in cluster.yaml",
        where=name,
    )
