"""Socket helpers of a connection: joined writes, quick loss detection, address texts."""

import socket
from ipaddress import ip_address

JOIN_BYTES_MAX = 64 * 1024
"""Frames up to this size are joined into one write; larger frames are not copied."""

LOST_AFTER_MS = 15_000
"""A peer whose kernel acknowledges nothing for this long counts as lost (a pulled cable, a dead host)."""


def joined(queue: list[bytes | bytearray]) -> list[bytes | bytearray]:
    """The same bytes in fewer parts: each write costs at least one TLS record."""
    if len(queue) == 1:
        return queue
    parts: list[bytes | bytearray] = []
    small: list[bytes | bytearray] = []
    for frame in queue:
        if len(frame) <= JOIN_BYTES_MAX:
            small.append(frame)
            continue
        if small:
            parts.append(b"".join(small))
            small = []
        parts.append(frame)
    if small:
        parts.append(b"".join(small))
    return parts


def tune(sock: socket.socket | None) -> None:
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_NODELAY", 1),
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 3),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", LOST_AFTER_MS),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def is_loopback(peer: object) -> bool:
    return isinstance(peer, tuple) and ip_address(peer[0]).is_loopback


def address_text(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unknown"


def reason_of(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
