"""Errors of SSH connections, each with the next command."""

from paramiko.auth_strategy import AuthFailure

from iotctl.errors import Unreachable
from iotctl.fleet.ssh_config import Route
from iotctl.fleet.ssh_keys import ChangedKey


def is_dropped(error: Exception) -> bool:
    return isinstance(error, ConnectionResetError | EOFError) or "banner" in str(error)


def lost(name: str, error: Exception) -> Unreachable:
    return Unreachable(
        f"{name}: the SSH connection was lost",
        why=f"{error or type(error).__name__}; the command may have run",
        next="repeat the command: steps that are already done change nothing",
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
        f"{name}: the host key of {route.known_as} is not known", next="iotctl cluster trust", where=name
    )


def changed_key(name: str, route: Route, error: ChangedKey) -> Unreachable:
    known = " or ".join(k.fingerprint for k in error.known) or "revoked"
    return Unreachable(
        f"{name}: the host key of {route.known_as} has CHANGED",
        why=f"it presents {error.shown.fingerprint}, but the known key is {known}: "
        "another machine may answer at this address",
        next=f"if the machine was reinstalled: iotctl cluster trust --replace {name}",
        where=name,
    )


def refused_login(name: str, route: Route, error: AuthFailure) -> Unreachable:
    tried = len(error.result)
    locked = getattr(error.result.strategy, "locked", [])
    why = f"{tried} keys were offered" if tried else "there is no key to offer"
    if locked:
        return Unreachable(
            f"{name}: {route} refuses the login",
            why=f"{why}; {', '.join(locked)}: encrypted with a passphrase, or unreadable",
            next=f"ssh-add {locked[0]}",
            where=name,
        )
    return Unreachable(
        f"{name}: {route} refuses the login",
        why=why,
        next="add your key to the SSH agent (ssh-add), or name its file: `ssh: {key: …}` in cluster.yaml",
        where=name,
    )
