"""Where an SSH connection goes: what the spec and the operator's `~/.ssh/config` say together.

`ssh -G` answers when there is an OpenSSH client, with its exact meaning of Include, Match and the like;
else paramiko's reader of the same file does, which knows no Include.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from iotctl.errors import InputProblem

ASK_TIMEOUT_S = 10.0
CONFIG = "IOTCTL_SSH_CONFIG"
"""Environment: a file read instead of `~/.ssh/config`."""


class Target(msgspec.Struct, frozen=True):
    """A machine as the spec names it; 0 and "" leave the choice to the operator's SSH configuration."""

    name: str
    host: str
    user: str = ""
    port: int = 0
    key: str = ""
    jump: str = ""


class Route(msgspec.Struct, frozen=True):
    """One connection. `keys` are tried after the agent's, or alone with `only_keys`; `jump` is as `ssh -J`
    takes it, the first one first."""

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
        """Its name in a known_hosts file."""
        name = self.alias or self.host
        return name if self.port == 22 or self.alias else f"[{name}]:{self.port}"

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


def route_of(target: Target, env: Mapping[str, str]) -> Route:
    """Raises `InputProblem` when the operator's SSH configuration cannot be read."""
    return _of_settings(target, _asked(target, env) if shutil.which("ssh") else _read(target, env))


def _asked(target: Target, env: Mapping[str, str]) -> dict[str, list[str]]:
    words = ["ssh", "-G"]
    if file := env.get(CONFIG):
        words += ["-F", file]
    for option, value in (("-l", target.user), ("-p", str(target.port or "")), ("-i", target.key)):
        if value:
            words += [option, value]
    if target.jump:
        words += ["-J", target.jump]
    done = subprocess.run(
        [*words, "--", target.host], capture_output=True, timeout=ASK_TIMEOUT_S, env={**env}
    )
    if done.returncode:
        raise InputProblem(
            f"{target.name}: the SSH configuration for {target.host} cannot be read",
            why=done.stderr.decode(errors="replace").strip(),
            next=f"ssh -G {target.host}",
            where=target.name,
        )
    settings: dict[str, list[str]] = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        key, _, value = line.partition(" ")
        settings.setdefault(key, []).append(value)
    return settings


def _read(target: Target, env: Mapping[str, str]) -> dict[str, list[str]]:
    from iotctl.fleet.ssh import read_config

    settings = read_config(Path(env.get(CONFIG) or Path.home() / ".ssh" / "config"), target.host)
    given = {"user": target.user, "port": str(target.port or ""), "proxyjump": target.jump}
    return (
        settings
        | {k: [v] for k, v in given.items() if v}
        | ({"identityfile": [target.key]} if target.key else {})
    )


def _of_settings(target: Target, settings: Mapping[str, list[str]]) -> Route:
    def one(key: str, default: str = "") -> str:
        value = (settings.get(key) or [default])[0]
        return "" if value == "none" else value

    return Route(
        host=one("hostname", target.host),
        port=int(one("port", "22")),
        user=one("user"),
        keys=tuple(str(Path(k).expanduser()) for k in settings.get("identityfile", []) if k != "none"),
        only_keys=one("identitiesonly") == "yes",
        jump=tuple(j for j in one("proxyjump").split(",") if j),
        proxy_command=one("proxycommand"),
        known_hosts=tuple(str(Path(p).expanduser()) for p in one("userknownhostsfile").split()),
        alias=one("hostkeyalias"),
    )
