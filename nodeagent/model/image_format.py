"""The format of an image: a state as frames, each with its own checksum.

    image    header frame, frames of the sections in order, end frame
    frame    magic "NAIM" | name (16 bytes) | records (u32) | length (u64) | XXH3-128 | payload
    payload  a msgpack array of the records; a section whose payload would exceed `FRAME_BYTES` has several
             frames, so that a reader needs little memory and can say which records are damaged

The checksum of a frame covers its name, numbers and payload. The end frame has the digest of all sections:
images of one state have the same digest on every node, because what differs between nodes is in the header.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import msgspec
import xxhash

from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.disk import Buffer
from nodeagent.model.entries import Base
from nodeagent.model.errors import Damaged
from nodeagent.model.ids import GroupId, Owner

MAGIC = b"NAIM"
HEADER, END = "header", "end"
"""Names of the first and of the last frame; no section has these names."""

FRAME_BYTES = 16 * 1024
"""A frame ends with the record that makes its payload this long. A frame is decoded by one call, during which
no other thread runs. The digest of a state does not depend on it."""

_HEAD = struct.Struct("<4s16sIQ")
_DIGEST_BYTES = 16
FRAME_HEAD_BYTES = _HEAD.size + _DIGEST_BYTES

_encoder = msgspec.msgpack.Encoder()


class Header(msgspec.Struct, frozen=True):
    """Which state the image holds, and which node made it. `base` is where the log continues."""

    base: Base
    group: GroupId
    owner: Owner = Owner()
    sent: bool = False
    """As in a checkpoint (`host.saved.Saved`)."""


class End(msgspec.Struct, frozen=True):
    digest: str
    """XXH3-128 of the names and the records of all sections."""

    records: int


class Section(NamedTuple):
    """Records of one kind; a record is a struct, or `msgspec.Raw` if it is already encoded."""

    name: str
    records: Sequence[Any]


class Frame(NamedTuple):
    name: str
    offset: int
    """Of the frame in the image."""

    records: int
    payload: memoryview
    """A msgpack array."""


def encode_image(header: Header, sections: Iterable[Section]) -> Iterator[bytes]:
    """The bytes of an image, frame by frame.

    Each record is encoded by a call of its own: other threads run in between.
    """
    yield encode_header(header)
    digest, total = xxhash.xxh3_128(), 0
    for section in sections:
        digest.update(section.name.encode())
        for records, encoded in _split(section.records):
            digest.update(encoded)
            total += records
            yield _frame(section.name, records, encoded)
    yield _frame(END, 1, _encoder.encode(End(digest.hexdigest(), total)))


def encode_header(header: Header) -> bytes:
    """The header frame alone: a receiver puts its own before the sections that it was sent."""
    return _frame(HEADER, 1, _encoder.encode(header))


def _split(records: Sequence[Any]) -> Iterator[tuple[int, bytes]]:
    """(number of records, their bytes) of each frame; one frame without records for an empty section."""
    encoded: list[bytes] = []
    nbytes = 0
    for record in records:
        encoded.append(_encoder.encode(record))
        nbytes += len(encoded[-1])
        if nbytes >= FRAME_BYTES:
            yield len(encoded), b"".join(encoded)
            encoded, nbytes = [], 0
    if encoded or not records:
        yield len(encoded), b"".join(encoded)


def _frame(name: str, records: int, encoded: bytes) -> bytes:
    payload = b"\xdd" + records.to_bytes(4, "big") + encoded
    head = _HEAD.pack(MAGIC, name.encode(), records, len(payload))
    digest = xxhash.xxh3_128(head)
    digest.update(payload)
    return head + digest.digest() + payload


def is_image(content: Buffer) -> bool:
    """Whether the bytes begin as those of an image."""
    return bytes(memoryview(content)[: len(MAGIC)]) == MAGIC


def _frame_at(content: memoryview, offset: int, where: str) -> Frame:
    place = f"{where}: byte {offset} of {len(content)}"
    if len(content) - offset < FRAME_HEAD_BYTES:
        raise Damaged(f"{place}: the image ends within the head of a frame")
    magic, raw_name, records, length = _HEAD.unpack_from(content, offset)
    start = offset + FRAME_HEAD_BYTES
    if magic != MAGIC:
        raise Damaged(f"{place}: no frame begins here")
    name = raw_name.rstrip(b"\0").decode("ascii", "replace")
    if length > len(content) - start:
        raise Damaged(f"{place}: the image ends within section {name!r}")
    payload = content[start : start + length]
    digest = xxhash.xxh3_128(content[offset : offset + _HEAD.size])
    digest.update(payload)
    if digest.digest() != content[start - _DIGEST_BYTES : start]:
        raise Damaged(f"{place}: section {name!r} does not match its checksum")
    return Frame(name, offset, records, payload)


def _next_frame(content: memoryview, offset: int) -> int:
    """Where the next frame that verifies begins; the end if there is none."""
    whole = content.obj if isinstance(content.obj, bytes) else bytes(content)
    while (offset := whole.find(MAGIC, offset)) >= 0:
        try:
            _frame_at(content, offset, "image")
        except Damaged:
            offset += 1
        else:
            return offset
    return len(content)


def records_of(frame: Frame, kind: Any, where: str = "image") -> list[Any]:
    """The records of a verified frame as `kind`.

    Raises:
        Damaged: the bytes are whole, but are no such records: another release wrote them.
    """
    try:
        decoded: list[Any] = msgspec.msgpack.decode(frame.payload, type=list[kind])
    except UNDECODABLE as error:
        raise Damaged(f"{where}: byte {frame.offset}: section {frame.name!r}: {error}") from error
    return decoded


class Bad(NamedTuple):
    """Bytes of an image that cannot be verified."""

    offset: int
    length: int
    error: str


class ImageBytes:
    """An image in memory. Each method raises `Damaged`, with the place, for what it reads and cannot verify.

    Args:
        where: names the image in errors.
    """

    def __init__(self, content: Buffer, where: str = "image") -> None:
        self._content = memoryview(content)
        self._where = where
        first = next(self.frames(), None)
        if first is None or first.name != HEADER:
            raise Damaged(f"{where}: the image has no header")
        self.header: Header = records_of(first, Header, where)[0]
        self.sections_at = FRAME_HEAD_BYTES + len(first.payload)
        """Offset of the first section."""

    @classmethod
    def scan(cls, content: Buffer) -> Iterator[Frame | Bad]:
        """Every frame that verifies and the bytes between them, in order; raises nothing."""
        view, offset = memoryview(content), 0
        while offset < len(view):
            try:
                frame = _frame_at(view, offset, "image")
                yield frame
                offset += FRAME_HEAD_BYTES + len(frame.payload)
            except Damaged as error:
                end = _next_frame(view, offset + 1)
                yield Bad(offset, end - offset, error.what)
                offset = end

    @property
    def nbytes(self) -> int:
        return len(self._content)

    @property
    def content(self) -> bytes:
        return bytes(self._content)

    def frames(self, offset: int = 0) -> Iterator[Frame]:
        """The frames from `offset` on, each verified; the last may lack its end frame (`verified`)."""
        while offset < len(self._content):
            frame = _frame_at(self._content, offset, self._where)
            yield frame
            offset += FRAME_HEAD_BYTES + len(frame.payload)

    def verified(self) -> End:
        """Verify every byte; return the end frame."""
        digest, total, name = xxhash.xxh3_128(), 0, HEADER
        for frame in self.frames(self.sections_at):
            if name == END:
                raise Damaged(f"{self._where}: byte {frame.offset}: bytes follow the end frame")
            if frame.name == END:
                end: End = records_of(frame, End, self._where)[0]
                if (end.digest, end.records) != (digest.hexdigest(), total):
                    raise Damaged(f"{self._where}: byte {frame.offset}: sections are missing or were moved")
            elif frame.name != name:
                digest.update(frame.name.encode())
            if frame.name != END:
                digest.update(frame.payload[5:])
                total += frame.records
            name = frame.name
        if name != END:
            raise Damaged(f"{self._where}: the image ends after section {name!r}, without an end frame")
        return end

    def with_header(self, header: Header) -> bytes:
        """The same sections under another header."""
        return encode_header(header) + self._content[self.sections_at :]

    @classmethod
    def of(cls, header: Header, sections: Iterable[Section]) -> Self:
        return cls(b"".join(encode_image(header, sections)))
