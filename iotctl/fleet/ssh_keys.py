"""Keys of SSH: checks unknown and changed host keys, and offers the operator's keys for a login."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import paramiko
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey

from iotctl.fleet.known_hosts import HostKey, Known
from iotctl.fleet.ssh_config import Route


class UnknownKey(Exception):
    """No key of this host has been accepted."""


class ChangedKey(Exception):
    def __init__(self, shown: HostKey, known: Sequence[HostKey]) -> None:
        super().__init__(shown.host)
        self.shown = shown
        self.known = known


class Check(paramiko.MissingHostKeyPolicy):
    """Called for a host without a usable known key (none is known, or all are revoked); always raises."""

    def __init__(self, known: Known) -> None:
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        shown = HostKey(hostname, key.get_name(), key.get_base64())
        if shown.blob in self._known.revoked or self._known.keys:
            raise ChangedKey(shown, self._known.keys)
        raise UnknownKey(hostname)


class Keys(AuthStrategy):
    """Offers the SSH agent's keys (with `only_keys`, those that are also in files), then those in files."""

    def __init__(self, route: Route) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._route = route
        self.locked: list[str] = []
        """Files that cannot be loaded, usually because they need a passphrase."""

    def get_sources(self) -> Iterator[AuthSource]:
        user = self._route.user
        public = {_public(k) for k in self._route.keys}
        offered = set()
        for key in paramiko.Agent().get_keys():
            if not self._route.only_keys or key.get_base64() in public:
                offered.add(key.get_base64())
                yield InMemoryPrivateKey(user, key)
        for file in self._route.keys:
            loaded = self._load(file)
            if loaded is not None and loaded.get_base64() not in offered:
                yield InMemoryPrivateKey(user, loaded)

    def _load(self, file: str) -> paramiko.PKey | None:
        if not Path(file).is_file():
            return None  # one of the default names, without a file
        try:
            return paramiko.PKey.from_path(file)
        except (paramiko.SSHException, OSError, ValueError, TypeError):
            self.locked.append(file)
            return None


def _public(file: str) -> str:
    """The blob in `FILE.pub`; "" if there is none."""
    with suppress(OSError, IndexError, UnicodeDecodeError):
        return Path(f"{file}.pub").read_text().split()[1]
    return ""
