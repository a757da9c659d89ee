"""Length-prefixed messages over a pair of pipes, with a deadline in both directions."""

import os
import select
import time
from collections.abc import Iterable
from itertools import chain

from nodeagent.model.errors import FrameError, Unavailable
from nodeagent.model.limits import MIB

MESSAGE_BYTES_MAX = 1024 * MIB
_PREFIX_BYTES = 8
_READ_BYTES = 1 * MIB


class Timeout(Exception):
    """The deadline passed."""


def send(fd: int, body: bytes, deadline: float | None = None) -> None:
    """Write one message, as `send_pieces` does."""
    send_pieces(fd, len(body), (body,), deadline)


def send_pieces(fd: int, length: int, pieces: Iterable[bytes], deadline: float | None = None) -> None:
    """Write one message of that length. `deadline` is in seconds of `time.monotonic`, None for no deadline.

    Raises:
        FrameError: the length exceeds `MESSAGE_BYTES_MAX`; nothing was written.
        Timeout: the deadline passed before the whole message was written; the pipe can no longer be used.
        BrokenPipeError: the other end closed.
    """
    if length > MESSAGE_BYTES_MAX:
        raise FrameError(f"a message of {length} bytes is too long for a worker")
    for piece in chain([length.to_bytes(_PREFIX_BYTES, "little")], pieces):
        rest = memoryview(piece)
        while rest:
            _wait(fd, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:
                continue


def receive(fd: int, deadline: float | None = None) -> bytes | None:
    """Read one message; None if the other end closed between messages.

    Raises:
        Timeout: the deadline passed before a whole message was read; the pipe can no longer be used.
        FrameError: the message announces more than `MESSAGE_BYTES_MAX`; the pipe can no longer be used.
        Unavailable: the other end closed within a message.
    """
    prefix = _read(fd, _PREFIX_BYTES, deadline)
    if prefix is None:
        return None
    length = int.from_bytes(prefix, "little")
    if length > MESSAGE_BYTES_MAX:
        raise FrameError(f"a message of {length} bytes is too long")
    body = _read(fd, length, deadline)
    if body is None and length:
        raise Unavailable("the other end closed within a message")
    return body or b""


def _read(fd: int, length: int, deadline: float | None) -> bytes | None:
    buffer = bytearray()
    while len(buffer) < length:
        _wait(fd, select.POLLIN, deadline)
        try:
            piece = os.read(fd, min(_READ_BYTES, length - len(buffer)))
        except BlockingIOError:
            continue
        if not piece:
            if buffer:
                raise Unavailable("the other end closed within a message")
            return None
        buffer += piece
    return bytes(buffer)


def _wait(fd: int, event: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(fd, event)
    if deadline is None:
        poll.poll()
        return
    rest_ms = (deadline - time.monotonic()) * 1000
    if rest_ms <= 0 or not poll.poll(rest_ms):
        raise Timeout
