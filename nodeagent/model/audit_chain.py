"""The chain of the audit log: the digest of a line covers the line and the digest before it, so that a
missing, changed or inserted line shows."""

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

AuditLine = tuple[int, str, str]
"""(wall clock in ms, who, what)"""


def chained(digest: str, line: AuditLine) -> str:
    """The digest after `line`: SHA-256 in hexadecimal. `digest` is that before it, "" before the first."""
    return hashlib.sha256(digest.encode() + msgspec.msgpack.encode(line)).hexdigest()


def digests(base: str, lines: Iterable[AuditLine]) -> Iterator[str]:
    """The digest after each line; `base` is the digest before the first."""
    for line in lines:
        base = chained(base, line)
        yield base
