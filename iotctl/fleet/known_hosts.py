"""Host keys the operator has accepted for one cluster: a file beside `cluster.yaml`, in OpenSSH's format.

It holds no secret and belongs into version control with the spec, so that everybody who operates the
cluster checks the same keys.
"""

import base64
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

NAME = "known_hosts"


class HostKey(msgspec.Struct, frozen=True):
    """`host` as OpenSSH writes it: `name`, or `[name]:port`."""

    host: str
    type: str
    blob: str

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` prints it."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def line(self) -> str:
        return f"{self.host} {self.type} {self.blob}"


class KnownHosts:
    """The cluster's own file; the operator's are read too, where his configuration says."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME

    @property
    def files(self) -> tuple[str, ...]:
        return (str(self.path),)

    def keys(self) -> list[HostKey]:
        """Every key of the file; lines of another form are left alone."""
        found = []
        for line in self._lines():
            parts = line.split()
            if len(parts) >= 3 and not line.startswith(("#", "@", "|")):
                found.append(HostKey(parts[0], parts[1], parts[2]))
        return found

    def of(self, host: str) -> list[HostKey]:
        return [k for k in self.keys() if k.host == host]

    def put(self, keys: Iterable[HostKey]) -> None:
        """Take these as the only keys of their hosts; other lines stay."""
        new = {k.host: k for k in keys}
        kept = [line for line in self._lines() if not line.split()[:1] or line.split()[0] not in new]
        temporary = self.path.with_name(f".{NAME}.tmp")
        temporary.write_text("".join(f"{line}\n" for line in [*kept, *(k.line for k in new.values())]))
        os.replace(temporary, self.path)

    def _lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.is_file() else []
