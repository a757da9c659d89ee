"""Splits a byte stream into frames.

The reader is fed the received bytes, in pieces of any size, and returns the complete frames. A frame that
arrives in pieces is copied into a buffer that grows with the bytes received: an announced length alone costs
at most `first_bytes` of memory. A frame that arrives whole is a view of the fed bytes.
"""

import struct
from enum import IntEnum

import msgspec

from nodeagent.model.errors import FrameError
from nodeagent.model.limits import CHUNK_BYTES, FRAME_BYTES_MAX, KIB

PROTOCOL = 1
"""The newest protocol version that this release speaks."""

OLDEST_PROTOCOL = 1
"""The oldest protocol version that this release speaks. Two sides without a common version refuse each
other."""

HELLO_BYTES_MAX = 16 * KIB
"""Longest frame that is read from a peer before its hello is accepted."""

FIRST_BYTES = 64 * KIB
FIRST_BYTES_TRUSTED = CHUNK_BYTES + 64 * KIB
"""`FrameReader.first_bytes` for roles that may write; large enough that a file chunk is copied once."""

LENGTH = struct.Struct(">I")
HEAD = struct.Struct(">IB")
NUMBERED_HEAD = struct.Struct(">IBQ")
_NUMBER = struct.Struct(">Q")
_LENGTH_BYTES = LENGTH.size
_BODY_AT = 1 + _NUMBER.size
"""Offset of the body in a numbered frame, without the length."""


class Kind(IntEnum):
    HELLO = 1
    RAFT = 2
    REQUEST = 3
    REPLY = 4


_KINDS = {kind.value: (kind, kind in (Kind.REQUEST, Kind.REPLY)) for kind in Kind}
"""First byte -> (kind, whether it has a number); an enum lookup would cost as much as the rest of a frame."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """`number` is 0 for kinds without one. `body` is valid only until it is decoded: do not store it."""

    kind: Kind
    number: int
    body: memoryview


class FrameReader:
    """Turns fed bytes into frames. After a `FrameError` it must not be fed again."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        """Longest `length` accepted; may be raised or lowered between frames."""

        self.first_bytes = FIRST_BYTES
        """Initial buffer size of a frame that arrives in pieces."""

        self._head = b""
        """Up to three bytes of an unfinished length."""

        self._partial: bytearray | None = None
        """The frame being received. The buffer doubles as bytes arrive, up to the frame's length."""

        self._wanted = 0
        """The frame's announced length."""

        self._filled = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes received of the incomplete frame."""
        return len(self._head) if self._partial is None else self._filled + _LENGTH_BYTES

    @property
    def announced(self) -> int:
        """Length of the frame being received, 0 if there is none."""
        return 0 if self._partial is None else self._wanted

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that `data` completes, in order.

        Raises:
            FrameError: a length over the limit, an unknown kind, or a frame too short for its kind.
        """
        frames: list[Frame] = []
        view = memoryview(self._head + data) if self._head else memoryview(data)
        self._head = b""
        at = self._fill(view, frames)
        size = len(view)
        while size - at >= _LENGTH_BYTES:
            (length,) = LENGTH.unpack_from(view, at)
            self._check_length(length)
            at += _LENGTH_BYTES
            if size - at < length:
                self._partial = bytearray(min(length, self.first_bytes))
                self._wanted = length
                self._filled = 0
                at += self._fill(view[at:], frames)
                assert at == size
                return frames
            frames.append(_frame(view[at : at + length]))
            at += length
        self._head = bytes(view[at:])
        return frames

    def _check_length(self, length: int) -> None:
        if not 1 <= length <= self.bytes_max:
            raise FrameError(
                f"the peer announced a frame of {length} bytes; 1 to {self.bytes_max} are allowed"
            )

    def _fill(self, view: memoryview, frames: list[Frame]) -> int:
        """Copy into the unfinished frame, if any; return the number of bytes copied."""
        if self._partial is None:
            return 0
        taken = min(len(view), self._wanted - self._filled)
        filled = self._filled + taken
        if filled > len(self._partial):
            size = min(self._wanted, max(filled, 2 * len(self._partial)))
            self._partial.extend(bytes(size - len(self._partial)))
        self._partial[self._filled : filled] = view[:taken]
        self._filled = filled
        if filled == self._wanted:
            frames.append(_frame(memoryview(self._partial)))
            self._partial = None
        return taken


def _frame(view: memoryview) -> Frame:
    found = _KINDS.get(view[0])
    if found is None:
        raise FrameError(f"frame kind {view[0]} is unknown: the peer does not speak this protocol")
    kind, is_numbered = found
    if not is_numbered:
        return Frame(kind, 0, view[1:])
    if len(view) < _BODY_AT:
        raise FrameError(f"a {kind.name} frame of {len(view)} bytes has no number")
    return Frame(kind, _NUMBER.unpack_from(view, 1)[0], view[_BODY_AT:])
