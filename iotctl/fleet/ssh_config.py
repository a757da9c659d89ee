"""Routes of SSH connections, from the spec and the operator's `~/.ssh/config`.

With an OpenSSH client, `ssh -G` evaluates the configuration, including Include and Match; otherwise paramiko
reads the same file, without support for Include.
"""

import getpass
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from iotctl.errors import InputProblem
from iotctl.spec.cluster import ClusterSource, NodeEntry
from iotctl.spec.hosts import host_problem, jump_problem, split_port, user_problem

PORT_MAX = 65_535
ASK_TIMEOUT_S = 10.0
CONFIG = "IOTCTL_SSH_CONFIG"
"""Environment variable with a file to read instead of `~/.ssh/config`."""

KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
"""OpenSSH's defaults."""


class Target(msgspec.Struct, frozen=True):
    """A machine as the spec gives it; 0 and "" leave the choice to the operator's SSH configuration."""

    name: str
    host: str
    user: str = ""
    port: int = 0
    key: str = ""
    jump: str = ""


class Route(msgspec.Struct, frozen=True):
    """One connection. `keys` are files whose keys are offered after those of the SSH agent; with `only_keys`
    the agent only offers the keys of these files. `jump` is as in `ssh -J`, outermost first."""

    host: str
    port: int
    user: str
    keys: tuple[str, ...] = ()
    only_keys: bool = False
    jump: tuple[str, ...] = ()
    proxy_command: str = ""
    known_hosts: tuple[str, ...] = ()
    alias: str = ""

    @property
    def known_as(self) -> str:
        """The host's name in a known_hosts file."""
        name = self.alias or self.host
        return name if self.port == 22 or self.alias else f"[{name}]:{self.port}"

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


def target_of(source: ClusterSource, node: NodeEntry) -> Target:
    ssh = source.ssh_of(node)
    return Target(node.name, node.host, ssh.user, ssh.port, ssh.key, ssh.jump)


def route_of(target: Target, env: Mapping[str, str]) -> Route:
    """The route to a machine.

    Raises:
        InputProblem: the operator's SSH configuration cannot be read, the key is not a file, or a host or
            user is not a plain name: the configuration may run commands that contain them.
    """
    _check_names(target.name, target.host, target.user, target.jump)
    if target.key and not Path(target.key).is_file():
        raise InputProblem(
            f"{target.name}: the SSH key {target.key} is not a file",
            next="correct `ssh: {key: …}` in cluster.yaml",
            where=target.name,
        )
    try:
        settings = _asked(target, env) if shutil.which("ssh") else _read(target, env)
        return _of_settings(target, settings)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise InputProblem(
            f"{target.name}: the SSH configuration for {target.host} cannot be read",
            why=str(error),
            next=f"ssh -G {target.host}",
            where=target.name,
        ) from None


def _check_names(node: str, host: str, user: str, jump: str = "") -> None:
    problem = host_problem(host) or (user_problem(user) if user else "") or jump_problem(jump)
    if problem:
        raise InputProblem(
            f"{node}: {problem}", next="correct it in cluster.yaml or ~/.ssh/config", where=node
        )


def jump_target(word: str, before: Sequence[str] = ()) -> Target:
    """`[user@]host[:port]` as in `ssh -J`, reached through the jump hosts `before` it.

    Raises:
        InputProblem: the port is not a number from 1 to 65535.
    """
    user, _, place = word.rpartition("@")
    host, port = split_port(place)
    if port and not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) <= PORT_MAX):
        raise InputProblem(
            f"{word}: {port!r} is not a port",
            next="write it like [user@]host[:port], an IPv6 address in [ ]",
        )
    return Target(word, host, user, int(port or 0), jump=",".join(before))


def _asked(target: Target, env: Mapping[str, str]) -> dict[str, list[str]]:
    words = ["ssh", "-G"]
    if file := env.get(CONFIG):
        words += ["-F", file]
    for option, value in (("-l", target.user), ("-p", str(target.port or "")), ("-i", target.key)):
        if value:
            words += [option, value]
    if target.jump:
        words += ["-J", target.jump]
    command = [*words, "--", target.host]
    done = subprocess.run(command, capture_output=True, timeout=ASK_TIMEOUT_S, env={**env})
    if done.returncode:
        raise ValueError(done.stderr.decode(errors="replace").strip())
    settings: dict[str, list[str]] = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        key, _, value = line.partition(" ")
        settings.setdefault(key, []).append(value)
    return settings


def _read(target: Target, env: Mapping[str, str]) -> dict[str, list[str]]:
    settings: dict[str, list[str]] = {
        "user": [getpass.getuser()],
        "identityfile": list(KEYS),
        "userknownhostsfile": [" ".join(KNOWN_HOSTS)],
    }
    settings |= _read_config(Path(env.get(CONFIG) or Path.home() / ".ssh" / "config"), target.host)
    given = {
        "user": target.user,
        "port": str(target.port or ""),
        "proxyjump": target.jump,
        "identityfile": target.key,
    }
    return settings | {k: [v] for k, v in given.items() if v}


def _read_config(path: Path, host: str) -> dict[str, list[str]]:
    """The settings for a host in the configuration file `path`, read without an OpenSSH client.

    Raises:
        ValueError: the file is not an SSH configuration.
    """
    import paramiko

    config = paramiko.SSHConfig()
    if path.is_file():
        with path.open() as file:
            try:
                config.parse(file)
            except (paramiko.SSHException, paramiko.ssh_exception.ConfigParseError) as error:
                raise ValueError(str(error)) from None
    return {k: v if isinstance(v, list) else [str(v)] for k, v in config.lookup(host).items()}


def _of_settings(target: Target, settings: Mapping[str, list[str]]) -> Route:
    def one(key: str, default: str = "") -> str:
        value = (settings.get(key) or [default])[0]
        return "" if value == "none" else value

    host, port, user = one("hostname", target.host), int(one("port", "22")), one("user")
    if one("proxycommand"):
        _check_names(target.name, host, user)
    tokens = {
        "h": host,
        "p": str(port),
        "r": user,
        "n": target.host,
        "u": getpass.getuser(),
        "d": str(Path.home()),
    }

    def filled(text: str) -> str:
        """Expand tokens such as %h, which `ssh -G` does not."""
        return re.sub(r"%(.)", lambda m: "%" if m[1] == "%" else tokens.get(m[1], m[0]), text)

    def path(text: str) -> str:
        return str(Path(filled(text)).expanduser())

    files = f"{one('userknownhostsfile')} {one('globalknownhostsfile')}".split()  # `ssh -G` quotes nothing
    return Route(
        host=host,
        port=port,
        user=user,
        keys=tuple(path(k) for k in settings.get("identityfile", []) if k != "none"),
        only_keys=one("identitiesonly") == "yes",
        jump=tuple(j.strip() for j in one("proxyjump").split(",") if j.strip()),
        proxy_command=filled(one("proxycommand")),
        known_hosts=tuple(path(f) for f in files),
        alias=one("hostkeyalias"),
    )
