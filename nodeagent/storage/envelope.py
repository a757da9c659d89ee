"""Bytes with a header to verify them: magic, version, length, XXH3-128.

Bytes that do not verify are `Damaged`; they never count as missing (law 5).
"""

import struct

import xxhash

from nodeagent.model.errors import Damaged

_HEADER = struct.Struct("<4sHQ16s")
VERSION = 1


def seal(magic: bytes, payload: bytes) -> bytes:
    """The payload with its header; `magic` has 4 bytes and names the kind of payload."""
    assert len(magic) == 4
    return _HEADER.pack(magic, VERSION, len(payload), xxhash.xxh3_128_digest(payload)) + payload


HEADER_BYTES = _HEADER.size


def digest_of(header: bytes, where: str) -> str:
    """The payload's digest in a header, in hex. Raises `Damaged` if the header is too short."""
    if len(header) < _HEADER.size:
        raise Damaged(f"{where}: {len(header)} bytes are too few for a header")
    digest: bytes = _HEADER.unpack_from(header)[3]
    return digest.hex()


def unseal(magic: bytes, sealed: bytes, where: str) -> bytes:
    """The payload of `sealed`; `where` names it in the error.

    Raises:
        Damaged: other magic, version, length or checksum.
    """
    if len(sealed) < _HEADER.size:
        raise Damaged(f"{where}: {len(sealed)} bytes are too few for a header")
    found, version, length, digest = _HEADER.unpack_from(sealed)
    payload = sealed[_HEADER.size :]
    if found != magic or version != VERSION:
        raise Damaged(f"{where}: the header is {found!r} version {version}, not {magic!r} {VERSION}")
    if length != len(payload):
        raise Damaged(f"{where}: {len(payload)} bytes, the header says {length}")
    if xxhash.xxh3_128_digest(payload) != digest:
        raise Damaged(f"{where}: checksum mismatch")
    return payload
