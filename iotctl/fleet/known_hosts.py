"""Accepted host keys: first the cluster's own file beside `cluster.yaml`, then the operator's files.

The cluster's file holds no secret and belongs in version control with the spec, so that all operators of the
cluster check the same keys. The format is OpenSSH's; it is read line by line, so that an invalid line only
invalidates itself.
"""

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

NAME = "known_hosts"
REVOKED = "@revoked"


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


class Known(msgspec.Struct, frozen=True):
    """The known keys of one host: those in the first file that lists it, and revoked keys."""

    keys: tuple[HostKey, ...]
    revoked: tuple[str, ...]
    own: bool
    """Whether the keys are from the cluster's own file."""


class KnownHosts:
    """The cluster's own file; `of` also reads the operator's files."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME

    def of(self, host: str, files: Sequence[str] = ()) -> Known:
        """`files`: the operator's files, in the order of the SSH configuration."""
        keys: tuple[HostKey, ...] = ()
        revoked: list[str] = []
        own = False
        for path in (self.path, *map(Path, files)):
            found = [line for line in map(_parse, _lines(path)) if line is not None and line.names(host)]
            revoked += [line.blob for line in found if line.marker == REVOKED]
            plain = tuple(HostKey(host, line.type, line.blob) for line in found if not line.marker)
            if plain and not keys:
                keys, own = plain, path == self.path
        return Known(keys, tuple(revoked), own)

    def put(self, keys: Iterable[HostKey]) -> None:
        """Make these the only keys of their hosts; everything else in the file stays."""
        new = {k.host: k for k in keys}
        kept = [k for line in _lines(self.path) if (k := _without(line, new)) is not None]
        temporary = self.path.with_name(f".{NAME}.tmp")
        text = "".join(f"{line}\n" for line in [*kept, *(k.line for k in new.values())])
        temporary.write_bytes(text.encode(errors="surrogateescape"))
        os.replace(temporary, self.path)


class _Line(msgspec.Struct, frozen=True):
    marker: str
    hosts: str
    type: str
    blob: str

    def names(self, host: str) -> bool:
        """Whether the line lists `host`, by a pattern with * and ? (! excludes) or by a hashed name."""
        if self.hosts.startswith("|"):
            return _is_hash_of(self.hosts, host)
        words = self.hosts.split(",")
        if any(w.startswith("!") and fnmatch.fnmatchcase(host, _pattern(w[1:])) for w in words):
            return False
        return any(fnmatch.fnmatchcase(host, _pattern(w)) for w in words if not w.startswith("!"))


def _pattern(word: str) -> str:
    """The pattern for fnmatch: OpenSSH's patterns only have * and ?."""
    return word.replace("[", "[[]")


def _parse(line: str) -> _Line | None:
    """None for a comment or an invalid line."""
    parts = line.split()
    marker = parts.pop(0) if parts and parts[0].startswith("@") else ""
    if len(parts) < 3 or parts[0].startswith("#"):
        return None
    try:
        raw = base64.b64decode(parts[2], validate=True)
    except binascii.Error:
        return None
    if not raw[4:].startswith(parts[1].encode(errors="replace")):
        return None  # truncated, or not of the stated type
    return _Line(marker, parts[0], parts[1], parts[2])


def _is_hash_of(hashed: str, host: str) -> bool:
    """`|1|salt|digest`: HMAC-SHA1 of the name, keyed by the salt."""
    parts = hashed.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, digest = base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except binascii.Error:
        return False
    return hmac.compare_digest(hmac.new(salt, host.encode(), hashlib.sha1).digest(), digest)


def _without(line: str, hosts: Iterable[str]) -> str | None:
    """The line without these names; None if no name is left."""
    parsed = _parse(line)
    if parsed is None or parsed.marker:
        return line
    if parsed.hosts.startswith("|"):
        return None if any(_is_hash_of(parsed.hosts, h) for h in hosts) else line
    words = parsed.hosts.split(",")
    left = [w for w in words if w not in hosts]
    if len(left) == len(words):
        return line
    return line.replace(parsed.hosts, ",".join(left), 1) if left else None


def _lines(path: Path) -> list[str]:
    """The lines of the file; [] if it does not exist."""
    try:
        return path.read_bytes().decode(errors="surrogateescape").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
