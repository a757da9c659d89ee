"""Encodes messages to frames and decodes them. Decoding is typed: a message of the wrong type or out of range
(`model.bounds`) raises `FrameError`, never another exception.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from nodeagent.model import bounds
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.errors import FrameError, InvalidInput
from nodeagent.model.limits import FRAME_BYTES_MAX, NAME_BYTES_MAX
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import BeginChange, DeleteRows, ForceRecover, Hello, Reply, Request, Write
from nodeagent.wire.frames import HEAD, LENGTH, NUMBERED_HEAD, Frame, Kind

_T = TypeVar("_T")
_HEAD_BYTES = HEAD.size
_NUMBERED_HEAD_BYTES = NUMBERED_HEAD.size

_encoder = msgspec.msgpack.Encoder()
_hello_decoder = msgspec.msgpack.Decoder(Hello)
_raft_decoder = msgspec.msgpack.Decoder(list[Routed])
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode_hello(hello: Hello) -> bytearray:
    return _encode(Kind.HELLO, hello)


def encode_raft(messages: list[Routed]) -> list[bytearray]:
    """One frame, or several if one would be too long. A single message that is too long is dropped, which
    Raft allows: it contains an entry that an earlier release accepted (`ENTRY_BYTES_MAX`)."""
    if not messages:
        return []
    frame = _encode(Kind.RAFT, messages)
    if len(frame) - LENGTH.size <= FRAME_BYTES_MAX:
        return [frame]
    if len(messages) == 1:
        return []
    half = len(messages) // 2
    return encode_raft(messages[:half]) + encode_raft(messages[half:])


def encode_request(number: int, request: Request) -> bytearray:
    """Raises `InvalidInput` if the request cannot be encoded or does not fit into a frame."""
    return _encode_numbered(Kind.REQUEST, number, request)


def encode_reply(number: int, reply: Reply) -> bytearray:
    """Raises `InvalidInput` if the reply cannot be encoded or does not fit into a frame."""
    return _encode_numbered(Kind.REPLY, number, reply)


def decode_hello(frame: Frame) -> Hello:
    return _decode(_hello_decoder, frame)


def decode_raft(frame: Frame) -> list[Routed]:
    return _decode(_raft_decoder, frame)


def decode_request(frame: Frame) -> Request:
    request = _decode(_request_decoder, frame)
    check = _CHECKS.get(type(request))
    if check is not None:
        try:
            check(request)
        except InvalidInput as error:
            raise FrameError(f"a {type(request).__name__} has an invalid value: {error.what}") from error
    return request


def decode_reply(frame: Frame) -> Reply:
    return _decode(_reply_decoder, frame)


def _check_rows(request: Write | DeleteRows) -> None:
    key = request.partition
    if not 0 <= key.shard <= bounds.SHARD_MAX or key.time_partition > bounds.INT64_MAX:
        raise InvalidInput(f"shard {key.shard} or time partition {key.time_partition} is out of range")
    if len(key.storage_group) > NAME_BYTES_MAX:
        size = len(key.storage_group)
        raise InvalidInput(f"the storage group name has {size} characters; the limit is {NAME_BYTES_MAX}")


def _check_change(request: BeginChange) -> None:
    options = request.options
    bounds.check_range("hold_release_ms", options.hold_release_ms, 0, bounds.COUNT_MAX)
    bounds.check_range("rate_bytes_per_s", options.rate_bytes_per_s, 0, bounds.COUNT_MAX)
    if len(options.depth) > NAME_BYTES_MAX:
        raise InvalidInput(f"depth has {len(options.depth)} characters; the limit is {NAME_BYTES_MAX}")


def _check_leaders(request: ForceRecover) -> None:
    for leader in request.leaders:  # half of the range remains for later terms
        bounds.check_range("term", leader.term, 0, bounds.TERM_MAX // 2)


_CHECKS: dict[type, Callable[[Any], None]] = {
    Write: _check_rows,
    DeleteRows: _check_rows,
    BeginChange: _check_change,
    ForceRecover: _check_leaders,
}
"""Range checks of the requests whose values are stored unchanged."""


def _encode(kind: Kind, message: object) -> bytearray:
    buffer = bytearray(_HEAD_BYTES)
    _encoder.encode_into(message, buffer, _HEAD_BYTES)
    HEAD.pack_into(buffer, 0, len(buffer) - LENGTH.size, kind)
    return buffer


def _encode_numbered(kind: Kind, number: int, message: object) -> bytearray:
    buffer = bytearray(_NUMBERED_HEAD_BYTES)
    try:
        _encoder.encode_into(message, buffer, _NUMBERED_HEAD_BYTES)
    except (msgspec.EncodeError, OverflowError, TypeError, ValueError) as error:
        raise InvalidInput(f"{type(message).__name__} cannot be encoded: {error}") from error
    length = len(buffer) - LENGTH.size
    if length > FRAME_BYTES_MAX:
        raise InvalidInput(
            f"{type(message).__name__} of {length} bytes exceeds the frame limit of {FRAME_BYTES_MAX} bytes",
            next_step="send fewer rows at a time",
        )
    NUMBERED_HEAD.pack_into(buffer, 0, length, kind, number)
    return buffer


def _decode(decoder: msgspec.msgpack.Decoder[_T], frame: Frame) -> _T:
    try:
        return decoder.decode(frame.body)
    except UNDECODABLE as error:
        raise FrameError(f"a {frame.kind.name} frame cannot be decoded: {error}") from error
